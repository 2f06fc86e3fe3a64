package flight_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	aflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/coordinator"
	"github.com/mink-project/mink/core/flight"
	"github.com/mink-project/mink/core/lake/scan"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/memlog"
	"github.com/mink-project/mink/core/metalog/storehead"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a node on memory stores behind a listener on loopback.
type world struct {
	t       testing.TB
	node    *node.Node
	backend *backend
	address string
	raw     aflight.Client
	client  *client.Client
	stop    func() // ends the listener alone, and waits
}

// backend adapts the node as core/server does, and lets tests stand in for its logs.
type backend struct {
	*node.Node
	coordinator *coordinator.Coordinator
	rebalance   func(each func(api.MoveProgress)) (api.RebalanceReport, error) // nil: the coordinator's; set between calls

	mu   sync.Mutex
	wrap func(flight.Log) flight.Log
	miss error // of every call of Log and KV

	lake atomic.Pointer[scan.Opener] // nil: none

	wrapKV func(flight.KV) (flight.KV, error)
	hang   <-chan struct{} // stores do not open; nil: they do
}

func (b *backend) Log(ref mink.BucketRef) (flight.Log, error) {
	b.mu.Lock()
	wrap, miss := b.wrap, b.miss
	b.mu.Unlock()
	if miss != nil {
		return nil, miss
	}
	l, err := b.Node.Log(ref)
	if err != nil {
		return nil, err
	}
	if wrap != nil {
		return wrap(flight.FromTablet(l)), nil
	}
	return flight.FromTablet(l), nil
}

func (b *backend) KV(ctx context.Context, ref mink.BucketRef) (flight.KV, error) {
	b.mu.Lock()
	miss, hang, wrap := b.miss, b.hang, b.wrapKV
	b.mu.Unlock()
	if miss != nil {
		return nil, miss
	}
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
		}
		return nil, ctx.Err()
	}
	store, err := b.Node.KV(ctx, ref)
	if err != nil {
		return nil, err
	}
	if wrap != nil {
		return wrap(flight.FromKV(store))
	}
	return flight.FromKV(store), nil
}

// throughKV stands in for stores.
func (b *backend) throughKV(wrap func(flight.KV) (flight.KV, error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrapKV = wrap
}

func (b *backend) hangKV(until <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hang = until
}

func (b *backend) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.miss = err
}

func (b *backend) through(wrap func(flight.Log) flight.Log) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrap = wrap
}

func (b *backend) Damaged() []api.DamagedLog { return b.coordinator.Damaged() }

func (b *backend) AcceptLoss(ctx context.Context, r api.AcceptLoss) (api.LossReport, error) {
	return b.coordinator.AcceptLoss(ctx, r)
}

func (b *backend) release(ctx context.Context, _ cluster.Node, ref mink.BucketRef, to mink.NodeID) error {
	return b.ReleaseBucket(ctx, ref, to)
}

func (b *backend) RemoveNode(ctx context.Context, r api.RemoveNode) (api.RemovedNode, error) {
	return b.coordinator.RemoveNode(ctx, r)
}

func (b *backend) StalledSinks() []api.StalledSink { return nil }

func (b *backend) TierTable(context.Context, mink.TableID, string, map[mink.BucketRef]mink.Offset) (api.TierReport, error) {
	return api.TierReport{}, mink.ErrUnsupported
}

func (b *backend) MaintainTable(context.Context, mink.TableID, api.MaintainTable) (api.MaintenanceReport, error) {
	return api.MaintenanceReport{}, mink.ErrUnsupported
}

func (b *backend) Rebalance(ctx context.Context, dryRun bool, each func(api.MoveProgress)) (api.RebalanceReport, error) {
	if b.rebalance != nil {
		return b.rebalance(each)
	}
	return b.coordinator.Rebalance(ctx, dryRun, each)
}

func (b *backend) Settings() map[string]string {
	return map[string]string{"meta_url": "postgres://u:xxxxx@h/db"}
}

func (b *backend) Stats() api.Stats {
	s := b.Node.Stats()
	return api.Stats{Node: s.Node, Epoch: s.Epoch, AppliedIndex: s.Applied, Figures: map[string]float64{"mink_node_ready": 1}}
}

func newWorld(t testing.TB, change ...func(*flight.Config)) *world {
	t.Helper()
	return newWorldOn(t, func(*node.Config) {}, change...)
}

// newWorldOn is newWorld with a node of another configuration.
func newWorldOn(t testing.TB, tune func(*node.Config), change ...func(*flight.Config)) *world {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	logger := slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	log, store := memlog.New(), memstore.New(memstore.Config{})
	replica, head, err := storehead.Open(ctx, storehead.Deps{Objects: store, WALStore: store, Log: log, Logger: logger}, metalog.Default(), "")
	must(err)
	b := &backend{}
	cfg := flight.Default()
	cfg.Listen, cfg.Version, cfg.DrainTimeout = "127.0.0.1:0", "test", 5*time.Second
	for _, c := range change {
		c(&cfg)
	}
	srv, err := flight.New(cfg, b, nil, logger, flight.WithLake(b.lake.Load))
	must(err)
	must(srv.Open(ctx))

	ncfg := node.Default()
	ncfg.Stream = stream.Default(store.Capabilities(), 256<<20)
	ncfg.FlightAddress, ncfg.KVDir = srv.Addr().String(), t.TempDir()
	tune(&ncfg)
	b.Node, err = node.New(ncfg, node.Deps{Meta: replica, Log: log, Head: head, Objects: store, WALStore: store, Logger: logger})
	must(err)
	co, err := coordinator.New(coordinator.Default(), coordinator.Deps{Meta: replica, Log: log, Head: head, WALStore: store, Objects: store, Self: b.Self, Release: b.release, Logger: logger})
	must(err)
	b.coordinator = co

	outer, stopOuter := context.WithCancel(ctx)
	middle, stopMiddle := context.WithCancel(ctx)
	var out, mid, in sync.WaitGroup
	run := func(wg *sync.WaitGroup, what string, f func() error) {
		wg.Go(func() {
			if err := f(); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	run(&in, "replica", func() error { return replica.Run(ctx) })
	run(&mid, "node", func() error { return b.Node.Run(middle) })
	run(&mid, "coordinator", func() error { return co.Run(middle) })
	must(b.WaitReady(ctx))
	run(&out, "flight", func() error { return srv.Run(outer) })

	w := &world{t: t, node: b.Node, backend: b, address: srv.Addr().String()}
	w.stop = func() {
		stopOuter()
		out.Wait()
	}
	w.raw = w.dial(w.address)
	ccfg := client.Default()
	ccfg.Bootstrap, ccfg.RetryTimeout = []string{w.address}, 10*time.Second
	w.client, err = client.New(ccfg)
	must(err)
	t.Cleanup(func() {
		_ = w.client.Close()
		w.stop()
		_ = srv.Close()
		stopMiddle()
		mid.Wait()
		cancel()
		in.Wait()
		_ = log.Close()
		_ = store.Close()
	})
	return w
}

func (w *world) dial(address string) aflight.Client {
	w.t.Helper()
	c, err := aflight.NewClientWithMiddleware(address, nil, nil,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(256<<20), grpc.MaxCallSendMsgSize(256<<20)))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// testWriter sends the node's log to the test's.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Helper()
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// table creates db.t from a descriptor's JSON without its names.
func (w *world) table(columns, rest string) api.Table {
	w.t.Helper()
	ctx := w.t.Context()
	if err := w.client.CreateDatabase(ctx, "db", true); err != nil {
		w.t.Fatal(err)
	}
	if rest != "" {
		rest = "," + rest
	}
	tab, err := w.client.CreateTable(ctx, json.RawMessage(fmt.Sprintf(`{"database":"db","table":"t","schema":{"columns":[%s]}%s}`, columns, rest)), false)
	if err != nil {
		w.t.Fatal(err)
	}
	return tab
}

const idName = `{"name":"id","type":"BIGINT NOT NULL"},{"name":"name","type":"STRING"}`

// bucket is db.t's bucket in its only partition.
func (w *world) bucket(index int32) mink.BucketRef {
	w.t.Helper()
	list, err := w.client.ListPartitions(w.t.Context(), "db.t")
	if err != nil || len(list) != 1 {
		w.t.Fatalf("partitions of db.t: %v, %v", list, err)
	}
	return list[0].Buckets[index].Bucket
}

func (w *world) log(ref mink.BucketRef) *tablet.Log {
	w.t.Helper()
	l, err := w.node.Log(ref)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

var idNameSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "name", Type: arrow.BinaryTypes.String, Nullable: true},
}, nil)

// idNames makes rows first .. first+n-1, every fifth name null.
func idNames(first, n int) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, idNameSchema)
	defer b.Release()
	for i := first; i < first+n; i++ {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		if i%5 == 4 {
			b.Field(1).AppendNull()
		} else {
			b.Field(1).(*array.StringBuilder).Append(fmt.Sprintf("name-%d", i))
		}
	}
	return b.NewRecordBatch()
}

// put is a raw DoPut.
type put struct {
	t      testing.TB
	stream aflight.FlightService_DoPutClient
	out    *aflight.Writer
}

func (w *world) put(d *aflight.FlightDescriptor, schema *arrow.Schema, opts ...ipc.Option) *put {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(cancel)
	s, err := w.raw.DoPut(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	out := aflight.NewRecordWriter(s, append([]ipc.Option{ipc.WithSchema(schema)}, opts...)...)
	out.SetFlightDescriptor(d)
	return &put{w.t, s, out}
}

func path(elements ...string) *aflight.FlightDescriptor {
	return &aflight.FlightDescriptor{Type: aflight.DescriptorPATH, Path: elements}
}

func cmd(body any) *aflight.FlightDescriptor {
	return &aflight.FlightDescriptor{Type: aflight.DescriptorCMD, Cmd: api.JSON(body)}
}

// send writes a batch; a stream that the server ended shows when it is received.
func (p *put) send(rec arrow.RecordBatch, metadata any) {
	p.t.Helper()
	defer rec.Release()
	var err error
	if metadata == nil {
		err = p.out.Write(rec)
	} else {
		err = p.out.WriteWithAppMetadata(rec, api.JSON(metadata))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		p.t.Fatal(err)
	}
}

// result receives one answer.
func result[R any](p *put) (R, error) {
	p.t.Helper()
	var out R
	m, err := p.stream.Recv()
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(m.AppMetadata, &out); err != nil {
		p.t.Fatal(err)
	}
	return out, nil
}

func mustResult[R any](p *put) R {
	p.t.Helper()
	r, err := result[R](p)
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// finish half-closes and expects a clean end.
func (p *put) finish() {
	p.t.Helper()
	if err := p.out.Close(); err != nil {
		p.t.Fatal(err)
	}
	if err := p.stream.CloseSend(); err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.stream.Recv(); !errors.Is(err, io.EOF) {
		p.t.Fatalf("end of the put: %v, want EOF", err)
	}
}

// got is one batch of a scan.
type got struct {
	meta api.BatchMetadata
	rows arrow.RecordBatch
}

// get reads a whole DoGet.
func (w *world) get(scan api.Scan) ([]got, error) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	s, err := w.raw.DoGet(ctx, &aflight.Ticket{Ticket: api.JSON(api.Ticket{Scan: &scan})})
	if err != nil {
		return nil, err
	}
	return w.readAll(s)
}

func (w *world) readAll(s aflight.DataStreamReader) ([]got, error) {
	w.t.Helper()
	r, err := aflight.NewRecordReader(s)
	if err != nil {
		return nil, err
	}
	defer r.Release()
	var out []got
	for r.Next() {
		out = append(out, got{w.metadata(r.LatestAppMetadata()), r.RecordBatch()})
		r.RecordBatch().Retain()
	}
	if err := r.Err(); err != nil && !errors.Is(err, io.EOF) {
		return out, err
	}
	return out, nil
}

func (w *world) metadata(b []byte) api.BatchMetadata {
	w.t.Helper()
	var m api.BatchMetadata
	if err := json.Unmarshal(b, &m); err != nil {
		w.t.Fatalf("app_metadata %q: %v", b, err)
	}
	return m
}

func (w *world) mustGet(scan api.Scan) []got {
	w.t.Helper()
	out, err := w.get(scan)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// ids lists column 0 of all batches.
func ids(batches []got) []int64 {
	out := []int64{}
	for _, b := range batches {
		if c, ok := b.rows.Column(0).(*array.Int64); ok {
			out = append(out, c.Int64Values()...)
		}
	}
	return out
}

func seq(first, n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = int64(first + i)
	}
	return out
}
