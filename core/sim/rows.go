package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// Rows knows what Flight clients wrote into a log table and what readers saw. Writers of
// the Go client write each row once and in order, to the buckets' leaders; puts by the
// table's path go through any node, which sends them on, at least once.
//
// Safe for concurrent use.
type Rows struct {
	world *World
	truth *Truth
	name  string // of the table, with its database

	mu      sync.Mutex
	table   mink.TableID
	records map[int64]*rowRecord // by id: writer<<32 | number
	seen    map[mink.BucketRef]map[mink.Offset]int64
	writers int64
}

type rowRecord struct {
	once  bool // by a writer of the Go client
	tries int
	found int
	told  bool
}

var rowSchema = arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)

// NewRows knows nothing.
func (w *World) NewRows(t *Truth) *Rows {
	return &Rows{world: w, truth: t, name: "sim.rows", records: map[int64]*rowRecord{}, seen: map[mink.BucketRef]map[mink.Offset]int64{}}
}

// Create creates the table, through some node.
func (m *Rows) Create(ctx context.Context, buckets int) error {
	h := m.world.net.Host("client-rows")
	defer h.End()
	c, err := m.world.NewClient(h)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.CreateDatabase(ctx, "sim", true); err != nil {
		return err
	}
	d := fmt.Sprintf(`{"database":"sim","table":"rows","schema":{"columns":[{"name":"id","type":"BIGINT NOT NULL"}]},"bucket_count":%d,"bucket_keys":["id"]}`, buckets)
	t, err := c.CreateTable(ctx, json.RawMessage(d), true)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.table = t.ID
	return nil
}

// Buckets are the table's.
func (m *Rows) Buckets() (refs []mink.BucketRef) {
	m.mu.Lock()
	id := m.table
	m.mu.Unlock()
	for p := range m.truth.State().Partitions(id) {
		refs = append(refs, bucketsOf(p)...)
	}
	return refs
}

func bucketsOf(p *cluster.Partition) (refs []mink.BucketRef) {
	for i := range p.Streams {
		refs = append(refs, mink.BucketRef{Table: p.Table, Partition: p.ID, Index: int32(i)})
	}
	return refs
}

func (m *Rows) writer() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writers++
	return m.writers << 32
}

func (m *Rows) sent(ids []int64, once bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		r := m.records[id]
		if r == nil {
			r = &rowRecord{once: once}
			m.records[id] = r
		}
		r.tries++
	}
}

func (m *Rows) acknowledged(ids []int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		m.records[id].told = true
	}
}

// Acks is how many rows were acknowledged.
func (m *Rows) Acks() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.records {
		if r.told {
			n++
		}
	}
	return n
}

func rowBatch(ids []int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, rowSchema)
	defer b.Release()
	b.Field(0).(*array.Int64Builder).AppendValues(ids, nil)
	return b.NewRecordBatch()
}

func pause(ctx context.Context, rng *rand.Rand, mean time.Duration) {
	t := time.NewTimer(time.Duration(rng.ExpFloat64() * float64(mean)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Write is a writer of the Go client, with up to five appends on their way, until ctx ends.
func (m *Rows) Write(ctx context.Context, mean time.Duration, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 5))
	h := m.world.net.Host(fmt.Sprintf("client-writer%d", seed))
	defer h.End()
	for ctx.Err() == nil {
		m.session(ctx, rng, mean, func() (*client.Client, error) { return m.world.NewClient(h) })
		pause(ctx, rng, mean)
	}
}

// session is one client with one writer, until an append fails.
func (m *Rows) session(ctx context.Context, rng *rand.Rand, mean time.Duration, dial func() (*client.Client, error)) {
	c, err := dial()
	if err != nil {
		return
	}
	defer c.Close()
	w, err := c.NewWriter(ctx, m.name, client.DefaultWriter())
	if err != nil {
		return
	}
	defer func() {
		ended, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = w.Close(ended) // what is not durable by then is not acknowledged
	}()
	type flying struct {
		ids []int64
		a   *client.Append
	}
	var way []flying
	next := m.writer()
	for ctx.Err() == nil {
		var ids []int64
		for range 1 + rng.IntN(4) {
			ids = append(ids, next)
			next++
		}
		m.sent(ids, true)
		rec := rowBatch(ids)
		a, err := w.Append(ctx, rec)
		rec.Release()
		if err != nil {
			return
		}
		if way = append(way, flying{ids, a}); len(way) == 5 {
			if err := way[0].a.Wait(ctx); err != nil {
				return
			}
			m.acknowledged(way[0].ids)
			way = way[1:]
		}
		pause(ctx, rng, mean)
	}
}

// Put puts rows by the table's path through nodes of its choice until ctx ends; what is not
// acknowledged it puts once more.
func (m *Rows) Put(ctx context.Context, mean time.Duration, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 6))
	h := m.world.net.Host(fmt.Sprintf("client-put%d", seed))
	defer h.End()
	conns := map[string]*grpc.ClientConn{}
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	next := m.writer()
	for ctx.Err() == nil {
		var ids []int64
		for range 1 + rng.IntN(6) {
			ids = append(ids, next)
			next++
		}
		for range 2 {
			procs := m.world.Processes()
			if len(procs) == 0 {
				break
			}
			address := procs[rng.IntN(len(procs))].FlightAddress()
			conn := conns[address]
			if conn == nil {
				var err error
				conn, err = grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(h.Dial))
				if err != nil {
					m.world.Broken("client of %s: %v", address, err)
					return
				}
				conns[address] = conn
			}
			m.sent(ids, false)
			tctx, cancel := context.WithTimeout(ctx, 8*time.Second)
			err := put(tctx, conn, m.name, ids)
			cancel()
			if err == nil {
				m.acknowledged(ids)
				break
			}
		}
		pause(ctx, rng, mean)
	}
}

// put is one DoPut; nil: every row is durable.
func put(ctx context.Context, conn *grpc.ClientConn, table string, ids []int64) error {
	stream, err := flight.NewClientFromConn(conn, nil).DoPut(ctx)
	if err != nil {
		return err
	}
	w := flight.NewRecordWriter(stream, ipc.WithSchema(rowSchema))
	w.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: api.JSON(api.Command{Table: table})})
	rec := rowBatch(ids)
	defer rec.Release()
	err = errors.Join(w.Write(rec), w.Close(), stream.CloseSend())
	var rows int64
	for err == nil {
		r, rerr := stream.Recv()
		if errors.Is(rerr, io.EOF) {
			break
		}
		if rerr != nil {
			return rerr
		}
		var res api.PutResult
		if err := json.Unmarshal(r.GetAppMetadata(), &res); err != nil {
			return err
		}
		for _, b := range res.Buckets {
			if b.Error != "" {
				return errors.New(b.Error)
			}
			rows += b.Rows
		}
	}
	if err == nil && rows != int64(len(ids)) {
		err = fmt.Errorf("%d of %d rows are acknowledged", rows, len(ids))
	}
	return err
}

// Read reads a bucket from a process, from an offset on. nil: all was read.
func (m *Rows) Read(ctx context.Context, log *tablet.Log, from mink.Offset) error {
	ref := log.Bucket()
	end := log.HighWatermark()
	if start := log.LogStart(); start != 0 {
		m.world.Broken("bucket %s of a table that keeps everything begins at %d", ref, start)
	}
	for at := from; at < end; {
		r, err := log.Read(ctx, tablet.ReadRequest{From: at, MaxBytes: 4000})
		if err != nil {
			return err
		}
		if r.Next <= at {
			return fmt.Errorf("bucket %s: a read at %d of %d brings nothing", ref, at, end)
		}
		for _, b := range r.Batches {
			rows, _, err := log.Rows(b, nil)
			if err != nil {
				m.world.Broken("bucket %s: batch at %d: %v", ref, b.BaseOffset(), err)
				return nil
			}
			ids := rows.Column(0).(*array.Int64)
			if b.BaseOffset()+mink.Offset(ids.Len()) != b.NextOffset() {
				m.world.Broken("bucket %s: batch [%d, %d) holds %d rows", ref, b.BaseOffset(), b.NextOffset(), ids.Len())
			}
			for i := range ids.Len() {
				m.row(ref, b.BaseOffset()+mink.Offset(i), ids.Value(i))
			}
			rows.Release()
		}
		at = r.Next
	}
	return nil
}

func (m *Rows) row(ref mink.BucketRef, at mink.Offset, id int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := m.seen[ref]
	if seen == nil {
		seen = map[mink.Offset]int64{}
		m.seen[ref] = seen
	}
	if old, ok := seen[at]; ok {
		if old != id {
			m.world.Broken("bucket %s offset %d was read as row %x, now it is %x", ref, at, old, id)
		}
		return
	}
	seen[at] = id
	r := m.records[id]
	if r == nil {
		m.world.Broken("bucket %s offset %d holds row %x, which nobody sent", ref, at, id)
		return
	}
	r.found++
	if r.found > 1 && r.once || r.found > r.tries {
		m.world.Broken("row %x is there %d times, the last at %d of bucket %s (exactly once: %t, sent %d times)", id, r.found, at, ref, r.once, r.tries)
	}
}

// Finish checks what only holds when every bucket was read to its end: nothing
// acknowledged is missing, offsets are dense, writers' rows are in their order.
func (m *Rows) Finish() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, r := range m.records {
		if r.told && r.found == 0 {
			m.world.Broken("row %x was acknowledged and is nowhere (exactly once: %t)", id, r.once)
		}
	}
	for ref, seen := range m.seen {
		last := map[int64]int64{}
		for at := range mink.Offset(len(seen)) {
			id, ok := seen[at]
			if !ok {
				m.world.Broken("bucket %s: %d rows were read, none at offset %d", ref, len(seen), at)
				break
			}
			if r := m.records[id]; r != nil && r.once && id <= last[id>>32] {
				m.world.Broken("bucket %s: row %x at offset %d comes after row %x", ref, id, at, last[id>>32])
			}
			last[id>>32] = id
		}
	}
}

// Scan reads the whole table through the Go client, on the network, and compares what it
// brings with what Read saw.
func (m *Rows) Scan(ctx context.Context) {
	h := m.world.net.Host("client-scan")
	defer h.End()
	c, err := m.world.NewClient(h)
	if err != nil {
		m.world.Broken("scan: %v", err)
		return
	}
	defer c.Close()
	got := map[mink.BucketRef]int{}
	for b, err := range c.Scan(ctx, client.ScanRequest{Table: m.name, Bucket: -1}) {
		if err != nil {
			m.world.Broken("scan of %s: %v", m.name, err)
			return
		}
		ids, first := b.Record.Column(0).(*array.Int64), b.Meta.Base
		for i := range ids.Len() {
			m.row(b.Bucket, first+mink.Offset(i), ids.Value(i))
		}
		got[b.Bucket] += ids.Len()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for ref, seen := range m.seen {
		if got[ref] != len(seen) {
			m.world.Broken("bucket %s: a scan brings %d rows, its leader has %d", ref, got[ref], len(seen))
		}
	}
}
