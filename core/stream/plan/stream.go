package plan

import (
	"fmt"
	"slices"
	"sort"

	"github.com/mink-project/mink/sdk/mink"
)

// The methods below never change the stream they are called on: its slices may
// be shared by any number of immutable states. They answer a changed copy.

// Append puts the item behind the stream's committed end. The caller has
// checked ownership. An item whose Start is not the end is refused with
// mink.ErrConflict: a gap would hide lost records, an overlap would show two
// versions. An empty item is valid only to carry a checkpoint.
func (s Stream) Append(it Item) (Stream, error) {
	switch {
	case it.Start < 0 || it.End < it.Start:
		return s, fmt.Errorf("stream %d: item [%d, %d) is not a range: %w", s.ID, it.Start, it.End, mink.ErrInvalid)
	case it.Start == it.End && !it.Checkpoint:
		return s, fmt.Errorf("stream %d: empty item at %d without a checkpoint: %w", s.ID, it.Start, mink.ErrInvalid)
	case it.Start != s.End:
		return s, fmt.Errorf("stream %d: item starts at %d, the committed end is %d: %w", s.ID, it.Start, s.End, mink.ErrConflict)
	}
	if it.End > it.Start {
		s.Ranges = appendRange(cloneRanges(s.Ranges, 1), Range{Object: it.Object, Start: it.Start, End: it.End})
		s.End = it.End
	}
	if it.Checkpoint {
		s.Checkpoint, s.CheckEnd = it.Object, it.End
	}
	return s, nil
}

// AddGap accepts that [g.Start, g.End) is lost. It begins at the committed end,
// which moves to its end.
func (s Stream) AddGap(g Gap) (Stream, error) {
	switch {
	case g.Start < 0 || g.End <= g.Start:
		return s, fmt.Errorf("stream %d: gap [%d, %d) is not a range: %w", s.ID, g.Start, g.End, mink.ErrInvalid)
	case g.Start != s.End:
		return s, fmt.Errorf("stream %d: gap starts at %d, the committed end is %d: %w", s.ID, g.Start, s.End, mink.ErrConflict)
	}
	gaps := append([]Gap(nil), s.Gaps...)
	if n := len(gaps); n > 0 && gaps[n-1].End == g.Start {
		gaps[n-1].End = g.End
	} else {
		gaps = append(gaps, g)
	}
	s.Gaps, s.End = gaps, g.End
	return s, nil
}

// TrimLimit is the highest start that Trim gives. With a checkpoint it is the
// checkpoint's end: what replay folds on top of it must stay readable.
func (s Stream) TrimLimit() mink.Offset {
	if s.Checkpoint.IsZero() {
		return s.End
	}
	return min(s.CheckEnd, s.End)
}

// Trim raises the start to `to`, clamped to [Start, TrimLimit], and drops the
// ranges and gaps that lie wholly below it. The checkpoint stays.
func (s Stream) Trim(to mink.Offset) Stream {
	to = min(to, s.TrimLimit())
	if to <= s.Start {
		return s
	}
	s.Start = to
	// Slicing off the head shares the tail, which nobody writes to.
	r := sort.Search(len(s.Ranges), func(i int) bool { return s.Ranges[i].End > to })
	s.Ranges = s.Ranges[r:len(s.Ranges):len(s.Ranges)]
	g := sort.Search(len(s.Gaps), func(i int) bool { return s.Gaps[i].End > to })
	s.Gaps = s.Gaps[g:len(s.Gaps):len(s.Gaps)]
	return s
}

// Replace gives what the stream holds in the source objects to the items'
// objects. The items, in offset order, cover exactly the sources' ranges less
// what is trimmed: a missing offset would be lost data, an extra one would
// shadow a range that is not a source. A checkpoint in a source must have a
// successor at the same offset or a later one, up to the end.
func (s Stream) Replace(isSource func(ObjectID) bool, items []Item) (Stream, error) {
	var want, have []span // live offsets: in the sources, in the items
	kept := make([]Range, 0, len(s.Ranges)+len(items))
	for _, r := range s.Ranges {
		if isSource(r.Object) {
			want = addSpan(want, r.Start, r.End, s.Start)
		} else {
			kept = append(kept, r)
		}
	}
	var placed []Range
	last := mink.Offset(0)
	newCheck, newCheckEnd, lost := s.Checkpoint, s.CheckEnd, isSource(s.Checkpoint) && !s.Checkpoint.IsZero()
	for _, it := range items {
		checkpointAlone := it.Checkpoint && it.Start == it.End // may stand anywhere
		if !checkpointAlone && (it.Start < last || it.End < it.Start) {
			return s, fmt.Errorf("stream %d: item [%d, %d) is out of order: %w", s.ID, it.Start, it.End, mink.ErrInvalid)
		}
		if it.Checkpoint && (it.End > newCheckEnd || lost && it.End == newCheckEnd) {
			newCheck, newCheckEnd, lost = it.Object, it.End, false
		}
		if it.Start == it.End {
			continue
		}
		last = it.End
		have = addSpan(have, it.Start, it.End, s.Start)
		if it.End > s.Start {
			placed = append(placed, Range{Object: it.Object, Start: it.Start, End: it.End})
		}
	}
	if lost {
		return s, fmt.Errorf("stream %d: no output carries the checkpoint at %d: %w", s.ID, s.CheckEnd, mink.ErrConflict)
	}
	if !equalSpans(want, have) {
		return s, fmt.Errorf("stream %d: outputs cover %v, the sources' live ranges are %v: %w", s.ID, have, want, mink.ErrConflict)
	}
	if newCheckEnd > s.End {
		return s, fmt.Errorf("stream %d: a checkpoint at %d, the committed end is %d: %w", s.ID, newCheckEnd, s.End, mink.ErrInvalid)
	}
	s.Ranges = mergeRanges(kept, placed)
	s.Checkpoint, s.CheckEnd = newCheck, newCheckEnd
	return s, nil
}

// Below answers the ranges that hold offsets below upper, the last one cut there.
func (s Stream) Below(upper mink.Offset) []Range {
	n := sort.Search(len(s.Ranges), func(i int) bool { return s.Ranges[i].Start >= upper })
	if n == 0 || s.Ranges[n-1].End <= upper {
		return s.Ranges[:n:n]
	}
	out := cloneRanges(s.Ranges[:n], 0)
	out[n-1].End = upper
	return out
}

// Rewrite gives the offsets of [c.Start, c.Upper) to the items' objects. The caller
// has checked ownership. What was trimmed since it was read is passed over: a rewrite
// may take longer than retention waits. mink.ErrConflict when all of it was trimmed, when
// other objects hold those offsets now, and when frames would change that the replay of
// a checkpoint may still read.
func (s Stream) Rewrite(c RewriteStream) (Stream, error) {
	sources := c.Sources
	for len(sources) > 0 && sources[0].End <= s.Start {
		sources = sources[1:]
	}
	switch {
	case c.Start > s.Start || c.Upper > c.Start && c.Upper <= s.Start:
		return s, fmt.Errorf("stream %d: read from %d to %d, it starts at %d: %w", s.ID, c.Start, c.Upper, s.Start, mink.ErrConflict)
	case len(c.Sources) == 0 || c.Upper <= c.Start || c.Upper < s.Cleaned.End || c.Cleaned.Bytes < 0 || c.Cleaned.DueMs < 0:
		return s, fmt.Errorf("stream %d: [%d, %d), %+v after %+v is no rewrite: %w", s.ID, c.Start, c.Upper, c.Cleaned, s.Cleaned, mink.ErrInvalid)
	case c.Upper > s.TrimLimit():
		return s, fmt.Errorf("stream %d: rewritten up to %d, the replay of its checkpoint begins at %d: %w", s.ID, c.Upper, s.TrimLimit(), mink.ErrConflict)
	case len(sources) == 0 || !slices.Equal(sources, s.Below(c.Upper)):
		return s, fmt.Errorf("stream %d: its ranges below %d are not those that were read: %w", s.ID, c.Upper, mink.ErrConflict)
	}
	var want, have []span
	for _, r := range sources {
		want = addSpan(want, r.Start, r.End, s.Start)
	}
	ranges := make([]Range, 0, len(c.Items)+len(s.Ranges)-len(sources)+1)
	last := mink.Offset(0)
	for _, it := range c.Items {
		if it.Start < last || it.End <= it.Start || it.Checkpoint {
			return s, fmt.Errorf("stream %d: item [%d, %d) is no part of a rewrite: %w", s.ID, it.Start, it.End, mink.ErrInvalid)
		}
		last = it.End
		if it.End <= s.Start {
			continue
		}
		have = addSpan(have, it.Start, it.End, s.Start)
		ranges = appendRange(ranges, Range{Object: it.Object, Start: it.Start, End: it.End})
	}
	if !equalSpans(want, have) {
		return s, fmt.Errorf("stream %d: the rewrite covers %v, the ranges that were read %v: %w", s.ID, have, want, mink.ErrInvalid)
	}
	for _, r := range s.Ranges {
		if r.End > c.Upper {
			r.Start = max(r.Start, c.Upper)
			ranges = append(ranges, r)
		}
	}
	s.Ranges, s.Cleaned = ranges, c.Cleaned
	s.Cleaned.End = c.Upper
	return s, nil
}

// Find answers the range that holds the offset, or the next one behind it (the
// offset is in a gap). ok is false when no range ends behind the offset.
func (s Stream) Find(at mink.Offset) (i int, ok bool) {
	i = sort.Search(len(s.Ranges), func(i int) bool { return s.Ranges[i].End > at })
	return i, i < len(s.Ranges)
}

// Names reports whether the stream names the object, for a range or for its
// checkpoint.
func (s Stream) Names(id ObjectID) bool {
	if s.Checkpoint == id {
		return !id.IsZero()
	}
	for _, r := range s.Ranges {
		if r.Object == id {
			return true
		}
	}
	return false
}

// References answers the stream's live ranges in one object: what
// State.ObjectRanges holds of this stream.
func (s Stream) References(id ObjectID) []ObjectRange {
	var out []ObjectRange
	for _, r := range s.Ranges {
		if r.Object == id {
			out = append(out, ObjectRange{Stream: s.ID, Start: max(r.Start, s.Start), End: r.End})
		}
	}
	if s.Checkpoint == id && !id.IsZero() {
		if len(out) == 0 {
			out = append(out, ObjectRange{Stream: s.ID, Start: s.CheckEnd, End: s.CheckEnd})
		}
		out[len(out)-1].Checkpoint = true
	}
	return out
}

// Objects answers the distinct objects that the stream names, in range order,
// the checkpoint's last.
func (s Stream) Objects() []ObjectID {
	out := make([]ObjectID, 0, len(s.Ranges)+1)
	add := func(id ObjectID) {
		for i := len(out) - 1; i >= 0; i-- {
			if out[i] == id {
				return
			}
		}
		out = append(out, id)
	}
	for _, r := range s.Ranges {
		add(r.Object)
	}
	if !s.Checkpoint.IsZero() {
		add(s.Checkpoint)
	}
	return out
}

// Validate checks what must hold of every stream in the state.
func (s Stream) Validate() error {
	if s.Start < 0 || s.End < s.Start {
		return fmt.Errorf("stream %d: bounds [%d, %d)", s.ID, s.Start, s.End)
	}
	if s.CheckEnd > s.End {
		return fmt.Errorf("stream %d: checkpoint at %d, end %d", s.ID, s.CheckEnd, s.End)
	}
	if c := s.Cleaned; c.End < 0 || c.End > s.TrimLimit() || c.Bytes < 0 || c.DueMs < 0 {
		return fmt.Errorf("stream %d: cleaned %+v, end %d, checkpoint at %d", s.ID, c, s.End, s.CheckEnd)
	}
	at, r, g := s.Start, 0, 0
	for first := true; at < s.End; first = false {
		switch {
		case r < len(s.Ranges) && (s.Ranges[r].Start == at || first && s.Ranges[r].Start <= at) && s.Ranges[r].End > at:
			at, r = s.Ranges[r].End, r+1
		case g < len(s.Gaps) && (s.Gaps[g].Start == at || first && s.Gaps[g].Start <= at) && s.Gaps[g].End > at:
			at, g = s.Gaps[g].End, g+1
		default:
			return fmt.Errorf("stream %d: offset %d of [%d, %d) is in no range and no gap", s.ID, at, s.Start, s.End)
		}
	}
	if at != s.End || r != len(s.Ranges) || g != len(s.Gaps) {
		return fmt.Errorf("stream %d: ranges or gaps reach outside [%d, %d)", s.ID, s.Start, s.End)
	}
	return nil
}

func cloneRanges(in []Range, extra int) []Range {
	return append(make([]Range, 0, len(in)+extra), in...)
}

// appendRange adds r behind the last, growing the last when both are adjacent
// parts of one object.
func appendRange(to []Range, r Range) []Range {
	if n := len(to); n > 0 && to[n-1].Object == r.Object && to[n-1].End == r.Start {
		to[n-1].End = r.End
		return to
	}
	return append(to, r)
}

// mergeRanges interleaves two sorted lists.
func mergeRanges(a, b []Range) []Range {
	out := make([]Range, 0, len(a)+len(b))
	for len(a) > 0 || len(b) > 0 {
		if len(b) == 0 || len(a) > 0 && a[0].Start < b[0].Start {
			out, a = appendRange(out, a[0]), a[1:]
		} else {
			out, b = appendRange(out, b[0]), b[1:]
		}
	}
	return out
}

// span is a maximal run of offsets [start, end).
type span struct{ start, end mink.Offset }

func (s span) String() string { return fmt.Sprintf("[%d, %d)", s.start, s.end) }

// addSpan adds [start, end) less what is below floor, in offset order.
func addSpan(to []span, start, end, floor mink.Offset) []span {
	start = max(start, floor)
	if end <= start {
		return to
	}
	if n := len(to); n > 0 && to[n-1].end == start {
		to[n-1].end = end
		return to
	}
	return append(to, span{start, end})
}

func equalSpans(a, b []span) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
