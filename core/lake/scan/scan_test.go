package scan_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/lake/scan"
	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/partition"
	"github.com/mink-project/mink/sdk/mink"
)

var leafTypes = []string{
	"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(9,2)", "DECIMAL(38,0)", "CHAR(3)", "STRING", "BINARY(2)", "BYTES", "DATE",
	"TIME(0)", "TIME(3)", "TIME(6)", "TIMESTAMP(0)", "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP(9)", "TIMESTAMP_LTZ(0)", "TIMESTAMP_LTZ(3)", "TIMESTAMP_LTZ(6)", "TIMESTAMP_LTZ(9)",
}

// literalOf writes a value for a filter.
func literalOf(t tb, typ schema.Type, v any) string {
	text, err := partition.Format(typ, v)
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := v.([]byte); ok {
		return fmt.Sprintf("x'%x'", v)
	}
	return "'" + strings.ReplaceAll(text, "'", "''") + "'"
}

// Case 35: each type and precision by each predicate, pushed down and not, against the
// filter over the rows themselves. Several files, so that some are pruned.
func TestTypesAndPredicates(t *testing.T) {
	dir := tempDir(t)
	for _, typ := range leafTypes {
		t.Run(typ, func(t *testing.T) {
			s := schemaOf("id INT NOT NULL", "c "+typ)
			version := 2
			if strings.HasSuffix(typ, "(9)") {
				version = 3
			}
			values := map[string]any{}
			for i := range 300 {
				if v := rapid.Custom(func(rt *rapid.T) any { return mergetest.Value(rt, s.Columns[1].Type.Required()) }).Example(i); len(values) < 5 {
					values[fmt.Sprintf("%#v", v)] = v
				}
			}
			l := newLake(t, dir(), version, lakeFields(s))
			var rows []mergetest.Row
			for i, key := range slices.Sorted(maps.Keys(values)) {
				file := []mergetest.Row{{int32(2 * i), values[key]}, {int32(2*i + 1), nil}}
				if i%3 == 0 {
					file = file[:1]
				}
				l.append(s, file)
				rows = append(rows, file...)
			}
			at := l.append(s, []mergetest.Row{{int32(1000), nil}})
			rows = append(rows, mergetest.Row{int32(1000), nil})
			snap := openAt(t, l, at, layoutOf(nil, nil, nil))
			filters := []string{"", "c IS NULL", "c IS NOT NULL", "NOT (c IS NULL OR id = 3)"}
			if s.Columns[1].Type.Kind != schema.Decimal {
				var all []string
				for _, v := range values {
					lit := literalOf(t, s.Columns[1].Type, v)
					all = append(all, lit)
					for i, op := range []string{"=", "<>", "<", "<=", ">", ">="} {
						filters = append(filters, "c "+op+" "+lit, []string{"NOT c " + op + " " + lit, "c " + op + " " + lit + " AND id < 5", "c " + op + " " + lit + " OR c IS NULL"}[(i+len(all))%3])
					}
				}
				filters = append(filters, "c IN ("+strings.Join(all, ",")+")", "c NOT IN ("+all[0]+")", "c IN ("+all[0]+", "+all[len(all)-1]+") OR id = 1000")
			} else {
				filters = append(filters, "c = 0", "c < 1 OR c IS NULL", "c >= -1 AND c IS NOT NULL", "NOT c IN (0, 1)")
			}
			rec := mergetest.Batch(s, rows)
			defer rec.Release()
			for _, f := range filters {
				want := rows
				if f != "" {
					p, err := parse(t, f).Bind(s)
					if err != nil {
						t.Fatal(err)
					}
					places, err := p.Rows(rec)
					if err != nil {
						t.Fatal(err)
					}
					want = nil
					for _, i := range places {
						want = append(want, rows[i])
					}
				}
				for _, plain := range []bool{false, true} {
					got, err := collect(snap.Read(t.Context(), scan.Read{Target: s, Filter: parse(t, f), NoPushdown: plain}))
					if err != nil {
						t.Fatalf("%s: %v", f, err)
					}
					if !slices.Equal(sorted(got), sorted(want)) {
						t.Errorf("filter %q, no pushdown %v:\ngot  %v\nwant %v", f, plain, got, want)
					}
				}
			}
		})
	}
}

// Writers leave out ends of a row group that are long, and the library then takes "" for
// the greatest value.
func TestALongValueHidesNoOthers(t *testing.T) {
	s := schemaOf("id INT NOT NULL", "c STRING NOT NULL")
	l := newLake(t, tempDir(t)(), 2, lakeFields(s))
	at := l.append(s, []mergetest.Row{{int32(1), "a"}, {int32(2), "m"}, {int32(3), strings.Repeat("z", 5000)}})
	snap := openAt(t, l, at, layoutOf(nil, nil, nil))
	for filter, want := range map[string]int{"c = 'm'": 1, "c > 'b'": 2, "c >= 'zzz'": 1, "c IN ('m', 'x')": 1, "c < 'b'": 1} {
		got, err := collect(snap.Read(t.Context(), scan.Read{Target: s, Filter: parse(t, filter)}))
		if err != nil || len(got) != want {
			t.Errorf("%s: %d rows, want %d (%v)", filter, len(got), want, err)
		}
	}
}

// A table that is written, altered and deleted from in all ways, read at any of its
// snapshots, against a model.
func TestReadsWhatIsLeft(t *testing.T) {
	dir := tempDir(t)
	rapid.Check(t, func(t *rapid.T) {
		version := rapid.SampledFrom([]int{2, 3}).Draw(t, "version")
		types := []string{"INT", "BIGINT", "STRING", "DATE", "TINYINT", "TIME(0)", "TIMESTAMP(3)", "DECIMAL(9,2)", "FLOAT"}
		columns := []string{"k INT NOT NULL"}
		for i := range rapid.IntRange(1, 3).Draw(t, "columns") {
			columns = append(columns, fmt.Sprintf("c%d %s", i, rapid.SampledFrom(types).Draw(t, "type")))
		}
		s := schemaOf(columns...)
		l := newLake(t, dir(), version, lakeFields(s))
		type state struct {
			id     int64
			schema *schema.Schema
			rows   []mergetest.Row
		}
		var states []state
		var rows []mergetest.Row
		next := mink.FieldID(len(s.Columns) + 1)
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			id := int64(0)
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0, 1, 2:
				var add []mergetest.Row
				for range rapid.IntRange(1, 6).Draw(t, "rows") {
					row := mergetest.Row{int32(rapid.IntRange(0, 20).Draw(t, "k"))}
					for _, c := range s.Columns[1:] {
						row = append(row, mergetest.Value(t, c.Type))
					}
					add = append(add, row)
				}
				id = l.append(s, add)
				rows = append(slices.Clone(rows), add...)
			case 3: // the identifier only: every row with the key goes
				k := int32(rapid.IntRange(0, 20).Draw(t, "k"))
				del := make(mergetest.Row, len(s.Columns))
				del[0] = k
				id = l.equalityDelete(s, []int{1}, []mergetest.Row{del})
				rows = slices.DeleteFunc(slices.Clone(rows), func(r mergetest.Row) bool { return r[0] == k })
			case 4: // position deletes, or deletion vectors
				if len(rows) == 0 {
					continue
				}
				k := int32(rapid.IntRange(0, 20).Draw(t, "k"))
				id = l.do(func(ctx context.Context, tx *table.Transaction) error {
					return tx.Delete(ctx, iceberg.LessThan(iceberg.Reference("k"), k), nil)
				})
				rows = slices.DeleteFunc(slices.Clone(rows), func(r mergetest.Row) bool { return r[0].(int32) < k })
			case 5:
				c := schema.Column{ID: next, Name: fmt.Sprintf("a%d", next), Type: schema.MustParseType(rapid.SampledFrom(types).Draw(t, "type"))}
				next++
				l.do(func(_ context.Context, tx *table.Transaction) error {
					return tx.UpdateSchema(true, false).AddColumn([]string{c.Name}, lakeField(c).Type, "", false, nil).Commit()
				})
				s = &schema.Schema{ID: s.ID + 1, Columns: append(slices.Clone(s.Columns), c)}
				for i, r := range rows {
					rows[i] = append(slices.Clone(r), nil)
				}
				continue
			case 6:
				at := rapid.IntRange(0, len(s.Columns)-1).Draw(t, "column")
				c := s.Columns[at]
				old := c.Name
				s = &schema.Schema{ID: s.ID + 1, Columns: slices.Clone(s.Columns)}
				if at == 0 || rapid.Bool().Draw(t, "rename") {
					c.Name = fmt.Sprintf("r%d", s.ID)
					if at == 0 {
						continue // other steps name it
					}
					l.do(func(_ context.Context, tx *table.Transaction) error {
						return tx.UpdateSchema(true, false).RenameColumn([]string{old}, c.Name).Commit()
					})
					s.Columns[at] = c
					continue
				}
				l.do(func(_ context.Context, tx *table.Transaction) error {
					return tx.UpdateSchema(true, false).DeleteColumn([]string{old}).Commit()
				})
				s.Columns = slices.Delete(s.Columns, at, at+1)
				for i, r := range rows {
					rows[i] = slices.Delete(slices.Clone(r), at, at+1)
				}
				continue
			}
			if id != 0 {
				states = append(states, state{id, s, slices.Clone(rows)})
			}
		}
		for _, st := range states {
			// The newest schema, as a reader has it, at an older snapshot.
			target := st.schema
			if rapid.Bool().Draw(t, "newest schema") {
				target = s
			}
			var want []mergetest.Row
			from := rapid.IntRange(0, 20).Draw(t, "from")
			for _, r := range st.rows {
				if r[0].(int32) >= int32(from) {
					want = append(want, mergetest.Follow(r, st.schema, target))
				}
			}
			var ids []mink.FieldID
			keep := rapid.SliceOfNDistinct(rapid.IntRange(0, len(target.Columns)-1), 1, -1, func(i int) int { return i }).Draw(t, "projection")
			for _, i := range keep {
				ids = append(ids, target.Columns[i].ID)
			}
			for i, r := range want {
				row := mergetest.Row{}
				for _, k := range keep {
					row = append(row, r[k])
				}
				want[i] = row
			}
			filter := parse(t, fmt.Sprintf("%q >= %d", target.Columns[0].Name, from))
			snap := openAt(t, l, st.id, layoutOf(nil, nil, nil))
			got, err := collect(snap.Read(context.Background(), scan.Read{
				Target: target, Columns: ids, Filter: filter, BatchRows: rapid.IntRange(1, 5).Draw(t, "batch"), Files: rapid.IntRange(1, 3).Draw(t, "files"),
			}))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(sorted(got), sorted(want)) {
				t.Fatalf("snapshot %d, schema %d at %d, columns %v, k >= %d:\ngot  %v\nwant %v", st.id, st.schema.ID, target.ID, ids, from, sorted(got), sorted(want))
			}
		}
	})
}

// A column that was widened after files were written: filters on it are not pushed down,
// and old files are read in the new type.
func TestWidenedColumn(t *testing.T) {
	s := schemaOf("k INT NOT NULL", "n INT")
	l := newLake(t, t.TempDir(), 2, lakeFields(s))
	l.append(s, []mergetest.Row{{int32(1), int32(5)}, {int32(2), nil}})
	l.do(func(_ context.Context, tx *table.Transaction) error {
		return tx.UpdateSchema(true, false).UpdateColumn([]string{"n"}, table.ColumnUpdate{FieldType: iceberg.Optional[iceberg.Type]{Val: iceberg.PrimitiveTypes.Int64, Valid: true}}).Commit()
	})
	wide := schemaOf("k INT NOT NULL", "n BIGINT")
	at := l.append(wide, []mergetest.Row{{int32(3), int64(1 << 40)}, {int32(4), int64(6)}})
	snap := openAt(t, l, at, layoutOf(nil, nil, nil))
	for filter, want := range map[string]string{"n > 5": "[{3 1099511627776} {4 6}]", "n = 5": "[{1 5}]", "n IS NULL": "[{2 <nil>}]", "n < 1099511627776": "[{1 5} {4 6}]"} {
		rows, err := collect(snap.Read(t.Context(), scan.Read{Target: wide, Filter: parse(t, filter)}))
		if err != nil {
			t.Fatalf("%s: %v", filter, err)
		}
		var text []string
		for _, r := range rows {
			text = append(text, fmt.Sprintf("{%v %v}", r[0], r[1]))
		}
		slices.Sort(text)
		if got := fmt.Sprint(text); got != want {
			t.Errorf("%s: %s, want %s", filter, got, want)
		}
	}
}

// Values of other engines that Mink's type does not have are errors, never cut.
func TestNarrowsExactly(t *testing.T) {
	dir := tempDir(t)
	for _, tc := range []struct {
		mink, wide string
		value      any
		ok         bool
	}{
		{"TINYINT", "INT", int32(127), true}, {"TINYINT", "INT", int32(128), false}, {"SMALLINT", "INT", int32(-32769), false},
		{"TIME(0)", "TIME(6)", arrow.Time64(2_000_000), true}, {"TIME(0)", "TIME(6)", arrow.Time64(2_000_001), false},
		{"TIME(3)", "TIME(6)", arrow.Time64(1_001), false}, {"TIMESTAMP(3)", "TIMESTAMP(6)", arrow.Timestamp(-1_000), true},
		{"TIMESTAMP(3)", "TIMESTAMP(6)", arrow.Timestamp(-1), false}, {"TIMESTAMP_LTZ(0)", "TIMESTAMP_LTZ(6)", arrow.Timestamp(1), false},
		{"INT NOT NULL", "INT", nil, false},
	} {
		lakes := schemaOf("c " + tc.wide)
		l := newLake(t, dir(), 2, lakeFields(lakes))
		at := l.append(lakes, []mergetest.Row{{tc.value}})
		_, err := collect(openAt(t, l, at, layoutOf(nil, nil, nil)).Read(t.Context(), scan.Read{Target: schemaOf("c " + tc.mink)}))
		if tc.ok && err != nil || !tc.ok && !errors.Is(err, mink.ErrCorrupt) {
			t.Errorf("%v of %s as %s: %v", tc.value, tc.wide, tc.mink, err)
		}
	}
}

// Nested columns: narrowed inside, fields by id.
func TestNested(t *testing.T) {
	field := func(id int, name string, t iceberg.Type) iceberg.NestedField {
		return iceberg.NestedField{ID: id, Name: name, Type: t}
	}
	old := iceberg.StructType{FieldList: []iceberg.NestedField{field(2, "a", iceberg.PrimitiveTypes.Int32), field(3, "b", iceberg.PrimitiveTypes.Time)}}
	l := newLake(t, t.TempDir(), 2, []iceberg.NestedField{
		{ID: 1, Name: "r", Type: &old},
		{ID: 4, Name: "l", Type: &iceberg.ListType{ElementID: 5, Element: iceberg.PrimitiveTypes.Int32}},
		{ID: 6, Name: "m", Type: &iceberg.MapType{KeyID: 7, KeyType: iceberg.PrimitiveTypes.String, ValueID: 8, ValueType: iceberg.PrimitiveTypes.Timestamp}},
	})
	wide := &schema.Schema{ID: 1, Columns: []schema.Column{
		{ID: 1, Name: "r", Type: schema.RowOf(schema.Field{ID: 2, Name: "a", Type: schema.MustParseType("INT")}, schema.Field{ID: 3, Name: "b", Type: schema.MustParseType("TIME(6)")})},
		{ID: 4, Name: "l", Type: schema.ArrayOf(schema.MustParseType("INT"))},
		{ID: 6, Name: "m", Type: schema.MapOf(schema.MustParseType("STRING"), schema.MustParseType("TIMESTAMP(6)"))},
	}}
	wide.Columns[1].Type.Fields[0].ID, wide.Columns[2].Type.Fields[0].ID, wide.Columns[2].Type.Fields[1].ID = 5, 7, 8
	at := l.append(wide, []mergetest.Row{
		{[]any{int32(7), arrow.Time64(3_000_000)}, []any{int32(1), nil, int32(-128)}, [][2]any{{"x", arrow.Timestamp(5_000)}}},
		{nil, nil, nil},
		{[]any{nil, nil}, []any{}, [][2]any{}},
	})
	to := &schema.Schema{ID: 2, Columns: []schema.Column{
		{ID: 6, Name: "m", Type: schema.MapOf(schema.MustParseType("STRING"), schema.MustParseType("TIMESTAMP(3)"))},
		{ID: 4, Name: "l", Type: schema.ArrayOf(schema.MustParseType("TINYINT"))},
		{ID: 1, Name: "r", Type: schema.RowOf(schema.Field{ID: 9, Name: "new", Type: schema.MustParseType("STRING")}, schema.Field{ID: 3, Name: "bb", Type: schema.MustParseType("TIME(0)")}, schema.Field{ID: 2, Name: "a", Type: schema.MustParseType("BIGINT")})},
		{ID: 10, Name: "added", Type: schema.MustParseType("DATE")},
	}}
	to.Columns[1].Type.Fields[0].ID, to.Columns[0].Type.Fields[0].ID, to.Columns[0].Type.Fields[1].ID = 5, 7, 8
	got, err := collect(openAt(t, l, at, layoutOf(nil, nil, nil)).Read(t.Context(), scan.Read{Target: to, BatchRows: 2}))
	if err != nil {
		t.Fatal(err)
	}
	want := []mergetest.Row{
		{[][2]any{{"x", arrow.Timestamp(5)}}, []any{int8(1), nil, int8(-128)}, []any{nil, arrow.Time32(3), int64(7)}, nil},
		{nil, nil, nil, nil},
		{[][2]any{}, []any{}, []any{nil, nil, nil}, nil},
	}
	if !mergetest.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}
