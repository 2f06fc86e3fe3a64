package flight

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/routing"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// tablePut is a table-addressed DoPut: rows find their partitions and buckets
// here. It is at least once: a client that sends again writes again.
type tablePut struct {
	service *service
	table   *cluster.Table
	schema  *schema.Schema // version that rows are written under, fixed for the stream
	arrow   *arrow.Schema
	match   schema.Match
	layout  *arrowipc.Layout // the client's columns, in its order, with the table's types
	checker *arrowipc.Checker
	decoder *arrowipc.Decoder
	router  *routing.Router
	limit   int // bytes of a stored batch; larger ones are written in parts
	results *results
}

// storedBytesMax bounds what one table-addressed batch is stored as, below the
// engine's own limit; a table's max.message.bytes may be lower.
const storedBytesMax = 8 << 20

func (s *service) appendTable(ctx context.Context, t *cluster.Table, header []byte, in <-chan received, send func(*flight.PutResult) error) error {
	if err := logTable(t); err != nil {
		return err
	}
	as, err := readSchema(header)
	if err != nil {
		return err
	}
	p, err := s.newTablePut(t, as)
	if err != nil {
		return fmt.Errorf("put into table %s: %w", t.Descriptor.Name(), err)
	}
	p.results = newResults()
	var sender sync.WaitGroup
	sender.Add(1)
	var sendErr error
	go func() {
		defer sender.Done()
		sendErr = p.results.run(ctx, send)
	}()
	pump := &pump{service: s, in: in, prepare: p.prepare}
	err = pump.run(ctx)
	p.results.end()
	sender.Wait()
	return firstOf(err, sendErr)
}

func (s *service) newTablePut(t *cluster.Table, as *arrow.Schema) (*tablePut, error) {
	p := &tablePut{
		service: s, table: t, schema: t.Schemas[len(t.Schemas)-1],
		checker: arrowipc.NewChecker(arrowipc.DefaultMaxBytes), decoder: arrowipc.NewDecoder(arrowipc.DefaultMaxBytes),
	}
	p.arrow = p.schema.Arrow()
	o, err := t.Descriptor.ParsedOptions()
	if err != nil {
		return nil, err
	}
	p.limit = storedBytesMax
	if o.MaxMessageBytes > 0 {
		p.limit = min(p.limit, o.MaxMessageBytes)
	}
	p.limit -= record.HeaderSize + 8 // and padding
	if p.match, err = p.schema.MatchArrow(as); err != nil {
		return nil, err
	}
	fields := make([]arrow.Field, as.NumFields())
	for i, at := range p.match.Columns {
		if at >= 0 {
			fields[at] = p.arrow.Field(i)
		}
	}
	if p.layout, err = arrowipc.NewLayout(arrow.NewSchema(fields, nil)); err != nil {
		return nil, err
	}
	p.router, err = routing.New(t.Descriptor)
	return p, err
}

// putPart is one bucket's share of a batch.
type putPart struct {
	bucket mink.BucketRef
	rows   int64
	req    tablet.ArrowAppend
	p      Pending
	err    error
}

type putUnit struct {
	of    *tablePut
	rows  int64
	parts []putPart
	next  int // first part that was not appended
	known int // parts before it have an outcome
}

// prepare splits a batch. A batch that goes to one bucket whole, column for
// column, keeps its bytes.
func (t *tablePut) prepare(ctx context.Context, m *flight.FlightData) (unit, error) {
	if len(m.DataHeader) == 0 {
		return nil, nil // metadata alone: nothing to write
	}
	if err := t.service.checkSize(m); err != nil {
		return nil, err
	}
	info, err := t.checker.Check(t.layout, m.DataHeader, m.DataBody)
	if err != nil {
		return nil, fmt.Errorf("put into table %s: %w", t.table.Descriptor.Name(), err)
	}
	u := &putUnit{of: t, rows: info.Rows}
	if info.Rows == 0 {
		return u, nil
	}
	turn := t.service.turn.Add(1) - 1
	d := t.table.Descriptor
	asSent := t.match.Same && len(m.DataHeader)+len(m.DataBody) <= t.limit
	if asSent && len(d.PartitionKeys) == 0 && len(d.BucketKeys) == 0 {
		part := routing.Part{Bucket: int32(turn % uint32(d.BucketCount))}
		return u, u.add(ctx, part, info.Rows, m.DataHeader, m.DataBody)
	}
	rows, err := t.rows(m)
	if err != nil {
		return nil, fmt.Errorf("put into table %s: %w", d.Name(), err)
	}
	defer rows.Release()
	parts, err := t.router.Split(memory.DefaultAllocator, rows, turn)
	if err != nil {
		return nil, fmt.Errorf("put into table %s: %w", d.Name(), err)
	}
	defer func() {
		for _, p := range parts {
			p.Rows.Release()
		}
	}()
	if len(parts) > t.service.cfg.PartsMax {
		return nil, fmt.Errorf("put into table %s: a batch touches %d buckets, at most %d are written at once; sort or split it: %w", d.Name(), len(parts), t.service.cfg.PartsMax, mink.ErrTooLarge)
	}
	for _, p := range parts {
		if asSent && len(parts) == 1 {
			err = u.add(ctx, p, info.Rows, m.DataHeader, m.DataBody)
		} else {
			err = u.encode(ctx, p, p.Rows)
		}
		if err != nil {
			return nil, err
		}
	}
	return u, nil
}

// encode adds rows of a part, in halves when they are too large for one batch.
func (u *putUnit) encode(ctx context.Context, p routing.Part, rows arrow.RecordBatch) error {
	header, body, err := arrowipc.Encode(rows)
	if err != nil {
		return err
	}
	n := rows.NumRows()
	if n < 2 || len(header)+len(body) <= u.of.limit {
		return u.add(ctx, p, n, header, body)
	}
	for _, half := range [][2]int64{{0, n / 2}, {n / 2, n}} {
		part := rows.NewSlice(half[0], half[1])
		err := u.encode(ctx, p, part)
		part.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// rows decodes a batch to the table's columns in the table's order.
func (t *tablePut) rows(m *flight.FlightData) (arrow.RecordBatch, error) {
	sent, err := t.decoder.Decode(t.layout, m.DataHeader, m.DataBody, nil)
	if err != nil {
		return nil, err
	}
	defer sent.Release()
	columns := make([]arrow.Array, len(t.match.Columns))
	defer func() {
		for _, c := range columns {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i, at := range t.match.Columns {
		if at < 0 {
			columns[i] = array.MakeArrayOfNull(memory.DefaultAllocator, t.arrow.Field(i).Type, int(sent.NumRows()))
			continue
		}
		columns[i] = sent.Column(at)
		columns[i].Retain()
	}
	return array.NewRecordBatch(t.arrow, columns, sent.NumRows()), nil
}

// add finds the part's partition, which its first row creates.
func (u *putUnit) add(ctx context.Context, part routing.Part, rows int64, header, body []byte) error {
	s, id := u.of.service, u.of.table.ID
	var p *cluster.Partition
	var err error
	if len(part.Values) > 0 {
		p, err = s.backend.EnsurePartition(ctx, id, part.Values)
	} else {
		p, err = partitionNamed(s.backend.View(), u.of.table, nil)
	}
	if err != nil {
		return err
	}
	bucket := mink.BucketRef{Table: id, Partition: p.ID, Index: part.Bucket}
	if err := open(s, bucket); err != nil {
		return err
	}
	u.parts = append(u.parts, putPart{bucket: bucket, rows: rows, req: tablet.ArrowAppend{
		SchemaID: u.of.schema.ID, Metadata: header, Body: body, Count: int32(rows), WriterID: mink.NoWriter,
	}})
	return nil
}

// append hands every part over. A part's failure is the part's own, except that
// an overloaded engine, and a bucket that has no open log at the moment (its
// partition is new, its leadership changes), are waited for: a generic client
// does not send again.
func (u *putUnit) append(last bool) error {
	s := u.of.service
	for ; u.next < len(u.parts); u.next++ {
		part := &u.parts[u.next]
		log, err := s.backend.Log(part.bucket)
		if err == nil {
			part.p, err = log.AppendArrow(part.req)
		}
		if err != nil {
			err = s.leaderError(part.bucket, err)
			if !last && (errors.Is(err, mink.ErrThrottled) || errors.Is(err, mink.ErrUnavailable)) {
				return errLater
			}
			part.err = err
		} else {
			s.metrics.RecordBytes(len(part.req.Metadata)+len(part.req.Body), 0)
		}
		part.req = tablet.ArrowAppend{}
	}
	return nil
}

func (u *putUnit) pending() <-chan struct{} {
	for ; u.known < len(u.parts); u.known++ {
		if p := u.parts[u.known].p; p != nil {
			if done := unlessDone(p); done != nil {
				return done
			}
		}
	}
	return nil
}

// answer reports every bucket; the stream ends with the first bucket's error, so
// that a client that reads no results notices.
func (u *putUnit) answer() error {
	out := api.PutResult{Rows: u.rows, Batches: 1, Buckets: []api.BucketResult{}}
	var failed error
	for i := range u.parts {
		part := &u.parts[i]
		b := api.BucketResult{Bucket: part.bucket, Rows: part.rows, First: -1, Last: -1}
		err := part.err
		if err == nil {
			var res tablet.AppendResult
			if res, err = part.p.Result(); err != nil {
				err = outcome(err, false)
			} else {
				b.First, b.Last = res.First, res.Last
			}
		}
		if err != nil {
			b.Error, b.Code = err.Error(), codeOf(err)
			failed = firstOf(failed, err)
		}
		merge(&out, api.PutResult{Buckets: []api.BucketResult{b}})
	}
	u.of.results.add(out)
	return failed
}

// results sends PutResults beside the stream of batches. A client that does not
// read them must not stop its own writes: what waits is put together into one.
type results struct {
	wake chan struct{}

	mu      sync.Mutex
	waiting *api.PutResult
	ended   bool
}

func newResults() *results { return &results{wake: make(chan struct{}, 1)} }

func (r *results) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *results) add(p api.PutResult) {
	r.mu.Lock()
	if r.waiting == nil {
		r.waiting = &p
	} else {
		merge(r.waiting, p)
	}
	r.mu.Unlock()
	r.signal()
}

func (r *results) end() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.signal()
}

// run sends until end was called and nothing waits, or ctx is done.
func (r *results) run(ctx context.Context, send func(*flight.PutResult) error) error {
	for {
		r.mu.Lock()
		p, ended := r.waiting, r.ended
		r.waiting = nil
		r.mu.Unlock()
		switch {
		case p != nil:
			if err := send(&flight.PutResult{AppMetadata: api.JSON(p)}); err != nil {
				return err
			}
			continue
		case ended:
			return nil
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// merge adds a later result: per bucket the whole range and the first error.
func merge(into *api.PutResult, p api.PutResult) {
	into.Rows += p.Rows
	into.Batches += p.Batches
	at := make(map[mink.BucketRef]int, len(into.Buckets))
	for i, b := range into.Buckets {
		at[b.Bucket] = i
	}
	for _, b := range p.Buckets {
		i, ok := at[b.Bucket]
		if !ok {
			into.Buckets = append(into.Buckets, b)
			continue
		}
		known := &into.Buckets[i]
		known.Rows += b.Rows
		if b.First >= 0 {
			if known.First < 0 {
				known.First = b.First
			}
			known.Last = b.Last
		}
		if known.Error == "" {
			known.Error, known.Code = b.Error, b.Code
		}
	}
}
