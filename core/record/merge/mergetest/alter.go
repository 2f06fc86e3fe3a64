package mergetest

import (
	"fmt"
	"slices"

	"github.com/mink-project/mink/core/schema"
	"pgregory.net/rapid"
)

// Alter gives the table the definition that its own became by schema.Change. Rows
// follow by field id.
func (m *Model) Alter(d *schema.Descriptor) {
	o, err := d.ParsedOptions()
	if err != nil {
		panic(err)
	}
	older := m.d
	m.d, m.o, m.auto = d, o, -1
	for i, c := range d.Schema.Columns {
		if c.AutoIncrement {
			m.auto = i
		}
	}
	for key, row := range m.rows {
		m.rows[key] = Follow(row, &older.Schema, &d.Schema)
	}
}

// Follow is a row of one schema version under a later one. Of the promotions it knows
// those that Alterations draws.
func Follow(row Row, from, to *schema.Schema) Row {
	out := make(Row, len(to.Columns))
	for i, c := range to.Columns {
		if at := from.IndexByID(c.ID); at >= 0 && row[at] != nil {
			out[i] = promote(row[at], c.Type)
		}
	}
	return out
}

func promote(v any, to schema.Type) any {
	switch to.Kind {
	case schema.SmallInt, schema.Int, schema.BigInt:
		v, _ = fit(to, whole(v))
	case schema.Double:
		if single, ok := v.(float32); ok {
			return float64(single)
		}
	}
	return v
}

// promotions are the types that a column's may become.
var promotions = map[schema.Kind]string{schema.TinyInt: "INT", schema.SmallInt: "BIGINT", schema.Int: "BIGINT", schema.Float: "DOUBLE", schema.Char: "STRING"}

// Alterations draws changes of the columns outside of the key: added, dropped, renamed
// and promoted ones. The descriptor that they make is valid.
func Alterations(t *rapid.T, d *schema.Descriptor) []schema.Change {
	var changes []schema.Change
	o, err := d.ParsedOptions()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range d.Schema.Columns {
		key := slices.Contains(d.PrimaryKey, c.Name)
		switch fate := rapid.IntRange(0, 5).Draw(t, "fate"); {
		case fate == 0 && !key && c.Name != o.VersionColumn:
			changes = append(changes, schema.Change{Op: schema.DropColumn, Name: c.Name})
		case fate == 1 && !slices.Contains(d.PartitionKeys, c.Name):
			changes = append(changes, schema.Change{Op: schema.RenameColumn, Name: c.Name, To: c.Name + "r"})
		case fate == 2 && !key && !c.AutoIncrement && promotions[c.Type.Kind] != "":
			to := schema.MustParseType(promotions[c.Type.Kind])
			to.NotNull = c.Type.NotNull && rapid.Bool().Draw(t, "still not null")
			changes = append(changes, schema.Change{Op: schema.ModifyColumn, Name: c.Name, Type: &to})
		}
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "added") {
		c := schema.Column{Name: fmt.Sprint("added", d.HighestFieldID, "_", i), Type: schema.MustParseType(rapid.SampledFrom(valueTypes).Draw(t, "type"))}
		if o.MergeEngine == schema.Aggregation {
			c.Aggregate = aggregate(t, d, c)
		}
		changes = append(changes, schema.Change{Op: schema.AddColumn, Column: &c})
	}
	return changes
}
