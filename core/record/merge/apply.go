package merge

import (
	"fmt"

	"github.com/mink-project/mink/core/record/row"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// Outcome says what becomes of a key.
type Outcome uint8

// The outcomes.
const (
	Keep   Outcome = iota // nothing: the row stays, or there is none
	Put                   // a row, new or in place of the old one
	Delete                // the row goes
)

// Apply merges one write: in is its row (other columns than the targets are not
// looked at), old the row that is there, nil for none or when NeedsOld says that it
// is not needed. With the outcome Put the new row is appended to dst; else the result
// is dst as it was.
//
// A row that was made where none was lacks the number of the auto-increment column,
// if there is one: Assign puts it in.
func (e *Engine) Apply(dst, old, in []byte, t *Targets, del bool) ([]byte, Outcome, error) {
	if del {
		return e.delete(dst, old, t)
	}
	if t.upsertErr != nil {
		return dst, Keep, t.upsertErr
	}
	n, err := e.codec.Row(in)
	if err != nil {
		return dst, Keep, err
	}
	if err := e.checkRow(n, t); err != nil {
		return dst, Keep, err
	}
	if old == nil || e.blind && t.all {
		return e.insert(dst, in, n, t), Put, nil
	}
	if t.keyOnly || e.options.MergeEngine == schema.FirstRow {
		return dst, Keep, nil
	}
	o, err := e.codec.Row(old)
	if err != nil {
		return dst, Keep, err
	}
	switch e.options.MergeEngine {
	case schema.Versioned:
		if !newer(e.columns[e.version].typ, o.Field(e.version), n.Field(e.version)) {
			return dst, Keep, nil
		}
	case schema.Aggregation:
		return e.aggregate(dst, o, n, t)
	}
	if t.all && e.auto < 0 {
		return append(dst, in...), Put, nil
	}
	w := e.codec.Compose(dst)
	for i, set := range t.set {
		if set {
			w.Set(i, n.Field(i))
		} else {
			w.Set(i, o.Field(i))
		}
	}
	return w.Done(), Put, nil
}

// checkRow refuses rows that no upsert has.
func (e *Engine) checkRow(in row.Row, t *Targets) error {
	for _, i := range t.required {
		if in.IsNull(i) {
			return fmt.Errorf("%w value: column %q is NOT NULL and got null", mink.ErrInvalid, e.schema.Columns[i].Name)
		}
	}
	if t.auto && !in.IsNull(e.auto) {
		return fmt.Errorf("%w value: column %q gets its numbers from the table: leave it out, or null; got %d", mink.ErrInvalid, e.schema.Columns[e.auto].Name, row.Int(in.Field(e.auto)))
	}
	return nil
}

func (e *Engine) insert(dst, in []byte, n row.Row, t *Targets) []byte {
	if t.all && (e.auto < 0 || n.IsNull(e.auto)) {
		return append(dst, in...)
	}
	w := e.codec.Compose(dst)
	for i, set := range t.set {
		if set {
			w.Set(i, n.Field(i))
		}
	}
	return w.Done()
}

func (e *Engine) aggregate(dst []byte, o, n row.Row, t *Targets) ([]byte, Outcome, error) {
	var scratch [16]byte
	w := e.codec.Compose(dst)
	for i, set := range t.set {
		was := o.Field(i)
		switch {
		case !set:
			w.Set(i, was)
		default: // a key column has the default function, which takes the write's value
			v, err := e.columns[i].merge(was, n.Field(i), &scratch)
			if err != nil {
				return dst, Keep, err
			}
			w.Set(i, v)
		}
	}
	return w.Done(), Put, nil
}

func (e *Engine) delete(dst, old []byte, t *Targets) ([]byte, Outcome, error) {
	switch e.options.DeleteBehavior {
	case schema.DeleteIgnore:
		return dst, Keep, nil
	case schema.DeleteDisable:
		if engine := e.options.MergeEngine; engine == schema.FirstRow || engine == schema.Versioned {
			return dst, Keep, fmt.Errorf("%w delete: the table's merge engine %s takes no deletes; delete_behavior = ignore would pass over them", mink.ErrInvalid, engine)
		}
		return dst, Keep, fmt.Errorf("%w delete: the table has delete_behavior = disable", mink.ErrInvalid)
	}
	switch {
	case t.deleteErr != nil:
		return dst, Keep, t.deleteErr
	case e.blind && t.all:
		return dst, Delete, nil
	case old == nil:
		return dst, Keep, nil
	case t.whole:
		return dst, Delete, nil
	}
	o, err := e.codec.Row(old)
	if err != nil {
		return dst, Keep, err
	}
	left := false
	w := e.codec.Compose(dst)
	for i, set := range t.set {
		if e.key[i] || !set {
			v := o.Field(i)
			w.Set(i, v)
			left = left || v != nil && !e.key[i]
		}
	}
	if !left {
		return dst, Delete, nil
	}
	return w.Done(), Put, nil
}

// KeyRow appends a row with the key columns of value and null in all others: what a
// changelog without images of old rows shows of a deleted row.
func (e *Engine) KeyRow(dst, value []byte) ([]byte, error) {
	r, err := e.codec.Row(value)
	if err != nil {
		return dst, err
	}
	w := e.codec.Compose(dst)
	for i, key := range e.key {
		if key {
			w.Set(i, r.Field(i))
		}
	}
	return w.Done(), nil
}
