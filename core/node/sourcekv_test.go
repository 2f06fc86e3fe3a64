package node_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// twoNodes is a world with a snapshot of a bucket with rows 1: a, 3: c that node 1 leads,
// and node 2 with its directory.
func twoNodes(t *testing.T, dir string, f func(t *testing.T, w *sim.World, leader, reader *sim.Process, ref mink.BucketRef, s kvplan.Snapshot, target *schema.Schema)) {
	t.Helper()
	cfg := snapshotWorld()
	quiet := cfg.Node
	cfg.Node = func(c *node.Config) {
		quiet(c)
		if c.NodeID == 2 {
			c.KVDir = dir
		}
	}
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		leader := w.StartReady(1)
		id, ref := pkTable(t, leader)
		s := mustKV(t, leader, ref)
		putRow(t, s, 1, "a")
		putRow(t, s, 3, "b")
		putRow(t, s, 2, "x")
		putRow(t, s, 3, "c")
		deleteRow(t, s, 2)
		snap := snapshotted(t, w, leader, ref)
		reader := w.StartReady(2)
		table, _ := leader.Node().View().Table(id)
		f(t, w, leader, reader, ref, snap, table.Schemas[0])
	})
}

// snapshotText is what a node reads of a bucket's KV snapshot: key and value of each row.
func snapshotText(ctx context.Context, p *sim.Process, ref mink.BucketRef, target *schema.Schema) (at mink.Offset, text string, err error) {
	at, rows, err := p.Node().Source().ReadKVSnapshot(ctx, p.Node().View(), ref, target)
	if err != nil {
		return 0, "", err
	}
	for rows, err := range rows {
		if err != nil {
			return 0, "", err
		}
		if rows.Start != at || rows.End != at || rows.Changes != nil {
			return 0, "", errors.New("rows of a snapshot with offsets")
		}
		for i := range int(rows.Batch.NumRows()) {
			text += string('0'+rows.Batch.Column(0).(*array.Int32).Value(i)) + rows.Batch.Column(1).(*array.String).Value(i)
		}
	}
	return at, text, nil
}

func leftIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A node that leads nothing reads the newest snapshot, whole or in part, and leaves nothing
// on its disk; what a crash left is removed at the next start.
func TestSourceReadsKVSnapshots(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kv")
	if err := os.MkdirAll(filepath.Join(dir, "snapshot-of-a-crash"), 0o755); err != nil {
		t.Fatal(err)
	}
	twoNodes(t, dir, func(t *testing.T, w *sim.World, leader, reader *sim.Process, ref mink.BucketRef, s kvplan.Snapshot, target *schema.Schema) {
		if left := leftIn(t, dir); len(left) != 0 {
			t.Errorf("of the process before: %v", left)
		}
		ctx := t.Context()
		for _, p := range []*sim.Process{leader, reader} {
			if at, text, err := snapshotText(ctx, p, ref, target); err != nil || at != s.Offset || text != "1a3c" {
				t.Fatal(at, text, err)
			}
		}
		// Cut off in the middle, or never begun: both make room for the next.
		_, rows, err := reader.Node().Source().ReadKVSnapshot(ctx, reader.Node().View(), ref, target)
		if err != nil {
			t.Fatal(err)
		}
		waits, cancel := context.WithTimeout(ctx, time.Minute)
		if _, _, err := snapshotText(waits, reader, ref, target); !errors.Is(err, context.DeadlineExceeded) {
			t.Error("two restores at a time:", err)
		}
		cancel()
		for range rows {
			break
		}
		gone, cancel := context.WithCancel(ctx)
		_, rows, err = reader.Node().Source().ReadKVSnapshot(gone, reader.Node().View(), ref, target)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, text, err := snapshotText(ctx, reader, ref, target); err != nil || text != "1a3c" { // waits for it
			t.Fatal(text, err)
		}
		for _, err := range rows {
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		if left := leftIn(t, dir); len(left) != 0 {
			t.Errorf("left on the disk: %v", left)
		}
		_, refs := leader.Topic("t", 1, nil)
		if _, _, err := snapshotText(ctx, leader, refs[0], target); !errors.Is(err, mink.ErrNotExist) {
			t.Error("no snapshot:", err)
		}
		if _, _, err := snapshotText(ctx, leader, mink.BucketRef{Table: 99}, target); !errors.Is(err, mink.ErrNotExist) {
			t.Error("no bucket:", err)
		}
		// The node stops while a snapshot is read.
		_, rows, err = reader.Node().Source().ReadKVSnapshot(ctx, reader.Node().View(), ref, target)
		if err != nil {
			t.Fatal(err)
		}
		stopped := make(chan error)
		go func() { stopped <- reader.Stop() }()
		time.Sleep(time.Minute)
		for _, err := range rows {
			if !errors.Is(err, mink.ErrClosed) {
				t.Error("a reader outlives its node:", err)
			}
		}
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		if left := leftIn(t, dir); len(left) != 0 {
			t.Errorf("left on the disk: %v", left)
		}
	})
}

// A damaged snapshot gives way to the one before, and is an error when it was the only one;
// a store that does not answer is no damage.
func TestSourceOverDamagedKVSnapshots(t *testing.T) {
	dir := t.TempDir()
	twoNodes(t, dir, func(t *testing.T, w *sim.World, leader, reader *sim.Process, ref mink.BucketRef, s kvplan.Snapshot, target *schema.Schema) {
		ctx := t.Context()
		reader.Faults.Inject(fault.Rule{Ops: fault.Get, Prefix: kvplan.Prefix, Do: fault.FailBefore(objstore.ErrUnavailable)})
		short, cancel := context.WithTimeout(ctx, 10*time.Minute)
		if _, _, err := snapshotText(short, reader, ref, target); err == nil || errors.Is(err, mink.ErrCorrupt) {
			t.Error(err)
		}
		cancel()
		reader.Faults.ClearRules()
		old := reader.Node().View()
		kvs := mustKV(t, leader, ref)
		putRow(t, kvs, 4, "d")
		newer := snapshotted(t, w, leader, ref)
		if newer.ID == s.ID {
			t.Fatal("no newer snapshot")
		}
		// A reader that planned on an older view gets what that view's log reaches.
		at, rows, err := reader.Node().Source().ReadKVSnapshot(ctx, old, ref, target)
		if err != nil || at != s.Offset {
			t.Fatal(at, err)
		}
		for range rows {
			break
		}
		destroy := func(s kvplan.Snapshot) {
			key := kvplan.BucketFile{Bucket: ref, File: s.Head()}.Key()
			if _, err := w.Objects().DeleteBatch(ctx, []string{key}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Objects().Put(ctx, objstore.PutRequest{Key: key, Chunks: [][]byte{make([]byte, s.Head().Size)}}); err != nil {
				t.Fatal(err)
			}
		}
		w.Eventually(time.Minute, "the reader hears of it", func() bool {
			id, _ := reader.Node().View().StreamOf(ref)
			n, _ := reader.Node().View().KVBucket(id).Newest()
			return n.ID == newer.ID
		})
		destroy(newer)
		if at, text, err := snapshotText(ctx, reader, ref, target); err != nil || at != s.Offset || text != "1a3c" {
			t.Errorf("%d %q %v, want the snapshot before", at, text, err)
		}
		destroy(s)
		if _, _, err := snapshotText(ctx, reader, ref, target); !errors.Is(err, mink.ErrCorrupt) {
			t.Error(err)
		}
		if left := leftIn(t, dir); len(left) != 0 {
			t.Errorf("left on the disk: %v", left)
		}
	})
}
