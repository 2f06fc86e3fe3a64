package plan_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/plan/plantest"
	"github.com/mink-project/mink/sdk/mink"
)

// A log that is recovered in parts, by recoverers that stop after any of them,
// comes out as one that is recovered at once.
func TestRecoverInParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := walID(5)
		s := plantest.New()
		streams := rapid.IntRange(1, 4).Draw(t, "streams")
		for id := mink.StreamID(1); id <= mink.StreamID(streams); id++ {
			s.Streams[id] = plan.Stream{ID: id, Owner: plan.Owner{Node: w.Node, NodeEpoch: w.Epoch, LeaderEpoch: 1}}
		}
		trim := uint64(rapid.IntRange(0, 3).Draw(t, "trim"))
		s.Logs[w.Epoch] = plan.WAL{ID: w, Trim: trim, Sealed: true}
		whole := plan.RecoverWAL{WAL: w, End: trim + uint64(rapid.IntRange(0, 12).Draw(t, "slots"))}
		ends := map[mink.StreamID]mink.Offset{}
		for seq := trim; seq < whole.End; seq++ {
			o := object(w, plan.KindWAL, seq)
			whole.Objects = append(whole.Objects, o)
			for id := mink.StreamID(1); id <= mink.StreamID(streams); id++ {
				if n := mink.Offset(rapid.IntRange(0, 3).Draw(t, "span")); n > 0 {
					whole.Items = append(whole.Items, plan.Item{Stream: id, LeaderEpoch: 1, Object: o.ID, Start: ends[id], End: ends[id] + n})
					ends[id] += n
				}
			}
		}
		want := s.Clone()
		apply(t, want, whole)

		limit := rapid.IntRange(1, 6).Draw(t, "limit")
		for tries := 0; ; tries++ {
			if tries > 100 {
				t.Fatal("never recovered")
			}
			at := s.Logs[w.Epoch].Trim
			rest := whole // what a recoverer finds that begins at the trim
			for len(rest.Objects) > 0 && rest.Objects[0].ID.Seq < at {
				rest.Objects = rest.Objects[1:]
			}
			for len(rest.Items) > 0 && rest.Items[0].Object.Seq < at {
				rest.Items = rest.Items[1:]
			}
			parts := plan.RecoverParts(rest, limit)
			n := rapid.IntRange(0, len(parts)).Draw(t, "applied")
			for _, p := range parts[:n] {
				if len(p.Items) > limit+streams {
					t.Fatalf("%d items in a part, the limit is %d", len(p.Items), limit)
				}
				apply(t, s, p)
			}
			if s.Logs[w.Epoch].Recovered {
				break
			}
		}
		if diff := cmp.Diff(want.Streams, s.Streams); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(want.Named, s.Named); diff != "" {
			t.Error(diff)
		}
		if got := s.Logs[w.Epoch]; got.End != whole.End || !got.Recovered {
			t.Errorf("%+v", got)
		}
	})
}

func apply(t *rapid.T, s *plantest.State, c plan.RecoverWAL) {
	t.Helper()
	d, err := plan.ApplyRecoverWAL(s, c)
	if err != nil {
		t.Fatal(err)
	}
	s.Apply(d)
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
}
