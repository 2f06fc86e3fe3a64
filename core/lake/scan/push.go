package scan

import (
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/predicate"
)

// pushedValuesMax is how long a list of IN may be to be pushed down: planning with 100,000
// values takes a second.
const pushedValuesMax = 100

// pusher makes of a filter an Iceberg expression that is true of every row for which the
// filter is: what cannot be said safely becomes AlwaysTrue.
//
//	pushed      = < <= > >= IN, IS [NOT] NULL, AND, OR; NOT of a comparison as the opposite one
//	not pushed  <> and NOT IN (nothing to prune); FLOAT, DOUBLE (NaN has no place in the
//	            lake's bounds), DECIMAL (IS NULL panics in the library), BINARY, BYTES,
//	            nested types, nanoseconds; columns whose type changed once (planning fails)
//
// Within a file the library takes a row group for one of nulls alone when half of a
// column's values are null (it compares the nulls with the values that are not null), and
// skips it. There a column that may be null is compared or null: exact where the group has
// no nulls, and the group is read where it has some.
type pusher struct {
	snapshot  *Snapshot
	target    *schema.Schema
	rowGroups bool // for reading files, not for planning
}

func (p pusher) push(n predicate.Node, not bool) iceberg.BooleanExpression {
	always := iceberg.BooleanExpression(iceberg.AlwaysTrue{})
	switch n := n.(type) {
	case predicate.And:
		return p.join(n.Terms, not, !not)
	case predicate.Or:
		return p.join(n.Terms, not, not)
	case predicate.Not:
		return p.push(n.Term, !not)
	case predicate.IsNull:
		ref, ok := p.column(n.Column)
		switch {
		case ok && !not:
			return iceberg.IsNull(ref)
		case ok && !p.rowGroups:
			return iceberg.NotNull(ref)
		}
	case predicate.Compare:
		op, ok := comparison(n.Op, not)
		if !ok {
			return always
		}
		if ref, ok := p.column(n.Column); ok {
			if lit, ok := p.literal(n.Column, n.Value); ok {
				return p.orNull(n.Column, ref, iceberg.LiteralPredicate(op, ref, lit))
			}
		}
	case predicate.In:
		if ref, ok := p.column(n.Column); ok && !not {
			return p.orNull(n.Column, ref, p.in(ref, n))
		}
	}
	return always
}

func (p pusher) orNull(at int, ref iceberg.Reference, e iceberg.BooleanExpression) iceberg.BooleanExpression {
	if f, _ := p.snapshot.schema.FindFieldByID(int(p.target.Columns[at].ID)); p.rowGroups && !f.Required {
		return iceberg.NewOr(e, iceberg.IsNull(ref))
	}
	return e
}

// join is the terms joined by AND, or by OR. The constructors fold AlwaysTrue.
func (p pusher) join(terms []predicate.Node, not, and bool) iceberg.BooleanExpression {
	out := p.push(terms[0], not)
	for _, t := range terms[1:] {
		if next := p.push(t, not); and {
			out = iceberg.NewAnd(out, next)
		} else {
			out = iceberg.NewOr(out, next)
		}
	}
	return out
}

func comparison(op predicate.Op, not bool) (iceberg.Operation, bool) {
	if not {
		op = map[predicate.Op]predicate.Op{
			predicate.Equal: predicate.NotEqual, predicate.NotEqual: predicate.Equal, predicate.Less: predicate.GreaterEqual,
			predicate.GreaterEqual: predicate.Less, predicate.Greater: predicate.LessEqual, predicate.LessEqual: predicate.Greater,
		}[op]
	}
	switch op {
	case predicate.Equal:
		return iceberg.OpEQ, true
	case predicate.Less:
		return iceberg.OpLT, true
	case predicate.LessEqual:
		return iceberg.OpLTEQ, true
	case predicate.Greater:
		return iceberg.OpGT, true
	case predicate.GreaterEqual:
		return iceberg.OpGTEQ, true
	}
	return 0, false
}

func (p pusher) in(ref iceberg.Reference, n predicate.In) iceberg.BooleanExpression {
	out := iceberg.BooleanExpression(iceberg.AlwaysFalse{})
	if len(n.Values) > pushedValuesMax {
		return iceberg.NotNull(ref)
	}
	for _, v := range n.Values {
		lit, ok := p.literal(n.Column, v)
		if !ok {
			return iceberg.AlwaysTrue{}
		}
		out = iceberg.NewOr(out, iceberg.LiteralPredicate(iceberg.OpEQ, ref, lit))
	}
	return out
}

// column is the lake's column when filters on it may be pushed down.
func (p pusher) column(at int) (iceberg.Reference, bool) {
	c := p.target.Columns[at]
	f, ok := p.snapshot.schema.FindFieldByID(int(c.ID))
	if !ok || !p.snapshot.fixed[f.ID] {
		return "", false
	}
	// By name, which inside structs may be said in two ways.
	if g, ok := p.snapshot.schema.FindFieldByName(f.Name); !ok || g.ID != f.ID {
		return "", false
	}
	switch f.Type.(type) {
	case iceberg.Int32Type:
		ok = c.Type.Kind == schema.TinyInt || c.Type.Kind == schema.SmallInt || c.Type.Kind == schema.Int
	case iceberg.Int64Type:
		ok = c.Type.Kind == schema.BigInt
	case iceberg.BooleanType: // which the library cannot order within files
		ok = c.Type.Kind == schema.Boolean && !p.rowGroups
	case iceberg.StringType:
		// Within files a maximum that a writer left out for its length is "" to the library.
		ok = (c.Type.Kind == schema.Char || c.Type.Kind == schema.String) && !p.rowGroups
	case iceberg.DateType:
		ok = c.Type.Kind == schema.Date
	case iceberg.TimeType:
		ok = c.Type.Kind == schema.Time && c.Type.Unit() <= arrow.Microsecond
	case iceberg.TimestampType:
		ok = c.Type.Kind == schema.Timestamp && c.Type.Unit() <= arrow.Microsecond
	case iceberg.TimestampTzType:
		ok = c.Type.Kind == schema.TimestampLTZ && c.Type.Unit() <= arrow.Microsecond
	default:
		ok = false
	}
	return iceberg.Reference(f.Name), ok
}

// literal is the value in the lake's type; not ok when it has none.
func (p pusher) literal(at int, v any) (iceberg.Literal, bool) {
	unit := p.target.Columns[at].Type.Unit()
	switch v := v.(type) {
	case bool:
		return iceberg.NewLiteral(v), true
	case int8:
		return iceberg.NewLiteral(int32(v)), true
	case int16:
		return iceberg.NewLiteral(int32(v)), true
	case int32:
		return iceberg.NewLiteral(v), true
	case int64:
		return iceberg.NewLiteral(v), true
	case string:
		return iceberg.NewLiteral(v), true
	case arrow.Date32:
		return iceberg.NewLiteral(iceberg.Date(v)), true
	case arrow.Time32:
		us, ok := micros(int64(v), unit)
		return iceberg.NewLiteral(iceberg.Time(us)), ok
	case arrow.Time64:
		us, ok := micros(int64(v), unit)
		return iceberg.NewLiteral(iceberg.Time(us)), ok
	case arrow.Timestamp:
		us, ok := micros(int64(v), unit)
		return iceberg.NewLiteral(iceberg.Timestamp(us)), ok
	}
	return nil, false
}

func micros(v int64, unit arrow.TimeUnit) (int64, bool) {
	factor := map[arrow.TimeUnit]int64{arrow.Second: 1e6, arrow.Millisecond: 1e3, arrow.Microsecond: 1}[unit]
	if factor == 0 || v > math.MaxInt64/factor || v < math.MinInt64/factor {
		return 0, false
	}
	return v * factor, true
}
