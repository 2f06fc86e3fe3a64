package flight

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/record/jsonrow"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/evolve"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/core/schema/predicate"
	"github.com/mink-project/mink/sdk/mink"
)

// primaryKey is a table's key as clients write it. Key columns keep their types and
// ids for ever, but not their names.
type primaryKey struct {
	columns []schema.Column // in the key's order
	inStore []schema.Column // those without the partition's: what a bucket's keys are of
}

func keyOf(t *cluster.Table) primaryKey {
	var k primaryKey
	d := t.Descriptor
	for _, name := range d.PrimaryKey {
		c, _ := current(t).Column(name)
		k.columns = append(k.columns, c)
		if !slices.Contains(d.PartitionKeys, name) {
			k.inStore = append(k.inStore, c)
		}
	}
	return k
}

func namesOf(columns []schema.Column) []string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	return names
}

// encoder writes a bucket's keys of batches that have the first n columns of them.
func (k *primaryKey) encoder(n int) (*keyenc.Encoder, error) {
	return keyenc.New(&schema.Schema{Columns: k.inStore}, namesOf(k.inStore[:n]))
}

// rowsOf reads JSON objects of columns as rows; what names the i-th for errors.
func rowsOf(what func(i int) string, columns []schema.Column, objects []json.RawMessage) (arrow.RecordBatch, error) {
	as := (&schema.Schema{Columns: columns}).Arrow()
	r := jsonrow.New(as).NewReader()
	b := array.NewRecordBuilder(allocator, as)
	defer b.Release()
	for i, o := range objects {
		if err := r.Append(b, o); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", mink.ErrInvalid, what(i), err)
		}
	}
	return b.NewRecordBatch(), nil
}

// leading reads an object of the first columns of a bucket's key, and answers its
// bytes, which every key that begins with these values begins with.
func (k *primaryKey) leading(what string, object json.RawMessage) ([]byte, error) {
	n, err := leadingColumns(what, k.inStore, object)
	if err != nil {
		return nil, err
	}
	rows, err := rowsOf(func(int) string { return what }, k.inStore[:n], []json.RawMessage{object})
	if err != nil {
		return nil, err
	}
	defer rows.Release()
	enc, err := k.encoder(n)
	if err != nil {
		return nil, err
	}
	if err := enc.Bind(rows); err != nil {
		return nil, err
	}
	return enc.Append(nil, 0), nil
}

// leadingColumns is how many columns an object has: the first, or the first two ...
func leadingColumns(what string, columns []schema.Column, object json.RawMessage) (int, error) {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(object, &given); err != nil || given == nil {
		return 0, fmt.Errorf(`%w: %s: want an object of the first columns of the key (%s)`, mink.ErrInvalid, what, strings.Join(namesOf(columns), ", "))
	}
	n := 0
	for n < len(columns) {
		if _, ok := given[columns[n].Name]; !ok {
			break
		}
		n++
	}
	if n == 0 || n < len(given) {
		names := make([]string, 0, len(given))
		for name := range given {
			names = append(names, name)
		}
		slices.Sort(names)
		return 0, fmt.Errorf("%w: %s: %.400q are not the first columns of the key within a partition (%s)", mink.ErrInvalid, what, names, strings.Join(namesOf(columns), ", "))
	}
	return n, nil
}

// rowReader brings rows of a store to a stream's schema, which stays when the table
// is altered. Not for concurrent use.
type rowReader struct {
	target *schema.Schema
	ids    []mink.FieldID
	seen   *arrow.Schema // the newest rows'
	plan   *evolve.Plan
	match  *predicate.Predicate // nil: all rows come
	out    *arrow.Schema        // the columns asked for, the first of target
}

func newRowReader(t *cluster.Table, columns []string) (*rowReader, error) {
	target, err := projection(current(t), columns)
	if err != nil {
		return nil, err
	}
	r := &rowReader{target: target}
	for _, c := range target.Columns {
		r.ids = append(r.ids, c.ID)
	}
	r.out = target.Arrow()
	return r, nil
}

// newFilteredReader is newRowReader with a filter, which may look at other columns; "": none.
func newFilteredReader(t *cluster.Table, columns []string, filter string) (*rowReader, error) {
	r, err := newRowReader(t, columns)
	if err != nil || filter == "" {
		return r, err
	}
	sel, err := newSelection(t, columns, filter)
	if err != nil {
		return nil, err
	}
	read := &schema.Schema{ID: r.target.ID, Columns: slices.Clone(r.target.Columns)}
	for _, name := range sel.filter.Columns() {
		if c, ok := sel.target.Column(name); ok && read.Index(name) < 0 {
			read.Columns = append(read.Columns, c)
			r.ids = append(r.ids, c.ID)
		}
	}
	r.target = read
	r.match, err = sel.filter.Bind(read)
	return r, err
}

// conform answers the rows in the stream's schema and releases those it got.
func (r *rowReader) conform(rows arrow.RecordBatch) (arrow.RecordBatch, error) {
	defer rows.Release()
	if s := rows.Schema(); r.plan == nil || s != r.seen && !s.Equal(r.seen) {
		from, err := schema.FromArrow(s)
		if err != nil {
			return nil, err
		}
		if r.plan, err = evolve.NewPlan(from, r.target); err != nil {
			return nil, fmt.Errorf("the table was altered, and its rows do not fit this reader's schema %d (%s); open it anew: %w", r.target.ID, err.Error(), mink.ErrUnavailable)
		}
		r.seen = s
	}
	whole, err := r.plan.Remap(allocator, rows)
	if err != nil || r.match == nil {
		return whole, err
	}
	defer whole.Release()
	kept, err := r.match.Filter(allocator, whole)
	if err != nil {
		return nil, err
	}
	return cut(kept, r.out), nil
}
