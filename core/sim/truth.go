package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/storehead"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Truth replays the metadata log beside everybody, straight from the database,
// and checks what must hold of it and of the store at any moment.
//
// Safe for concurrent use.
type Truth struct {
	world *World

	mu      sync.Mutex
	state   *cluster.State
	history []metalog.Entry
	moves   int
	ends    map[mink.StreamID][2]mink.Offset // start and end, neither ever falls
	epochs  map[mink.StreamID]mink.LeaderEpoch
}

// NewTruth stands at the beginning of the log.
func (w *World) NewTruth() *Truth {
	return &Truth{world: w, state: cluster.NewState(), ends: map[mink.StreamID][2]mink.Offset{}, epochs: map[mink.StreamID]mink.LeaderEpoch{}}
}

// State is the metadata at the log's head as of the last look.
func (t *Truth) State() *cluster.State {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state
}

// Leads reports that the process is the bucket's leader at the log's head, alive
// and not standing still.
func (t *Truth) Leads(p *Process, ref mink.BucketRef) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.read()
	n := p.Node()
	id, ok := t.state.StreamOf(ref)
	if n == nil || !ok || !p.Running() || p.Paused() {
		return false
	}
	s, _ := t.state.Stream(id)
	_, epoch := n.Self()
	w, ok := t.state.WAL(epoch)
	return ok && !w.Sealed && s.Owner.NodeEpoch == epoch
}

// Look reads the log to its head and checks every entry, the state and the store.
// It takes no virtual time: nothing happens meanwhile that it could miss.
func (t *Truth) Look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.read()
	if err := t.state.Check(); err != nil {
		t.world.Broken("state at %d: %v", t.state.Index(), err)
	}
	t.streams()
	t.objects()
	t.head()
	t.marks()
}

// head checks that the log holds what the store remembers of it.
func (t *Truth) head() {
	r, err := t.world.objects.GetRange(context.Background(), objstore.GetRangeRequest{Key: storehead.Key, Length: -1})
	if errors.Is(err, objstore.ErrNotExist) {
		return // no process has come that far
	}
	h, err := storehead.Decode(r.Data)
	if err != nil {
		t.world.Broken("%s: %v", storehead.Key, err)
		return
	}
	t.read() // it may be newer than the last look
	if h.Index > 0 && (h.Index > uint64(len(t.history)) || t.history[h.Index-1].Position() != h.Position) {
		t.world.Broken("the store remembers the log at %s, which has %d entries", h.Position, len(t.history))
	}
}

// marks checks that a node epoch's heartbeats are refused exactly when the state
// says that it is sealed.
func (t *Truth) marks() {
	before := t.state
	rows, err := t.world.log.Heartbeats(context.Background())
	if err != nil {
		t.world.Broken("list heartbeats: %v", err)
		return
	}
	t.read()
	alive := map[mink.NodeEpoch]bool{}
	for _, r := range rows {
		alive[r.Epoch] = !r.Marked
		if w, ok := t.state.WAL(r.Epoch); r.Marked && ok && !w.Sealed {
			t.world.Broken("the heartbeats of node %d epoch %d are refused, and it is not sealed", r.Node, r.Epoch)
		}
	}
	for w := range before.WALs() {
		now, _ := t.state.WAL(w.ID.Epoch)
		if w.Sealed && alive[w.ID.Epoch] || !now.Sealed && !alive[w.ID.Epoch] {
			t.world.Broken("node epoch %d is sealed %t, its heartbeats are taken: %t", w.ID.Epoch, now.Sealed, alive[w.ID.Epoch])
		}
	}
}

func (t *Truth) read() {
	for {
		entries, err := t.world.log.Read(context.Background(), t.state.Index(), 1000, 1<<30)
		if err != nil {
			t.world.Broken("truth cannot read the log after %d: %v", t.state.Index(), err)
			return
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			t.entry(e)
		}
	}
}

func (t *Truth) entry(e metalog.Entry) {
	var b clusterpb.Batch
	if err := proto.Unmarshal(e.Payload, &b); err != nil {
		t.world.Broken("entry %d: %v", e.Index, err)
		return
	}
	before := t.state
	next, results, err := before.Apply(e.Index, e.TimeMs, &b)
	if err != nil {
		t.world.Broken("entry %d: %v", e.Index, err)
		return
	}
	if w, ok := before.WAL(mink.NodeEpoch(b.Epoch)); ok && w.Sealed {
		for i, r := range results {
			if r.Code != clusterpb.Code_FENCED {
				t.world.Broken("entry %d: command %d of node epoch %d, which is sealed, was answered %v", e.Index, i, b.Epoch, r.Code)
			}
		}
	}
	for i, c := range b.Commands {
		if c.GetRelease() != nil && i < len(results) && results[i].Code == clusterpb.Code_OK && next.Index() > before.Index() {
			t.moves++
		}
	}
	t.offsets(before, next, &b)
	t.state = next
	t.history = append(t.history, e)
}

// offsets checks that no consumer group's offset goes back: no client of a simulation
// wants that.
func (t *Truth) offsets(before, next *cluster.State, b *clusterpb.Batch) {
	for _, c := range b.Commands {
		for _, g := range c.GetCommitGroupOffsets().GetGroups() {
			for _, o := range g.Offsets {
				ref := mink.BucketRef{Table: mink.TableID(o.Table), Partition: mink.PartitionID(o.Partition), Index: o.Bucket}
				was, ok := before.GroupOffset(g.Group, ref)
				if is, ok2 := next.GroupOffset(g.Group, ref); ok && ok2 && is.Offset < was.Offset {
					t.world.Broken("index %d: group %s went back from %d to %d in bucket %s, by node epoch %d", next.Index(), g.Group, was.Offset, is.Offset, ref, b.Epoch)
				}
			}
		}
	}
}

// Moves is how many Releases were accepted.
func (t *Truth) Moves() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.moves
}

func (t *Truth) streams() {
	for s := range t.state.Streams() {
		if old := t.ends[s.ID]; s.Start < old[0] || s.End < old[1] {
			t.world.Broken("stream %d went back from [%d, %d) to [%d, %d)", s.ID, old[0], old[1], s.Start, s.End)
		}
		t.ends[s.ID] = [2]mink.Offset{s.Start, s.End}
		if s.Owner.LeaderEpoch < t.epochs[s.ID] {
			t.world.Broken("stream %d went back from leader epoch %d to %d", s.ID, t.epochs[s.ID], s.Owner.LeaderEpoch)
		}
		t.epochs[s.ID] = s.Owner.LeaderEpoch
	}
}

// objects checks that all that metadata names is there, and every tombstone that closes a
// recovered log: without it a writer that comes back goes on.
func (t *Truth) objects() {
	for o := range t.state.Objects() {
		info, err := t.world.objects.Head(context.Background(), o.Key())
		switch {
		case errors.Is(err, objstore.ErrNotExist):
			t.world.Broken("object %s is named at index %d and not on the store", o.Key(), t.state.Index())
		case err != nil:
			t.world.Broken("object %s: %v", o.Key(), err)
		case info.Size != o.Size:
			t.world.Broken("object %s has %d bytes, metadata says %d", o.Key(), info.Size, o.Size)
		}
	}
	for w := range t.state.WALs() {
		if !w.Recovered {
			continue
		}
		key := plan.Key(w.ID, plan.KindTombstone, w.End)
		if info, err := t.world.objects.Head(context.Background(), key); err != nil || info.Size != object.HeaderLen {
			t.world.Broken("the tombstone %s of a recovered log is not there: %d bytes, %v", key, info.Size, err)
		}
	}
}

// Garbage lists what is on the store and that nothing names: besides the
// tombstones that close recovered logs, and probes.
func (t *Truth) Garbage() []string {
	named := map[string]bool{storehead.Key: true}
	for o := range t.state.Objects() {
		named[o.Key()] = true
	}
	for w := range t.state.WALs() {
		if w.Recovered {
			named[plan.Key(w.ID, plan.KindTombstone, w.End)] = true
		}
	}
	var out []string
	for _, o := range t.list("") {
		if !named[o.Key] && !bytes.HasPrefix([]byte(o.Key), []byte("probe/")) {
			out = append(out, o.Key)
		}
	}
	return out
}

func (t *Truth) list(prefix string) []objstore.ObjectInfo {
	var out []objstore.ObjectInfo
	for after := ""; ; {
		page, err := t.world.objects.List(context.Background(), objstore.ListRequest{Prefix: prefix, StartAfter: after})
		if err != nil {
			t.world.Broken("list the store: %v", err)
			return out
		}
		out = append(out, page.Objects...)
		if !page.More {
			return out
		}
		after = page.Objects[len(page.Objects)-1].Key
	}
}

// Replay applies the whole history twice more and compares the bytes of the
// states with each other and with the first.
func (t *Truth) Replay() {
	want, err := encode(t.state)
	if err != nil {
		t.world.Broken("encode the state: %v", err)
		return
	}
	for range 2 {
		s := cluster.NewState()
		for _, e := range t.history {
			var b clusterpb.Batch
			if err := proto.Unmarshal(e.Payload, &b); err != nil {
				t.world.Broken("entry %d: %v", e.Index, err)
				return
			}
			if s, _, err = s.Apply(e.Index, e.TimeMs, &b); err != nil {
				t.world.Broken("replay entry %d: %v", e.Index, err)
				return
			}
		}
		got, err := encode(s)
		if err != nil || !bytes.Equal(got, want) {
			t.world.Broken("the log replayed to index %d gives another state (%d bytes, %d the first time): %v", s.Index(), len(got), len(want), err)
		}
	}
}

// Same checks that a process that has applied as much as the truth has the same
// state.
func (t *Truth) Same(p *Process) {
	n := p.Node()
	if n == nil || n.View().Index() != t.state.Index() {
		return
	}
	want, err := encode(t.state)
	if err == nil {
		var got []byte
		if got, err = encode(n.View()); err == nil && !bytes.Equal(got, want) {
			err = errors.New("the states differ")
		}
	}
	if err != nil {
		t.world.Broken("node %d at index %d: %v", p.ID, t.state.Index(), err)
	}
}

func encode(s *cluster.State) ([]byte, error) {
	var out []byte
	err := s.EncodeSnapshot(func(record []byte) error {
		out = fmt.Appendf(out, "%d:", len(record))
		out = append(out, record...)
		return nil
	})
	return out, err
}
