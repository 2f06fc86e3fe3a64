// Package plantest is a small metadata state over maps, for tests of what is
// built on core/stream/plan. It applies deltas as the state machine does.
package plantest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// State implements plan.State. Not safe for concurrent use; Clone gives a
// snapshot.
type State struct {
	Index   uint64
	TimeMs  int64
	Streams map[mink.StreamID]plan.Stream
	Named   map[plan.ObjectID]plan.Object
	Gone    map[plan.ObjectID]plan.Destroyed
	Logs    map[mink.NodeEpoch]plan.WAL

	TimeLine uint64 // node epochs at or below it are of an earlier time line
}

// New is the empty state.
func New() *State {
	return &State{
		Streams: map[mink.StreamID]plan.Stream{}, Named: map[plan.ObjectID]plan.Object{},
		Gone: map[plan.ObjectID]plan.Destroyed{}, Logs: map[mink.NodeEpoch]plan.WAL{},
	}
}

// Clone copies the maps; streams are values whose slices nobody changes.
func (s *State) Clone() *State {
	c := *s
	c.Streams, c.Named, c.Gone, c.Logs = maps.Clone(s.Streams), maps.Clone(s.Named), maps.Clone(s.Gone), maps.Clone(s.Logs)
	return &c
}

// Stream implements plan.State.
func (s *State) Stream(id mink.StreamID) (plan.Stream, bool) { v, ok := s.Streams[id]; return v, ok }

// Object implements plan.State.
func (s *State) Object(id plan.ObjectID) (plan.Object, bool) { v, ok := s.Named[id]; return v, ok }

// WAL implements plan.State.
func (s *State) WAL(e mink.NodeEpoch) (plan.WAL, bool) { v, ok := s.Logs[e]; return v, ok }

// ObjectRanges implements plan.State by a scan, in stream order.
func (s *State) ObjectRanges(id plan.ObjectID) []plan.ObjectRange {
	var out []plan.ObjectRange
	for _, st := range s.Streams {
		out = append(out, st.References(id)...)
	}
	slices.SortFunc(out, func(a, b plan.ObjectRange) int {
		return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Start, b.Start))
	})
	return out
}

// Apply stores a delta as the next index.
func (s *State) Apply(d plan.Delta) {
	s.Index++
	if d.WAL != nil {
		s.Logs[d.WAL.ID.Epoch] = *d.WAL
	}
	for _, st := range d.Streams {
		s.Streams[st.ID] = st
	}
	for _, o := range d.Objects {
		delete(s.Gone, o.ID)
		s.Named[o.ID] = o
	}
	for _, o := range d.Destroyed {
		delete(s.Named, o.ID)
		s.Gone[o.ID] = plan.Destroyed{Object: o, DestroyedAt: s.TimeMs, Index: s.Index}
	}
}

// Forget drops destroyed objects.
func (s *State) Forget(ids []plan.ObjectID) {
	s.Index++
	for _, id := range ids {
		delete(s.Gone, id)
	}
}

// Drop removes a stream.
func (s *State) Drop(id mink.StreamID) {
	d := plan.DropStreams(s, []mink.StreamID{id})
	delete(s.Streams, id)
	s.Apply(d)
}

// Validate checks what holds between the parts of a state.
func (s *State) Validate() error {
	refs := map[plan.ObjectID]bool{}
	for id, st := range s.Streams {
		if err := st.Validate(); err != nil {
			return err
		}
		for _, o := range st.Objects() {
			refs[o] = true
			if _, ok := s.Named[o]; !ok {
				return fmt.Errorf("stream %d names %+v, which the state does not hold", id, o)
			}
		}
	}
	for id := range s.Named {
		if !refs[id] {
			return fmt.Errorf("object %+v is named by no stream", id)
		}
		if _, both := s.Gone[id]; both {
			return fmt.Errorf("object %+v is named and destroyed", id)
		}
	}
	return nil
}
