package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mink-project/mink/core/e2e/readers"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// engines is the process of other engines that all tests ask; TestMain ends it.
var engines = readers.New(filepath.Join("foreign", "readers.py"))

// lakeEngines read each table, from its metadata file and through the REST catalog, and as
// the node reads it.
func lakeEngines() []string {
	return []string{"pyiceberg-file", "pyiceberg-rest", "duckdb-file", "duckdb-rest", "mink-lake", "mink-union"}
}

// lakeReaders is how others find a node's lake.
type lakeReaders struct {
	rest string            // URI of a REST catalog that has its tables; "": the node's /iceberg
	more map[string]string // further engines of readers.py, and the location of each
}

// lakeCatalog is the URI of a REST catalog that has the tables of the node's lake.
func (n *node) lakeCatalog() string {
	if n.lake.rest != "" {
		return n.lake.rest
	}
	return "http://" + n.http + "/iceberg"
}

// lakePython is an interpreter with other engines; scripts/e2e-lake.sh makes it.
func lakePython(t *testing.T) string {
	t.Helper()
	python := os.Getenv("MINK_TEST_LAKE_PYTHON")
	if python == "" {
		t.Skip("MINK_TEST_LAKE_PYTHON is not set: run make e2e-lake")
	}
	return python
}

// icebergTable is what the REST catalog says of a table.
type icebergTable struct {
	Location string `json:"metadata-location"`
	Metadata struct {
		Properties map[string]string `json:"properties"`
		Current    int64             `json:"current-snapshot-id"`
		Snapshots  []struct {
			ID      int64             `json:"snapshot-id"`
			Summary map[string]string `json:"summary"`
		} `json:"snapshots"`
	} `json:"metadata"`
}

// icebergTable asks the REST catalog; false: it has no such table yet.
func (n *node) icebergTable(ctx context.Context, table string) (it icebergTable, ok bool, err error) {
	database, name, _ := strings.Cut(table, ".")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/v1/namespaces/%s/tables/%s", n.lakeCatalog(), database, name), nil)
	if err != nil {
		return it, false, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return it, false, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return it, false, err
	case resp.StatusCode == http.StatusNotFound:
		return it, false, nil
	case resp.StatusCode != http.StatusOK:
		return it, false, fmt.Errorf("the lake's catalog, table %s: %s: %s", table, resp.Status, text)
	}
	return it, true, json.Unmarshal(text, &it)
}

// lakeEnds is up to which offset each bucket of a table is in the lake.
func (n *node) lakeEnds(ctx context.Context, table string) (map[mink.BucketRef]mink.Offset, error) {
	it, ok, err := n.icebergTable(ctx, table)
	text := it.Metadata.Properties["mink.offsets"]
	if err != nil || !ok || text == "" {
		return nil, err
	}
	var c sink.Committed
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return nil, fmt.Errorf("table %s: property mink.offsets: %w", table, err)
	}
	return c.Ends, nil
}

// lakeLacks answers how many offsets of a table's log the lake does not have.
func (n *node) lakeLacks(ctx context.Context, c *client.Client, table string) (int64, error) {
	list, err := c.ListOffsets(ctx, table, nil, "latest")
	if err != nil {
		return 0, err
	}
	have, err := n.lakeEnds(ctx, table)
	if err != nil {
		return 0, err
	}
	var lacks int64
	for _, o := range list {
		if o.Error != "" {
			return 0, fmt.Errorf("latest offset of %s, bucket %d: %s", table, o.Bucket.Index, o.Error)
		}
		if d := int64(o.Offset - have[o.Bucket]); d < 0 {
			return 0, fmt.Errorf("%s: the lake has bucket %s up to offset %d, its log ends at %d", table, o.Bucket, have[o.Bucket], o.Offset)
		} else {
			lacks += d
		}
	}
	return lacks, nil
}

// lakeRow is a row: JSON values by column, as Arrow reads them.
type lakeRow map[string]any

// lakeTable is a table of a node and what it must hold.
type lakeTable struct {
	n    *node
	c    *client.Client
	name string
	rows []lakeRow
	// engines that can read it; nil: all.
	engines []string
}

// columns are the table's columns of now.
func (l *lakeTable) columns() *arrow.Schema {
	l.n.t.Helper()
	table, err := l.c.DescribeTable(l.n.t.Context(), l.name)
	if err != nil {
		l.n.t.Fatal(err)
	}
	d, err := schema.DecodeDescriptor(table.Descriptor)
	if err != nil {
		l.n.t.Fatal(err)
	}
	return d.Schema.Arrow()
}

func (l *lakeTable) batch(s *arrow.Schema, rows []lakeRow) arrow.RecordBatch {
	l.n.t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	for _, r := range rows {
		text, err := json.Marshal(r)
		if err == nil {
			err = b.UnmarshalJSON(text)
		}
		if err != nil {
			l.n.t.Fatalf("%s: row %v: %v", l.name, r, err)
		}
	}
	return b.NewRecordBatch()
}

// append writes rows of a log table over Flight.
func (l *lakeTable) append(rows ...lakeRow) {
	l.n.t.Helper()
	ctx := l.n.t.Context()
	w, err := l.c.NewWriter(ctx, l.name, client.DefaultWriter())
	if err != nil {
		l.n.t.Fatal(err)
	}
	rec := l.batch(w.Schema(), rows)
	defer rec.Release()
	if _, err := w.Append(ctx, rec); err != nil {
		l.n.t.Fatal(err)
	}
	if err := w.Close(ctx); err != nil {
		l.n.t.Fatal(err)
	}
	l.rows = append(l.rows, rows...)
}

// change upserts rows of a primary-key table over Flight, and then deletes the rows with
// some keys.
func (l *lakeTable) change(key string, upserts, keys []lakeRow) {
	l.n.t.Helper()
	ctx := l.n.t.Context()
	w, err := l.c.NewUpsertWriter(ctx, l.name, client.DefaultUpsert())
	if err != nil {
		l.n.t.Fatal(err)
	}
	put, gone := l.batch(w.Schema(), upserts), l.batch(w.KeySchema(), keys)
	defer put.Release()
	defer gone.Release()
	for _, send := range []func() (*client.Append, error){
		func() (*client.Append, error) { return w.Upsert(ctx, put) },
		func() (*client.Append, error) { return w.Delete(ctx, gone) },
	} {
		a, err := send()
		if err == nil {
			err = a.Wait(ctx)
		}
		if err != nil {
			l.n.t.Fatal(err)
		}
	}
	if err := w.Close(ctx); err != nil {
		l.n.t.Fatal(err)
	}
	without := func(rows []lakeRow) {
		for _, r := range rows {
			l.rows = slices.DeleteFunc(l.rows, func(old lakeRow) bool { return old[key] == r[key] })
		}
	}
	without(upserts)
	l.rows = append(l.rows, upserts...)
	without(keys)
}

// inLake waits until the lake has all that was acknowledged, and the node has recorded that.
func (l *lakeTable) inLake() {
	l.n.t.Helper()
	eventually(l.n.t, "the lake has everything of "+l.name, func() bool {
		lacks, err := l.n.lakeLacks(l.n.t.Context(), l.c, l.name)
		if err != nil {
			l.n.t.Fatal(err)
		}
		recorded, err := l.c.LakeSnapshot(l.n.t.Context(), l.name)
		if err != nil {
			l.n.t.Fatal(err)
		}
		return lacks == 0 && recorded.LagOffsets == 0
	})
}

// expected writes what the table must hold to a file, for readers.py.
func (l *lakeTable) expected() string {
	l.n.t.Helper()
	s := l.columns()
	rec := l.batch(s, l.rows)
	defer rec.Release()
	var stream bytes.Buffer
	w := ipc.NewWriter(&stream, ipc.WithSchema(s))
	if err := w.Write(rec); err != nil {
		l.n.t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		l.n.t.Fatal(err)
	}
	file := filepath.Join(l.n.t.TempDir(), "expected.arrow")
	if err := os.WriteFile(file, stream.Bytes(), 0o600); err != nil {
		l.n.t.Fatal(err)
	}
	return file
}

// arrowFile is what the node reads of the table in a mode, for readers.py.
func (l *lakeTable) arrowFile(mode string) string {
	l.n.t.Helper()
	file := filepath.Join(l.n.t.TempDir(), mode+".arrow")
	if err := os.WriteFile(file, l.n.mink(nil, "read", l.name, "--mode", mode, "--format", "arrow"), 0o600); err != nil {
		l.n.t.Fatal(err)
	}
	return file
}

// readByOthers compares what all engines that can read a table find with the rows that were
// written.
func readByOthers(t *testing.T, when string, tables ...*lakeTable) {
	t.Helper()
	readBy(t, when, tables)
}

// readBy is readByOthers of the engines that are named, when there are any.
func readBy(t *testing.T, when string, tables []*lakeTable, named ...string) {
	t.Helper()
	for _, l := range tables {
		all := named
		if len(all) == 0 {
			all = l.engines
		}
		if len(all) == 0 {
			all = append(lakeEngines(), slices.Sorted(maps.Keys(l.n.lake.more))...)
		}
		file := l.expected()
		database, name, _ := strings.Cut(l.name, ".")
		for _, engine := range all {
			way, location := engine, l.n.lake.more[engine]
			switch mode, own := strings.CutPrefix(engine, "mink-"); {
			case own:
				way, location = "arrow-file", l.arrowFile(mode)
			case strings.HasSuffix(engine, "-rest"):
				location = l.n.lakeCatalog()
			case strings.HasSuffix(engine, "-file"):
				it, _, err := l.n.icebergTable(t.Context(), l.name)
				if err != nil {
					t.Fatal(err)
				}
				location = it.Location
			}
			line, err := json.Marshal([]string{file, way, location, database, name})
			if err != nil {
				t.Fatal(err)
			}
			answer, err := engines.Ask(line)
			if err != nil {
				t.Fatal(err)
			}
			var verdict struct {
				Rows    int             `json:"rows"`
				Error   string          `json:"error"`
				Differs json.RawMessage `json:"differs"`
			}
			if err := json.Unmarshal(answer, &verdict); err != nil {
				t.Fatalf("%s: %v: %s", engine, err, answer)
			}
			if verdict.Error != "" || verdict.Differs != nil || verdict.Rows != len(l.rows) {
				t.Errorf("%s, %s, %s: %d rows of %d: %s%s", when, l.name, engine, verdict.Rows, len(l.rows), verdict.Error, verdict.Differs)
			}
		}
	}
}

// lakeTables are the tables of a node's lake: a topic's four columns, a typed topic, a
// partitioned log table, a table with a primary key.
type lakeTables struct {
	n                           *node
	plain, typed, visits, stock *lakeTable
	all                         []*lakeTable
	with                        map[*lakeTable]func(lakeRow) lakeRow // a row of the first columns as one of today's
}

// newLakeTables makes them.
func newLakeTables(n *node) *lakeTables {
	n.t.Helper()
	lake := []string{"--option", "lake=true", "--option", "lake_freshness=1s"}
	n.mink(nil, "topic", "create", "plain", "--partitions", "3", "--config", "mink.lake=true", "--config", "mink.lake_freshness=1s")
	n.createTable("kafka.typed", columns("id BIGINT NOT NULL", "note STRING", "price DECIMAL(12,2)", "at TIMESTAMP_LTZ(3)", "tags ARRAY<STRING>", "sizes MAP<STRING, INT>"),
		append(lake, "--bucket-count", "2", "--option", "kafka.value.format=json")...)
	n.createTable("shop.visits", columns("country STRING NOT NULL", "id BIGINT NOT NULL", "day DATE", "seconds INT", "score FLOAT"),
		append(lake, "--partition-by", "country", "--bucket-key", "id", "--bucket-count", "2")...)
	n.createTable("shop.stock", columns("id BIGINT NOT NULL", "qty INT", "price DECIMAL(9,2)", "place ROW<hall STRING, shelf INT>", "seen TIMESTAMP(6)"),
		append(lake, "--primary-key", "id", "--bucket-count", "3")...)
	c := n.client()
	of := func(name string) *lakeTable { return &lakeTable{n: n, c: c, name: name} }
	x := &lakeTables{n: n, plain: of("kafka.plain"), typed: of("kafka.typed"), visits: of("shop.visits"), stock: of("shop.stock"), with: map[*lakeTable]func(lakeRow) lakeRow{}}
	x.all = []*lakeTable{x.plain, x.typed, x.visits, x.stock}
	for _, l := range x.all {
		x.with[l] = func(r lakeRow) lakeRow { return r }
	}
	return x
}

// write writes the i-th part of the rows, over Kafka and Flight; later parts update and delete
// rows of the one before.
func (x *lakeTables) write(i int) {
	x.n.t.Helper()
	t := x.n.t
	first := i * 30
	k := x.n.franz()
	defer k.Close()
	var records []*kgo.Record
	for id := first; id < first+30; id++ {
		r := &kgo.Record{Topic: "plain", Partition: int32(id % 3), Value: fmt.Appendf(nil, "value %d ä", id), Timestamp: time.UnixMilli(1_700_000_000_000 + int64(id))}
		row := lakeRow{"value": r.Value, "headers": []any{}, "timestamp": r.Timestamp.UTC().Format("2006-01-02 15:04:05.000Z")}
		switch id % 5 {
		case 1:
			r.Value, row["value"] = nil, nil
		case 2:
			r.Headers = []kgo.RecordHeader{{Key: "h", Value: []byte("x")}, {Key: "h", Value: nil}}
			row["headers"] = []any{lakeRow{"key": "h", "value": base64.StdEncoding.EncodeToString([]byte("x"))}, lakeRow{"key": "h", "value": nil}}
		}
		if id%3 > 0 {
			r.Key = fmt.Appendf(nil, "key %d", id)
			row["key"] = r.Key
		}
		records = append(records, r)
		x.plain.rows = append(x.plain.rows, row)

		line := lakeRow{"id": id}
		row = lakeRow{"id": id}
		if id%10 != 3 {
			line = lakeRow{"id": id, "note": fmt.Sprintf("n %d ü", id), "price": json.Number(fmt.Sprintf("%d.25", id)), "at": fmt.Sprintf("2026-01-31T07:00:00.%03dZ", id), "tags": []any{"a", nil}, "sizes": lakeRow{"s": id}}
			row = maps.Clone(line)
			row["price"], row["at"], row["sizes"] = fmt.Sprintf("%d.25", id), fmt.Sprintf("2026-01-31 07:00:00.%03dZ", id), []any{lakeRow{"key": "s", "value": id}}
		}
		text, err := json.Marshal(x.with[x.typed](line))
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, &kgo.Record{Topic: "typed", Partition: int32(id % 2), Value: text})
		x.typed.rows = append(x.typed.rows, x.with[x.typed](row))
	}
	if err := k.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	var add, put, gone []lakeRow
	for id := first; id < first+30; id++ {
		add = append(add, x.with[x.visits](lakeRow{"country": []string{"de", "b/c=d", "ä"}[id%3], "id": id, "day": "2024-02-29", "seconds": -id, "score": 0.5 * float64(id)}))
	}
	add = append(add, x.with[x.visits](lakeRow{"country": "de", "id": -first}))
	x.visits.append(add...)
	for id := first; id < first+30; id++ { // ten of before are updated, ten inserted, ten of both deleted
		key := id - 10
		if key >= 0 {
			put = append(put, x.with[x.stock](lakeRow{"id": key, "qty": i, "price": fmt.Sprintf("%d.05", id), "place": lakeRow{"hall": "a", "shelf": i}, "seen": "2024-02-29 23:59:59.123456"}))
		}
		if key >= 0 && key%3 == 1 {
			gone = append(gone, lakeRow{"id": key})
		}
	}
	put = append(put, x.with[x.stock](lakeRow{"id": 1_000 + i}))
	x.stock.change("id", put, gone)
}

// settled waits until the lake has everything, and lets all read it.
func (x *lakeTables) settled(when string) {
	x.n.t.Helper()
	for _, l := range x.all {
		l.inLake()
	}
	readByOthers(x.n.t, when, x.all...)
}

// alter changes columns of all but the topic: it renames, adds, drops and widens.
func (x *lakeTables) alter() {
	x.n.t.Helper()
	alter := func(l *lakeTable, next func(lakeRow) lakeRow, flags ...string) {
		x.n.t.Helper()
		x.n.mink(nil, append([]string{"table", "alter", l.name}, flags...)...)
		before := x.with[l]
		x.with[l] = func(r lakeRow) lakeRow { return next(before(r)) }
	}
	rename := func(r lakeRow, from, to string) {
		if v, ok := r[from]; ok {
			r[to] = v
			delete(r, from)
		}
	}
	alter(x.typed, func(r lakeRow) lakeRow { rename(r, "note", "text"); r["extra"] = 0.25; return r }, "--rename", "note=text", "--add", "extra DOUBLE")
	alter(x.visits, func(r lakeRow) lakeRow { delete(r, "score"); r["seconds"] = int64(1) << 40; return r }, "--drop", "score", "--modify", "seconds BIGINT")
	alter(x.stock, func(r lakeRow) lakeRow { rename(r, "qty", "count"); r["tag"] = "new"; return r }, "--rename", "qty=count", "--add", "tag STRING")
	for _, r := range x.typed.rows {
		rename(r, "note", "text")
	}
	for _, r := range x.visits.rows {
		delete(r, "score")
	}
	for _, r := range x.stock.rows {
		rename(r, "qty", "count")
	}
}

// TestLakeOfANode: what a node was given over Kafka and Flight is in the lake as other
// engines and the node itself read it, row by row: after updates and deletes, changes of
// columns, and kill -9 of the node.
func TestLakeOfANode(t *testing.T) {
	lakePython(t)
	n := newNode(t, "--wal-upload-interval", "200ms", "--kv-snapshot-interval", "1s")
	n.start()
	x := newLakeTables(n)
	turn := func(i int, when string) {
		t.Helper()
		x.write(i)
		x.settled(when)
	}
	turn(0, "at first")
	turn(1, "after updates and deletes")
	x.alter()
	turn(2, "after changes of columns")
	n.kill()
	n.start()
	turn(3, "after kill -9")
	n.fsck()
	n.stop()
}
