package stream_test

import (
	"context"
	"log/slog"
	mathrand "math/rand/v2"
	"testing"
	"time"

	"github.com/mink-project/mink/core/builtin/dirstore"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/wal"
	"github.com/mink-project/mink/sdk/mink"
)

// diskNode is an engine on a directory of its own; metadata survives it.
type diskNode struct {
	*stream.Engine
	id    plan.WALID
	store *dirstore.Store
	stop  func() error
}

func startOnDisk(t *testing.T, w *world, dir string) *diskNode {
	t.Helper()
	store, err := dirstore.Open(t.Context(), dirstore.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.Default(store.Capabilities(), 1<<30)
	cfg.WALUploadInterval, cfg.CompactInterval = time.Hour, time.Hour
	cfg.CompactPartBytes = 1 << 20
	n := &diskNode{id: w.meta.Register(1), store: store}
	n.Engine, err = stream.New(cfg, stream.Deps{Objects: store, WALStore: store, WAL: n.id, Meta: w.meta, Folder: chain{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	n.stop = func() error {
		cancel()
		err := <-done
		if cerr := store.Close(); err == nil {
			err = cerr
		}
		return err
	}
	return n
}

// recoverOnDisk takes over what the epoch left.
func recoverOnDisk(t *testing.T, w *world, n *diskNode, id plan.WALID) {
	t.Helper()
	w.meta.Seal(id.Epoch)
	state, _ := w.meta.View().WAL(id.Epoch)
	res, err := wal.Recover(t.Context(), wal.RecoverConfig{
		Store: n.store, WAL: id, From: state.Trim, Window: 8, Nonce: mathrand.Uint64(), StillNeeded: func() bool { return true },
	})
	if err != nil {
		t.Fatal(err)
	}
	c := plan.RecoverWAL{WAL: id, From: state.Trim, End: res.End, Objects: res.Objects, Items: res.Items}
	for _, part := range plan.RecoverParts(c, 3) {
		if err := w.meta.Recover(part); err != nil {
			t.Fatal(err)
		}
	}
	w.valid()
}

// On a real directory: records of 1 B to 10 MiB come back byte for byte, from
// the cache, from uploaded objects, from slots of a recovered log, and merged;
// over restarts with nothing, something and everything uploaded.
func TestRestartsOnADirectory(t *testing.T) {
	w, dir := newWorld(t), t.TempDir()
	sizes := []int{1, 100, 10 << 20, 50, 3 << 20, 1000, 10 << 20, 1}
	var last plan.WALID
	for life := range 4 {
		n := startOnDisk(t, w, dir)
		if life > 0 {
			recoverOnDisk(t, w, n, last)
		}
		last = n.id
		var open []*stream.Stream
		for id := mink.StreamID(1); id <= 3; id++ {
			s, err := n.Open(t.Context(), id, w.meta.Lead(id, n.id))
			if err != nil {
				t.Fatal(err)
			}
			w.check(s)
			open = append(open, s)
		}
		for i, size := range sizes {
			w.put(open[i%3], 1, size)
			if life == 1 && i == len(sizes)/2 || life == 2 {
				if err := n.UploadNow(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if life == 2 {
			if err := n.CompactNow(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range open {
			w.check(s)
			if err := w.compare(s, 1); err != nil { // a frame at a time
				t.Fatal(err)
			}
		}
		if life == 3 {
			if err := n.stop(); err != nil {
				t.Fatal(err)
			}
			break
		}
		// As a kill would: what is not uploaded stays in the log.
		w.meta.Seal(n.id.Epoch)
		if err := n.stop(); err == nil && life < 2 {
			t.Error("a sealed epoch stopped in good order")
		}
	}
}
