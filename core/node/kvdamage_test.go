package node_test

import (
	"context"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/core/tablet/kv/kvsnap"
	"github.com/mink-project/mink/sdk/mink"
)

// nodeMeta commits snapshots through a node.
type nodeMeta struct{ *node.Node }

func (nodeMeta) Changed(uint64) <-chan struct{} {
	moved := make(chan struct{})
	time.AfterFunc(100*time.Millisecond, func() { close(moved) })
	return moved
}

// hostileSnapshot commits a snapshot as of now whose files are exactly what the metadata
// say, with damage within: of the table files' first block, where the store's meta is, or
// of rows only.
func hostileSnapshot(t *testing.T, w *sim.World, p *sim.Process, ref mink.BucketRef, rows bool) kvplan.Snapshot {
	t.Helper()
	ctx := context.Background()
	id, _ := p.Node().View().StreamOf(ref)
	st, _ := p.Node().View().Stream(id)
	links, dir := filepath.Join(t.TempDir(), "links"), t.TempDir()
	cp, err := mustKV(t, p, ref).Checkpoint(ctx, links)
	if err != nil {
		t.Fatal(err)
	}
	spoiled := 0
	for _, f := range cp.Files {
		data, err := os.ReadFile(filepath.Join(links, f.Name))
		if err != nil {
			t.Fatal(err)
		}
		at := 10
		if rows {
			at = 20 << 10
		}
		if strings.HasSuffix(f.Name, ".sst") && len(data) > 2*at {
			data[at] ^= 1
			spoiled++
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if spoiled == 0 {
		t.Fatalf("nothing to spoil: %+v", cp)
	}
	u, err := kvsnap.NewUploader(kvsnap.Default(), w.Objects(), ref, st.Owner.LeaderEpoch, 77)
	if err != nil {
		t.Fatal(err)
	}
	known := p.Node().View().KVBucket(id)
	r, err := u.Upload(ctx, dir, cp.Offset, cp.Rows, known)
	if err == nil {
		_, err = kvsnap.Commit(ctx, nodeMeta{p.Node()}, id, r.Snapshot, 2)
	}
	if err != nil {
		t.Fatal(err)
	}
	n, _ := p.Node().View().KVBucket(id).Newest()
	if n.Head() != r.Snapshot.Head() {
		t.Fatalf("%+v is not the newest", n)
	}
	return n
}

// noise is a text of 1,000 bytes that compresses to half of it.
func noise(seed int) string {
	b := make([]byte, 500)
	c := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = c.Read(b) // never fails
	return hex.EncodeToString(b)
}

// hostileWorld is a bucket of so many rows with a snapshot or none before the hostile one,
// after a crash.
func hostileWorld(t *testing.T, w *sim.World, older, rows bool) (p *sim.Process, ref mink.BucketRef, values []string) {
	t.Helper()
	p = w.StartReady(1)
	_, ref = pkTable(t, p)
	s := mustKV(t, p, ref)
	put := func(n int) {
		for range n {
			values = append(values, noise(len(values)))
			putRow(t, s, int32(len(values)-1), values[len(values)-1])
		}
	}
	put(10)
	if older {
		snapshotted(t, w, p, ref)
	}
	put(190)
	hostileSnapshot(t, w, p, ref, rows)
	if older {
		if to := trimAll(t, p, ref); to != 10 {
			t.Fatal("trimmed to", to)
		}
	}
	p.Crash()
	return w.StartReady(1), ref, values
}

// wholeAgain reads all rows until they are right; what is answered meanwhile is right, or
// an error.
func wholeAgain(t *testing.T, w *sim.World, p *sim.Process, ref mink.BucketRef, values []string) {
	t.Helper()
	ctx := context.Background()
	var last error
	w.Eventually(5*time.Minute, "all rows", func() bool {
		s, err := p.Node().KV(ctx, ref)
		if err != nil {
			last = err
			return false
		}
		for k, want := range values {
			v, _, err := lookKey(ctx, s, int32(k))
			if err != nil {
				last = err
				return false
			}
			if v != want {
				t.Fatalf("key %d is %.20q", k, v)
			}
		}
		n, err := s.Count(ctx)
		return err == nil && n == int64(len(values))
	})
	if t.Failed() {
		t.Fatal(last)
	}
}

// The newest snapshot has whole files and damage within that was there before they were
// hashed: at its opening, or when a row is looked up, the node finds out and goes on from
// the snapshot before, or from the log while that is whole.
func TestHostileSnapshotIsPassedOver(t *testing.T) {
	for name, c := range map[string]struct{ older, rows bool }{
		"at the opening, an older one": {true, false}, "at the opening, the log": {false, false},
		"at a lookup, an older one": {true, true}, "at a lookup, the log": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			sim.InBubble(t, snapshotWorld(), func(t *testing.T, w *sim.World) {
				p, ref, values := hostileWorld(t, w, c.older, c.rows)
				wholeAgain(t, w, p, ref, values)
				// Later snapshots are of the whole store, and do not name the damaged files.
				putRow(t, mustKV(t, p, ref), 200, "more")
				values = append(values, "more")
				snapshotted(t, w, p, ref)
				putRow(t, mustKV(t, p, ref), 201, "and more")
				values = append(values, "and more")
				snapshotted(t, w, p, ref)
				trimAll(t, p, ref)
				p.Crash()
				p = w.StartReady(1)
				wholeAgain(t, w, p, ref, values)
			})
		})
	}
}

// A store that opens and fails at the first request is not opened again for each one: with
// pauses that grow. One that has served for a while is opened at once.
func TestStoreThatFailsAtOnceIsOpenedWithPauses(t *testing.T) {
	cfg := snapshotWorld()
	change := cfg.Node
	cfg.Node = func(c *node.Config) {
		change(c)
		c.KVSnapshots.Interval = 24 * time.Hour
	}
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		_, ref := pkTable(t, p)
		s := mustKV(t, p, ref)
		for k := range int32(200) {
			putRow(t, s, k, noise(int(k)))
		}
		hostileSnapshot(t, w, p, ref, true)
		if to := trimAll(t, p, ref); to != 200 {
			t.Fatal("trimmed to", to)
		}
		p.Crash()
		p = w.StartReady(1)
		request := func() (*kv.Tablet, error) {
			s, err := p.Node().KV(ctx, ref)
			for k := int32(0); k < 200 && err == nil; k++ {
				_, _, err = lookKey(ctx, s, k)
			}
			return s, err
		}
		stores := map[*kv.Tablet]bool{}
		for range 6000 {
			s, err := request()
			if err == nil {
				t.Fatal("the damage is not found")
			}
			if s != nil {
				if stores[s] = true; len(stores) > 15 {
					t.Fatal("opened again and again")
				}
			} else if !errors.Is(err, mink.ErrUnavailable) || errors.Is(err, mink.ErrCorrupt) {
				t.Fatal(err) // whoever asks comes again
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(stores); n < 3 {
			t.Fatalf("opened %d times in a minute", n)
		}
		// It serves what it can, for a while.
		s = mustKV(t, p, ref)
		time.Sleep(2 * time.Minute)
		if _, err := request(); err == nil || s.Err() == nil {
			t.Fatal(err, s.Err())
		}
		again, err := p.Node().KV(ctx, ref)
		if err != nil || again == s {
			t.Fatal("not at once:", err)
		}
	})
}
