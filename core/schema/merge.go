package schema

import (
	"slices"
	"strings"
)

// MergeEngine says how a write to a primary-key table meets the row that is there.
type MergeEngine uint8

// The merge engines.
const (
	LastWrite   MergeEngine = iota // the write replaces the columns that it has
	FirstRow                       // the row that is there stays
	Versioned                      // the row with the larger version stays; of equal ones the later
	Aggregation                    // column by column, by AggregateFunction
)

// The names of the engines in the option; versioned:<column> has the column behind.
var mergeEngines = [...]string{LastWrite: "last_write", FirstRow: "first_row", Versioned: "versioned", Aggregation: "aggregation"}

// String is the option's name for the engine.
func (m MergeEngine) String() string { return mergeEngines[m] }

// DeleteBehavior says what a delete does.
type DeleteBehavior uint8

// The delete behaviours.
const (
	DeleteAllow   DeleteBehavior = iota // it deletes
	DeleteIgnore                        // nothing
	DeleteDisable                       // it is an error
)

// Options of primary-key tables that other rules name.
const (
	optionMergeEngine = "merge_engine"
	optionDeletes     = "delete_behavior"
	optionImage       = "changelog_image"
	versionedPrefix   = "versioned:"
)

// fillMerge sets the typed members of primary-key tables.
func (o *Options) fillMerge() error {
	text := func(name string) string { v, _ := o.Value(name); return v }
	engine := text(optionMergeEngine)
	if column, ok := strings.CutPrefix(engine, versionedPrefix); ok {
		o.MergeEngine, o.VersionColumn = Versioned, column
	} else {
		i := slices.Index(mergeEngines[:], engine)
		if i < 0 || MergeEngine(i) == Versioned {
			return optionError(optionMergeEngine, engine, "it must be last_write, first_row, versioned:<column> or aggregation%s", suggest(engine, mergeEngines[:]))
		}
		o.MergeEngine = MergeEngine(i)
	}
	o.WALImage = text(optionImage) == "wal"
	switch behavior := text(optionDeletes); {
	case behavior == "ignore":
		o.DeleteBehavior = DeleteIgnore
	case behavior == "disable", o.MergeEngine == FirstRow, o.MergeEngine == Versioned:
		o.DeleteBehavior = DeleteDisable
	}
	return nil
}

// AggregateFunction is how the values of one column meet with merge_engine =
// aggregation: that of the row that is there and that of the write.
type AggregateFunction string

// The aggregate functions. Those marked * skip nulls: null is the result only when
// both are null.
const (
	AggregateSum                   AggregateFunction = "sum"                      // *
	AggregateProduct               AggregateFunction = "product"                  // *
	AggregateMax                   AggregateFunction = "max"                      // *
	AggregateMin                   AggregateFunction = "min"                      // *
	AggregateLastValue             AggregateFunction = "last_value"               // the write's, also null
	AggregateLastValueIgnoreNulls  AggregateFunction = "last_value_ignore_nulls"  // *
	AggregateFirstValue            AggregateFunction = "first_value"              // the row's, also null
	AggregateFirstValueIgnoreNulls AggregateFunction = "first_value_ignore_nulls" // *
	AggregateBoolAnd               AggregateFunction = "bool_and"                 // *
	AggregateBoolOr                AggregateFunction = "bool_or"                  // *
)

// AggregateDefault is the function of a column that names none.
const AggregateDefault = AggregateLastValueIgnoreNulls

// aggregateTypes says which types a function takes, in the words of its error.
var aggregateTypes = map[AggregateFunction]struct {
	takes func(Type) bool
	words string
}{
	AggregateSum:                   {numeric, "numbers"},
	AggregateProduct:               {numeric, "numbers"},
	AggregateMax:                   {ordered, "numbers, texts, bytes, dates and times"},
	AggregateMin:                   {ordered, "numbers, texts, bytes, dates and times"},
	AggregateLastValue:             {anyType, ""},
	AggregateLastValueIgnoreNulls:  {anyType, ""},
	AggregateFirstValue:            {anyType, ""},
	AggregateFirstValueIgnoreNulls: {anyType, ""},
	AggregateBoolAnd:               {boolean, "BOOLEAN"},
	AggregateBoolOr:                {boolean, "BOOLEAN"},
}

// AggregateFunctions are the functions' names, sorted.
func AggregateFunctions() []string {
	names := make([]string, 0, len(aggregateTypes))
	for f := range aggregateTypes {
		names = append(names, string(f))
	}
	slices.Sort(names)
	return names
}

func anyType(Type) bool { return true }

func boolean(t Type) bool { return t.Kind == Boolean }

func numeric(t Type) bool { return t.Kind >= TinyInt && t.Kind <= Decimal }

// ordered reports that values of the type have an order that a person would expect.
func ordered(t Type) bool { return t.Kind > Boolean && !t.Nested() }

// checkMerge holds merge engine, version column and aggregate functions to the
// columns.
func (d *Descriptor) checkMerge(o *Options) error {
	engine := d.Options[optionMergeEngine]
	if o.MergeEngine == Versioned {
		c, ok := d.Schema.Column(o.VersionColumn)
		switch {
		case !ok:
			return optionError(optionMergeEngine, engine, "the table has no column %q%s", o.VersionColumn, suggest(o.VersionColumn, d.Schema.names()))
		case slices.Contains(d.PrimaryKey, c.Name):
			return optionError(optionMergeEngine, engine, "column %q is in the primary key: all rows of a key have the same version", c.Name)
		case c.AutoIncrement:
			return optionError(optionMergeEngine, engine, "column %q is the auto-increment column, whose value no writer chooses", c.Name)
		case !ordered(c.Type):
			return optionError(optionMergeEngine, engine, "a version is a number, text, bytes, date or time; column %q is %s", c.Name, c.Type)
		}
	}
	if (o.MergeEngine == Versioned || o.MergeEngine == FirstRow) && d.Options[optionDeletes] == "allow" {
		return optionError(optionDeletes, "allow", "%s = %s takes no deletes: leave it out, or set ignore or disable", optionMergeEngine, engine)
	}
	for _, c := range d.Schema.Columns {
		if c.Aggregate == "" {
			continue
		}
		f, ok := aggregateTypes[c.Aggregate]
		switch {
		case !ok:
			return columnError(c.Name, "no aggregate function %.50q%s; there are %s", c.Aggregate, suggest(string(c.Aggregate), AggregateFunctions()), strings.Join(AggregateFunctions(), ", "))
		case o.MergeEngine != Aggregation:
			return columnError(c.Name, "its aggregate function %s needs a primary-key table with %s = %s", c.Aggregate, optionMergeEngine, Aggregation)
		case slices.Contains(d.PrimaryKey, c.Name):
			return columnError(c.Name, "a primary-key column has no aggregate function: it is the same in all rows of a key")
		case c.AutoIncrement:
			return columnError(c.Name, "the auto-increment column has no aggregate function: it keeps the number that it got first")
		case !f.takes(c.Type):
			return columnError(c.Name, "%s takes %s, not %s%s", c.Aggregate, f.words, c.Type.Nullable(), boolHint(c))
		}
	}
	return nil
}

// boolHint names the functions for BOOLEAN to whoever asked for another.
func boolHint(c Column) string {
	if c.Type.Kind != Boolean {
		return ""
	}
	return "; of BOOLEAN take bool_and or bool_or"
}
