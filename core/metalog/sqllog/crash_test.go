//go:build unix

package sqllog

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/mink-project/mink/core/metalog"
)

const crashAppends = 16

// crashRun appends over the crash model and answers every image it took, with
// what was appended.
func crashRun(t *testing.T, o sqliteOptions, forgets func(string) bool) (images []crashImage, want [][]byte) {
	t.Helper()
	acked := 0
	fs, vfs := newCrashFS(t, func() int { return acked }, forgets)
	o.vfs, o.checkpoint = vfs, 12 // pages: several checkpoints in a run
	open := func() *Log {
		l, err := openLog(t.Context(), Default(), func(*Log) (backend, error) {
			return openSQLite(t.Context(), filepath.Join(fs.dir, "meta.db"), Default(), o)
		})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := open()
	for i := range crashAppends {
		p := bytes.Repeat(fmt.Appendf(nil, "entry %d;", i), 1+i*40)
		if _, err := l.Append(t.Context(), metalog.Append{Payloads: [][]byte{p}}); err != nil {
			t.Fatal(err)
		}
		want = append(want, p)
		acked++
		fs.ack()
		if i == crashAppends/2 { // a clean restart in between folds and deletes the WAL
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			l = open()
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.mu.images, want
}

// survives opens the image like a process after the crash.
func survives(t *testing.T, image crashImage, want [][]byte) error {
	t.Helper()
	dir := t.TempDir()
	if err := image.write(dir); err != nil {
		t.Fatal(err)
	}
	l, err := openLog(context.Background(), Default(), func(*Log) (backend, error) {
		return openSQLite(t.Context(), filepath.Join(dir, "meta.db"), Default(), sqliteOptions{})
	})
	if err != nil {
		return fmt.Errorf("cannot be opened: %w", err)
	}
	defer l.Close()
	got, err := l.Read(t.Context(), 0, 1000, 1<<30)
	if err != nil {
		return err
	}
	if len(got) < image.acked {
		return fmt.Errorf("%d appends were acknowledged, %d are left", image.acked, len(got))
	}
	var at metalog.Position
	for i, e := range got {
		if e.Hash != metalog.Chain(at.Hash, e.Index, e.TimeMs, e.Payload) || !bytes.Equal(e.Payload, want[i]) {
			return fmt.Errorf("entry %d is not what was appended", e.Index)
		}
		at = e.Position()
	}
	if _, err := l.Append(t.Context(), metalog.Append{Payloads: [][]byte{{1}}}); err != nil {
		return fmt.Errorf("the log does not go on: %w", err)
	}
	return nil
}

// A power cut at any sync point or acknowledgement loses no acknowledged append.
func TestSQLiteSurvivesPowerCuts(t *testing.T) {
	images, want := crashRun(t, sqliteOptions{}, func(string) bool { return false })
	if len(images) < 4*crashAppends {
		t.Fatalf("only %d crash images of %d appends", len(images), crashAppends)
	}
	seen := map[[sha256.Size]byte]bool{} // many moments leave the same bytes
	for i, image := range images {
		sum := image.sum()
		if seen[sum] || testing.Short() && i%7 != 0 {
			continue
		}
		seen[sum] = true
		if err := survives(t, image, want); err != nil {
			t.Errorf("crash %d, %s, after %d acknowledgements: %v", i, image.at, image.acked, err)
		}
	}
	t.Logf("%d crash images, %d different", len(images), len(seen))
}

// The test of the test: with any one kind of sync taken out, an acknowledged
// append is lost somewhere.
func TestPowerCutsSeeMissingSyncs(t *testing.T) {
	all := func(string) bool { return false }
	only := func(file string) func(string) bool { return func(name string) bool { return name == file } }
	for _, c := range []struct {
		name    string
		options sqliteOptions
		forgets func(string) bool
	}{
		{"synchronous=NORMAL", sqliteOptions{synchronous: "NORMAL"}, all},
		{"synchronous=OFF", sqliteOptions{synchronous: "OFF"}, all},
		{"no sync of the WAL", sqliteOptions{}, only("meta.db-wal")},
		{"no sync of the database file", sqliteOptions{}, only("meta.db")},
		{"no sync of the directory", sqliteOptions{}, only(".")},
	} {
		t.Run(c.name, func(t *testing.T) {
			images, want := crashRun(t, c.options, c.forgets)
			for i := len(images) - 1; i >= 0; i-- {
				if err := survives(t, images[i], want); err != nil {
					t.Logf("seen at crash %d, %s: %v", i, images[i].at, err)
					return
				}
			}
			t.Fatalf("none of %d crashes lost anything", len(images))
		})
	}
}
