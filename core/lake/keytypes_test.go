package lake

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// keyValues are three values of each type that a key may have, as JSON for Arrow.
var keyValues = []struct{ typ, a, b, c string }{
	{"BOOLEAN", `true`, `false`, ``},
	{"TINYINT", `-128`, `127`, `0`}, {"SMALLINT", `-32768`, `32767`, `0`}, {"INT", `-2147483648`, `2147483647`, `0`},
	{"BIGINT", `"-9223372036854775808"`, `"9223372036854775807"`, `"9007199254740993"`},
	{"DECIMAL(5,2)", `"-999.99"`, `"999.99"`, `"0.01"`}, {"DECIMAL(18,4)", `"-1.5000"`, `"1.5000"`, `"0.0001"`}, {"DECIMAL(38,10)", `"-9999999999999999999999999999.9999999999"`, `"1"`, `"2"`},
	{"CHAR(3)", `""`, `"äöü"`, `"b"`}, {"STRING", `""`, `"a\u0000b"`, `"a-very-long-value-beyond-any-truncation-of-statistics-1"`},
	{"BINARY(3)", `"AAAA"`, `"////"`, `"AQID"`}, {"BYTES", `""`, `"AA=="`, `"/w=="`},
	{"DATE", `"0001-01-01"`, `"9999-12-31"`, `"1970-01-01"`},
	{"TIME(0)", `"00:00:00"`, `"23:59:59"`, `"12:00:00"`}, {"TIME(3)", `"00:00:00.001"`, `"23:59:59.999"`, `"12:00:00"`}, {"TIME(6)", `"00:00:00.000001"`, `"23:59:59.999999"`, `"12:00:00"`},
	{"TIMESTAMP(0)", `"1969-12-31 23:59:59"`, `"2024-02-29 12:34:56"`, `"1970-01-01 00:00:00"`}, {"TIMESTAMP(3)", `"1969-12-31 23:59:59.001"`, `"2024-02-29 12:34:56.789"`, `"1970-01-01 00:00:00"`},
	{"TIMESTAMP(6)", `"1969-12-31 23:59:59.000001"`, `"2024-02-29 12:34:56.789012"`, `"1970-01-01 00:00:00"`}, {"TIMESTAMP(9)", `"1969-12-31 23:59:59.000000001"`, `"2024-02-29 12:34:56.789012345"`, `"1970-01-01 00:00:00"`},
	{"TIMESTAMP_LTZ(0)", `"1969-12-31 23:59:59Z"`, `"2024-02-29 12:34:56Z"`, `"1970-01-01 00:00:00Z"`}, {"TIMESTAMP_LTZ(6)", `"1969-12-31 23:59:59.000001Z"`, `"2024-02-29 12:34:56.789012Z"`, `"1970-01-01 00:00:00Z"`},
	{"FLOAT", `-1.5`, `1.5`, `0`}, {"DOUBLE", `-1.5`, `1.5`, `0`},
}

// TestEveryKeyTypeIsUpdatedAndDeleted: a key of each type, alone and as partition
// key, is inserted, updated and deleted, each in rounds of its own.
func TestEveryKeyTypeIsUpdatedAndDeleted(t *testing.T) {
	for _, deletes := range []string{deletesEquality, deletesPosition} {
		for _, v := range keyValues {
			for _, partitioned := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/partitioned=%t", deletes, v.typ, partitioned), func(t *testing.T) {
					spec := sink.TableSpec{PrimaryKey: []string{"k"}, Options: map[string]string{optionDeletes: deletes}}
					if partitioned {
						spec.PrimaryKey, spec.PartitionKeys = []string{"k", "n"}, []string{"k"}
						if strings.HasPrefix(v.typ, "DECIMAL") {
							t.Skip("no partition key of Mink's")
						}
					}
					o := newOne(t, spec, SinkConfig{}, "k", v.typ, "n", "INT", "x", "STRING")
					float := v.typ == "FLOAT" || v.typ == "DOUBLE"
					if float && (partitioned || deletes == deletesEquality) || v.typ == "TIMESTAMP(9)" && deletes == deletesPosition {
						_, err := o.s.Open(t.Context(), sink.OpenRequest{Table: o.spec})
						if !errors.Is(err, sink.ErrUnimplemented) || !strings.Contains(err.Error(), `"k"`) {
							t.Fatalf("not refused: %v", err)
						}
						return
					}
					o.open()
					checkKeyLife(o, v.a, v.b, v.c, partitioned)
				})
			}
		}
	}
}

func checkKeyLife(o *one, a, b, c string, partitioned bool) {
	o.t.Helper()
	change := func(kind, key, x string) row { return row{kind, fmt.Sprintf(`{"k":%s,"n":1,"x":%q}`, key, x)} }
	count := func(want ...string) {
		o.t.Helper()
		got := map[string]int{}
		for _, r := range o.rows() {
			got[r[strings.LastIndex(r, `"x":"`):]]++
		}
		if len(o.rows()) != len(want) {
			o.t.Fatalf("the lake has %v, want rows %v", o.rows(), want)
		}
		for _, x := range want {
			if got[fmt.Sprintf(`"x":%q}`, x)] != 1 {
				o.t.Fatalf("the lake has %v, want rows %v", o.rows(), want)
			}
		}
	}
	if partitioned { // each value is a partition of its own, and so a bucket
		for i, k := range []string{a, b} {
			ref := bucket0
			ref.Partition += mink.PartitionID(i)
			put := func(rows ...row) { o.commit(o.prepare(ref, []string{"text"}, rows...)) }
			put(change("+I", k, "1"))
			count("1")
			put(change("-U", k, "1"), change("+U", k, "2"))
			count("2")
			put(change("-D", k, "2"))
			count()
		}
		return
	}
	o.round(change("+I", a, "a1"), change("+I", b, "b1"))
	count("a1", "b1")
	o.round(change("-U", a, "a1"), change("+U", a, "a2"))
	count("a2", "b1")
	o.round(change("+U", a, "a3"), change("-D", b, "b1")) // as with image = wal
	count("a3")
	if c != "" {
		o.round(change("+I", c, "c1"), change("+U", c, "c2"), change("-D", c, "c2")) // first seen and gone in one round
		count("a3")
	}
	o.round(change("+I", b, "b2"), change("-D", a, "a3"))
	count("b2")
}

func TestDeletesAreWrittenOnlyWhereRowsMayBe(t *testing.T) {
	o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}, Options: map[string]string{optionDeletes: deletesEquality}}, SinkConfig{}, "k", "INT", "x", "STRING")
	o.open()
	kindsOf := func() string {
		tbl, err := o.w.Load(t.Context(), identifier(o.spec))
		o.must(err)
		p := tbl.CurrentSnapshot().Summary.Properties
		return fmt.Sprintf("data %s deletes %s", p["added-records"], p["added-equality-deletes"])
	}
	o.round(row{"+I", `{"k":1,"x":"a"}`}, row{"+I", `{"k":2,"x":"a"}`})
	if got := kindsOf(); got != "data 2 deletes " {
		t.Fatal(got)
	}
	o.round(row{"+I", `{"k":3,"x":"a"}`}, row{"-D", `{"k":3,"x":"a"}`}) // nothing at all
	if got := kindsOf(); got != "data  deletes " {
		t.Fatal(got)
	}
	o.round(row{"+U", `{"k":1,"x":"b"}`}, row{"+I", `{"k":4,"x":"a"}`}, row{"-D", `{"k":2,"x":"a"}`})
	if got := kindsOf(); got != "data 2 deletes 2" {
		t.Fatal(got)
	}
	o.want(`{"k":1,"x":"b"}`, `{"k":4,"x":"a"}`)
}

// TestPositionDeletesNamePositions: no equality deletes are among them, so that
// engines without those can read the table.
func TestPositionDeletesNamePositions(t *testing.T) {
	o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}, Options: map[string]string{optionDeletes: deletesPosition}}, SinkConfig{}, "k", "INT", "x", "STRING")
	o.open()
	o.round(row{"+I", `{"k":1,"x":"a"}`}, row{"+I", `{"k":2,"x":"a"}`})
	for i := range 4 {
		o.round(row{"+U", fmt.Sprintf(`{"k":1,"x":"b%d"}`, i)})
		o.want(fmt.Sprintf(`{"k":1,"x":"b%d"}`, i), `{"k":2,"x":"a"}`)
	}
	tbl, err := o.w.Load(t.Context(), identifier(o.spec))
	o.must(err)
	deleted := int64(0)
	for e, err := range liveEntries(t.Context(), tbl, tbl.CurrentSnapshot()) {
		o.must(err)
		f := e.DataFile()
		if f.ContentType() == iceberg.EntryContentEqDeletes {
			t.Errorf("%s has equality deletes", f.FilePath())
		}
		if f.ContentType() == iceberg.EntryContentPosDeletes {
			deleted += f.Count()
		}
		if ref, ok := BucketOf(f.FilePath()); !ok || ref != bucket0 {
			t.Errorf("%s is of bucket %v, %t", f.FilePath(), ref, ok)
		}
	}
	if deleted != 4 { // each update deletes the newest row of the key and no older one again
		t.Errorf("%d positions for 4 updates", deleted)
	}
}

// TestPositionsAreFoundInRandomHistories compares with a map, with keys of several
// columns, many files, and so little memory that keys are looked for in parts.
func TestPositionsAreFoundInRandomHistories(t *testing.T) {
	for _, c := range []struct {
		name string
		key  []string
		typ  string
		of   func(n int) string
	}{
		{"BIGINT", []string{"k"}, "BIGINT", func(n int) string { return fmt.Sprintf(`"%d"`, n-40) }},
		{"STRING and INT", []string{"k", "n"}, "STRING", func(n int) string { return fmt.Sprintf(`"key-%d"`, n/3) }},
		{"DATE", []string{"k"}, "DATE", func(n int) string { return fmt.Sprintf(`"2024-01-%02d"`, 1+n%28) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(7, 8))
			o := newOne(t, sink.TableSpec{PrimaryKey: c.key, Options: map[string]string{optionDeletes: deletesPosition}}, SinkConfig{SortBytes: 2 << 10, FileBytes: 1 << 10}, "k", c.typ, "n", "INT", "x", "STRING")
			o.open()
			have := map[string]string{}
			for r := range 12 {
				var rows []row
				for i := range 1 + rng.IntN(60) {
					n := rng.IntN(80)
					id := c.of(n)
					number := n
					if len(c.key) == 1 {
						number = 0
					} else {
						id += fmt.Sprint(n)
					}
					object := fmt.Sprintf(`{"k":%s,"n":%d,"x":"%d-%d"}`, c.of(n), number, r, i)
					_, there := have[id]
					switch {
					case there && rng.IntN(3) == 0:
						rows = append(rows, row{"-D", object})
						delete(have, id)
						continue
					case there:
						rows = append(rows, row{"+U", object})
					default:
						rows = append(rows, row{"+I", object})
					}
					have[id] = fmt.Sprintf("%d-%d", r, i)
				}
				o.round(rows...)
			}
			got := map[string]bool{}
			for _, r := range o.rows() {
				var m struct{ X string }
				o.must(json.Unmarshal([]byte(r), &m))
				if got[m.X] {
					t.Errorf("%s is there twice", m.X)
				}
				got[m.X] = true
			}
			if len(got) != len(have) {
				t.Errorf("%d rows, want %d", len(got), len(have))
			}
			for _, x := range have {
				if !got[x] {
					t.Errorf("%s is missing", x)
				}
			}
		})
	}
}

// TestLongValuesHaveNoBounds: a column of which one end is too long for the statistics
// has no bounds in the manifest, rather than those of the other values.
func TestLongValuesHaveNoBounds(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT", "long", "STRING", "short", "STRING", "list", "ARRAY<STRING>")
	o.open()
	z := strings.Repeat("z", statsBytes+1)
	o.round(row{"+A", `{"k":1,"long":"a","short":"a","list":["a"]}`}, row{"+A", `{"k":2,"long":"` + z + `","short":"m","list":["` + z + `"]}`})
	tbl, err := o.w.Load(t.Context(), identifier(o.spec))
	o.must(err)
	for e, err := range liveEntries(t.Context(), tbl, tbl.CurrentSnapshot()) {
		o.must(err)
		for name, want := range map[string]bool{"k": true, "long": false, "short": true, "list.element": false} {
			f, ok := tbl.Schema().FindFieldByName(name)
			if !ok {
				t.Fatal(name)
			}
			_, lower := e.DataFile().LowerBoundValues()[f.ID]
			_, upper := e.DataFile().UpperBoundValues()[f.ID]
			if lower != want || upper != want {
				t.Errorf("column %s: lower bound %t, upper %t, want %t", name, lower, upper, want)
			}
		}
	}
}

// TestPositionsBesideLongKeys: a row group whose greatest key is too long for the
// statistics is looked through.
func TestPositionsBesideLongKeys(t *testing.T) {
	o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}, Options: map[string]string{optionDeletes: deletesPosition}}, SinkConfig{}, "k", "STRING", "x", "STRING")
	o.open()
	z := strings.Repeat("z", statsBytes+1)
	o.round(row{"+I", `{"k":"a","x":"1"}`}, row{"+I", `{"k":"m","x":"1"}`}, row{"+I", `{"k":"` + z + `","x":"1"}`})
	o.round(row{"+U", `{"k":"m","x":"2"}`}, row{"-D", `{"k":"a","x":"1"}`})
	o.want(`{"k":"m","x":"2"}`, `{"k":"`+z+`","x":"1"}`)
}
