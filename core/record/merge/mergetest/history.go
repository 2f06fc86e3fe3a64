package mergetest

import (
	"fmt"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// History is a bucket of a primary-key table through puts, alters and losses: a Model
// knows the rows, this the order in which everything happened, so that what a crash
// lost can be taken back. Note is what a test keeps beside each put.
type History[Note any] struct {
	Events []*Event[Note]
	End    mink.Offset // of the changelog
	LastID int64       // the last number that the auto-increment column was given

	first, d *schema.Descriptor
	m        *Model
}

// Event is a put or an alter.
type Event[Note any] struct {
	Altered *schema.Descriptor // nil: a put
	Writer  bool               // an idempotent writer's put
	Writes  []Write
	Keys    []string       // Model.Key of each write
	Changes []Change       // what the put adds to the changelog
	Schema  *schema.Schema // of Changes
	Offsets mink.Offset    // taken
	Note    Note

	ids []int64 // of the auto-increment column
}

// NewHistory is an empty bucket.
func NewHistory[Note any](d *schema.Descriptor) *History[Note] {
	return &History[Note]{first: d, d: d, m: New(d)}
}

// Descriptor is the table as it is now.
func (h *History[Note]) Descriptor() *schema.Descriptor { return h.d }

// Rows are the rows in key order.
func (h *History[Note]) Rows() []Row { return h.m.Rows() }

// Get is the row of a key, nil when there is none.
func (h *History[Note]) Get(key string) Row { return h.m.Get(key) }

// Put adds a put, or answers why it must be refused. One that changes nothing takes an
// offset all the same when it has a writer.
func (h *History[Note]) Put(writes []Write, writer bool, note Note) (*Event[Note], error) {
	e := &Event[Note]{Writes: writes, Writer: writer, Schema: &h.d.Schema, Note: note}
	was := h.LastID
	h.m.NextID = func() int64 {
		h.LastID++
		e.ids = append(e.ids, h.LastID)
		return h.LastID
	}
	var err error
	if e.Changes, err = h.m.Apply(writes); err != nil {
		h.LastID = was
		return nil, err
	}
	for _, w := range writes {
		e.Keys = append(e.Keys, h.m.Key(w.Row))
	}
	if e.Offsets = mink.Offset(len(e.Changes)); e.Offsets == 0 && writer {
		e.Offsets = 1
	}
	h.End += e.Offsets
	h.Events = append(h.Events, e)
	return e, nil
}

// Repeat adds a put that counts for nothing: a duplicate.
func (h *History[Note]) Repeat(note Note) {
	h.Events = append(h.Events, &Event[Note]{Schema: &h.d.Schema, Note: note})
}

// Alter gives the table another definition, which its own became by schema.Change.
func (h *History[Note]) Alter(d *schema.Descriptor) {
	h.alter(d)
	h.Events = append(h.Events, &Event[Note]{Altered: d})
}

func (h *History[Note]) alter(d *schema.Descriptor) {
	h.m.Alter(d)
	h.d = d
}

// Cut takes back the puts that a log which ends at end does not have, and what came
// after them: it may have changed nothing only because of them. An error says that the
// log ends within a put.
func (h *History[Note]) Cut(end mink.Offset) (lost []*Event[Note], err error) {
	events := h.Events
	h.Events, h.End, h.d, h.m = nil, 0, h.first, New(h.first)
	for _, e := range events {
		if e.Altered != nil {
			h.alter(e.Altered)
			h.Events = append(h.Events, e)
			continue
		}
		if len(lost) > 0 || h.End+e.Offsets > end {
			lost = append(lost, e)
			continue
		}
		ids := e.ids
		h.m.NextID = func() int64 {
			id := ids[0]
			ids = ids[1:]
			return id
		}
		if _, err := h.m.Apply(e.Writes); err != nil {
			return nil, fmt.Errorf("a put that was taken is now refused: %w", err)
		}
		h.End += e.Offsets
		h.Events = append(h.Events, e)
	}
	if h.End != end {
		return lost, fmt.Errorf("the log ends at %d, the put there at %d", end, h.End)
	}
	return lost, nil
}

// Changes are the changes of all puts.
func (h *History[Note]) Changes() (all []Change) {
	for _, e := range h.Events {
		all = append(all, e.Changes...)
	}
	return all
}

// ByWriter are the puts of the idempotent writer, in order.
func (h *History[Note]) ByWriter() (out []*Event[Note]) {
	for _, e := range h.Events {
		if e.Writer {
			out = append(out, e)
		}
	}
	return out
}
