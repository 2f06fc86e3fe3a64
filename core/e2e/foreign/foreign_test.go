// Package foreign reads the lake with other engines: DuckDB, PyIceberg and Spark, as people
// install them. scripts/e2e-lake.sh makes their environment.
package foreign

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/builtin/dirstore"
	"github.com/mink-project/mink/core/builtin/sqlcatalog"
	"github.com/mink-project/mink/core/e2e/readers"
	"github.com/mink-project/mink/core/icebergrest"
	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// world is a lake in a directory with its catalog in SQLite, what a node has by default.
type world struct {
	t    *testing.T
	lake *lake.Warehouse
	sink *lake.Sink
	rest string // URI of its REST catalog
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if os.Getenv("MINK_TEST_LAKE_PYTHON") == "" {
		t.Skip("MINK_TEST_LAKE_PYTHON is not set: run make e2e-lake")
	}
	dir := t.TempDir()
	cfg := dirstore.Default()
	cfg.Dir = filepath.Join(dir, "objects")
	store, err := dirstore.Open(t.Context(), cfg)
	must(t, err)
	cat, err := sqlcatalog.Open(t.Context(), "sqlite:"+filepath.Join(dir, "catalog.db"), sqlcatalog.Default())
	must(t, err)
	t.Cleanup(func() { must(t, cat.Close()); must(t, store.Close()) })
	w, err := lake.NewWarehouse(lake.WarehouseConfig{Store: store, Root: "file://" + filepath.ToSlash(cfg.Dir), Catalog: cat})
	must(t, err)
	rest := httptest.NewServer(http.StripPrefix("/iceberg", icebergrest.New(w, icebergrest.Config{}, slog.New(slog.DiscardHandler))))
	t.Cleanup(rest.Close)
	return &world{t: t, lake: w, sink: lake.NewSink(w, lake.SinkConfig{ScratchDir: dir}), rest: rest.URL + "/iceberg"}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// object is a row: JSON values by column.
type object map[string]any

// tbl is one table, what was written to it, and what it must hold.
type tbl struct {
	*world
	d      *schema.Descriptor
	spec   sink.TableSpec
	rounds int
	last   sink.Committed
	parts  []string // partitions, by the text of their values
	rows   []object
}

func (w *world) create(d *schema.Descriptor, options map[string]string) *tbl {
	w.t.Helper()
	n, err := d.Normalize()
	must(w.t, err)
	return &tbl{world: w, d: n, spec: sink.TableSpec{
		ID: 7, Database: n.Database, Name: n.Table, Schema: sink.Schema{ID: n.Schema.ID, Arrow: n.Schema.Arrow()},
		PrimaryKey: n.PrimaryKey, PartitionKeys: n.PartitionKeys, BucketKeys: n.BucketKeys, BucketCount: n.BucketCount, Options: options,
	}}
}

func descriptor(name string, pairs ...string) *schema.Descriptor {
	d := &schema.Descriptor{Database: "db", Table: name}
	for i := 0; i < len(pairs); i += 2 {
		d.Schema.Columns = append(d.Schema.Columns, schema.Column{Name: pairs[i], Type: schema.MustParseType(pairs[i+1])})
	}
	return d
}

// change is a row with its kind.
type change struct {
	kind mink.Change
	row  object
}

func appends(rows ...object) (out []change) {
	for _, r := range rows {
		out = append(out, change{mink.ChangeAppend, r})
	}
	return out
}

// round writes changes as one round, each partition as a bucket of its own.
func (b *tbl) round(changes ...change) {
	b.t.Helper()
	h, err := b.sink.Open(b.t.Context(), sink.OpenRequest{Table: b.spec})
	must(b.t, err)
	defer func() { must(b.t, h.Close()) }()
	got, err := h.Recover(b.t.Context(), sink.RecoverRequest{Fence: 1})
	must(b.t, err)
	b.last = got.Committed
	b.rounds++
	req := sink.CommitRequest{Round: sink.RoundID(fmt.Sprintf("r-%d", b.rounds)), Base: b.last.Round, Fence: 1}
	_, err = h.BeginRound(b.t.Context(), sink.BeginRoundRequest{Round: req.Round, Base: req.Base, Fence: 1})
	must(b.t, err)
	byPart := map[string][]change{}
	for _, c := range changes {
		byPart[b.part(c.row)] = append(byPart[b.part(c.row)], c)
		b.apply(c)
	}
	for _, part := range slices.Sorted(maps.Keys(byPart)) {
		if !slices.Contains(b.parts, part) {
			b.parts = append(b.parts, part)
		}
		ref := mink.BucketRef{Table: b.spec.ID, Partition: mink.PartitionID(slices.Index(b.parts, part) + 1)}
		start := b.last.Ends[ref]
		write := sink.WriteRequest{Bucket: ref, Start: start, End: start + mink.Offset(len(byPart[part]))}
		if len(b.spec.PartitionKeys) > 0 {
			write.PartitionValues = strings.Split(part, "|")
		}
		var rows []object
		for _, c := range byPart[part] {
			rows = append(rows, c.row)
			if len(b.spec.PrimaryKey) > 0 {
				write.Changes = append(write.Changes, c.kind)
			}
		}
		write.Batch = b.batch(rows)
		_, err = h.Write(b.t.Context(), write)
		write.Batch.Release()
		must(b.t, err)
		req.Ranges = append(req.Ranges, sink.Range{Bucket: ref, Start: write.Start, End: write.End})
	}
	staged, err := h.Prepare(b.t.Context(), sink.PrepareRequest{})
	must(b.t, err)
	req.Staged = staged.Staged
	_, err = h.Commit(b.t.Context(), req)
	must(b.t, err)
}

func (b *tbl) part(r object) string {
	var values []string
	for _, k := range b.spec.PartitionKeys {
		values = append(values, fmt.Sprint(r[k]))
	}
	return strings.Join(values, "|")
}

func (b *tbl) apply(c change) {
	key := func(r object) string {
		var k []any
		for _, name := range b.spec.PrimaryKey {
			k = append(k, r[name])
		}
		return fmt.Sprint(k...)
	}
	if c.kind != mink.ChangeAppend {
		b.rows = slices.DeleteFunc(b.rows, func(r object) bool { return key(r) == key(c.row) })
	}
	if c.kind != mink.ChangeDelete {
		b.rows = append(b.rows, maps.Clone(c.row))
	}
}

func (b *tbl) batch(rows []object) arrow.RecordBatch {
	b.t.Helper()
	rb := array.NewRecordBuilder(memory.DefaultAllocator, b.spec.Schema.Arrow)
	defer rb.Release()
	for _, r := range rows {
		text, err := json.Marshal(r)
		must(b.t, err)
		if err := rb.UnmarshalJSON(text); err != nil {
			b.t.Fatalf("%s: %v", text, err)
		}
	}
	return rb.NewRecordBatch()
}

// alter changes the schema; rename says what became of columns in rows that are there.
func (b *tbl) alter(changes ...schema.Change) {
	b.t.Helper()
	d, err := b.d.Apply(changes)
	must(b.t, err)
	b.d, b.spec.Schema = d, sink.Schema{ID: d.Schema.ID, Arrow: d.Schema.Arrow()}
	for _, c := range changes {
		for _, r := range b.rows {
			switch c.Op {
			case schema.RenameColumn:
				if v, ok := r[c.Name]; ok {
					r[c.To] = v
					delete(r, c.Name)
				}
			case schema.DropColumn:
				delete(r, c.Name)
			}
		}
	}
}

// engines is the process that all tests ask.
var engines = readers.New("readers.py")

// TestMain ends it.
func TestMain(m *testing.M) {
	code := m.Run()
	if err := engines.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "readers.py:", err)
		code = 1
	}
	os.Exit(code)
}

// verdict is what readers.py prints.
type verdict struct {
	Rows    int             `json:"rows"`
	Error   string          `json:"error"`
	Differs json.RawMessage `json:"differs"`
}

// read lets an engine read the table as it is now.
func (b *tbl) read(engine string) verdict {
	b.t.Helper()
	expected := filepath.Join(b.t.TempDir(), "expected.arrow")
	f, err := os.Create(expected)
	must(b.t, err)
	w := ipc.NewWriter(f, ipc.WithSchema(b.spec.Schema.Arrow))
	rec := b.batch(b.rows)
	must(b.t, w.Write(rec))
	rec.Release()
	must(b.t, w.Close())
	must(b.t, f.Close())
	it, err := b.lake.Load(b.t.Context(), catalog.Identifier{Namespace: []string{b.spec.Database}, Name: b.spec.Name})
	must(b.t, err)
	location := it.MetadataLocation()
	if strings.HasSuffix(engine, "-rest") {
		location = b.rest
	}
	request, err := json.Marshal([]string{expected, engine, location, b.spec.Database, b.spec.Name})
	must(b.t, err)
	answer, err := engines.Ask(request)
	must(b.t, err)
	var v verdict
	must(b.t, json.Unmarshal(answer, &v))
	return v
}

// equal requires that the engines read what was written.
func (b *tbl) equal(engines ...string) {
	b.t.Helper()
	for _, e := range engines {
		if v := b.read(e); v.Error != "" || v.Differs != nil {
			b.t.Errorf("%s, after round %d, schema %d: %s%s", e, b.rounds, b.spec.Schema.ID, v.Error, v.Differs)
		}
	}
}

const (
	pyiceberg     = "pyiceberg-file"
	duckdb        = "duckdb-file"
	pyicebergREST = "pyiceberg-rest"
	duckdbREST    = "duckdb-rest"
	sparkREST     = "spark-rest"
)

// A wrong row, one too many and one too few are seen: nothing below passes by itself.
func TestDifferencesAreSeen(t *testing.T) {
	for name, spoil := range map[string]func([]object) []object{
		"wrong": func(r []object) []object { r[1] = object{"id": 3}; return r },
		"less":  func(r []object) []object { return r[1:] },
		"more":  func(r []object) []object { return append(r, object{"id": 9}) },
		"nested": func(r []object) []object {
			r[0]["row"] = object{"a": 1, "b": object{"c": []any{"x", "y"}}}
			return r
		},
	} {
		b := newWorld(t).create(allTypes("log"), nil)
		b.round(appends(full(1), object{"id": 2})...)
		b.rows = spoil(b.rows)
		for _, e := range []string{pyiceberg, duckdb} {
			if v := b.read(e); v.Differs == nil || v.Error != "" {
				t.Errorf("%s: %s does not see it: %+v", name, e, v)
			}
		}
	}
}

func typ(text string) *schema.Type { t := schema.MustParseType(text); return &t }

func add(name, text string) schema.Change {
	return schema.Change{Op: schema.AddColumn, Column: &schema.Column{Name: name, Type: *typ(text)}}
}

// full is a row with a value in every column of allTypes; n makes rows differ.
func full(n int) object {
	return object{
		"id": n, "bool": n%2 == 0, "tiny": n % 100, "small": -n, "int": n * 1000, "float": 0.5 * float64(n), "double": 0.25 * float64(n),
		"dec": fmt.Sprintf("%d.25", n), "wide": fmt.Sprintf("%d.000000001", n), "char": "abc", "str": fmt.Sprintf("ä %d", n),
		"bin": "AAECAw==", "bytes": "/w==", "date": "2024-02-29", "time": "23:59:59.123456",
		"ts": "2024-02-29 23:59:59.123456", "ltz": "2024-02-29 23:59:59.123456Z",
		"list": []any{n, nil, -n}, "map": []any{object{"key": "k", "value": n}, object{"key": "l", "value": nil}},
		"row": object{"a": n, "b": object{"c": []any{"x", nil}}},
	}
}

func allTypes(name string) *schema.Descriptor {
	return descriptor(name,
		"id", "BIGINT NOT NULL", "bool", "BOOLEAN", "tiny", "TINYINT", "small", "SMALLINT", "int", "INT", "float", "FLOAT", "double", "DOUBLE",
		"dec", "DECIMAL(9, 2)", "wide", "DECIMAL(38, 9)", "char", "CHAR(3)", "str", "STRING", "bin", "BINARY(4)", "bytes", "BYTES", "date", "DATE", "time", "TIME(6)",
		"ts", "TIMESTAMP(6)", "ltz", "TIMESTAMP_LTZ(6)", "list", "ARRAY<INT>", "map", "MAP<STRING, INT>", "row", "ROW<a INT, b ROW<c ARRAY<STRING>>>")
}

// evolution alters a table of allTypes step by step; with makes a row of the newest schema.
var evolution = []struct {
	changes []schema.Change
	with    func(object) object
}{
	{[]schema.Change{add("added", "STRING")}, func(r object) object { r["added"] = "new"; return r }},
	{[]schema.Change{{Op: schema.ModifyColumn, Name: "int", Type: typ("BIGINT")}}, func(r object) object { r["int"] = int64(1) << 40; return r }},
	{[]schema.Change{{Op: schema.ModifyColumn, Name: "dec", Type: typ("DECIMAL(18, 2)")}}, func(r object) object { r["dec"] = "1234567890123.25"; return r }},
	{[]schema.Change{{Op: schema.RenameColumn, Name: "str", To: "text"}}, func(r object) object { r["text"] = r["str"]; delete(r, "str"); return r }},
	{[]schema.Change{{Op: schema.DropColumn, Name: "added"}, add("added2", "DOUBLE")}, func(r object) object { delete(r, "added"); r["added2"] = 0.5; return r }},
}

// Every column type, nulls and nested ones, after each change of the schema.
func TestLogTable(t *testing.T) {
	b := newWorld(t).create(allTypes("log"), nil)
	b.round(appends(full(1), object{"id": 2}, full(3))...)
	b.equal(pyiceberg, duckdb, pyicebergREST, duckdbREST)
	with := func(r object) object { return r }
	for i, e := range evolution {
		before := with
		with = func(r object) object { return e.with(before(r)) }
		b.alter(e.changes...)
		b.round(appends(with(full(10+i)), object{"id": 20 + i})...)
		b.equal(pyiceberg, duckdb)
	}
	b.equal(pyicebergREST, duckdbREST)
}

// Partitions of each shape, and buckets of one column.
func TestPartitions(t *testing.T) {
	for name, keys := range map[string][]string{"string": {"s"}, "int": {"n"}, "date": {"d"}, "bool": {"b"}, "three": {"s", "n", "d"}, "none": nil} {
		t.Run(name, func(t *testing.T) {
			d := descriptor("parts", "id", "BIGINT NOT NULL", "s", "STRING NOT NULL", "n", "INT NOT NULL", "d", "DATE NOT NULL", "b", "BOOLEAN NOT NULL", "v", "STRING")
			d.PartitionKeys, d.BucketKeys, d.BucketCount = keys, []string{"id"}, 1
			b := newWorld(t).create(d, nil)
			row := func(i int) object {
				return object{"id": i, "s": []string{"a", "b/c=d", "ä"}[i%3], "n": i%2 - 1, "d": []string{"2024-01-01", "1969-12-31"}[i%2], "b": i%2 == 0, "v": fmt.Sprint(i)}
			}
			for r := range 2 {
				var rows []object
				for i := range 12 {
					rows = append(rows, row(r*12+i))
				}
				b.round(appends(rows...)...)
				b.equal(pyiceberg, duckdb)
			}
		})
	}
}

// Primary-key tables by kind of delete: which engine reads it. The table of docs/lake.md
// is this test.
func TestPrimaryKeyTable(t *testing.T) {
	for deletes, reads := range map[string]map[string]bool{
		"equality": {pyiceberg: false, pyicebergREST: false, duckdb: true, duckdbREST: true},
		"position": {pyiceberg: true, pyicebergREST: true, duckdb: true, duckdbREST: true},
	} {
		t.Run(deletes, func(t *testing.T) {
			d := allTypes("keyed")
			d.PrimaryKey = []string{"id"}
			b := newWorld(t).create(d, map[string]string{"lake_deletes": deletes})
			check := func(engines ...string) {
				t.Helper()
				for _, engine := range engines {
					v := b.read(engine)
					if reads[engine] && (v.Error != "" || v.Differs != nil) {
						t.Errorf("%s, after round %d, schema %d: %s%s", engine, b.rounds, b.spec.Schema.ID, v.Error, v.Differs)
					}
					if !reads[engine] && v.Error == "" { // an engine that reads wrong rows in silence, or has learnt it
						t.Errorf("%s reads a table with %s deletes now: %d rows, %s: mend docs/lake.md", engine, deletes, v.Rows, v.Differs)
					}
				}
			}
			var first []change
			for i := range 10 {
				first = append(first, change{mink.ChangeInsert, full(i)})
			}
			b.round(first...)
			b.equal(pyiceberg, duckdb) // no deletes yet
			changed := full(3)
			changed["str"] = "changed"
			b.round(change{mink.ChangeUpdateAfter, changed}, change{mink.ChangeDelete, full(4)}, change{mink.ChangeInsert, full(11)}, change{mink.ChangeDelete, full(11)})
			check(pyiceberg, duckdb, pyicebergREST, duckdbREST)
			with := func(r object) object { return r }
			for i, e := range evolution {
				before := with
				with = func(r object) object { return e.with(before(r)) }
				b.alter(e.changes...)
				b.round(change{mink.ChangeUpdateAfter, with(full(5))}, change{mink.ChangeInsert, with(full(20 + i))}, change{mink.ChangeDelete, with(full(6 + i%3))})
				check(pyiceberg, duckdb)
			}
			check(pyicebergREST, duckdbREST)
		})
	}
}
