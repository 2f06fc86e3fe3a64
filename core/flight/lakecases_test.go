package flight_test

import (
	"fmt"
	"testing"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
)

// Case 15: prefixes of keys of every type find the same rows of a table that is tiered, before
// its first round, after it, and with a tail behind it; reads of the lake have them all.
func TestPrefixLookupWithTiering(t *testing.T) {
	for _, c := range []struct{ typ, value, other string }{
		{"BOOLEAN", `true`, `false`},
		{"TINYINT", `-128`, `127`},
		{"SMALLINT", `-32768`, `0`},
		{"INT", `2147483647`, `-1`},
		{"BIGINT", `"9223372036854775807"`, `"-9223372036854775808"`},
		{"FLOAT", `0.5`, `"NaN"`},
		{"DOUBLE", `"-Inf"`, `-0.25`},
		{"DECIMAL(5,2)", `"-999.99"`, `"0.01"`},
		{"DECIMAL(38,10)", `"1234567890123456789012345678.0123456789"`, `0`},
		{"CHAR(3)", `"ab"`, `"abc"`},
		{"STRING", `"a\u0000"`, `"a"`},
		{"BINARY(2)", `"AAE="`, `"AAI="`},
		{"BYTES", `"AP8B"`, `""`},
		{"DATE", `"2026-01-31"`, `"0001-01-01"`},
		{"TIME(3)", `"07:05:00.123"`, `"00:00:00"`},
		{"TIME(6)", `"23:59:59.999999"`, `"07:05:00"`},
		{"TIMESTAMP(6)", `"2026-01-31T07:05:00.123456"`, `"1969-12-31T23:59:59"`},
		{"TIMESTAMP_LTZ(3)", `"2026-01-31T07:05:00Z"`, `"1969-12-31T23:59:59.999Z"`},
	} {
		t.Run(c.typ, func(t *testing.T) {
			t.Parallel()
			w := newLakeWorld(t)
			w.table(`{"name":"k","type":"`+c.typ+`"},{"name":"n","type":"INT"},{"name":"v","type":"STRING"}`,
				`"primary_key":["k","n"],"bucket_keys":["k"],"bucket_count":3,"options":{"lake":"true"}`)
			rows := map[string]int{} // of each key's first column
			put := func(k string, from, to int, v string) {
				t.Helper()
				var objects []string
				for n := from; n < to; n++ {
					objects = append(objects, fmt.Sprintf(`{"k":%s,"n":%d,"v":%q}`, k, n, v))
				}
				rec := w.jsonRecord([]string{"k", "n", "v"}, objects...)
				p := w.put(path("db", "t"), rec.Schema())
				p.send(rec, nil)
				mustResult[api.PutResult](p)
				p.finish()
				rows[k] = max(rows[k], to)
			}
			look := func(when string) {
				t.Helper()
				for k, want := range rows {
					var got api.PrefixRows
					if err := w.action(api.ActionPrefixLookup, fmt.Sprintf(`{"table":"db.t","prefix":{"k":%s},"columns":["n"]}`, k), &got); err != nil {
						t.Fatal(err)
					}
					if len(got.Rows) != want || got.More {
						t.Errorf("%s: %d rows begin with %s, want %d: %s", when, len(got.Rows), k, want, got.Rows)
					}
					for i, r := range got.Rows {
						if string(r) != fmt.Sprintf(`{"n":%d}`, i) {
							t.Errorf("%s: row %d that begins with %s is %s", when, i, k, r)
						}
					}
				}
			}
			inLake := func(when string, lakeOnly bool) {
				t.Helper()
				n, want := int64(0), int64(0)
				for b, err := range w.client.ScanUnion(t.Context(), client.UnionRequest{Table: "db.t", Bucket: -1, LakeOnly: lakeOnly}) {
					if err != nil {
						t.Fatal(err)
					}
					n += b.Record.NumRows()
				}
				for _, r := range rows {
					want += int64(r)
				}
				if n != want {
					t.Errorf("%s: %d rows, want %d", when, n, want)
				}
			}
			put(c.value, 0, 5, "old")
			put(c.other, 0, 3, "old")
			look("before the first round")
			w.tier()
			look("in the lake")
			inLake("in the lake", true)
			put(c.value, 2, 7, "new")
			look("with a tail")
			inLake("with a tail", false)
			w.tier()
			look("after another round")
			inLake("after another round", true)
		})
	}
}
