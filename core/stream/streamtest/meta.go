// Package streamtest is a metadata log in memory for tests of the stream engine
// and of what is built on it. Commands are applied by core/stream/plan, as the
// real state machine does; faults are injected around them.
package streamtest

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/plan/plantest"
	"github.com/mink-project/mink/sdk/mink"
)

// Fault decides about one proposal. before: the command is not proposed, the
// proposer gets the error. after: it is applied all the same, the proposer gets
// the error (a lost response).
type Fault func(op string) (before, after error)

// Meta implements stream.Meta. Safe for concurrent use.
type Meta struct {
	mu struct {
		sync.Mutex
		state    *plantest.State // replaced, never changed
		changed  chan struct{}
		fault    Fault
		observe  func(op string, s *plantest.State)
		lagging  uint64 // ReadHorizon answers at most this; 0: no limit
		horizons map[mink.NodeEpoch]func() uint64
		forgets  uint64 // Remembered answers at most this; 0: the head
		proposed map[string]int
	}
	now func() time.Time
}

// NewMeta is an empty log on package time's clock.
func NewMeta() *Meta {
	m := &Meta{now: time.Now}
	m.mu.state = plantest.New()
	m.mu.changed = make(chan struct{})
	m.mu.proposed = map[string]int{}
	m.mu.horizons = map[mink.NodeEpoch]func() uint64{}
	return m
}

// Inject sets the fault of later proposals; nil: none.
func (m *Meta) Inject(f Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.fault = f
}

// Observe calls f with every new state.
func (m *Meta) Observe(f func(op string, s *plantest.State)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.observe = f
}

// Follow makes ReadHorizon ask the engine of an epoch, as its heartbeats do,
// until the epoch is sealed.
func (m *Meta) Follow(epoch mink.NodeEpoch, horizon func() uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.horizons[epoch] = horizon
}

// Lag makes ReadHorizon answer at most index, as if some node read on an old
// view; 0: no limit.
func (m *Meta) Lag(index uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.lagging = index
}

// Forget makes Remembered answer at most index; 0: the head.
func (m *Meta) Forget(index uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.forgets = index
}

// Proposals is how many commands of a kind were proposed.
func (m *Meta) Proposals(op string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.proposed[op]
}

// State is the current state; not to be changed.
func (m *Meta) State() *plantest.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.state
}

// Change applies f to a copy of the state, which becomes the next one.
func (m *Meta) Change(f func(s *plantest.State)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.change("change", f)
}

func (m *Meta) change(op string, f func(s *plantest.State)) {
	s := m.mu.state.Clone()
	s.TimeMs = m.now().UnixMilli()
	before := s.Index
	f(s)
	s.Index = max(s.Index, before+1)
	m.mu.state = s
	close(m.mu.changed)
	m.mu.changed = make(chan struct{})
	if m.mu.observe != nil {
		m.mu.observe(op, s)
	}
}

// Register admits a new incarnation of a node and seals its earlier ones.
func (m *Meta) Register(node mink.NodeID) plan.WALID {
	var id plan.WALID
	m.Change(func(s *plantest.State) {
		for e, w := range s.Logs {
			if w.ID.Node == node {
				w.Sealed = true
				s.Logs[e] = w
			}
		}
		id = plan.WALID{Node: node, Epoch: mink.NodeEpoch(s.Index + 1), Nonce: 0xfeed0000 + s.Index}
		s.Logs[id.Epoch] = plan.WAL{ID: id}
	})
	return id
}

// Seal ends an epoch.
func (m *Meta) Seal(epoch mink.NodeEpoch) {
	m.Change(func(s *plantest.State) {
		w := s.Logs[epoch]
		w.Sealed = true
		s.Logs[epoch] = w
	})
}

// Lead makes the incarnation lead a stream, creating it if absent, and answers
// its new leader epoch.
func (m *Meta) Lead(id mink.StreamID, w plan.WALID) (epoch mink.LeaderEpoch) {
	m.Change(func(s *plantest.State) {
		st := s.Streams[id]
		st.ID = id
		st.Owner = plan.Owner{Node: w.Node, NodeEpoch: w.Epoch, LeaderEpoch: st.Owner.LeaderEpoch + 1}
		s.Streams[id] = st
		epoch = st.Owner.LeaderEpoch
	})
	return epoch
}

// Recover registers a sealed log by reference.
func (m *Meta) Recover(c plan.RecoverWAL) error {
	return m.propose(context.Background(), "recover", func(s *plantest.State) (plan.Delta, error) { return plan.ApplyRecoverWAL(s, c) })
}

// Release applies a release; the stream has no owner afterwards.
func (m *Meta) Release(ctx context.Context, c plan.Release) error {
	return m.propose(ctx, "release", func(s *plantest.State) (plan.Delta, error) {
		d, err := plan.ApplyRelease(s, c)
		for i := range d.Streams {
			d.Streams[i].Owner = plan.Owner{LeaderEpoch: d.Streams[i].Owner.LeaderEpoch}
		}
		return d, err
	})
}

func (m *Meta) propose(ctx context.Context, op string, apply func(*plantest.State) (plan.Delta, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	m.mu.proposed[op]++
	fault := m.mu.fault
	m.mu.Unlock()
	var after error
	if fault != nil {
		before, late := fault(op)
		if before != nil {
			return before
		}
		after = late
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := apply(m.mu.state)
	if err == nil {
		m.change(op, func(s *plantest.State) { s.Apply(d) })
	}
	if after != nil {
		return after
	}
	return err
}

// View implements stream.Meta.
func (m *Meta) View() stream.View { return view{m.State()} }

// Changed implements stream.Meta.
func (m *Meta) Changed(index uint64) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.state.Index > index {
		c := make(chan struct{})
		close(c)
		return c
	}
	return m.mu.changed
}

// CommitObjects implements stream.Meta.
func (m *Meta) CommitObjects(ctx context.Context, c plan.CommitObjects) error {
	return m.propose(ctx, "commit", func(s *plantest.State) (plan.Delta, error) { return plan.ApplyCommitObjects(s, c) })
}

// ReplaceObjects implements stream.Meta.
func (m *Meta) ReplaceObjects(ctx context.Context, c plan.ReplaceObjects) error {
	return m.propose(ctx, "replace", func(s *plantest.State) (plan.Delta, error) { return plan.ApplyReplaceObjects(s, c) })
}

// RewriteStream implements stream.Meta.
func (m *Meta) RewriteStream(ctx context.Context, c plan.RewriteStream) error {
	return m.propose(ctx, "rewrite", func(s *plantest.State) (plan.Delta, error) { return plan.ApplyRewriteStream(s, c) })
}

// TrimStreams implements stream.Meta.
func (m *Meta) TrimStreams(ctx context.Context, t []plan.Trim) error {
	return m.propose(ctx, "trim", func(s *plantest.State) (plan.Delta, error) { return plan.ApplyTrims(s, t), nil })
}

// ForgetObjects implements stream.Meta.
func (m *Meta) ForgetObjects(ctx context.Context, ids []plan.ObjectID) error {
	return m.propose(ctx, "forget", func(s *plantest.State) (plan.Delta, error) {
		for _, id := range ids {
			if _, named := s.Named[id]; named {
				return plan.Delta{}, fmt.Errorf("forget %+v, which is named: %w", id, mink.ErrConflict)
			}
		}
		m.change("forget", func(s *plantest.State) { s.Forget(ids) })
		return plan.Delta{}, nil
	})
}

// ReadHorizon implements stream.Meta.
func (m *Meta) ReadHorizon(ctx context.Context) (uint64, error) {
	m.mu.Lock()
	index := m.mu.state.Index
	if m.mu.lagging > 0 {
		index = min(index, m.mu.lagging)
	}
	var live []func() uint64
	for epoch, horizon := range m.mu.horizons {
		if !m.mu.state.Logs[epoch].Sealed {
			live = append(live, horizon)
		}
	}
	m.mu.Unlock()
	for _, horizon := range live { // without the lock: it takes a view
		index = min(index, horizon())
	}
	return index, ctx.Err()
}

// Remembered implements stream.Meta.
func (m *Meta) Remembered(ctx context.Context) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.forgets > 0 {
		return min(m.mu.forgets, m.mu.state.Index), ctx.Err()
	}
	return m.mu.state.Index, ctx.Err()
}

// view implements stream.View over a state that no longer changes.
type view struct{ s *plantest.State }

func (v view) Index() uint64                                    { return v.s.Index }
func (v view) Stream(id mink.StreamID) (plan.Stream, bool)      { return v.s.Stream(id) }
func (v view) Object(id plan.ObjectID) (plan.Object, bool)      { return v.s.Object(id) }
func (v view) WAL(e mink.NodeEpoch) (plan.WAL, bool)            { return v.s.WAL(e) }
func (v view) WALs() iter.Seq[plan.WAL]                         { return inOrder(v.s.Logs) }
func (v view) Objects() iter.Seq[plan.Object]                   { return maps.Values(v.s.Named) }
func (v view) ObjectRanges(id plan.ObjectID) []plan.ObjectRange { return v.s.ObjectRanges(id) }
func (v view) Destroyed() iter.Seq[plan.Destroyed]              { return maps.Values(v.s.Gone) }
func (v view) TimeLine() uint64                                 { return v.s.TimeLine }

func inOrder[V any](m map[mink.NodeEpoch]V) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(m[k]) {
				return
			}
		}
	}
}
