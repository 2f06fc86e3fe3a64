package cluster

import (
	"fmt"
	"runtime"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// big is a state of 100,000 buckets with 10 ranges each in 1,000,000 objects,
// led by four nodes.
type big struct {
	s     *State
	wals  []plan.WALID
	seq   []uint64
	num   []uint64
	count uint64
}

func (b *big) apply(tb testing.TB, node int, c *clusterpb.Command) *State {
	b.count++
	s, results, err := b.s.Apply(b.s.index+1, 1, &clusterpb.Batch{Epoch: int64(b.wals[node].Epoch), Counter: b.count, Commands: []*clusterpb.Command{c}})
	if err == nil {
		err = ResultError(results[0])
	}
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

var bigState *big

func theBigState(tb testing.TB) *big {
	if bigState != nil {
		return bigState
	}
	b := &big{s: NewState(), seq: make([]uint64, 4), num: make([]uint64, 4)}
	for i := range 4 {
		s, r, err := b.s.Apply(b.s.index+1, 1, &clusterpb.Batch{Commands: []*clusterpb.Command{registerCmd(mink.NodeID(i+1), uint64(i+1))}})
		if err != nil {
			tb.Fatal(err)
		}
		b.s, b.wals = s, append(b.wals, plan.WALID{Node: mink.NodeID(i + 1), Epoch: mink.NodeEpoch(r[0].Id), Nonce: uint64(i + 1)})
	}
	b.s = b.apply(tb, 0, createDatabaseCmd("d"))
	for i := range 25 {
		b.s = b.apply(tb, 0, createTableCmd(descriptor("d", fmt.Sprintf("t%d", i), 4000, false, false), byte(i+1)))
	}
	for range 10 {
		for node := range 4 {
			var ids []mink.StreamID
			for st := range b.s.StreamsLedBy(b.wals[node].Epoch) {
				ids = append(ids, st.ID)
			}
			for len(ids) > 0 {
				n := min(2500, len(ids))
				b.s = b.apply(tb, node, b.commit(node, ids[:n], n))
				ids = ids[n:]
			}
		}
	}
	bigState = b
	return b
}

// commit spreads the streams over `objects` objects.
func (b *big) commit(node int, ids []mink.StreamID, objects int) *clusterpb.Command {
	w := b.wals[node]
	b.seq[node]++
	c := plan.CommitObjects{WAL: w, Seq: b.seq[node], WALTrim: b.seq[node]}
	for range objects {
		b.num[node]++
		c.Objects = append(c.Objects, plan.Object{ID: plan.ObjectID{Epoch: w.Epoch, Kind: plan.KindStreamSet, Seq: b.num[node]}, WAL: w, Size: 1 << 28, IndexPos: 1 << 27, IndexLen: 1 << 12, IndexCRC: 1 << 31, CreatedMs: 1 << 40})
	}
	for i, id := range ids {
		st, _ := b.s.Stream(id)
		c.Items = append(c.Items, plan.Item{Stream: id, LeaderEpoch: 1, Object: c.Objects[i*objects/len(ids)].ID, Start: st.End, End: st.End + 100, Checkpoint: true})
	}
	return CommitObjectsCommand(c)
}

func (b *big) led(node, n int) (ids []mink.StreamID) {
	for st := range b.s.StreamsLedBy(b.wals[node].Epoch) {
		if ids = append(ids, st.ID); len(ids) == n {
			break
		}
	}
	return ids
}

func benchApply(b *testing.B, node int, c *clusterpb.Command) {
	base := theBigState(b)
	base.apply(b, node, c) // accepted, or the figure means nothing
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		base.apply(b, node, c)
	}
}

func BenchmarkApplyCommit1Of100kBuckets(b *testing.B) {
	base := theBigState(b)
	c := base.commit(1, base.led(1, 1), 1)
	base.seq[1]-- // not kept
	benchApply(b, 1, c)
}

// The upload of a busy node: one object with 10,000 streams.
func BenchmarkApplyCommit10kOf100kBuckets(b *testing.B) {
	base := theBigState(b)
	c := base.commit(1, base.led(1, 10_000), 1)
	base.seq[1]--
	benchApply(b, 1, c)
	b.ReportMetric(float64(proto.Size(c)), "command-bytes")
}

func BenchmarkApplyTrim1Of100kBuckets(b *testing.B) {
	base := theBigState(b)
	benchApply(b, 1, TrimStreamsCommand([]plan.Trim{{Stream: base.led(1, 1)[0], Start: 150}}))
}

func BenchmarkApplyCreateTable4000Buckets(b *testing.B) {
	benchApply(b, 0, createTableCmd(descriptor("d", "new", 4000, false, false), 200))
}

func BenchmarkStreamsLedBy1k(b *testing.B) {
	base := theBigState(b)
	for b.Loop() {
		base.led(2, 1000)
	}
}

func BenchmarkSnapshotEncode1MObjects(b *testing.B) {
	base := theBigState(b)
	size, records := 0, 0
	for b.Loop() {
		size, records = 0, 0
		if err := base.s.EncodeSnapshot(func(r []byte) error { size += len(r); records++; return nil }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(size)/1e6, "MB")
	b.ReportMetric(float64(records), "records")
}

func BenchmarkSnapshotDecode1MObjects(b *testing.B) {
	data := snapshot(theBigState(b).s)
	for b.Loop() {
		s, err := DecodeSnapshot(records(data))
		if err != nil {
			b.Fatal(err)
		}
		runtime.KeepAlive(s)
	}
}

// A commit of 10,000 streams stays below 120 KB in the log.
func TestCommitBytes(t *testing.T) {
	w := plan.WALID{Node: 1, Epoch: 1000, Nonce: 1 << 60}
	o := plan.Object{ID: plan.ObjectID{Epoch: 1000, Kind: plan.KindStreamSet, Seq: 1 << 20}, WAL: w, Size: 1 << 28, IndexPos: 1 << 27, IndexLen: 1 << 20}
	c := plan.CommitObjects{WAL: w, Seq: 1 << 20, Objects: []plan.Object{o}, WALTrim: 1 << 20}
	for i := range 10_000 {
		start := mink.Offset(i) * 40_000 // up to 4e8
		c.Items = append(c.Items, plan.Item{Stream: mink.StreamID(90_000 + 7*i), LeaderEpoch: 5, Object: o.ID, Start: start, End: start + 10_000, Checkpoint: true})
	}
	if n := proto.Size(CommitObjectsCommand(c)); n >= 120_000 {
		t.Errorf("%d bytes", n)
	} else {
		t.Logf("%d bytes", n)
	}
}
