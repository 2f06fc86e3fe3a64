package lake

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
)

// one is a table with one worker.
type one struct {
	t      testing.TB
	w      *memoryWarehouse
	s      *Sink
	spec   sink.TableSpec
	table  sink.Table
	rounds int
	at     map[mink.BucketRef]mink.Offset
	last   sink.Committed
}

// newOne makes a table; pairs are columns as "name", "TYPE".
func newOne(t testing.TB, spec sink.TableSpec, cfg SinkConfig, pairs ...string) *one {
	t.Helper()
	d := &schema.Descriptor{Database: "db", Table: "t", PrimaryKey: spec.PrimaryKey, PartitionKeys: spec.PartitionKeys, BucketKeys: spec.BucketKeys}
	for i := 0; i < len(pairs); i += 2 {
		typ, err := schema.ParseType(pairs[i+1])
		if err != nil {
			t.Fatal(err)
		}
		d.Schema.Columns = append(d.Schema.Columns, schema.Column{Name: pairs[i], Type: typ})
	}
	n, err := d.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	spec.ID, spec.Database, spec.Name, spec.BucketKeys = 7, "db", "t", n.BucketKeys
	spec.Schema = sink.Schema{ID: 1, Arrow: n.Schema.Arrow()}
	spec.BucketCount = max(1, spec.BucketCount)
	w := newMemoryWarehouse(memstore.New(memstore.Default()))
	return &one{t: t, w: w, s: newSink(w, cfg), spec: spec, at: map[mink.BucketRef]mink.Offset{}}
}

// copied is a table of its own, closed, that has what o's has by now: the same files, of the
// same times.
func (o *one) copied() *one {
	o.t.Helper()
	ctx := o.t.Context()
	now := time.Time{}
	cfg := memstore.Default()
	cfg.Now = func() time.Time {
		if now.IsZero() {
			return time.Now()
		}
		return now
	}
	store := memstore.New(cfg)
	o.must((&lakeTable{store: o.w.store}).eachObject(ctx, "", func(info objstore.ObjectInfo) error {
		got, err := o.w.store.GetRange(ctx, objstore.GetRangeRequest{Key: info.Key, Length: info.Size})
		if err != nil {
			return err
		}
		now = info.Modified
		_, err = store.Put(ctx, objstore.PutRequest{Key: info.Key, Chunks: [][]byte{got.Data}})
		return err
	}))
	now = time.Time{}
	w := newMemoryWarehouse(store)
	w.tables = maps.Clone(o.w.tables)
	return &one{t: o.t, w: w, s: newSink(w, o.s.cfg), spec: o.spec, rounds: o.rounds, at: maps.Clone(o.at), last: o.last}
}

func (o *one) must(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatal(err)
	}
}

func (o *one) open() {
	o.t.Helper()
	table, err := o.s.Open(o.t.Context(), sink.OpenRequest{Table: o.spec})
	o.must(err)
	resp, err := table.Recover(o.t.Context(), sink.RecoverRequest{Fence: 1})
	o.must(err)
	o.table, o.last = table, resp.Committed
}

var bucket0 = mink.BucketRef{Table: 7, Partition: 1}

// row is one change: "+I", "+U", "-U", "-D", or "" in a log table, and a JSON object.
type row struct{ kind, json string }

var kinds = map[string]mink.Change{"+I": mink.ChangeInsert, "-U": mink.ChangeUpdateBefore, "+U": mink.ChangeUpdateAfter, "-D": mink.ChangeDelete}

// prepare writes and prepares a round.
func (o *one) prepare(b mink.BucketRef, values []string, rows ...row) sink.CommitRequest {
	o.t.Helper()
	o.rounds++
	req := sink.CommitRequest{Round: sink.RoundID(fmt.Sprintf("r-%d", o.rounds)), Base: o.last.Round, Fence: 1}
	_, err := o.table.BeginRound(o.t.Context(), sink.BeginRoundRequest{Round: req.Round, Base: req.Base, Fence: req.Fence})
	o.must(err)
	start := o.last.Ends[b]
	end := start + mink.Offset(len(rows))
	write := sink.WriteRequest{Bucket: b, PartitionValues: values, Start: start, End: end, Batch: o.batch(rows)}
	if len(o.spec.PrimaryKey) > 0 {
		write.Changes = []mink.Change{}
		for _, r := range rows {
			write.Changes = append(write.Changes, kinds[r.kind])
		}
	}
	_, err = o.table.Write(o.t.Context(), write)
	write.Batch.Release()
	o.must(err)
	resp, err := o.table.Prepare(o.t.Context(), sink.PrepareRequest{})
	o.must(err)
	req.Staged, req.Ranges = resp.Staged, []sink.Range{{Bucket: b, Start: start, End: end}}
	return req
}

func (o *one) batch(rows []row) arrow.RecordBatch {
	o.t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, o.spec.Schema.Arrow)
	defer b.Release()
	for _, r := range rows {
		if err := b.UnmarshalJSON([]byte(r.json)); err != nil {
			o.t.Fatalf("%s: %v", r.json, err)
		}
	}
	return b.NewRecordBatch()
}

func (o *one) commit(req sink.CommitRequest) {
	o.t.Helper()
	resp, err := o.table.Commit(o.t.Context(), req)
	o.must(err)
	o.last = o.last.After(req, resp.Snapshot)
}

func (o *one) round(rows ...row) {
	o.t.Helper()
	var values []string
	for range o.spec.PartitionKeys {
		values = append(values, "x")
	}
	o.commit(o.prepare(bucket0, values, rows...))
}

// jsonRows are a batch's rows as JSON objects without nulls.
func (o *one) jsonRows(batch arrow.RecordBatch) (out []string) {
	o.t.Helper()
	text, err := batch.MarshalJSON()
	o.must(err)
	var list []map[string]any
	o.must(json.Unmarshal(text, &list))
	for _, r := range list {
		maps.DeleteFunc(r, func(_ string, v any) bool { return v == nil })
		one, _ := json.Marshal(r)
		out = append(out, string(one))
	}
	return out
}

// rows are what a reader sees, as sorted JSON objects of the Iceberg types.
func (o *one) rows() []string {
	o.t.Helper()
	var out []string
	err := o.s.Read(context.Background(), sink.ReadRequest{Table: o.spec}, func(batch arrow.RecordBatch, _ []mink.Change) bool {
		out = append(out, o.jsonRows(batch)...)
		return true
	})
	o.must(err)
	slices.Sort(out)
	return out
}

func (o *one) want(rows ...string) {
	o.t.Helper()
	if got := o.rows(); !slices.Equal(got, rows) {
		o.t.Fatalf("the lake has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(rows, "\n"))
	}
}

// keys of the store below the table's directory.
func (o *one) keys(prefix string) []string {
	o.t.Helper()
	t := &lakeTable{store: o.w.store}
	var keys []string
	dir := tableDir(o.spec)
	o.must(t.eachKey(context.Background(), dir+prefix, func(key string) error {
		keys = append(keys, strings.TrimPrefix(key, dir))
		return nil
	}))
	return keys
}
