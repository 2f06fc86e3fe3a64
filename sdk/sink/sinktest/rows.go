package sinktest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

func rowChecks() []Check {
	return []Check{
		{Name: "EveryType", Run: checkEveryType},
		{Name: "Changes", Applies: takesChanges, Run: checkChanges},
		{Name: "ChangesRefused", Applies: func(d sink.Description) bool { return !takesChanges(d) }, Run: checkChangesRefused},
		{Name: "Snapshot", Applies: takesChanges, Run: checkSnapshot},
		{Name: "ManyRows", Run: checkManyRows},
		{Name: "LargeBatch", Run: checkLargeBatch},
	}
}

// typeColumns has every type of Mink with values at the edges, as JSON for Arrow.
func typeColumns() ([]arrow.Field, [][]any) {
	type col struct {
		mtype  string
		dt     arrow.DataType
		values []any // null comes besides
	}
	times := func(texts ...string) []any {
		out := make([]any, len(texts))
		for i, t := range texts {
			out[i] = t
		}
		return out
	}
	long := strings.Repeat("x", 70_000)
	cols := []col{
		{"BOOLEAN", arrow.FixedWidthTypes.Boolean, []any{true, false}},
		{"TINYINT", arrow.PrimitiveTypes.Int8, []any{math.MinInt8, math.MaxInt8}},
		{"SMALLINT", arrow.PrimitiveTypes.Int16, []any{math.MinInt16, math.MaxInt16}},
		{"INT", arrow.PrimitiveTypes.Int32, []any{math.MinInt32, math.MaxInt32}},
		{"BIGINT", arrow.PrimitiveTypes.Int64, []any{"-9223372036854775808", "9223372036854775807", "9007199254740993"}},
		{"FLOAT", arrow.PrimitiveTypes.Float32, []any{"3.4028235e38", "1e-45", "-0.1", "NaN", "+Inf", "-Inf"}},
		{"DOUBLE", arrow.PrimitiveTypes.Float64, []any{"1.7976931348623157e308", "5e-324", "0.1", "NaN", "+Inf", "-Inf"}},
		{"DECIMAL(38,10)", &arrow.Decimal128Type{Precision: 38, Scale: 10}, times("9999999999999999999999999999.9999999999", "-0.0000000001", "0.0000000000")},
		{"DECIMAL(5,0)", &arrow.Decimal128Type{Precision: 5}, times("99999", "-99999")},
		{"CHAR(3)", arrow.BinaryTypes.String, times("", "äöü", "a\"\\")},
		{"STRING", arrow.BinaryTypes.String, times("", "line\r\nbreak\ttab", "\U0001F600 \u2028 </script>", "null", long)},
		{"BINARY(3)", &arrow.FixedSizeBinaryType{ByteWidth: 3}, times("AAAA", "////", "AQID")},
		{"BYTES", arrow.BinaryTypes.Binary, times("", "AA==", "/w==")},
		{"DATE", arrow.FixedWidthTypes.Date32, times("1970-01-01", "0001-01-01", "9999-12-31", "1969-12-31")},
		{"TIME(0)", arrow.FixedWidthTypes.Time32s, times("00:00:00", "23:59:59")},
		{"TIME(3)", arrow.FixedWidthTypes.Time32ms, times("00:00:00.001", "23:59:59.999")},
		{"TIME(6)", arrow.FixedWidthTypes.Time64us, times("00:00:00.000001", "23:59:59.999999")},
		{"TIME(9)", arrow.FixedWidthTypes.Time64ns, times("00:00:00.000000001", "23:59:59.999999999")},
	}
	for _, zone := range []string{"", "UTC"} {
		name := "TIMESTAMP"
		if zone != "" {
			name = "TIMESTAMP_LTZ"
		}
		for digits, unit := range map[int]arrow.TimeUnit{0: arrow.Second, 3: arrow.Millisecond, 6: arrow.Microsecond, 9: arrow.Nanosecond} {
			values := times("1970-01-01 00:00:00", "1969-12-31 23:59:59", "2262-04-11 23:47:16")
			if digits > 0 {
				values = append(values, "2024-02-29 12:34:56."+strings.Repeat("7", digits))
			}
			if zone != "" {
				for i := range values {
					values[i] = values[i].(string) + "Z"
				}
			}
			cols = append(cols, col{fmt.Sprintf("%s(%d)", name, digits), &arrow.TimestampType{Unit: unit, TimeZone: zone}, values})
		}
	}
	item := column(901, "element", "INT", arrow.PrimitiveTypes.Int32, true)
	key := column(902, "key", "STRING", arrow.BinaryTypes.String, false)
	value := column(903, "value", "BIGINT", arrow.PrimitiveTypes.Int64, true)
	x := column(904, "x", "INT", arrow.PrimitiveTypes.Int32, true)
	y := column(905, "y", "ARRAY<STRING>", arrow.ListOfField(column(906, "element", "STRING", arrow.BinaryTypes.String, true)), true)
	cols = append(cols,
		col{"ARRAY<INT>", arrow.ListOfField(item), []any{[]any{}, []any{1, nil, -3}}},
		col{"MAP<STRING, BIGINT>", arrow.MapOfFields(key, value), []any{[]any{}, []any{map[string]any{"key": "a", "value": "1"}, map[string]any{"key": "", "value": nil}}}},
		col{"ROW<x INT, y ARRAY<STRING>>", arrow.StructOf(x, y), []any{map[string]any{"x": 1, "y": []any{"a", nil}}, map[string]any{"x": nil, "y": nil}}},
	)
	fields := []arrow.Field{column(columnKey, "id", "BIGINT", arrow.PrimitiveTypes.Int64, false)}
	values := [][]any{nil}
	for i, c := range cols {
		fields = append(fields, column(mink.FieldID(10+i), fmt.Sprintf("Col %d-%s", i, strings.ToLower(c.mtype)), c.mtype, c.dt, true))
		values = append(values, append(c.values, nil))
	}
	return fields, values
}

// checkEveryType: each type comes back exactly, or Open refuses it and names the
// column.
func checkEveryType(t T, target Target) {
	fields, values := typeColumns()
	w := newWorld(t, target, tableOptions{})
	k := w.worker()
	k.must(k.start())
	refused := 0
	for {
		w.spec.Schema = sink.Schema{ID: 1, Arrow: arrow.NewSchema(fields, nil)}
		err := k.open()
		if err == nil {
			break
		}
		i := slices.IndexFunc(fields, func(f arrow.Field) bool { return strings.Contains(err.Error(), strconv.Quote(f.Name)) })
		if i < 1 || !errors.Is(err, sink.ErrUnimplemented) && !errors.Is(err, sink.ErrInvalid) {
			t.Fatalf("open a table with columns of every type: %v; a type that the sink cannot keep is ErrUnimplemented or ErrInvalid and names the column", err)
		}
		t.Logf("refused: %v", err)
		if refused++; refused > len(fields)/2 {
			t.Fatalf("the sink refuses %d of %d types", refused, refused+len(fields)-2)
		}
		fields, values = slices.Delete(fields, i, i+1), slices.Delete(values, i, i+1)
	}
	schema := w.spec.Schema.Arrow
	k.must(k.recover())
	const rows = 12
	var records []map[string]any
	for i := range rows {
		r := map[string]any{"id": strconv.Itoa(i)}
		for c, f := range fields[1:] {
			r[f.Name] = values[c+1][i%len(values[c+1])]
		}
		records = append(records, r)
	}
	batch, err := batchOf(w.mem, schema, records)
	k.must(err)
	want := map[string]int{}
	columns := columnsOf(schema, schema)
	for i := range rows {
		want[canonRow(batch, i, columns)]++
	}
	k.must(k.beginRanges(nil))
	_, err = k.table.Write(t.Context(), sink.WriteRequest{Bucket: w.onlyBucket(), Batch: batch, Start: 0, End: rows})
	k.must(err)
	batch.Release()
	k.must(k.prepare())
	k.ranges = []sink.Range{{Bucket: w.onlyBucket(), Start: 0, End: rows}}
	_, err = k.table.Commit(t.Context(), k.request())
	k.must(err)
	w.compareColumns(w.read(k.s), want, fields)
	k.stop()
}

// compareColumns says which columns differ.
func (w *world) compareColumns(got, want map[string]int, fields []arrow.Field) {
	w.t.Helper()
	of := func(rows map[string]int) map[string]map[string]string {
		byKey := map[string]map[string]string{}
		for text := range rows {
			parts := map[string]string{}
			for p := range strings.SplitSeq(text, "|") {
				id, value, _ := strings.Cut(p, "=")
				parts[id] = value
			}
			byKey[parts[strconv.Itoa(int(columnKey))]] = parts
		}
		return byKey
	}
	gotRows, wantRows := of(got), of(want)
	if len(gotRows) != len(wantRows) {
		w.t.Errorf("%d rows came back, %d were committed", len(gotRows), len(wantRows))
	}
	for _, f := range fields {
		id := strconv.Itoa(int(fieldID(f)))
		for key, row := range wantRows {
			if g := gotRows[key]; g != nil && g[id] != row[id] {
				mtype, _ := f.Metadata.GetValue(mink.MetaType)
				w.t.Errorf("column %q %s: %.80s came back as %.80s", f.Name, mtype, orNull(row[id]), orNull(g[id]))
				break
			}
		}
	}
}

func orNull(text string) string {
	if text == "" {
		return "null"
	}
	return text
}

func checkChanges(t T, target Target) {
	for i, partitioned := range []bool{false, true} {
		w := newWorld(t, target, tableOptions{id: mink.TableID(20 + i), partitioned: partitioned, primaryKey: true, buckets: 2})
		w.goal, w.chunk = 120, 17
		k := w.worker()
		k.finish()
		k.stop()
	}
}

func checkChangesRefused(t T, target Target) {
	w := newWorld(t, target, tableOptions{primaryKey: true})
	k := w.worker()
	k.must(k.start())
	wantIs(t, k.open(), sink.ErrUnimplemented, "open of a primary-key table by a sink that declares ChangesRefused")
	k.stop()
}

// checkSnapshot begins a primary-key table with what it held, and goes on with
// changes.
func checkSnapshot(t T, target Target) {
	w := newWorld(t, target, tableOptions{primaryKey: true})
	k := w.worker()
	k.must(k.start())
	k.must(k.open())
	k.must(k.recover())
	l := w.logs[0]
	const upTo = 30
	rows := map[int64]entry{}
	for o := l.base; o < l.base+upTo; o++ {
		switch e := l.at(o); {
		case e.skip:
		case e.change == mink.ChangeDelete:
			delete(rows, e.key)
		default:
			rows[e.key] = entry{change: mink.ChangeInsert, key: e.key, content: e.content}
		}
	}
	var entries []entry
	var kinds []mink.Change
	for _, e := range rows {
		entries, kinds = append(entries, e), append(kinds, mink.ChangeInsert)
	}
	batch, err := l.batch(w.mem, w.spec.Schema.Arrow, entries)
	k.must(err)
	k.must(k.beginRanges(nil))
	_, err = k.table.Write(t.Context(), sink.WriteRequest{Bucket: l.ref, Batch: batch, Changes: kinds, Start: l.base, End: l.base + upTo, Snapshot: true})
	k.must(err)
	batch.Release()
	k.must(k.prepare())
	// The model sees the snapshot as one range whose rows are the inserts.
	held := &bucketLog{ref: l.ref, base: l.base, changes: true}
	held.entries = append(held.entries, entries...)
	for len(held.entries) < upTo {
		held.entries = append(held.entries, entry{skip: true})
	}
	held.entries = append(held.entries[:upTo], l.entries[upTo:]...)
	held.state = l.state
	w.logs[0] = held
	k.ranges = []sink.Range{{Bucket: l.ref, Start: l.base, End: l.base + upTo}}
	k.must(k.commit())
	w.check(k.s)
	w.goal = 60
	k.must(k.recover())
	k.finish()
	k.stop()
}

// checkManyRows has rounds of more rows than a sink's buffers.
func checkManyRows(t T, target Target) {
	w := newWorld(t, target, tableOptions{})
	w.goal, w.chunk = 20_000, 12_000
	w.logs[0].dense = true
	k := w.worker()
	k.finish()
	k.stop()
}

// checkLargeBatch writes one batch near the limit: a few large values.
func checkLargeBatch(t T, target Target) {
	const rows, size = 6, 8 << 20
	w := newWorld(t, target, tableOptions{})
	schema := arrow.NewSchema([]arrow.Field{
		column(columnKey, "id", "BIGINT", arrow.PrimitiveTypes.Int64, false),
		column(columnNote, "note", "STRING", arrow.BinaryTypes.String, true),
	}, nil)
	w.spec.Schema.Arrow = schema
	k := w.worker()
	k.must(k.start())
	k.must(k.open())
	k.must(k.recover())
	k.must(k.beginRanges(nil))
	want := map[string]int{}
	b := array.NewRecordBuilder(w.mem, schema)
	defer b.Release()
	for i := range rows {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.StringBuilder).Append(strings.Repeat(string(rune('a'+i)), size))
	}
	batch := b.NewRecordBatch()
	for i := range rows {
		want[canonRow(batch, i, columnsOf(schema, schema))]++
	}
	_, err := k.table.Write(t.Context(), sink.WriteRequest{Bucket: w.onlyBucket(), Batch: batch, Start: 0, End: rows})
	k.must(err)
	batch.Release()
	k.must(k.prepare())
	k.ranges = []sink.Range{{Bucket: w.onlyBucket(), Start: 0, End: rows}}
	_, err = k.table.Commit(t.Context(), k.request())
	k.must(err)
	w.sent = rows
	w.compare(w.read(k.s), want)
	k.stop()
}
