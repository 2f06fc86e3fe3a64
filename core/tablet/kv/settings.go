package kv

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/record/merge"
	"github.com/mink-project/mink/core/record/row"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/evolve"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/sdk/mink"
)

// settings is a table as of one moment, compiled. Immutable but for caches.
type settings struct {
	table   Table
	options schema.Options
	current *schema.Schema
	engine  *merge.Engine
	codec   *row.Codec
	key     []int // positions of the key columns in current, in key order
	blind   bool  // full writes do not read old rows, and nobody counts; a table that drops its auto-increment column may become so
	older   []atomic.Pointer[version]
	forms   forms
	encoder sync.Pool // *encoders
	builder sync.Pool // *row.Builder of all columns
}

// version is how rows of a schema version are read.
type version struct {
	up *row.Upgrader // nil: the current one
}

func compile(t Table) (*settings, error) {
	o, err := t.Descriptor.ParsedOptions()
	if err != nil {
		return nil, err
	}
	s := &settings{table: t, options: o, current: t.Schemas[len(t.Schemas)-1], older: make([]atomic.Pointer[version], len(t.Schemas))}
	if s.engine, err = merge.New(t.Descriptor, s.current); err != nil {
		return nil, err
	}
	s.codec, s.blind = s.engine.Codec(), !s.engine.NeedsOld(true)
	if s.key, err = keyColumns(t.Descriptor, s.current); err != nil {
		return nil, err
	}
	return s, nil
}

// keyColumns are the positions in a schema version of the columns of the store's
// keys: the primary key without the partition keys.
func keyColumns(d *schema.Descriptor, s *schema.Schema) ([]int, error) {
	var at []int
	for _, name := range d.PrimaryKey {
		if slices.Contains(d.PartitionKeys, name) {
			continue
		}
		c, _ := d.Schema.Column(name)
		i := s.IndexByID(c.ID)
		if i < 0 {
			return nil, fmt.Errorf("%w: schema %d of table %s has no key column %q", mink.ErrCorrupt, s.ID, d.Name(), name)
		}
		at = append(at, i)
	}
	return at, nil
}

// names of columns by position.
func names(s *schema.Schema, columns []int) []string {
	out := make([]string, len(columns))
	for i, c := range columns {
		out[i] = s.Columns[c].Name
	}
	return out
}

// encoders writes rows and keys of one schema version.
type encoders struct {
	row *row.Encoder
	key *keyenc.Encoder
}

func newEncoders(codec *row.Codec, key []int) (*encoders, error) {
	k, err := keyenc.New(codec.Schema(), names(codec.Schema(), key))
	if err != nil {
		return nil, err
	}
	return &encoders{row: codec.Encoder(), key: k}, nil
}

func (s *settings) takeEncoders() (*encoders, error) {
	if e, ok := s.encoder.Get().(*encoders); ok {
		return e, nil
	}
	return newEncoders(s.codec, s.key)
}

// takeBuilder answers an empty builder of columns (field ids; nil: all); give it back.
func (s *settings) takeBuilder(columns []mink.FieldID) (*row.Builder, error) {
	if columns == nil {
		if b, ok := s.builder.Get().(*row.Builder); ok {
			return b, nil
		}
	}
	at, err := s.positions(columns)
	if err != nil {
		return nil, err
	}
	return s.codec.Builder(at)
}

// giveBuilder keeps a builder of all columns for the next one who wants one.
func (s *settings) giveBuilder(columns []mink.FieldID, b *row.Builder) {
	if columns != nil {
		return
	}
	if b.Len() > 0 { // of a put or a read that failed
		b.NewBatch().Release()
	}
	s.builder.Put(b)
}

// upgrade answers a stored row in the current version: value itself, or a copy at the
// end of dst.
func (s *settings) upgrade(dst, value []byte) (upgraded, scratch []byte, err error) {
	id, err := row.SchemaID(value)
	if err != nil {
		return nil, dst, err
	}
	if id == s.current.ID {
		return value, dst, nil
	}
	if id < 1 || int(id) > len(s.older) {
		return nil, dst, fmt.Errorf("row of schema %d of %d: %w", id, len(s.older), mink.ErrCorrupt)
	}
	v := s.older[id-1].Load()
	if v == nil {
		up, err := row.NewUpgrader(s.table.Schemas[id-1], s.current)
		if err != nil {
			return nil, dst, err
		}
		v = &version{up}
		s.older[id-1].Store(v)
	}
	n := len(dst)
	if dst, err = v.up.Append(dst, value); err != nil {
		return nil, dst[:n], err
	}
	return dst[n:], dst, nil
}

// positions finds columns of the current version by field id; nil: all, nil.
func (s *settings) positions(columns []mink.FieldID) ([]int, error) {
	if columns == nil {
		return nil, nil
	}
	at := make([]int, len(columns))
	for i, id := range columns {
		if at[i] = s.current.IndexByID(id); at[i] < 0 {
			return nil, fmt.Errorf("schema %d has no column with the field id %d: %w", s.current.ID, id, mink.ErrUnavailable)
		}
	}
	return at, nil
}

// form is one way in which puts are sent: some columns of a schema version.
type form struct {
	layout  *arrowipc.Layout
	targets *merge.Targets
	plan    *evolve.Plan // to the current version; nil: nothing to do
	place   []int        // where column i of the remapped rows is in current
	whole   bool         // the current version as it is: its bytes can go into the log
}

// formsMax bounds the forms that are kept; a writer has one, a table some.
const formsMax = 64

type formKey struct {
	schema  mink.SchemaID
	columns string
}

// forms keeps compiled forms.
type forms struct {
	mu   sync.Mutex
	kept map[formKey]*form
}

// form compiles the form of a put.
func (s *settings) form(id mink.SchemaID, columns []mink.FieldID) (*form, error) {
	key := formKey{schema: id}
	if columns != nil {
		b := make([]byte, 0, 4*len(columns)+1)
		for _, c := range columns {
			b = append(b, byte(c>>24), byte(c>>16), byte(c>>8), byte(c))
		}
		key.columns = string(append(b, 1))
	}
	s.forms.mu.Lock()
	f := s.forms.kept[key]
	s.forms.mu.Unlock()
	if f != nil {
		return f, nil
	}
	f, err := s.newForm(id, columns)
	if err != nil {
		return nil, err
	}
	s.forms.mu.Lock()
	defer s.forms.mu.Unlock()
	if len(s.forms.kept) >= formsMax || s.forms.kept == nil {
		s.forms.kept = map[formKey]*form{}
	}
	s.forms.kept[key] = f
	return f, nil
}

func (s *settings) newForm(id mink.SchemaID, columns []mink.FieldID) (*form, error) {
	switch {
	case id < 1:
		return nil, fmt.Errorf("%w: schema id %d", mink.ErrInvalid, id)
	case int(id) > len(s.table.Schemas):
		return nil, fmt.Errorf("schema %d is not known here yet: %w", id, mink.ErrUnavailable)
	}
	writer := s.table.Schemas[id-1]
	targets, err := s.engine.Targets(writer, columns)
	if err != nil {
		return nil, err
	}
	f := &form{targets: targets, whole: columns == nil && id == s.current.ID}
	sent := *writer
	if columns != nil {
		sent.Columns = make([]schema.Column, len(columns))
		for i, c := range columns { // Targets has found each of them, once
			sent.Columns[i] = writer.Columns[writer.IndexByID(c)]
		}
	}
	// What an upsert must not leave null is checked row by row: the columns of a
	// delete may be null.
	sent.Columns = s.nullable(sent.Columns)
	if f.layout, err = arrowipc.NewLayout(sent.Arrow()); err != nil {
		return nil, err
	}
	to := *s.current
	to.Columns = nil
	for _, c := range sent.Columns {
		if i := s.current.IndexByID(c.ID); i >= 0 {
			to.Columns, f.place = append(to.Columns, s.current.Columns[i]), append(f.place, i)
		}
	}
	to.Columns = s.nullable(to.Columns)
	if id == s.current.ID {
		return f, nil
	}
	if f.plan, err = evolve.NewPlan(&sent, &to); err != nil {
		return nil, err
	}
	return f, nil
}

// nullable copies columns with those nullable that are not of the primary key.
func (s *settings) nullable(columns []schema.Column) []schema.Column {
	out := slices.Clone(columns)
	for i := range out {
		at := s.current.IndexByID(out[i].ID)
		if at < 0 || !slices.Contains(s.table.Descriptor.PrimaryKey, s.current.Columns[at].Name) {
			out[i].Type.NotNull = false
		}
	}
	return out
}
