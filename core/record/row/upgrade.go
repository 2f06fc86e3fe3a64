package row

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/evolve"
	"github.com/mink-project/mink/sdk/mink"
)

// Upgrader converts rows of one schema version to another as schema/evolve converts
// batches: columns and nested fields are matched by field id, promoted types are
// cast, what is new is null. Immutable, safe for concurrent use.
type Upgrader struct {
	from, to *Codec
	columns  []conversion // by the columns of to
}

// conversion makes values of one field from those of an older version of it.
type conversion struct {
	from   int // position in the older record, -1: added
	f, g   *field
	how    how
	factor int64 // howScale
	kids   []conversion
}

type how uint8

const (
	howCopy  how = iota // the same bytes
	howInt              // a wider integer
	howFloat            // FLOAT to DOUBLE
	howScale            // a finer unit of time
	howPad              // a longer BINARY
	howNested
)

// NewUpgrader compiles the way from one version to the other. It refuses what
// evolve.NewPlan refuses.
func NewUpgrader(from, to *schema.Schema) (*Upgrader, error) {
	if _, err := evolve.NewPlan(from, to); err != nil {
		return nil, err
	}
	u := &Upgrader{columns: make([]conversion, len(to.Columns))}
	var err error
	if u.from, err = NewCodec(from); err != nil {
		return nil, err
	}
	if u.to, err = NewCodec(to); err != nil {
		return nil, err
	}
	for i, c := range to.Columns {
		at := -1
		if c.ID != 0 {
			at = from.IndexByID(c.ID)
		}
		u.columns[i] = newConversion(u.from.rec.fields, at, &u.to.rec.fields[i])
	}
	return u, nil
}

func newConversion(older []field, at int, g *field) conversion {
	c := conversion{from: at, g: g}
	if at < 0 {
		return c
	}
	c.f = &older[at]
	from, to := c.f.typ, g.typ
	switch {
	case to.Nested():
		c.how = howNested
		for i := range g.kids {
			c.kids = append(c.kids, newConversion(c.f.kids, evolve.FieldIn(from, to, i), &g.kids[i]))
		}
	case to.Kind == schema.Double && from.Kind == schema.Float:
		c.how = howFloat
	case to.Kind == schema.Time || to.Kind == schema.Timestamp || to.Kind == schema.TimestampLTZ:
		if c.how, c.factor = howScale, 1; from.Unit() == to.Unit() {
			c.how = howCopy
		}
		for unit := from.Unit(); unit < to.Unit(); unit++ {
			c.factor *= 1000
		}
	case to.Kind == schema.Binary && from.Length < to.Length:
		c.how = howPad
	case to.Kind != from.Kind && to.Kind >= schema.SmallInt && to.Kind <= schema.BigInt:
		c.how = howInt
	}
	return c
}

// Append appends the newer version of a row of the older version. A time that the
// finer unit cannot hold is an error that wraps mink.ErrOutOfRange, a row that longer
// BINARY elements make larger than 1 GiB one that wraps mink.ErrTooLarge.
func (u *Upgrader) Append(dst, value []byte) ([]byte, error) {
	r, err := u.from.Row(value)
	if err != nil {
		return nil, err
	}
	k := newChecker()
	for i := range u.columns {
		c := &u.columns[i]
		if c.from < 0 || !c.f.shape.nested() && c.f.shape != shapeBinary {
			continue
		}
		if v := r.Field(c.from); v != nil && !k.value(c.f, v) {
			return nil, k.err(u.from)
		}
	}
	w := writer{limit: len(dst) + expandMax}
	dst, err = w.record(append(dst, u.to.prefix...), u.to.rec, u.columns, r)
	if err != nil {
		return nil, fmt.Errorf("row of schema %d to %d: %w", u.from.schema.ID, u.to.schema.ID, err)
	}
	return dst, nil
}

// writer writes newer versions, up to limit bytes.
type writer struct{ limit int }

func (u writer) record(dst []byte, rec *record, columns []conversion, r Row) ([]byte, error) {
	w := compose(dst, rec)
	for i := range columns {
		c := &columns[i]
		var v []byte
		if c.from >= 0 {
			v = r.Field(c.from)
		}
		if v == nil {
			w.null(i)
			continue
		}
		if !c.g.shape.variable() {
			if err := c.fixed(w.fixed(i), v); err != nil {
				return nil, err
			}
			continue
		}
		w.begin(i)
		var err error
		if w.dst, err = u.variable(w.dst, c, v); err != nil {
			return nil, err
		}
		w.end()
	}
	return w.done(), nil
}

// fixed converts to a fixed field, whose bytes are zeros before.
func (c *conversion) fixed(dst, v []byte) error {
	switch c.how {
	case howInt:
		PutInt(dst, Int(v))
	case howFloat:
		f := math.Float32frombits(binary.LittleEndian.Uint32(v))
		binary.LittleEndian.PutUint64(dst, math.Float64bits(float64(f)))
	case howScale:
		n := Int(v)
		if q := math.MaxInt64 / c.factor; n > q || n < -q || !PutInt(dst, n*c.factor) {
			return fmt.Errorf("%w: column %q: %d %s is beyond the range of %s", mink.ErrOutOfRange, c.g.name, n, c.f.typ.Unit(), c.g.typ)
		}
	default: // howCopy, howPad
		copy(dst, v)
	}
	return nil
}

func (u writer) variable(dst []byte, c *conversion, v []byte) ([]byte, error) {
	switch c.how {
	case howPad:
		if len(dst)+c.g.width > u.limit {
			return nil, fmt.Errorf("%w: column %q (%s): the row grows to more than %d bytes", mink.ErrTooLarge, c.g.name, c.g.typ, expandMax)
		}
		return appendZeros(append(dst, v...), c.g.width-len(v)), nil
	case howNested:
	default:
		return append(dst, v...), nil
	}
	if c.g.shape == shapeRow {
		return u.record(dst, c.g.rec, c.kids, Row{rec: c.f.rec, b: v})
	}
	n, rest, _ := count(v) // checked
	dst = binary.AppendUvarint(dst, uint64(n))
	for i := range c.kids {
		var elems vector
		elems, rest, _ = openVector(c.kids[i].f, n, rest)
		var err error
		if dst, err = u.vector(dst, &c.kids[i], elems); err != nil {
			return nil, err
		}
	}
	return dst, nil
}

func (u writer) vector(dst []byte, c *conversion, v vector) ([]byte, error) {
	if v.n == 0 {
		return dst, nil
	}
	dst = append(dst, v.nulls...)
	if !c.g.shape.variable() {
		at := len(dst)
		dst = appendZeros(dst, v.n*c.g.width)
		for i := range v.n {
			if v.isNull(i) {
				continue
			}
			if err := c.fixed(dst[at+i*c.g.width:][:c.g.width], v.value(i)); err != nil {
				return nil, err
			}
		}
		return dst, nil
	}
	flag := len(dst)
	dst, e := openEnds(append(dst, 0), flag, v.n)
	for i := range v.n {
		if !v.isNull(i) {
			var err error
			if dst, err = u.variable(dst, c, v.value(i)); err != nil {
				return nil, err
			}
		}
		dst = e.end(dst)
	}
	return dst, nil
}
