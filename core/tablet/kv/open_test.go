package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/sdk/mink"
)

// withCheckpoint is a bed of four rows, with a checkpoint of the first three, without a
// directory.
func withCheckpoint(t *testing.T) (b *bed, checkpoint string) {
	b = simple(t, nil)
	for i := range 3 {
		b.put(false, nil, Row{int32(i), "a", nil})
	}
	b.s.land(-1)
	last := b.put(false, nil, Row{int32(3), "a", nil})
	checkpoint = filepath.Join(b.dir, "checkpoint")
	wait3(t, b)
	cp, err := b.kv.Checkpoint(context.Background(), checkpoint)
	if err != nil || cp.Offset != 3 {
		t.Fatal(cp, err)
	}
	b.s.land(-1)
	wait(t, last)
	next := b.s.crash(0)
	b.close()
	b.s = next
	b.openLog()
	return b, checkpoint
}

// wait3 waits until three rows are flushed.
func wait3(t *testing.T, b *bed) {
	t.Helper()
	for b.kv.VisibleHighWatermark() < 3 {
		changed := b.kv.Changed()
		if b.kv.VisibleHighWatermark() >= 3 {
			break
		}
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Fatal("not flushed")
		}
	}
}

// A snapshot whose files are whole and whose store does not open is no reason to give
// the bucket up: the one before is asked for, and the log says why.
func TestSnapshotThatDoesNotOpen(t *testing.T) {
	file := func(dir, like string) string {
		found, err := filepath.Glob(filepath.Join(dir, like))
		if err != nil || len(found) == 0 {
			t.Fatal(found, err)
		}
		return found[0]
	}
	overwrite := func(path string, change func(b []byte)) {
		data, err := os.ReadFile(path)
		if err == nil {
			change(data)
			err = os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, spoil := range map[string]func(dir string){
		"another offset":        nil,
		"no table file":         func(dir string) { _ = os.Remove(file(dir, "*.sst")) },
		"table of other bytes":  func(dir string) { overwrite(file(dir, "*.sst"), func(b []byte) { clear(b) }) },
		"table, one block":      func(dir string) { overwrite(file(dir, "*.sst"), func(b []byte) { b[10] ^= 1 }) },
		"manifest of zeros":     func(dir string) { overwrite(file(dir, "MANIFEST-*"), func(b []byte) { clear(b) }) },
		"no manifest":           func(dir string) { _ = os.Remove(file(dir, "MANIFEST-*")) },
		"no marker of manifest": func(dir string) { _ = os.Remove(file(dir, "marker.manifest*")) },
	} {
		t.Run(name, func(t *testing.T) {
			b, whole := withCheckpoint(t)
			var lines bytes.Buffer
			b.cfg.Logger = slog.New(slog.NewTextHandler(&lines, nil))
			var asked []error
			b.cfg.Restore = func(_ context.Context, to string, refused error) (mink.Offset, bool, error) {
				asked = append(asked, refused)
				err := copyDir(whole, to)
				switch {
				case len(asked) > 1 || err != nil:
					return 3, true, err
				case spoil == nil:
					return 2, true, nil
				}
				spoil(to)
				return 3, true, nil
			}
			if err := b.tryOpen(); err != nil {
				t.Fatal(err)
			}
			if len(asked) != 2 || asked[0] != nil || !errors.Is(asked[1], mink.ErrCorrupt) {
				t.Fatalf("asked with %q", asked)
			}
			if line := lines.String(); !strings.Contains(line, "trying the one before") || !strings.Contains(line, bucket7.String()) {
				t.Fatalf("logged: %s", line)
			}
			if n, err := b.kv.Count(context.Background()); n != 4 || err != nil || len(b.all()) != 4 {
				t.Fatal(n, err, b.all())
			}
		})
	}
}

// Without another snapshot the log does, or the error says why there is none.
func TestNoSnapshotOpens(t *testing.T) {
	b, whole := withCheckpoint(t)
	none := errors.New("none is left")
	b.cfg.Restore = func(_ context.Context, to string, refused error) (mink.Offset, bool, error) {
		if refused != nil {
			return 0, false, fmt.Errorf("%w: %w", none, refused)
		}
		return 2, true, copyDir(whole, to)
	}
	if err := b.tryOpen(); !errors.Is(err, none) || !errors.Is(err, mink.ErrCorrupt) {
		t.Fatal(err)
	}
	b.cfg.Restore = func(_ context.Context, to string, refused error) (mink.Offset, bool, error) {
		if refused != nil {
			return 0, false, nil
		}
		return 2, true, copyDir(whole, to)
	}
	if err := b.tryOpen(); err != nil {
		t.Fatal(err)
	}
	if n, err := b.kv.Count(context.Background()); n != 4 || err != nil {
		t.Fatal(n, err)
	}
}

// What the disk refuses is no snapshot's fault: no older one is asked for.
func TestDiskTroubleIsNoDamage(t *testing.T) {
	b, whole := withCheckpoint(t)
	asked := 0
	b.cfg.Restore = func(_ context.Context, to string, _ error) (mink.Offset, bool, error) {
		asked++
		if err := copyDir(whole, to); err != nil {
			return 0, false, err
		}
		return 3, true, os.Mkdir(filepath.Join(to, "LOCK"), 0o700) // EISDIR
	}
	if err := b.tryOpen(); err == nil || errors.Is(err, mink.ErrCorrupt) || asked != 1 {
		t.Fatal(asked, err)
	}
}

// A store that waits for its log does not keep others from opening.
func TestOpenThatWaitsForItsLog(t *testing.T) {
	sh := newShared(t, func(c *SharedConfig) { c.OpensMax = 1 })
	one := makeBed(t, sh, t.TempDir(), table(t, 1, nil, column("k", "INT")), false)
	defer one.close()
	one.put(false, nil, Row{int32(1)})
	if err := one.kv.Close(); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	cfg := one.cfg
	cfg.Table, cfg.Dir = one.table, filepath.Join(one.dir, "0")
	log := one.log
	waits := log.Changed()
	go func() {
		var err error
		one.kv, err = Open(context.Background(), log, cfg)
		opened <- err
	}()
	two := makeBed(t, sh, t.TempDir(), table(t, 1, nil, column("k", "INT")), true) // at once, or never
	two.close()
	select {
	case err := <-opened:
		t.Fatal("it opened before its log was durable:", err)
	case <-waits:
		t.Fatal("the log moved")
	default:
	}
	one.s.land(-1)
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	if n, err := one.kv.Count(context.Background()); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n := len(sh.opens); n != 0 {
		t.Fatal(n, "still open")
	}
	// Its wait ends with its caller, who has no part of the bound then.
	one.put(false, nil, Row{int32(2)})
	if err := one.kv.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	ended := errors.New("the caller is gone")
	go func() {
		_, err := Open(ctx, log, cfg)
		opened <- err
	}()
	three := makeBed(t, sh, t.TempDir(), table(t, 1, nil, column("k", "INT")), true)
	three.close()
	stop(ended)
	if err := <-opened; !errors.Is(err, ended) || len(sh.opens) != 0 {
		t.Fatal(err, len(sh.opens))
	}
	one.kv = nil
	one.s.land(-1)
	log.Close()
}
