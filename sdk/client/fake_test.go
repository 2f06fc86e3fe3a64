package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// item is a row of the fake's table.
type item struct {
	Region string  `mink:"region"`
	ID     int64   `mink:"id"`
	N      *int64  `mink:"n"`
	Note   *string `mink:"note"`
}

func (i item) String() string {
	n, note := "null", "null"
	if i.N != nil {
		n = fmt.Sprint(*i.N)
	}
	if i.Note != nil {
		note = *i.Note
	}
	return fmt.Sprintf("%s/%d n=%s note=%s", i.Region, i.ID, n, note)
}

// key orders items as their encoded keys do.
func (i item) less(j item) int { return cmp.Compare(i.ID, j.ID) }

// logged is one record of a bucket's changelog.
type logged struct {
	kind mink.Change
	row  item
}

// fakeBucket is one bucket of the fake.
type fakeBucket struct {
	rows    map[int64]item // by id
	log     []logged
	writers map[mink.WriterID][]int32 // sequences that were taken
}

// fake is a node with one primary-key table, db.t (region, id, n, note), in memory.
// A fault is asked at every step of a stream: an error ends the stream there.
type fake struct {
	flight.BaseFlightServer
	t       testing.TB
	address string
	desc    *schema.Descriptor
	client  *Client

	mu      sync.Mutex
	parts   []api.Partition
	buckets map[mink.BucketRef]*fakeBucket
	changed chan struct{}
	fault   func(step string) error
	asked   []int64 // keys of each lookup request
	calls   map[string]int
	batch   int // rows of one batch of a snapshot
}

// The steps of streams that a fault is asked at.
const (
	stepPut      = "put"          // a batch came, it is not applied
	stepPutDone  = "put applied"  // it is, and not answered
	stepLookup   = "lookup"       // a request came
	stepAnswer   = "lookup done"  // it is about to be answered
	stepSnapshot = "snapshot"     // a batch of rows is about to be sent
	stepLog      = "log"          // a batch of the log is about to be sent
	stepList     = "list"         // list_partitions
	stepWrite    = "writer begun" // a stream of puts begins
)

func newFake(t testing.TB, partitioned bool, change ...func(*Config)) *fake {
	t.Helper()
	var partition []string
	if partitioned {
		partition = []string{"region"}
	}
	d, err := (&schema.Descriptor{
		Database: "db", Table: "t", PrimaryKey: []string{"region", "id"}, PartitionKeys: partition, BucketKeys: []string{"id"}, BucketCount: 2,
		Schema: schema.Schema{Columns: []schema.Column{
			{Name: "region", Type: schema.MustParseType("STRING NOT NULL")}, {Name: "id", Type: schema.MustParseType("BIGINT NOT NULL")},
			{Name: "n", Type: schema.MustParseType("BIGINT")}, {Name: "note", Type: schema.MustParseType("STRING")},
		}},
	}).Normalize()
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{t: t, desc: d, buckets: map[mink.BucketRef]*fakeBucket{}, changed: make(chan struct{}), calls: map[string]int{}, batch: 3}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.address = l.Addr().String()
	if !partitioned {
		f.partition(nil)
	}
	s := grpc.NewServer()
	flight.RegisterFlightServiceServer(s, f)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) })
	cfg := Default()
	cfg.Bootstrap, cfg.RetryTimeout, cfg.RetryWait, cfg.RetryWaitMax = []string{f.address}, 20*time.Second, time.Millisecond, 2*time.Millisecond
	for _, c := range change {
		c(&cfg)
	}
	if f.client, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = f.client.Close()
		s.Stop()
		wg.Wait()
	})
	return f
}

// partition makes or answers a partition.
func (f *fake) partition(values []string) api.Partition {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.parts {
		if slices.Equal(p.Values, values) {
			return p
		}
	}
	p := api.Partition{ID: mink.PartitionID(len(f.parts) + 1), Values: values}
	for i := range f.desc.BucketCount {
		ref := mink.BucketRef{Table: 7, Partition: p.ID, Index: i}
		p.Buckets = append(p.Buckets, api.Bucket{Bucket: ref, Leader: 1, Address: f.address})
		f.buckets[ref] = &fakeBucket{rows: map[int64]item{}, writers: map[mink.WriterID][]int32{}}
	}
	f.parts = append(f.parts, p)
	return p
}

func (f *fake) setFault(fault func(step string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

func (f *fake) step(s string) error {
	f.mu.Lock()
	fault := f.fault
	f.calls[s]++
	f.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(s)
}

func (f *fake) count(step string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[step]
}

var errAway = status.Error(codes.Unavailable, "the node is away")

func (f *fake) DoAction(a *flight.Action, stream flight.FlightService_DoActionServer) error {
	var out any
	f.mu.Lock()
	f.calls[a.Type]++
	f.mu.Unlock()
	switch a.Type {
	case api.ActionDescribeTable:
		out = api.Table{ID: 7, Name: "db.t", Descriptor: f.desc.Encode(), SchemaID: 1}
	case api.ActionListPartitions:
		if err := f.step(stepList); err != nil {
			return err
		}
		f.mu.Lock()
		out = api.Partitions{Partitions: slices.Clone(f.parts)}
		f.mu.Unlock()
	case api.ActionCreatePartition:
		var r api.PartitionRequest
		if err := json.Unmarshal(a.Body, &r); err != nil {
			return err
		}
		out = f.partition(r.Values)
	case api.ActionInitWriter:
		f.mu.Lock()
		out = api.Writer{WriterID: mink.WriterID(f.calls[a.Type])}
		f.mu.Unlock()
	default:
		return status.Error(codes.Unimplemented, a.Type)
	}
	return stream.Send(&flight.Result{Body: api.JSON(out)})
}

// itemsOf reads what a batch has of an item's columns.
func itemsOf(rec arrow.RecordBatch) []item {
	out := make([]item, rec.NumRows())
	for c, fld := range rec.Schema().Fields() {
		for i := range out {
			if rec.Column(c).IsNull(i) {
				continue
			}
			switch fld.Name {
			case "region":
				out[i].Region = strings.Clone(rec.Column(c).(*array.String).Value(i))
			case "id":
				out[i].ID = rec.Column(c).(*array.Int64).Value(i)
			case "n":
				v := rec.Column(c).(*array.Int64).Value(i)
				out[i].N = &v
			case "note":
				v := strings.Clone(rec.Column(c).(*array.String).Value(i))
				out[i].Note = &v
			}
		}
	}
	return out
}

func (f *fake) DoPut(stream flight.FlightService_DoPutServer) error {
	if err := f.step(stepWrite); err != nil {
		return err
	}
	r, err := flight.NewRecordReader(stream)
	if err != nil {
		return err
	}
	defer r.Release()
	var c api.Command
	if err := json.Unmarshal(r.LatestFlightDescriptor().Cmd, &c); err != nil || c.Put == nil {
		return status.Errorf(codes.InvalidArgument, "command %s: %v", r.LatestFlightDescriptor().Cmd, err)
	}
	for r.Next() {
		var m api.PutMetadata
		if err := json.Unmarshal(r.LatestAppMetadata(), &m); err != nil {
			return err
		}
		if err := f.step(stepPut); err != nil {
			return err
		}
		res, err := f.apply(c.Put, m, r.RecordBatch())
		if err != nil {
			return err
		}
		if err := f.step(stepPutDone); err != nil {
			return err
		}
		if err := stream.Send(&flight.PutResult{AppMetadata: api.JSON(res)}); err != nil {
			return err
		}
	}
	if err := r.Err(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// apply merges a batch. A sequence that was taken is a duplicate, whatever its age;
// any other than the next is refused.
func (f *fake) apply(p *api.Put, m api.PutMetadata, rec arrow.RecordBatch) (api.AppendResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.buckets[p.Bucket]
	if b == nil {
		return api.AppendResult{}, status.Error(codes.NotFound, "no such bucket")
	}
	taken := b.writers[p.WriterID]
	if slices.Contains(taken, m.Sequence) {
		return api.AppendResult{First: -1, Last: -1, Duplicated: true}, nil
	}
	if int(m.Sequence) != len(taken) {
		return api.AppendResult{}, status.Errorf(codes.FailedPrecondition, "out of order: %d, want %d", m.Sequence, len(taken))
	}
	b.writers[p.WriterID] = append(taken, m.Sequence)
	partial := func(name string) bool { return len(p.Columns) > 0 && !slices.Contains(p.Columns, name) }
	for i, it := range itemsOf(rec) {
		if values := f.parts[p.Bucket.Partition-1].Values; len(values) > 0 && values[0] != it.Region {
			return api.AppendResult{}, status.Errorf(codes.InvalidArgument, "a row of %s in partition %s", it.Region, values)
		}
		old, exists := b.rows[it.ID]
		if m.Delete || m.Changes != nil && mink.Change(m.Changes[i]) == mink.ChangeDelete {
			if exists {
				delete(b.rows, it.ID)
				b.log = append(b.log, logged{mink.ChangeDelete, old})
			}
			continue
		}
		if partial("n") {
			it.N = old.N
		}
		if partial("note") {
			it.Note = old.Note
		}
		if exists {
			b.log = append(b.log, logged{mink.ChangeUpdateBefore, old}, logged{mink.ChangeUpdateAfter, it})
		} else {
			b.log = append(b.log, logged{mink.ChangeInsert, it})
		}
		b.rows[it.ID] = it
	}
	close(f.changed)
	f.changed = make(chan struct{})
	return api.AppendResult{}, nil
}

// batchOf makes a batch of items in the columns that are wanted.
func (f *fake) batchOf(columns []string, items []item) arrow.RecordBatch {
	all := f.desc.Schema.Arrow()
	rec, err := Encode(all, items)
	if err != nil {
		f.t.Error(err)
	}
	if len(columns) == 0 {
		return rec
	}
	defer rec.Release()
	var fields []arrow.Field
	var arrays []arrow.Array
	for _, name := range columns {
		at := all.FieldIndices(name)[0]
		fields, arrays = append(fields, all.Field(at)), append(arrays, rec.Column(at))
	}
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), arrays, rec.NumRows())
}

// sending writes batches to a stream, the schema before the first.
type sending struct {
	w      *flight.Writer
	stream interface {
		Send(*flight.FlightData) error
	}
}

func (s *sending) send(rec arrow.RecordBatch, metadata any) error {
	defer rec.Release()
	if s.w == nil {
		s.w = flight.NewRecordWriter(s.stream, ipc.WithSchema(rec.Schema()))
	}
	return s.w.WriteWithAppMetadata(rec, api.JSON(metadata))
}

func (f *fake) DoGet(tk *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	var t api.Ticket
	if err := json.Unmarshal(tk.Ticket, &t); err != nil {
		return err
	}
	out := &sending{stream: stream}
	switch {
	case t.Snapshot != nil:
		return f.rows(out, t.Snapshot.Bucket, t.Snapshot.Columns, t.Snapshot.Limit, func(item) bool { return true })
	case t.Range != nil:
		from, to := boundOf(t.Range.From), boundOf(t.Range.To)
		return f.rows(out, t.Range.Bucket, t.Range.Columns, t.Range.Limit, func(i item) bool {
			return (from == nil || i.ID >= *from) && (to == nil || i.ID < *to)
		})
	case t.Prefix != nil:
		key := boundOf(t.Prefix.Key)
		return f.rows(out, t.Prefix.Bucket, t.Prefix.Columns, t.Prefix.Limit, func(i item) bool { return i.ID == *key })
	}
	return status.Error(codes.Unimplemented, string(tk.Ticket))
}

// boundOf reads {"id":7}; the fake's partitioned table has no other key column.
func boundOf(b json.RawMessage) *int64 {
	if b == nil {
		return nil
	}
	var k struct{ ID int64 }
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&k); err != nil {
		panic(err)
	}
	return &k.ID
}

// rows streams a view in the order of the keys.
func (f *fake) rows(out *sending, ref mink.BucketRef, columns []string, limit int64, want func(item) bool) error {
	f.mu.Lock()
	b := f.buckets[ref]
	items := slices.SortedFunc(maps.Values(b.rows), item.less)
	offset := mink.Offset(len(b.log))
	f.mu.Unlock()
	items = slices.DeleteFunc(items, func(i item) bool { return !want(i) })
	if limit > 0 && int64(len(items)) > limit {
		items = items[:limit]
	}
	for first := true; first || len(items) > 0; first = false {
		if err := f.step(stepSnapshot); err != nil {
			return err
		}
		n := min(f.batch, len(items))
		if err := out.send(f.batchOf(columns, items[:n]), api.SnapshotMetadata{LogOffset: offset, SchemaID: 1}); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}

func (f *fake) DoExchange(stream flight.FlightService_DoExchangeServer) error {
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	var x api.Exchange
	if err := json.Unmarshal(m.FlightDescriptor.Cmd, &x); err != nil {
		return err
	}
	if x.Scan != nil {
		return f.tail(stream.Context(), &sending{stream: stream}, *x.Scan)
	}
	return f.lookups(stream, m, *x.Lookup)
}

// tail sends the log from an offset on, two records a batch.
func (f *fake) tail(ctx context.Context, out *sending, s api.Scan) error {
	next := s.From
	for {
		f.mu.Lock()
		log, changed := f.buckets[s.Bucket].log[next:], f.changed
		log = slices.Clone(log[:min(2, len(log))])
		f.mu.Unlock()
		if len(log) == 0 {
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		if err := f.step(stepLog); err != nil {
			return err
		}
		var items []item
		var kinds []byte
		for _, l := range log {
			items, kinds = append(items, l.row), append(kinds, byte(l.kind))
		}
		md := api.BatchMetadata{Base: next, Last: next + mink.Offset(len(log)) - 1, Next: next + mink.Offset(len(log)), Changes: kinds}
		if err := out.send(f.batchOf(s.Columns, items), md); err != nil {
			return err
		}
		next = md.Next
	}
}

// first puts a message back in front of a stream.
type first struct {
	flight.FlightService_DoExchangeServer
	m *flight.FlightData
}

func (s *first) Recv() (*flight.FlightData, error) {
	if m := s.m; m != nil {
		s.m = nil
		return m, nil
	}
	return s.FlightService_DoExchangeServer.Recv()
}

func (f *fake) lookups(stream flight.FlightService_DoExchangeServer, m *flight.FlightData, l api.LookupStream) error {
	r, err := flight.NewRecordReader(&first{stream, m})
	if err != nil {
		return err
	}
	defer r.Release()
	out := &sending{stream: stream}
	for r.Next() {
		keys := itemsOf(r.RecordBatch())
		f.mu.Lock()
		f.asked = append(f.asked, int64(len(keys)))
		f.mu.Unlock()
		if err := f.step(stepLookup); err != nil {
			return err
		}
		f.mu.Lock()
		b := f.buckets[*l.Bucket]
		if b == nil {
			f.mu.Unlock()
			return status.Error(codes.NotFound, "no such bucket")
		}
		var found []item
		md := api.LookupMetadata{Keys: int64(len(keys))}
		for i, k := range keys {
			if it, ok := b.rows[k.ID]; ok && it.Region == k.Region {
				found = append(found, it)
			} else {
				md.Missing = append(md.Missing, int32(i))
			}
		}
		f.mu.Unlock()
		if err := f.step(stepAnswer); err != nil {
			return err
		}
		if len(found) > 1 { // answers may come in several messages
			if err := out.send(f.batchOf(l.Columns, found[:1]), api.LookupMetadata{Keys: md.Keys, More: true}); err != nil {
				return err
			}
			found = found[1:]
		}
		if err := out.send(f.batchOf(l.Columns, found), md); err != nil {
			return err
		}
	}
	return nil
}

// all is every row of the fake, in order.
func (f *fake) all() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, b := range f.buckets {
		for _, i := range b.rows {
			out = append(out, i.String())
		}
	}
	slices.Sort(out)
	return out
}

func ptr[T any](v T) *T { return &v }

// checked is an allocator whose leaks fail the test.
func checked(t testing.TB) memory.Allocator {
	mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
	t.Cleanup(func() { mem.AssertSize(t, 0) })
	return mem
}
