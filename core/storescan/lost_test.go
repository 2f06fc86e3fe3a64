package storescan

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/wal"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

const (
	streams = 3
	window  = 3
)

// history is a cluster whose metadata lose their newest entries.
type history struct {
	t     *testing.T
	r     *rand.Rand
	store objstore.Store
	state *cluster.State // as restored
	ends  [streams + 1]mink.Offset
	log   plan.WALID  // the one that the restored state waits for
	held  []plan.Item // what its slots hold that are still there
	kept  bool        // no slot of it was deleted
}

func (h *history) apply(epoch mink.NodeEpoch, c *clusterpb.Command) *clusterpb.Result {
	h.t.Helper()
	next, results, err := h.state.Apply(h.state.Index()+1, 1000, &clusterpb.Batch{Epoch: int64(epoch), Counter: h.state.Index() + 1, Commands: []*clusterpb.Command{c}})
	if err != nil {
		h.t.Fatal(err)
	}
	h.state = next
	if err := cluster.ResultError(results[0]); err != nil {
		h.t.Fatalf("%v: %v", c, err)
	}
	return results[0]
}

func (h *history) register(node int32, nonce uint64) plan.WALID {
	h.t.Helper()
	next, results, err := h.state.Apply(h.state.Index()+1, 1000, &clusterpb.Batch{Commands: []*clusterpb.Command{{Kind: &clusterpb.Command_RegisterNode{
		RegisterNode: &clusterpb.RegisterNode{Node: node, Nonce: nonce, FeatureLevel: 1}}}}})
	if err != nil {
		h.t.Fatal(err)
	}
	h.state = next
	return plan.WALID{Node: mink.NodeID(node), Epoch: mink.NodeEpoch(results[0].Id), Nonce: nonce}
}

// put writes an object with the ranges, and answers what metadata would say of it.
func (h *history) put(w plan.WALID, kind plan.ObjectKind, seq uint64, items []plan.Item) (plan.Object, []plan.Item) {
	h.t.Helper()
	b := object.NewBuilder(streams)
	slices.SortStableFunc(items, func(a, b plan.Item) int { return int(a.Stream - b.Stream) })
	for _, it := range items {
		n := uint64(it.End - it.Start)
		f := object.Frame{Start: it.Start, Span: n, Count: uint32(n), LeaderEpoch: it.LeaderEpoch, Bytes: []byte("x")}
		if err := b.AddFrame(it.Stream, &f); err != nil {
			h.t.Fatal(err)
		}
	}
	header := object.Header{Kind: kind, WAL: w, Seq: seq, Nonce: 1}
	if kind == plan.KindWAL {
		header.Window = window
	}
	chunks, sum, err := b.Finish(header)
	if err != nil {
		h.t.Fatal(err)
	}
	h.raw(plan.Key(w, kind, seq), bytes.Join(chunks, nil))
	return sum.Object(0), sum.Items()
}

func (h *history) raw(key string, b []byte) {
	h.t.Helper()
	if _, err := h.store.Put(h.t.Context(), objstore.PutRequest{Key: key, Chunks: [][]byte{b}}); err != nil {
		h.t.Fatal(err)
	}
}

// bulk gives out offsets of some streams.
func (h *history) bulk(leader mink.LeaderEpoch) (items []plan.Item) {
	for s := mink.StreamID(1); s <= streams; s++ {
		if h.r.IntN(3) > 0 || s == 1 {
			n := mink.Offset(1 + h.r.IntN(3))
			items = append(items, plan.Item{Stream: s, LeaderEpoch: leader, Start: h.ends[s], End: h.ends[s] + n})
			h.ends[s] += n
		}
	}
	return items
}

// makeHistory: the state knows what was committed when slots [0, known) were
// uploaded; [known, uploaded) were later, and some of those slots are deleted.
func makeHistory(t *testing.T, seed uint64) *history {
	h := &history{t: t, r: rand.New(rand.NewPCG(seed, 3)), store: memstore.New(memstore.Config{}), state: cluster.NewState(), kept: true}
	h.log = h.register(1, 0xa1)
	h.apply(h.log.Epoch, &clusterpb.Command{Kind: &clusterpb.Command_CreateDatabase{CreateDatabase: &clusterpb.CreateDatabase{Name: "d"}}})
	h.apply(h.log.Epoch, &clusterpb.Command{Kind: &clusterpb.Command_CreateTable{CreateTable: &clusterpb.CreateTable{Descriptor_: table(t), Uuid: bytes.Repeat([]byte{7}, 16)}}})
	n := 2 + h.r.IntN(10)
	known := h.r.IntN(n)
	uploaded := known + h.r.IntN(n-known+1)
	var bulks [][]plan.Item
	for range n {
		bulks = append(bulks, h.bulk(1))
	}
	if known > 0 {
		o, items := h.put(h.log, plan.KindStreamSet, 1, slices.Concat(bulks[:known]...))
		h.apply(h.log.Epoch, cluster.CommitObjectsCommand(plan.CommitObjects{WAL: h.log, Seq: 1, Objects: []plan.Object{o}, Items: items, WALTrim: uint64(known)}))
	}
	if uploaded > known { // and then merged, say: under another number
		h.put(h.log, plan.KindStreamSet, 7, slices.Concat(bulks[known:uploaded]...))
	}
	for i, b := range bulks {
		switch {
		case i < uploaded && h.r.IntN(4) > 0:
			h.kept = h.kept && i < known
		default:
			h.put(h.log, plan.KindWAL, uint64(i), b)
			if i >= known {
				h.held = append(h.held, b...)
			}
		}
	}
	if h.r.IntN(2) == 0 { // the lost time line went on: the log was closed, another node led
		h.raw(plan.Key(h.log, plan.KindTombstone, uint64(n)), object.Tombstone(h.log, uint64(n), 5))
		other := plan.WALID{Node: 2, Epoch: 40, Nonce: 0xb2}
		for i := range 1 + h.r.IntN(3) {
			h.put(other, plan.KindWAL, uint64(i), h.bulk(2))
		}
	}
	return h
}

func table(t *testing.T) []byte {
	t.Helper()
	d := &schema.Descriptor{
		Database: "d", Table: "t", BucketCount: streams, Schema: schema.Schema{Columns: []schema.Column{{Name: "a", Type: schema.MustParseType("INT")}}},
	}
	d, err := d.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	return d.Encode()
}

// recover does what the first node does.
func (h *history) recover() {
	h.t.Helper()
	node := h.register(3, 0xc3)
	next, results, err := h.state.Apply(h.state.Index()+1, 1000, &clusterpb.Batch{Commands: []*clusterpb.Command{{Kind: &clusterpb.Command_LeaseTaken{
		LeaseTaken: &clusterpb.LeaseTaken{Node: 3, Epoch: int64(node.Epoch), Lease: 1}}}}})
	if err != nil || cluster.ResultError(results[0]) != nil {
		h.t.Fatal(err, results)
	}
	h.state = next
	w, _ := h.state.WAL(h.log.Epoch)
	cfg := wal.RecoverConfig{Store: h.store, WAL: h.log, From: w.Trim, Window: window, Nonce: 9, StillNeeded: func() bool { return true }}
	for _, l := range h.state.LostSlots(h.log.Epoch) {
		cfg.AcceptLost = append(cfg.AcceptLost, l.Slot)
	}
	r, err := wal.Recover(h.t.Context(), cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	h.apply(node.Epoch, cluster.RecoverWALCommand(plan.RecoverWAL{WAL: h.log, Lease: 1, From: w.Trim, End: r.End, Objects: r.Objects, Items: r.Items}))
}

// Whatever was uploaded, deleted and written by others after the last entry that the
// metadata have: the log is recovered without a person, all that its slots still hold
// comes back, and no offset that was given out is given out again.
func TestWhatIsLostAndWhatComesBack(t *testing.T) {
	lostSome := 0
	for seed := range uint64(400) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := makeHistory(t, seed)
			stores := Stores{Objects: h.store, WAL: h.store, Logger: slog.New(slog.DiscardHandler)}
			lost, err := FindLost(t.Context(), stores, h.state)
			if err != nil {
				t.Fatal(err)
			}
			next, results, err := h.state.Apply(h.state.Index()+1, 1000, &clusterpb.Batch{Commands: []*clusterpb.Command{{Kind: &clusterpb.Command_SetIncarnation{
				SetIncarnation: lost.Command(77)}}}})
			if err != nil || cluster.ResultError(results[0]) != nil {
				t.Fatal(err, results)
			}
			h.state = next
			h.recover()
			if err := h.state.Check(); err != nil {
				t.Fatal(err)
			}
			for s := mink.StreamID(1); s <= streams; s++ {
				st, _ := h.state.Stream(s)
				if st.End != h.ends[s] {
					t.Errorf("stream %d ends at %d, offsets below %d were given out", s, st.End, h.ends[s])
				}
				if len(st.Gaps) > 0 {
					lostSome++
				}
			}
			for _, it := range h.held {
				st, _ := h.state.Stream(it.Stream)
				if !slices.ContainsFunc(st.Ranges, func(r plan.Range) bool { return r.Start <= it.Start && r.End >= it.End }) {
					t.Errorf("%+v is in the log and did not come back: %+v", it, st)
				}
			}
			if h.kept && len(lost.WALs) > 0 {
				t.Errorf("a whole log is said to lack %+v", lost.WALs)
			}
		})
	}
	if lostSome < 100 {
		t.Errorf("only %d streams lost something", lostSome)
	}
}
