package plan

import (
	"fmt"

	"github.com/mink-project/mink/sdk/mink"
)

// State is what the apply functions ask of the metadata state.
type State interface {
	Stream(mink.StreamID) (Stream, bool)
	Object(ObjectID) (Object, bool) // named ones; not the destroyed
	WAL(mink.NodeEpoch) (WAL, bool)
	// ObjectRanges answers the references of every stream that names the object
	// (Stream.References), in any order.
	ObjectRanges(ObjectID) []ObjectRange
}

// Delta is what an accepted command changes; the state machine stores it. The
// order of every list is a function of the command and the state alone.
type Delta struct {
	WAL       *WAL     // the new state of the command's WAL; nil: unchanged
	Streams   []Stream // changed streams, whole
	Objects   []Object // named from now on; one that was destroyed comes back
	Destroyed []Object // named by nobody from now on: to Destroyed, with time and index
}

// ApplyCommitObjects registers uploads. A command whose Seq was already
// accepted changes nothing and is accepted again, whatever else it says.
//
// Items of streams that are gone, or not owned by (WAL, LeaderEpoch), are
// skipped. Errors: mink.ErrFenced for an unknown or sealed epoch, mink.ErrConflict
// for a wrong Seq, a gap or an overlap, mink.ErrInvalid for a malformed command.
func ApplyCommitObjects(v State, c CommitObjects) (Delta, error) {
	w, ok := v.WAL(c.WAL.Epoch)
	if !ok || w.ID != c.WAL {
		return Delta{}, fmt.Errorf("commit objects of unknown wal %s: %w", c.WAL, mink.ErrFenced)
	}
	if c.Seq <= w.CommitSeq && c.Seq > 0 {
		return Delta{}, nil
	}
	if w.Sealed {
		return Delta{}, fmt.Errorf("commit objects of sealed wal %s: %w", c.WAL, mink.ErrFenced)
	}
	if c.Seq != w.CommitSeq+1 {
		return Delta{}, fmt.Errorf("commit %d of wal %s does not follow %d: %w", c.Seq, c.WAL, w.CommitSeq, mink.ErrConflict)
	}
	if err := checkObjects(v, c.WAL, c.Objects, c.Items); err != nil {
		return Delta{}, fmt.Errorf("commit %d of wal %s: %w", c.Seq, c.WAL, err)
	}
	ed := newEdit(v)
	if err := ed.appendItems(c.WAL, c.Items, 0); err != nil {
		return Delta{}, fmt.Errorf("commit %d of wal %s: %w", c.Seq, c.WAL, err)
	}
	w.CommitSeq, w.Trim = c.Seq, max(w.Trim, c.WALTrim)
	d := ed.finish(c.Objects, true)
	d.WAL = &w
	return d, nil
}

// ApplyRecoverWAL registers a dead node's log by reference and ends it; of a
// Part, it raises the trim: whoever recovers the rest goes on there. A second
// recovery of an epoch changes nothing. Offsets below a stream's committed end
// are clipped (slots above the trim may hold them); a gap is mink.ErrConflict. The
// caller has checked the lease.
func ApplyRecoverWAL(v State, c RecoverWAL) (Delta, error) {
	w, ok := v.WAL(c.WAL.Epoch)
	switch {
	case !ok || w.ID != c.WAL:
		return Delta{}, fmt.Errorf("recover unknown wal %s: %w", c.WAL, mink.ErrNotExist)
	case w.Recovered:
		return Delta{}, nil
	case !w.Sealed:
		return Delta{}, fmt.Errorf("recover wal %s: it is not sealed: %w", c.WAL, mink.ErrConflict)
	case c.From > w.Trim: // a part before this one is missing
		return Delta{}, fmt.Errorf("recover wal %s from slot %d: its trim is %d: %w", c.WAL, c.From, w.Trim, mink.ErrConflict)
	case c.End < w.Trim:
		return Delta{}, fmt.Errorf("recover wal %s: end %d is below its trim %d: %w", c.WAL, c.End, w.Trim, mink.ErrInvalid)
	}
	if err := checkObjects(v, c.WAL, c.Objects, c.Items); err != nil {
		return Delta{}, fmt.Errorf("recover wal %s: %w", c.WAL, err)
	}
	for _, o := range c.Objects {
		if o.ID.Kind != KindWAL || o.ID.Seq >= c.End {
			return Delta{}, fmt.Errorf("recover wal %s: object %+v is not below its end %d: %w", c.WAL, o.ID, c.End, mink.ErrInvalid)
		}
	}
	ed := newEdit(v)
	if err := ed.appendItems(c.WAL, c.Items, clipBelowEnd); err != nil {
		return Delta{}, fmt.Errorf("recover wal %s: %w", c.WAL, err)
	}
	if c.Part {
		w.Trim = c.End
	} else {
		w.Recovered, w.End = true, c.End
	}
	d := ed.finish(c.Objects, false)
	d.WAL = &w
	return d, nil
}

// ApplyRelease commits the released stream's tail by reference. The owner is
// left for the caller to change. The stream must be owned by (WAL,
// LeaderEpoch), and its end must come out as the command's End, else
// mink.ErrConflict.
func ApplyRelease(v State, c Release) (Delta, error) {
	w, ok := v.WAL(c.WAL.Epoch)
	if !ok || w.ID != c.WAL || w.Sealed {
		return Delta{}, fmt.Errorf("release stream %d by wal %s: %w", c.Stream, c.WAL, mink.ErrFenced)
	}
	s, ok := v.Stream(c.Stream)
	if !ok {
		return Delta{}, fmt.Errorf("release stream %d: %w", c.Stream, mink.ErrNotExist)
	}
	if s.Owner != (Owner{c.WAL.Node, c.WAL.Epoch, c.LeaderEpoch}) {
		return Delta{}, fmt.Errorf("release stream %d by wal %s, leader epoch %d: owned by %+v: %w", c.Stream, c.WAL, c.LeaderEpoch, s.Owner, mink.ErrConflict)
	}
	if err := checkObjects(v, c.WAL, c.Objects, c.Items); err != nil {
		return Delta{}, fmt.Errorf("release stream %d: %w", c.Stream, err)
	}
	for _, it := range c.Items {
		if it.Stream != c.Stream || it.LeaderEpoch != c.LeaderEpoch {
			return Delta{}, fmt.Errorf("release stream %d: item of stream %d, leader epoch %d: %w", c.Stream, it.Stream, it.LeaderEpoch, mink.ErrInvalid)
		}
	}
	ed := newEdit(v)
	if err := ed.appendItems(c.WAL, c.Items, 0); err != nil {
		return Delta{}, fmt.Errorf("release: %w", err)
	}
	if got := ed.stream(s.ID).End; got != c.End {
		return Delta{}, fmt.Errorf("release stream %d at %d: its items end at %d: %w", c.Stream, c.End, got, mink.ErrConflict)
	}
	return ed.finish(c.Objects, false), nil
}

// ApplyTrims raises starts; unknown streams are skipped.
func ApplyTrims(v State, trims []Trim) Delta {
	ed := newEdit(v)
	for _, t := range trims {
		if s := ed.stream(t.Stream); s != nil {
			*s = s.Trim(t.Start)
		}
	}
	return ed.finish(nil, false)
}

// DropStreams answers the objects that nobody names once the streams are gone.
// Delta.Streams is empty: the caller removes them.
func DropStreams(v State, ids []mink.StreamID) Delta {
	ed := newEdit(v)
	for _, id := range ids {
		if s := ed.stream(id); s != nil {
			s.Ranges, s.Checkpoint = nil, ObjectID{}
		}
	}
	d := ed.finish(nil, false)
	d.Streams = nil
	return d
}

// ApplyReplaceObjects registers a compaction. mink.ErrConflict: a source is
// gone, or the outputs do not cover the sources' live ranges as the state has
// them now (the plan is stale).
func ApplyReplaceObjects(v State, c ReplaceObjects) (Delta, error) {
	w, ok := v.WAL(c.WAL.Epoch)
	if !ok || w.ID != c.WAL || w.Sealed {
		return Delta{}, fmt.Errorf("replace objects by wal %s: %w", c.WAL, mink.ErrFenced)
	}
	if err := checkObjects(v, c.WAL, c.Objects, c.Items); err != nil {
		return Delta{}, fmt.Errorf("replace objects: %w", err)
	}
	sources := make(map[ObjectID]bool, len(c.Sources))
	ed := newEdit(v)
	for _, id := range c.Sources {
		if _, ok := v.Object(id); !ok {
			return Delta{}, fmt.Errorf("replace objects: source %+v is gone: %w", id, mink.ErrConflict)
		}
		if sources[id] {
			return Delta{}, fmt.Errorf("replace objects: source %+v twice: %w", id, mink.ErrInvalid)
		}
		sources[id] = true
	}
	items := map[mink.StreamID][]Item{}
	for _, it := range c.Items {
		if it.End < it.Start || it.Start < 0 {
			return Delta{}, fmt.Errorf("replace objects: item [%d, %d) of stream %d is not a range: %w", it.Start, it.End, it.Stream, mink.ErrInvalid)
		}
		items[it.Stream] = append(items[it.Stream], it)
		ed.stream(it.Stream) // nil when the stream was dropped: its items are skipped
	}
	for _, id := range c.Sources {
		for _, r := range v.ObjectRanges(id) {
			ed.stream(r.Stream)
		}
	}
	for i := range ed.after {
		s, err := ed.after[i].Replace(func(id ObjectID) bool { return sources[id] }, items[ed.after[i].ID])
		if err != nil {
			return Delta{}, fmt.Errorf("replace objects: %w", err)
		}
		ed.after[i] = s
	}
	return ed.finish(c.Objects, true), nil
}

// ApplyRewriteStream registers a rewrite. Errors as Stream.Rewrite's, and
// mink.ErrConflict for one who does not lead the stream under that epoch any more.
func ApplyRewriteStream(v State, c RewriteStream) (Delta, error) {
	w, ok := v.WAL(c.WAL.Epoch)
	if !ok || w.ID != c.WAL || w.Sealed {
		return Delta{}, fmt.Errorf("rewrite stream %d by wal %s: %w", c.Stream, c.WAL, mink.ErrFenced)
	}
	ed := newEdit(v)
	s := ed.stream(c.Stream)
	if s == nil {
		return Delta{}, fmt.Errorf("rewrite stream %d: %w", c.Stream, mink.ErrNotExist)
	}
	if s.Owner != (Owner{c.WAL.Node, c.WAL.Epoch, c.LeaderEpoch}) {
		return Delta{}, fmt.Errorf("rewrite stream %d by wal %s, leader epoch %d: owned by %+v: %w", c.Stream, c.WAL, c.LeaderEpoch, s.Owner, mink.ErrConflict)
	}
	if err := checkObjects(v, c.WAL, c.Objects, c.Items); err != nil {
		return Delta{}, fmt.Errorf("rewrite stream %d: %w", c.Stream, err)
	}
	for _, o := range c.Objects {
		if o.ID.Kind != KindStream {
			return Delta{}, fmt.Errorf("rewrite stream %d: object %+v is not of one stream: %w", c.Stream, o.ID, mink.ErrInvalid)
		}
	}
	for _, it := range c.Items {
		if it.Stream != c.Stream {
			return Delta{}, fmt.Errorf("rewrite stream %d: item of stream %d: %w", c.Stream, it.Stream, mink.ErrInvalid)
		}
	}
	next, err := s.Rewrite(c)
	if err != nil {
		return Delta{}, fmt.Errorf("rewrite: %w", err)
	}
	*s = next
	return ed.finish(c.Objects, true), nil
}

// checkObjects refuses a command whose objects are not the WAL's own, are known
// data objects already, or whose items name another object.
func checkObjects(v State, w WALID, objects []Object, items []Item) error {
	seen := make(map[ObjectID]bool, len(objects))
	for _, o := range objects {
		switch {
		case o.WAL != w || o.ID.Epoch != w.Epoch:
			return fmt.Errorf("object %+v is not of wal %s: %w", o.ID, w, mink.ErrInvalid)
		case o.ID.Kind != KindWAL && o.ID.Kind != KindStreamSet && o.ID.Kind != KindStream:
			return fmt.Errorf("object %+v has a kind that is never named: %w", o.ID, mink.ErrInvalid)
		case o.ID.Kind != KindWAL && o.ID.Seq == 0:
			return fmt.Errorf("object %+v has no number: %w", o.ID, mink.ErrInvalid)
		case o.Size <= 0 || o.IndexPos < 0 || o.IndexLen <= 0 || o.IndexPos > o.Size || o.IndexLen > o.Size-o.IndexPos:
			return fmt.Errorf("object %+v of %d bytes has its index at %d, %d bytes: %w", o.ID, o.Size, o.IndexPos, o.IndexLen, mink.ErrInvalid)
		case seen[o.ID]:
			return fmt.Errorf("object %+v twice: %w", o.ID, mink.ErrInvalid)
		}
		if _, ok := v.Object(o.ID); ok && o.ID.Kind != KindWAL {
			return fmt.Errorf("object %+v is known already: %w", o.ID, mink.ErrConflict)
		}
		seen[o.ID] = true
	}
	for _, it := range items {
		if !seen[it.Object] {
			return fmt.Errorf("item of stream %d names object %+v, which the command does not: %w", it.Stream, it.Object, mink.ErrInvalid)
		}
	}
	return nil
}

type appendMode uint8

// clipBelowEnd: what an item holds below the committed end is cut off.
const clipBelowEnd appendMode = 1

// edit collects the streams that a command changes.
type edit struct {
	v      State
	pos    map[mink.StreamID]int // into before and after; -1: no such stream
	before []Stream
	after  []Stream
}

func newEdit(v State) *edit { return &edit{v: v, pos: map[mink.StreamID]int{}} }

// stream answers the working copy, nil when the stream does not exist.
func (e *edit) stream(id mink.StreamID) *Stream {
	i, ok := e.pos[id]
	if !ok {
		s, found := e.v.Stream(id)
		if !found {
			e.pos[id] = -1
			return nil
		}
		i = len(e.after)
		e.pos[id] = i
		e.before, e.after = append(e.before, s), append(e.after, s)
	}
	if i < 0 {
		return nil
	}
	return &e.after[i]
}

func (e *edit) appendItems(w WALID, items []Item, mode appendMode) error {
	for _, it := range items {
		s := e.stream(it.Stream)
		if s == nil || s.Owner != (Owner{w.Node, w.Epoch, it.LeaderEpoch}) {
			continue
		}
		if mode == clipBelowEnd && it.Start < s.End {
			if it.End <= s.End {
				continue
			}
			it.Start = s.End
		}
		next, err := s.Append(it)
		if err != nil {
			return err
		}
		*s = next
	}
	return nil
}

// finish works out which objects came and which went. wasted: the command's
// objects that no item names are destroyed at once (uploads whose streams are
// gone); otherwise they are left out (slots of a WAL, which the WAL's own rule
// deletes).
func (e *edit) finish(objects []Object, wasted bool) Delta {
	var d Delta
	d.Streams = e.after
	named := map[ObjectID]bool{}
	for i := range e.after {
		for _, id := range e.after[i].Objects() {
			named[id] = true
		}
	}
	handled := make(map[ObjectID]bool, len(objects))
	for _, o := range objects {
		handled[o.ID] = true
		_, known := e.v.Object(o.ID)
		switch {
		case named[o.ID] && !known:
			d.Objects = append(d.Objects, o)
		case !named[o.ID] && !known && wasted:
			d.Destroyed = append(d.Destroyed, o)
		case !named[o.ID] && known:
			delete(handled, o.ID) // the loop below decides
		}
	}
	for i := range e.before {
		for _, id := range e.before[i].Objects() {
			if named[id] || handled[id] {
				continue
			}
			handled[id] = true
			if e.namedElsewhere(id) {
				continue
			}
			if o, ok := e.v.Object(id); ok {
				d.Destroyed = append(d.Destroyed, o)
			}
		}
	}
	return d
}

func (e *edit) namedElsewhere(id ObjectID) bool {
	for _, r := range e.v.ObjectRanges(id) {
		if i, ok := e.pos[r.Stream]; !ok || i < 0 {
			return true
		}
	}
	return false
}
