package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

func snapshotWorld() sim.Config {
	cfg := sim.Quiet(1)
	cfg.Node = func(c *node.Config) {
		c.KVSnapshots.Interval, c.KVSnapshots.RetryMin = time.Minute, time.Second
		c.Stream.WALUploadInterval = 2 * time.Second
	}
	return cfg
}

func deleteRow(t *testing.T, s *kv.Tablet, k int32) {
	t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, s.Schema().Arrow())
	defer b.Release()
	b.Field(0).(*array.Int32Builder).Append(k)
	b.Field(1).AppendNull()
	b.Field(2).AppendNull()
	rec := b.NewRecordBatch()
	defer rec.Release()
	meta, body, err := arrowipc.Encode(rec)
	if err != nil {
		t.Fatal(err)
	}
	pending, err := s.Put(context.Background(), kv.Put{SchemaID: 1, Metadata: meta, Body: body, Count: 1, Changes: []byte{byte(record.ChangeDelete)}, WriterID: mink.NoWriter})
	if err != nil {
		t.Fatal(err)
	}
	<-pending.Done()
	if _, err := pending.Result(); err != nil {
		t.Fatal(err)
	}
}

// snapshotted waits until everything that was put is in a snapshot.
func snapshotted(t *testing.T, w *sim.World, p *sim.Process, ref mink.BucketRef) kvplan.Snapshot {
	t.Helper()
	id, _ := p.Node().View().StreamOf(ref)
	s := mustKV(t, p, ref)
	w.Eventually(3*time.Minute, "a snapshot", func() bool {
		n, ok := p.Node().View().KVBucket(id).Newest()
		return ok && n.Offset == s.VisibleHighWatermark()
	})
	n, _ := p.Node().View().KVBucket(id).Newest()
	return n
}

// trimAll trims the log as far as the metadata let it.
func trimAll(t *testing.T, p *sim.Process, ref mink.BucketRef) mink.Offset {
	t.Helper()
	id, _ := p.Node().View().StreamOf(ref)
	r, err := p.Node().Propose(context.Background(), cluster.TrimStreamsCommand([]plan.Trim{{Stream: id, Start: 1 << 40}}))
	if err != nil || cluster.ResultError(r[0]) != nil {
		t.Fatal(r, err)
	}
	return mink.Offset(r[0].Ids[0])
}

func hurt(t *testing.T, w *sim.World, ref mink.BucketRef, f kvplan.File, remove bool) string {
	t.Helper()
	ctx := context.Background()
	key := kvplan.BucketFile{Bucket: ref, File: f}.Key()
	if remove {
		if _, err := w.Objects().DeleteBatch(ctx, []string{key}); err != nil {
			t.Fatal(err)
		}
		return key
	}
	r, err := w.Objects().GetRange(ctx, objstore.GetRangeRequest{Key: key, Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	data := bytes.Clone(r.Data)
	data[len(data)/2] ^= 1
	if _, err := w.Objects().Put(ctx, objstore.PutRequest{Key: key, Chunks: [][]byte{data}}); err != nil {
		t.Fatal(err)
	}
	return key
}

// A bucket comes back from its newest snapshot and the log behind it; the log before
// the oldest retained one is trimmed, and no further. When the newest is damaged or
// gone, the one before does; fsck names the object. Counts are right at once, with
// deletes that no snapshot had.
func TestKVSnapshotsRecover(t *testing.T) {
	for _, remove := range []bool{false, true} {
		t.Run(fmt.Sprintf("remove=%v", remove), func(t *testing.T) {
			sim.InBubble(t, snapshotWorld(), func(t *testing.T, w *sim.World) {
				ctx := context.Background()
				p := w.StartReady(1)
				_, ref := pkTable(t, p)
				s := mustKV(t, p, ref)
				rows := map[int32]string{}
				put := func(from, to int32, v string) {
					for k := from; k < to; k++ {
						putRow(t, s, k, v)
						rows[k] = v
					}
				}
				check := func(what string) {
					t.Helper()
					s = mustKV(t, p, ref)
					if n, err := s.Count(ctx); err != nil || n != int64(len(rows)) {
						t.Fatalf("%s: %d rows, there should be %d: %v", what, n, len(rows), err)
					}
					for k := range int32(40) {
						if got, _ := look(t, s, k); got != rows[k] {
							t.Fatalf("%s: key %d is %q, not %q", what, k, got, rows[k])
						}
					}
				}
				restart := func() {
					p.Crash()
					p = w.StartReady(1)
				}
				put(0, 20, "first")
				if to := trimAll(t, p, ref); to != 0 {
					t.Fatalf("trimmed to %d without a snapshot", to)
				}
				one := snapshotted(t, w, p, ref)
				put(15, 30, "second")
				two := snapshotted(t, w, p, ref)
				if one.ID != 1 || two.ID != 2 || two.Rows != 30 {
					t.Fatalf("%+v %+v", one, two)
				}
				if to := trimAll(t, p, ref); to != one.Offset {
					t.Fatalf("trimmed to %d, the older snapshot is at %d", to, one.Offset)
				}
				put(25, 35, "tail")
				deleteRow(t, s, 0)
				delete(rows, 0)
				deleteRow(t, s, 33)
				delete(rows, 33)
				restart()
				check("from the newest")
				if r, err := p.Node().Check(ctx, true); err != nil || !r.Clean {
					t.Fatal(r, err)
				}

				three := snapshotted(t, w, p, ref) // by another leader, of files that the one before uploaded
				if three.ID != 3 || three.Epoch == two.Epoch {
					t.Fatalf("%+v", three)
				}
				deleteRow(t, s, 1)
				delete(rows, 1)
				p.Crash()
				key := hurt(t, w, ref, three.Head(), remove)
				p = w.StartReady(1)
				check("from the one before")
				r, err := p.Node().Check(ctx, true)
				if err != nil || len(r.Problems) != 1 || r.Problems[0].Object != key {
					t.Fatalf("%+v %v", r, err)
				}
				// The next two snapshots push the damaged one out.
				put(35, 36, "x")
				snapshotted(t, w, p, ref)
				put(36, 37, "y")
				snapshotted(t, w, p, ref)
				if r, err := p.Node().Check(ctx, true); err != nil || !r.Clean {
					t.Fatal(r, err)
				}
				trimAll(t, p, ref)
				p.Crash()
				id, _ := p.Node().View().StreamOf(ref)
				for _, k := range p.Node().View().KVSnapshots(id) {
					hurt(t, w, ref, k.Head(), remove)
				}
				p = w.StartReady(1)
				for err == nil || errors.Is(err, mink.ErrUnavailable) && !errors.Is(err, mink.ErrCorrupt) {
					time.Sleep(100 * time.Millisecond)
					_, err = p.Node().KV(ctx, ref)
				}
				if !errors.Is(err, mink.ErrCorrupt) || !strings.Contains(err.Error(), "none of 2 KV snapshots") {
					t.Fatal(err)
				}
			})
		})
	}
}

// Records of a primary-key table are deleted up to its oldest snapshot; beyond that it is
// refused at once, and says why.
func TestDeleteRecordsOfPrimaryKeyTable(t *testing.T) {
	sim.InBubble(t, snapshotWorld(), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		_, ref := pkTable(t, p)
		s := mustKV(t, p, ref)
		putRow(t, s, 1, "a")
		if _, err := p.Node().DeleteRecords(ctx, ref, 1); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), "no KV snapshot") {
			t.Fatal(err)
		}
		snapshotted(t, w, p, ref)
		putRow(t, s, 2, "b")
		if _, err := p.Node().DeleteRecords(ctx, ref, 2); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), "of offset 1") {
			t.Fatal(err)
		}
		if to, err := p.Node().DeleteRecords(ctx, ref, 1); err != nil || to != 1 {
			t.Fatal(to, err)
		}
	})
}

// While the log is whole, no snapshot is needed.
func TestAllSnapshotsDamagedAndTheLogWhole(t *testing.T) {
	sim.InBubble(t, snapshotWorld(), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, ref := pkTable(t, p)
		putRow(t, mustKV(t, p, ref), 1, "a")
		one := snapshotted(t, w, p, ref)
		putRow(t, mustKV(t, p, ref), 2, "b")
		p.Crash()
		hurt(t, w, ref, one.Files[1], false)
		p = w.StartReady(1)
		s := mustKV(t, p, ref)
		for k, want := range map[int32]string{1: "a", 2: "b"} {
			if got, _ := look(t, s, k); got != want {
				t.Errorf("key %d is %q", k, got)
			}
		}
	})
}

// Case 22 of real systems: a reader lost its snapshot to retention. Readers here read
// the leader's store, not the uploaded one: one that takes longer than all retained
// snapshots live reads on.
func TestSlowReaderOutlivesSnapshots(t *testing.T) {
	cfg := snapshotWorld()
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		_, ref := pkTable(t, p)
		s := mustKV(t, p, ref)
		for k := range int32(30) {
			putRow(t, s, k, "old")
		}
		first := snapshotted(t, w, p, ref)
		v, err := s.View()
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		seen := 0
		for rows, err := range v.Scan(ctx, nil, nil, nil, 5, 1<<20) {
			if err != nil {
				t.Fatal(err)
			}
			for i := range int(rows.NumRows()) {
				if got := rows.Column(1).(*array.String).Value(i); got != "old" {
					t.Fatalf("row %d is %q", seen, got)
				}
				seen++
			}
			putRow(t, s, int32(seen), "new") // and a snapshot of it, while the reader waits
			snapshotted(t, w, p, ref)
			time.Sleep(10 * time.Minute)
		}
		if seen != 30 {
			t.Fatalf("%d rows", seen)
		}
		id, _ := p.Node().View().StreamOf(ref)
		list := p.Node().View().KVSnapshots(id)
		if list[0].ID < first.ID+4 {
			t.Fatalf("retention did not go on: %+v", list)
		}
		w.Eventually(time.Hour, "the first snapshot's files are deleted", func() bool {
			_, err := w.Objects().Head(ctx, kvplan.BucketFile{Bucket: ref, File: first.Head()}.Key())
			return errors.Is(err, objstore.ErrNotExist)
		})
	})
}

// A store that nobody uses closes once its changes are in a snapshot, and opens from
// its directory again; one whose snapshot fails closes all the same.
func TestSnapshotBeforeIdleClose(t *testing.T) {
	cfg := snapshotWorld()
	change := cfg.Node
	cfg.Node = func(c *node.Config) {
		change(c)
		c.KVSnapshots.Interval, c.KVIdleClose = 24*time.Hour, time.Minute
	}
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, ref := pkTable(t, p)
		putRow(t, mustKV(t, p, ref), 1, "a")
		id, _ := p.Node().View().StreamOf(ref)
		closed := func() bool { return p.Node().Stats().Buckets[0].KV == nil }
		w.Eventually(5*time.Minute, "it closes", closed)
		if n, ok := p.Node().View().KVBucket(id).Newest(); !ok || n.Offset != 1 {
			t.Fatalf("%+v %v", n, ok)
		}
		putRow(t, mustKV(t, p, ref), 2, "b")
		p.Faults.Inject(fault.Rule{Ops: fault.Put, Prefix: kvplan.Prefix, Do: fault.FailBefore(objstore.ErrNoSpace)})
		w.Eventually(5*time.Minute, "it closes without", closed)
		st := p.Node().Stats().Buckets[0].KVSnapshot
		if st.Retained != 1 || st.Taken != 1 || !strings.Contains(st.LastError, "full") {
			t.Fatalf("%+v", st)
		}
		if got, _ := look(t, mustKV(t, p, ref), 2); got != "b" {
			t.Fatal(got)
		}
	})
}
