package lake

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
)

// checked is a primary-key table of three rounds, with position deletes, in a warehouse of a
// directory, and what is recorded of it.
func checked(t *testing.T) (*one, *Warehouse, CheckRequest) {
	t.Helper()
	o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}}, SinkConfig{}, "k", "BIGINT", "v", "STRING")
	w := openWarehouse(t, t.TempDir())
	o.s = NewSink(w, SinkConfig{})
	o.open()
	o.round(row{"+I", `{"k":1,"v":"a"}`}, row{"+I", `{"k":2,"v":"b"}`}, row{"+I", `{"k":3,"v":"c"}`})
	o.round(row{"-U", `{"k":1,"v":"a"}`}, row{"+U", `{"k":1,"v":"d"}`}, row{"-D", `{"k":2,"v":"b"}`})
	o.round(row{"+I", `{"k":4,"v":"e"}`})
	columns, err := schema.FromArrow(o.spec.Schema.Arrow)
	o.must(err)
	columns.ID = 1
	return o, w, CheckRequest{
		ID: identifier(o.spec), Table: o.spec.ID, Schema: columns, PrimaryKey: o.spec.PrimaryKey,
		Round: o.last.Round, Snapshot: o.last.Snapshot, Ends: o.last.Ends, Committed: o.last.Ends, Readable: []string{o.last.Snapshot}, Deep: true, Grace: time.Hour,
	}
}

func kindsOf(r CheckReport) (kinds []string) {
	for _, p := range r.Problems {
		if !slices.Contains(kinds, p.Kind) {
			kinds = append(kinds, p.Kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

// Every file of the lake, missing, cut and with its last bytes changed: what the table names is
// missed with its key, what it does not name is not.
func TestCheckMissesEveryFile(t *testing.T) {
	o, w, req := checked(t)
	ctx := t.Context()
	check := func() CheckReport {
		t.Helper()
		r, err := w.Check(ctx, req)
		o.must(err)
		return r
	}
	if r := check(); len(r.Problems) != 0 || r.Rows != 5 || r.Snapshots != 3 || r.OrphanFiles != 0 {
		t.Fatalf("a table that is whole: %+v", r)
	}
	var keys []string
	o.must(objstore.All(ctx, w.Store(), tableDir(o.spec), "", func(i objstore.ObjectInfo) bool { keys = append(keys, i.Key); return true }))
	tbl, err := w.Load(ctx, req.ID)
	o.must(err)
	newest, err := w.Key(tbl.MetadataLocation())
	o.must(err)
	seen := map[string]int{}
	for _, key := range keys {
		got, err := w.Store().GetRange(ctx, objstore.GetRangeRequest{Key: key, Length: -1})
		o.must(err)
		whole := slices.Clone(got.Data)
		put := func(data []byte) {
			t.Helper()
			_, err := w.Store().Put(ctx, objstore.PutRequest{Key: key, Chunks: [][]byte{data}})
			o.must(err)
		}
		metadata := strings.HasSuffix(key, ".metadata.json")
		parquet := strings.HasSuffix(key, ".parquet")
		wants := func(what string, r CheckReport, want bool) {
			t.Helper()
			if (len(r.Problems) > 0) != want {
				t.Errorf("%s %s: %+v", key, what, r.Problems)
			}
			for _, p := range r.Problems {
				if !strings.Contains(p.Text, key) || p.Object != key && p.Object != "" {
					t.Errorf("%s %s: %+v", key, what, p)
				}
			}
		}
		named := !metadata || key == newest
		_, err = w.Store().DeleteBatch(ctx, []string{key})
		o.must(err)
		wants("is missing", check(), named)
		put(whole[:len(whole)-1])
		wants("is cut", check(), named)
		if parquet {
			put(slices.Concat(whole[:len(whole)-8], []byte("notright")))
			wants("has another footer", check(), true)
			req.Deep = false
			wants("has another footer, and nobody looks", check(), false)
			req.Deep = true
		}
		put(whole)
		switch {
		case parquet:
			seen["parquet"]++
		case metadata:
			seen["metadata"]++
		default:
			seen["manifests"]++
		}
	}
	if r := check(); len(r.Problems) != 0 {
		t.Errorf("whole again: %+v", r)
	}
	if seen["parquet"] < 4 || seen["metadata"] < 4 || seen["manifests"] < 6 {
		t.Errorf("the test saw too few files: %v of %q", seen, keys)
	}

	orphan := tableDir(o.spec) + "data/r-9/1-0-0.parquet"
	_, err = w.Store().Put(ctx, objstore.PutRequest{Key: orphan, Chunks: [][]byte{[]byte("left")}})
	o.must(err)
	if r := check(); len(r.Problems) != 0 || r.OrphanFiles != 0 {
		t.Errorf("a young orphan: %+v", r)
	}
	req.Grace = -time.Hour
	if r := check(); len(r.Problems) != 0 || r.OrphanFiles != 1 || r.OrphanBytes != 4 || !slices.Equal(r.Orphans, []string{orphan}) {
		t.Errorf("an old orphan: %+v", r)
	}
}

// What is recorded and what the lake says of itself contradict each other.
func TestCheckComparesWithTheRecord(t *testing.T) {
	o, w, whole := checked(t)
	moved := func(by mink.Offset) map[mink.BucketRef]mink.Offset {
		return map[mink.BucketRef]mink.Offset{bucket0: o.last.Ends[bucket0] + by}
	}
	for _, c := range []struct {
		name   string
		change func(*CheckRequest)
		kind   string // "": none
	}{
		{"no round is recorded yet", func(r *CheckRequest) { r.Round, r.Snapshot, r.Ends, r.Readable = "", "", nil, nil }, ""},
		{"an older round is recorded", func(r *CheckRequest) { r.Round, r.Ends = "r-2", moved(-1) }, ""},
		{"the lake was rolled back", func(r *CheckRequest) { r.Round, r.Ends, r.Committed = "r-4", moved(1), moved(1) }, "lake_offsets"},
		{"the lake lacks a bucket", func(r *CheckRequest) {
			r.Ends = map[mink.BucketRef]mink.Offset{{Table: 7, Partition: 1, Index: 1}: 1}
		}, "lake_offsets"},
		{"one round, two ends", func(r *CheckRequest) { r.Ends = moved(-1) }, "lake_offsets"},
		{"the lake is ahead of the log", func(r *CheckRequest) { r.Round, r.Ends, r.Committed = "r-2", moved(-1), moved(-1) }, "lake_offsets"},
		{"a snapshot that readers may use is gone", func(r *CheckRequest) { r.Readable = append(r.Readable, "12345") }, "lake_offsets"},
		{"no such table in the catalog", func(r *CheckRequest) { r.ID.Name = "other" }, "missing"},
		{"no such table, and no round", func(r *CheckRequest) { r.ID.Name, r.Round = "other", "" }, ""},
		{"another table's", func(r *CheckRequest) { r.Table = 8 }, "lake_table"},
		{"newer columns in the lake", func(r *CheckRequest) { s := *r.Schema; s.ID = 0; r.Schema = &s }, "lake_schema"},
		{"newer columns in the table", func(r *CheckRequest) { s := *r.Schema; s.ID = 2; s.Columns = s.Columns[:1]; r.Schema = &s }, ""},
		{"a column by another name", func(r *CheckRequest) {
			s := *r.Schema
			s.Columns = slices.Clone(s.Columns)
			s.Columns[1].Name = "w"
			r.Schema = &s
		}, "lake_schema"},
		{"a column of another type", func(r *CheckRequest) {
			s := *r.Schema
			s.Columns = slices.Clone(s.Columns)
			s.Columns[1].Type = schema.MustParseType("INT")
			r.Schema = &s
		}, "lake_schema"},
		{"a column with another id", func(r *CheckRequest) {
			s := *r.Schema
			s.Columns = slices.Clone(s.Columns)
			s.Columns[1].ID = 77
			r.Schema = &s
		}, "lake_schema"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := whole
			req.Readable = slices.Clone(req.Readable)
			c.change(&req)
			r, err := w.Check(t.Context(), req)
			o.must(err)
			want := []string{}
			if c.kind != "" {
				want = []string{c.kind}
			}
			if got := kindsOf(r); !slices.Equal(got, want) {
				t.Errorf("%v, want %v: %+v", got, want, r.Problems)
			}
		})
	}
}
