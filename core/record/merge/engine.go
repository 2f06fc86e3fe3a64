package merge

import (
	"fmt"
	"slices"

	"github.com/mink-project/mink/core/record/row"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// Engine merges rows of one table under one schema version. It is immutable and safe
// for concurrent use.
type Engine struct {
	codec   *row.Codec
	schema  *schema.Schema
	options schema.Options
	key     []bool      // by column
	auto    int         // auto-increment column, -1: none
	version int         // version column, -1: none
	columns []aggregate // by column; Aggregation
	blind   bool
	every   *Targets
}

// New makes the engine of a valid descriptor for its version of the schema, which is
// the newest or an older one that is still in use.
func New(d *schema.Descriptor, s *schema.Schema) (*Engine, error) {
	o, err := d.ParsedOptions()
	if err != nil {
		return nil, err
	}
	if len(d.PrimaryKey) == 0 {
		return nil, fmt.Errorf("%w table %s: it has no primary key, its rows are not merged", mink.ErrInvalid, d.Name())
	}
	e := &Engine{schema: s, options: o, key: make([]bool, len(s.Columns)), auto: -1, version: -1}
	if e.codec, err = row.NewCodec(s); err != nil {
		return nil, err
	}
	// The descriptor names columns as the newest version does; by id they are the
	// same in every version.
	find := func(name string) (int, error) {
		c, _ := d.Schema.Column(name)
		if i := s.IndexByID(c.ID); i >= 0 && c.ID != 0 {
			return i, nil
		}
		return 0, fmt.Errorf("%w table %s: schema %d has no column %q", mink.ErrInvalid, d.Name(), s.ID, name)
	}
	for _, name := range d.PrimaryKey {
		i, err := find(name)
		if err != nil {
			return nil, err
		}
		e.key[i] = true
	}
	if o.MergeEngine == schema.Versioned {
		if e.version, err = find(o.VersionColumn); err != nil {
			return nil, err
		}
	}
	for i, c := range s.Columns {
		if c.AutoIncrement {
			e.auto = i
		}
		e.columns = append(e.columns, newAggregate(c))
	}
	e.blind = o.WALImage && o.MergeEngine == schema.LastWrite && e.auto < 0
	e.every, err = e.Targets(s, nil)
	return e, err
}

// Codec reads and writes the rows that the engine takes and makes.
func (e *Engine) Codec() *row.Codec { return e.codec }

// NeedsOld reports whether Apply needs the old row of a write of all columns (full),
// or of any other. Where it does not, the changelog shows every upsert as an update
// and every delete as one, and nobody knows how many rows there are.
func (e *Engine) NeedsOld(full bool) bool { return !full || !e.blind }

// AutoIncrement is the position of the auto-increment column, -1 when there is none.
func (e *Engine) AutoIncrement() int { return e.auto }

// Assign puts the number of the auto-increment column into a row that Apply made for
// a key that had none.
func (e *Engine) Assign(value []byte, id int64) error {
	if !row.PutInt(e.codec.SetFixed(value, e.auto), id) {
		c := e.schema.Columns[e.auto]
		return fmt.Errorf("%w value: auto-increment column %q: %d does not fit %s, its numbers are used up", mink.ErrInvalid, c.Name, id, c.Type)
	}
	return nil
}

// Targets is the set of columns whose values a write has. Immutable, of one Engine.
type Targets struct {
	all       bool   // every column, the auto-increment column aside
	set       []bool // by column: the write's value counts; never the auto-increment column
	keyOnly   bool   // set has the key alone
	whole     bool   // a delete removes the row
	auto      bool   // the auto-increment column was sent
	required  []int  // NOT NULL columns of set outside of the key
	upsertErr error  // why rows may not be upserted
	deleteErr error  // why rows may not be deleted
}

// All is the targets of a write of all columns.
func (e *Engine) All() *Targets { return e.every }

// All reports whether the targets are all columns (Engine.NeedsOld); the
// auto-increment column may be missing.
func (t *Targets) All() bool { return t.all }

// Targets compiles the columns of a write: those of the writer's schema version with
// the given field ids, nil: all of it. Columns that were dropped since are passed
// over; columns that were added since are no targets, so that a writer that does not
// know them leaves them alone. The primary key must be among them. What only upserts
// or only deletes may not do is left to Apply.
func (e *Engine) Targets(writer *schema.Schema, ids []mink.FieldID) (*Targets, error) {
	complete := true // every column that the writer knows
	for _, c := range writer.Columns {
		complete = complete && (ids == nil || slices.Contains(ids, c.ID) || c.AutoIncrement)
	}
	t := &Targets{all: true, keyOnly: true, set: make([]bool, len(e.schema.Columns))}
	mark := func(id mink.FieldID) error {
		at := writer.IndexByID(id)
		if at < 0 {
			return fmt.Errorf("%w target columns: schema %d has no column with the field id %d", mink.ErrInvalid, writer.ID, id)
		}
		i := e.schema.IndexByID(id)
		switch {
		case i < 0: // dropped since
		case t.set[i] || t.auto && i == e.auto:
			return fmt.Errorf("%w target columns: column %q occurs twice", mink.ErrInvalid, writer.Columns[at].Name)
		case i == e.auto:
			t.auto = true
		default:
			t.set[i] = true
		}
		return nil
	}
	if ids == nil {
		for _, c := range writer.Columns {
			ids = append(ids, c.ID)
		}
	}
	for _, id := range ids {
		if err := mark(id); err != nil {
			return nil, err
		}
	}
	if err := e.finish(t, complete); err != nil {
		return nil, err
	}
	return t, nil
}

// finish derives what Apply needs from the set.
func (e *Engine) finish(t *Targets, complete bool) error {
	for i, c := range e.schema.Columns {
		switch {
		case e.key[i]:
			if !t.set[i] {
				return fmt.Errorf("%w target columns: the primary-key column %q is missing", mink.ErrInvalid, c.Name)
			}
		case i == e.auto:
		case !t.set[i]:
			t.all = false
			if c.Type.NotNull && t.upsertErr == nil {
				t.upsertErr = fmt.Errorf("%w upsert: column %q is NOT NULL and not among the target columns", mink.ErrInvalid, c.Name)
			}
		default:
			t.keyOnly = false
			if c.Type.NotNull {
				t.required = append(t.required, i)
				if t.deleteErr == nil {
					t.deleteErr = fmt.Errorf("%w delete: column %q is NOT NULL and cannot be deleted alone; name all columns or the primary key only to delete the row", mink.ErrInvalid, c.Name)
				}
			}
		}
	}
	t.whole = complete || t.keyOnly && !t.auto
	switch {
	case t.whole:
		t.deleteErr = nil
	case t.auto:
		t.deleteErr = fmt.Errorf("%w delete: the auto-increment column %q cannot be deleted alone", mink.ErrInvalid, e.schema.Columns[e.auto].Name)
	}
	if engine := e.options.MergeEngine; !complete && (engine == schema.FirstRow || engine == schema.Versioned) {
		t.upsertErr = fmt.Errorf("%w upsert: merge engine %s takes whole rows, not some columns", mink.ErrInvalid, engine)
	}
	return nil
}
