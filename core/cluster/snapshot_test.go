package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
)

var golden = flag.Bool("golden", false, "write the newest testdata/*.golden anew: only before a release of the format")

// framed puts each record behind its length, as in the golden file and the
// fuzz inputs.
func framed(list [][]byte) []byte {
	var out []byte
	for _, r := range list {
		out = append(binary.AppendUvarint(out, uint64(len(r))), r...)
	}
	return out
}

func unframed(data []byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for r := bytes.NewReader(data); r.Len() > 0; {
			n, err := binary.ReadUvarint(r)
			if err != nil || n > uint64(r.Len()) {
				yield(nil, io.ErrUnexpectedEOF)
				return
			}
			record := make([]byte, n)
			_, _ = io.ReadFull(r, record)
			if !yield(record, nil) {
				return
			}
		}
	}
}

// smallState has something of every kind.
func smallState(t testing.TB) *State {
	for seed := uint64(1); ; seed++ {
		m, err := runSim(seed, faults{}, 600)
		if err != nil {
			t.Fatal(err)
		}
		s := m.s
		lost := false
		for _, w := range s.wals.all() {
			lost = lost || len(w.lost) > 0
		}
		if s.tiered.len() > 0 && s.droppedSinks.len() > 0 && s.former.len() > 0 && hasRounds(s) && s.kv.len() > 0 && s.kvDestroyed.len() > 0 && s.autoIncrement.len() > 0 && s.streams.len() > 2 && s.parked.len() > 0 && s.destroyed.len() > 0 && s.producers.len() > 0 && s.groupOffsets.len() > 0 && s.dedup.len() > 0 && lost {
			return s
		}
	}
}

// hasRounds: some bucket has ends at several snapshots.
func hasRounds(s *State) bool {
	for b := range s.tiered.all() {
		if len(b.ends) > 1 {
			return true
		}
	}
	return false
}

// A file that an earlier build wrote must be read and written the same.
func TestGoldenSnapshot(t *testing.T) {
	const newest = "testdata/snapshot-v1-tiering.golden"
	if *golden {
		if err := os.WriteFile(newest, framed(snapshot(smallState(t))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"testdata/snapshot-v1.golden", "testdata/snapshot-v1-groups.golden", "testdata/snapshot-v1-kv.golden", newest} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, err := DecodeSnapshot(unframed(data))
		if err != nil {
			t.Fatal(file, err)
		}
		if !bytes.Equal(framed(snapshot(s)), data) {
			t.Fatalf("%s is written in other bytes than before: raise SnapshotVersion", file)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	good := snapshot(smallState(t))
	header := func(change func(*clusterpb.Header)) [][]byte {
		var r clusterpb.Record
		if err := proto.Unmarshal(good[0], &r); err != nil {
			t.Fatal(err)
		}
		change(r.GetHeader())
		data, _ := proto.Marshal(&r)
		return append([][]byte{data}, good[1:]...)
	}
	for name, c := range map[string]struct {
		records [][]byte
		class   error
	}{
		"empty":            {nil, mink.ErrCorrupt},
		"cut":              {good[:len(good)-1], mink.ErrCorrupt},
		"no header":        {good[1:], mink.ErrCorrupt},
		"record twice":     {append(slices.Clone(good), good[len(good)-1]), mink.ErrCorrupt},
		"order":            {append([][]byte{good[0], good[len(good)-1]}, good[1:len(good)-1]...), mink.ErrCorrupt},
		"noise":            {append(slices.Clone(good), []byte{0xff}), mink.ErrCorrupt},
		"unknown kind":     {append(slices.Clone(good), []byte{0x9a, 0x06, 0x00}), mink.ErrUnsupported},
		"newer version":    {header(func(h *clusterpb.Header) { h.Version = 2 }), mink.ErrUnsupported},
		"newer level":      {header(func(h *clusterpb.Header) { h.FeatureLevel = 9 }), mink.ErrUnsupported},
		"ids taken back":   {header(func(h *clusterpb.Header) { h.NextStream = 1 }), mink.ErrCorrupt},
		"from the future":  {header(func(h *clusterpb.Header) { h.Index = 1 }), mink.ErrCorrupt},
		"a count too high": {header(func(h *clusterpb.Header) { h.Records++ }), mink.ErrCorrupt},
	} {
		if _, err := DecodeSnapshot(records(c.records)); !errors.Is(err, c.class) {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := errors.New("broken pipe")
	if _, err := DecodeSnapshot(func(yield func([]byte, error) bool) { yield(nil, broken) }); !errors.Is(err, broken) {
		t.Error(err)
	}
	if err := smallState(t).EncodeSnapshot(func([]byte) error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// Check is the net under every other test here: each kind of damage to a
// state's parts must be seen.
func TestCheckSees(t *testing.T) {
	base := smallState(t)
	var st plan.Stream
	for x := range base.Streams() {
		if len(x.Ranges) > 0 && x.Owner.NodeEpoch != 0 {
			st = x
		}
	}
	firstKV := func() (mink.StreamID, kvplan.Bucket) {
		for id, b := range base.KVBuckets() {
			return id, *b
		}
		t.Fatal("none")
		return 0, kvplan.Bucket{}
	}
	changeKV := func(s *State, change func(*kvplan.Bucket)) {
		id, b := firstKV()
		b.Snapshots = slices.Clone(b.Snapshots)
		for i := range b.Snapshots {
			b.Snapshots[i].Files = slices.Clone(b.Snapshots[i].Files)
		}
		change(&b)
		s.kv.set(id, &b)
	}
	first := func(set *pset[*plan.Object]) *plan.Object {
		for o := range set.all() {
			return o
		}
		t.Fatal("none")
		return nil
	}
	for name, damage := range map[string]func(s *State){
		"stream not under its owner": func(s *State) { s.byOwner.del(owned{st.Owner.NodeEpoch, st.ID}) },
		"stream without partition":   func(s *State) { s.partitions.del(st.Bucket.Partition) },
		"object gone":                func(s *State) { s.objects.del(&plan.Object{ID: st.Ranges[0].Object}) },
		"reference gone":             func(s *State) { s.refs.del(ref{object: st.Ranges[0].Object, stream: st.ID}) },
		"reference counted twice":    func(s *State) { s.refs.set(ref{object: st.Ranges[0].Object, stream: st.ID, count: 9}) },
		"object owned twice":         func(s *State) { s.destroyed.set(&plan.Destroyed{Object: *first(&s.objects)}) },
		"parked and named":           func(s *State) { s.parked.set(first(&s.objects)) },
		"destroyed slot still needed": func(s *State) {
			o := first(&s.parked)
			s.parked.del(o)
			s.destroyed.set(&plan.Destroyed{Object: *o})
		},
		"range gone": func(s *State) {
			x := st
			x.Ranges = x.Ranges[1:]
			s.streams.set(x.ID, &x)
		},
		"name gone": func(s *State) {
			for name := range s.tableNames.all() {
				s.tableNames.del(name)
				return
			}
		},
		"KV file retained and destroyed": func(s *State) {
			id, b := firstKV()
			st, _ := s.Stream(id)
			s.kvDestroyed.set(&kvplan.Destroyed{BucketFile: kvplan.BucketFile{Bucket: st.Bucket, File: b.Snapshots[0].Files[0]}})
		},
		"KV file destroyed in the future": func(s *State) {
			for d := range base.DestroyedKV() {
				d.Index = s.index + 1
				s.kvDestroyed.set(&d)
			}
		},
		"KV snapshot ahead of the log": func(s *State) {
			changeKV(s, func(b *kvplan.Bucket) { b.Snapshots[len(b.Snapshots)-1].Offset = 1 << 40 })
		},
		"KV snapshot behind the log":   func(s *State) { changeKV(s, func(b *kvplan.Bucket) { b.Snapshots[0].Offset = -1 }) },
		"KV snapshot of a later epoch": func(s *State) { changeKV(s, func(b *kvplan.Bucket) { b.Epoch = 1 << 30 }) },
		"KV snapshots out of order": func(s *State) {
			changeKV(s, func(b *kvplan.Bucket) { b.Snapshots = append(b.Snapshots, b.Snapshots[0]) })
		},
		"KV file number never given out": func(s *State) {
			changeKV(s, func(b *kvplan.Bucket) { b.Snapshots[0].Files[0].Epoch = b.Epoch; b.Number = 0 })
		},
		"KV snapshots of no stream": func(s *State) { _, b := firstKV(); s.kv.set(1<<40, &b) },
		"numbers of no table":       func(s *State) { s.autoIncrement.set(1<<40, 2) },
		"numbers past the type": func(s *State) {
			for id := range base.autoIncrement.all() {
				s.autoIncrement.set(id, 1<<40)
			}
		},
		"two live epochs": func(s *State) {
			for epoch, w := range s.wals.all() {
				if w.Sealed {
					x := *w
					x.Sealed, x.Recovered = false, false
					s.wals.set(epoch, &x)
					return
				}
			}
		},
	} {
		s := *base
		damage(&s)
		if err := s.Check(); err == nil {
			t.Errorf("%s: not seen", name)
		}
		if err := base.Check(); err != nil {
			t.Fatal("the damage reached the original:", err)
		}
	}
}

func FuzzDecodeSnapshot(f *testing.F) {
	f.Add(framed(snapshot(smallState(f))))
	f.Add(framed(snapshot(NewState())))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := DecodeSnapshot(unframed(data))
		if err != nil {
			return
		}
		again, err := DecodeSnapshot(records(snapshot(s)))
		if err != nil || !equalRecords(snapshot(s), snapshot(again)) {
			t.Fatal("a decoded state does not survive another round:", err)
		}
	})
}

// Any batch of bytes leaves a sound state.
func FuzzApply(f *testing.F) {
	base := smallState(f)
	m, err := runSim(3, faults{}, 200)
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range m.log {
		data, _ := proto.Marshal(e.batch)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var b clusterpb.Batch
		if proto.Unmarshal(data, &b) != nil {
			return
		}
		for n := range base.Nodes() { // so that the node fence lets it through
			if !n.Sealed {
				b.Epoch, b.Counter = int64(n.Epoch), 1<<60
			}
		}
		s, results, err := base.Apply(base.index+1, base.timeMs, &b)
		if err != nil {
			return
		}
		if err := s.Check(); err != nil || len(results) != len(b.Commands) {
			t.Fatal(err, results)
		}
	})
}

func TestCountersMatchASet(t *testing.T) {
	m := newSim(5, faults{})
	for range 200 {
		var c counters
		set := map[uint64]bool{}
		for range 40 {
			n := 1 + m.r.Uint64N(50)
			if c.has(n) != set[n] {
				t.Fatalf("%v has %d: %v", c, n, c.has(n))
			}
			if !set[n] {
				was := slices.Clone(c)
				next := c.with(n)
				if !slices.Equal(was, c) {
					t.Fatal("with changed its receiver")
				}
				c, set[n] = next, true
			}
			if !c.valid() {
				t.Fatalf("%v is not valid", c)
			}
		}
	}
}

// Item columns survive the way through the log; damaged ones are refused.
func TestItemColumns(t *testing.T) {
	objects := []plan.Object{{ID: plan.ObjectID{Epoch: 1, Kind: 2, Seq: 1}}, {ID: plan.ObjectID{Epoch: 1, Kind: 3, Seq: 2}}}
	items := []plan.Item{
		{Stream: 9, LeaderEpoch: 2, Object: objects[0].ID, Start: 5, End: 1 << 50},
		{Stream: 3, LeaderEpoch: 1, Object: objects[1].ID, Start: 0, End: 0, Checkpoint: true},
	}
	for n := range items {
		back, err := itemsOf(itemsPB(items[:n+1], objects), objects)
		if err != nil || !slices.Equal(back, items[:n+1]) {
			t.Fatal(back, err)
		}
	}
	if _, err := itemsOf(itemsPB([]plan.Item{{Stream: 1, Object: plan.ObjectID{Epoch: 7}}}, objects), objects); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), "names object") {
		t.Fatal(err)
	}
	for _, c := range []*clusterpb.Items{
		{Stream: []int64{1}},
		{Stream: []int64{1}, LeaderEpoch: []int32{1}, Start: []int64{1}, Span: []int64{1}, Object: []uint32{0, 0}},
		{Stream: []int64{1}, LeaderEpoch: []int32{1}, Start: []int64{-1}, Span: []int64{1}},
		{Stream: []int64{1}, LeaderEpoch: []int32{1}, Start: []int64{5}, Span: []int64{1<<63 - 1}},
		{Stream: []int64{1}, LeaderEpoch: []int32{1}, Start: []int64{5}, Span: []int64{-1}},
	} {
		if _, err := itemsOf(c, objects); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%v: %v", c, err)
		}
	}
}
