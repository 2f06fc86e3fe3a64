package predicate

import (
	"fmt"
	"slices"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/nearest"
)

// Op is a comparison.
type Op uint8

// The comparisons.
const (
	Equal Op = iota + 1
	NotEqual
	Less
	LessEqual
	Greater
	GreaterEqual
)

var ops = map[string]Op{"=": Equal, "<>": NotEqual, "!=": NotEqual, "<": Less, "<=": LessEqual, ">": Greater, ">=": GreaterEqual}

func (o Op) String() string {
	return [...]string{Equal: "=", NotEqual: "<>", Less: "<", LessEqual: "<=", Greater: ">", GreaterEqual: ">="}[o]
}

// Node is a part of a bound filter: And, Or, Not, Compare, In or IsNull. Values have the
// Go types of keyenc.AppendValue for their column's type.
type Node interface{ node() }

// The parts of a bound filter. Column is a position in the schema that it was bound to.
type (
	And     struct{ Terms []Node }
	Or      struct{ Terms []Node }
	Not     struct{ Term Node }
	Compare struct {
		Column int
		Op     Op
		Value  any
	}
	// In is true of a value that is one of Values: at least one, none null.
	In struct {
		Column int
		Values []any
		set    any // map[T]struct{} of Values, T as in setOf
	}
	IsNull struct{ Column int }
)

func (And) node()     {}
func (Or) node()      {}
func (Not) node()     {}
func (Compare) node() {}
func (In) node()      {}
func (IsNull) node()  {}

// Predicate is a filter over batches of one schema. Immutable: safe for concurrent use.
type Predicate struct {
	schema *schema.Schema
	root   Node
}

// Root is the filter's tree.
func (p *Predicate) Root() Node { return p.root }

// Schema is what it was bound to.
func (p *Predicate) Schema() *schema.Schema { return p.schema }

// Columns are the names of the columns that a filter looks at, in the order of their
// first use.
func (e *Expr) Columns() []string {
	var names []string
	e.root.each(func(c *condition) {
		if name := unquote(c.Column); !slices.Contains(names, name) {
			names = append(names, name)
		}
	})
	return names
}

func (o *orTerm) each(f func(*condition)) {
	for _, a := range o.Terms {
		for _, n := range a.Terms {
			if n.Sub != nil {
				n.Sub.each(f)
			} else {
				f(n.Condition)
			}
		}
	}
}

// Bind makes the filter one over batches that have exactly the columns of s, in its
// order. An unknown column, and a literal that its column's type does not hold, are
// errors that name them.
func (e *Expr) Bind(s *schema.Schema) (*Predicate, error) {
	b := binder{schema: s}
	root, err := b.or(e.root)
	if err != nil {
		return nil, err
	}
	return &Predicate{schema: s, root: root}, nil
}

type binder struct{ schema *schema.Schema }

func (b binder) or(o *orTerm) (Node, error) {
	terms := make([]Node, len(o.Terms))
	var err error
	for i, t := range o.Terms {
		if terms[i], err = b.and(t); err != nil {
			return nil, err
		}
	}
	if len(terms) == 1 {
		return terms[0], nil
	}
	return Or{terms}, nil
}

func (b binder) and(a *andTerm) (Node, error) {
	terms := make([]Node, len(a.Terms))
	var err error
	for i, t := range a.Terms {
		if terms[i], err = b.not(t); err != nil {
			return nil, err
		}
	}
	if len(terms) == 1 {
		return terms[0], nil
	}
	return And{terms}, nil
}

func (b binder) not(n *notTerm) (Node, error) {
	var out Node
	var err error
	if n.Sub != nil {
		out, err = b.or(n.Sub)
	} else {
		out, err = b.condition(n.Condition)
	}
	if err != nil || len(n.Not)%2 == 0 {
		return out, err
	}
	return Not{out}, nil
}

func (b binder) condition(c *condition) (Node, error) {
	name := unquote(c.Column)
	at := b.schema.Index(name)
	if at < 0 {
		known := make([]string, len(b.schema.Columns))
		for i, k := range b.schema.Columns {
			known[i] = k.Name
		}
		hint := ""
		if k, ok := nearest.Close(name, known); ok {
			hint = fmt.Sprintf("; did you mean %q?", k)
		}
		return nil, fmt.Errorf("%w filter: the table has no column %.200q%s", mink.ErrInvalid, name, hint)
	}
	t := b.schema.Columns[at].Type
	wrong := func(err error) error {
		return fmt.Errorf("%w filter: column %q (%s): %w", mink.ErrInvalid, name, t, err)
	}
	if c.Null != nil {
		return negated(IsNull{at}, c.Null.Not), nil
	}
	if t.Nested() {
		return nil, wrong(fmt.Errorf("nested types take IS NULL and IS NOT NULL alone"))
	}
	values := func(literals ...*literal) ([]any, error) {
		out := make([]any, len(literals))
		for i, l := range literals {
			var err error
			if out[i], err = l.value(t); err != nil {
				return nil, wrong(err)
			}
		}
		return out, nil
	}
	switch {
	case c.Compare != nil:
		v, err := values(c.Compare.Value)
		if err != nil {
			return nil, err
		}
		return Compare{at, ops[c.Compare.Op], v[0]}, nil
	case c.Between != nil:
		v, err := values(c.Between.Low, c.Between.High)
		if err != nil {
			return nil, err
		}
		return negated(And{[]Node{Compare{at, GreaterEqual, v[0]}, Compare{at, LessEqual, v[1]}}}, c.Not), nil
	}
	v, err := values(c.In...)
	if err != nil {
		return nil, err
	}
	return negated(In{Column: at, Values: v, set: setOf(v)}, c.Not), nil
}

func negated(n Node, not bool) Node {
	if not {
		return Not{n}
	}
	return n
}
