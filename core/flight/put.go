package flight

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/flight/wire"
	"github.com/mink-project/mink/core/peers"
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
	rows    *rowPlan
	checker *arrowipc.Checker
	decoder *arrowipc.Decoder
	router  *routing.Router
	limit   int // bytes of a stored batch; larger ones are written in parts
	results *results
}

// rowPlan is how a client's columns become the rows that are stored: all columns of
// a log table; of a primary-key table the targets of a put. The schema version is
// fixed for the stream.
type rowPlan struct {
	schema *schema.Schema // of what is stored
	arrow  *arrow.Schema
	at     []int            // the client's place of each of its columns, -1: null
	sent   *arrowipc.Layout // the client's columns, in its order, with the table's types
	asSent bool             // the client's bytes can be stored as they are
	put    *putPlan         // of a primary-key table; else nil
}

// storedBytesMax bounds what one table-addressed batch is stored as, below the
// engine's own limit; a table's max.message.bytes may be lower.
const storedBytesMax = 8 << 20

func (s *service) putTable(ctx context.Context, t *cluster.Table, c *api.Command, header []byte, in <-chan received, send func(*flight.PutResult) error) error {
	as, err := wire.ReadSchema(header)
	if err != nil {
		return err
	}
	p, err := s.newTablePut(t, c, as)
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

func (s *service) newTablePut(t *cluster.Table, c *api.Command, as *arrow.Schema) (*tablePut, error) {
	p := &tablePut{
		service: s, table: t,
		checker: arrowipc.NewChecker(arrowipc.DefaultMaxBytes), decoder: arrowipc.NewDecoder(arrowipc.DefaultMaxBytes),
	}
	o, err := t.Descriptor.ParsedOptions()
	if err != nil {
		return nil, err
	}
	p.limit = storedBytesMax
	if o.MaxMessageBytes > 0 {
		p.limit = min(p.limit, o.MaxMessageBytes)
	}
	p.limit -= record.HeaderSize + 8 // and padding
	if hasKey(t) {
		p.rows, err = putRows(t, &o, c, as)
	} else {
		p.rows, err = appendRows(t, c, as)
	}
	if err != nil {
		return nil, err
	}
	p.router, err = routing.New(t.Descriptor)
	return p, err
}

// appendRows plans the rows of a log table.
func appendRows(t *cluster.Table, c *api.Command, as *arrow.Schema) (*rowPlan, error) {
	if len(c.Columns) > 0 || c.Delete {
		return nil, fmt.Errorf("%w: it is a log table: columns and delete belong to tables with a primary key", mink.ErrInvalid)
	}
	r := &rowPlan{schema: current(t)}
	m, err := r.schema.MatchArrow(as)
	if err != nil {
		return nil, err
	}
	r.arrow, r.at, r.asSent = r.schema.Arrow(), m.Columns, m.Same
	fields := make([]arrow.Field, as.NumFields())
	for i, at := range m.Columns {
		if at >= 0 {
			fields[at] = r.arrow.Field(i)
		}
	}
	r.sent, err = arrowipc.NewLayout(arrow.NewSchema(fields, nil))
	return r, err
}

// putPart is one bucket's share of a batch.
type putPart struct {
	bucket mink.BucketRef
	rows   int64
	header []byte
	body   []byte
	p      Pending
	err    error
}

type putUnit struct {
	of     *tablePut
	rows   int64
	asSent bool // parts are the client's bytes
	parts  []putPart
	next   int // first part that was not appended
	known  int // parts before it have an outcome

	give []func() // of the room that the parts' rows take
}

// holds says that parts hold rows that were unpacked.
func (u *putUnit) holds(give func()) { u.give = append(u.give, give) }

func (u *putUnit) drop() {
	for _, give := range u.give {
		give()
	}
	u.give = nil
}

// prepare splits a batch. A batch that goes to one bucket whole, column for
// column, keeps its bytes; the rows of others are held unpacked until every part was
// handed over.
func (t *tablePut) prepare(ctx context.Context, m *flight.FlightData) (unit, error) {
	if len(m.DataHeader) == 0 {
		return nil, nil // metadata alone: nothing to write
	}
	if err := t.service.checkSize(m); err != nil {
		return nil, err
	}
	give, err := t.service.inflate.Take(ctx, m.DataHeader, m.DataBody)
	if err != nil {
		return nil, fmt.Errorf("put into table %s: %w", t.table.Descriptor.Name(), err)
	}
	u, err := t.split(ctx, m)
	if err != nil || u.asSent {
		give()
	} else {
		u.holds(give)
	}
	if err != nil {
		return nil, err
	}
	return u, nil
}

func (t *tablePut) split(ctx context.Context, m *flight.FlightData) (*putUnit, error) {
	info, err := t.checker.Check(t.rows.sent, m.DataHeader, m.DataBody)
	if err != nil {
		return nil, fmt.Errorf("put into table %s: %w", t.table.Descriptor.Name(), err)
	}
	u := &putUnit{of: t, rows: info.Rows, asSent: true}
	if info.Rows == 0 {
		return u, nil
	}
	turn := t.service.turn.Add(1) - 1
	d := t.table.Descriptor
	asSent := t.rows.asSent && len(m.DataHeader)+len(m.DataBody) <= t.limit
	if asSent && len(d.PartitionKeys) == 0 && len(d.BucketKeys) == 0 {
		part := routing.Part{Bucket: int32(turn % uint32(d.BucketCount))}
		return u, u.add(ctx, part, info.Rows, m.DataHeader, m.DataBody)
	}
	rows, err := t.decode(m)
	if err != nil {
		return nil, fmt.Errorf("put into table %s: %w", d.Name(), err)
	}
	defer rows.Release()
	parts, err := t.router.Split(allocator, rows, turn)
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
	u.asSent = asSent && len(parts) == 1
	for _, p := range parts {
		if u.asSent {
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

// decode answers a batch as the rows that are stored.
func (t *tablePut) decode(m *flight.FlightData) (arrow.RecordBatch, error) {
	sent, err := t.decoder.Decode(t.rows.sent, m.DataHeader, m.DataBody, nil)
	if err != nil {
		return nil, err
	}
	defer sent.Release()
	columns := make([]arrow.Array, len(t.rows.at))
	defer func() {
		for _, c := range columns {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i, at := range t.rows.at {
		if at < 0 {
			columns[i] = array.MakeArrayOfNull(allocator, t.rows.arrow.Field(i).Type, int(sent.NumRows()))
			continue
		}
		columns[i] = sent.Column(at)
		columns[i].Retain()
	}
	return array.NewRecordBatch(t.rows.arrow, columns, sent.NumRows()), nil
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
	u.parts = append(u.parts, putPart{bucket: bucket, rows: rows, header: header, body: body})
	return nil
}

// append hands every part over. A part's failure is the part's own, except that
// an overloaded engine, and a bucket that is not open at the moment (its
// partition is new, its leadership changes), are waited for: a generic client
// does not send again.
func (u *putUnit) append(ctx context.Context, last bool) error {
	s := u.of.service
	for u.next < len(u.parts) {
		part := &u.parts[u.next]
		var err error
		if part.p, err = u.of.hand(ctx, part); err != nil {
			part.p = nil
			if !last && (errors.Is(err, mink.ErrThrottled) || errors.Is(err, mink.ErrUnavailable)) {
				return errLater
			}
			if u.of.rows.put != nil && errors.Is(err, mink.ErrTooLarge) && part.rows > 1 {
				if err = u.halve(ctx, u.next); err == nil {
					continue
				}
			}
			part.err = err
		} else {
			s.metrics.RecordBytes(len(part.header)+len(part.body), 0)
		}
		part.header, part.body = nil, nil
		u.next++
	}
	u.drop()
	return nil
}

// hand gives a part to its bucket, or to the lane to the bucket's leader. Behind rows
// that are on their way to a leader none overtakes: not when this node has become it.
func (t *tablePut) hand(ctx context.Context, part *putPart) (Pending, error) {
	s := t.service
	if s.lanes == nil || peers.Forwarded(ctx) {
		return t.handHere(ctx, part)
	}
	k := t.laneOf(part.bucket)
	if s.lanes.busy(k) {
		if s.leads(part.bucket) == nil {
			return nil, fmt.Errorf("rows before these are on their way to the last leader: %w", mink.ErrThrottled)
		}
		return t.handOn(k, part)
	}
	p, err := t.handHere(ctx, part)
	if _, far := s.leaderElsewhere(ctx, err); far {
		return t.handOn(k, part)
	}
	return p, err
}

// handOn gives a part to the lane.
func (t *tablePut) handOn(k laneKey, part *putPart) (Pending, error) {
	p := &farPart{rows: part.rows, header: part.header, body: part.body, done: make(chan struct{}), sequence: -1}
	if t.rows.put != nil {
		p.deletes, p.halves = t.rows.put.deletes, t.halves
	}
	if err := t.service.lanes.push(k, t.rows, t.limit, p); err != nil {
		return nil, err
	}
	return p, nil
}

func (t *tablePut) handHere(ctx context.Context, part *putPart) (Pending, error) {
	if t.rows.put != nil {
		return t.service.putKV(ctx, part.bucket, t.rows.put.request(t.rows.schema.ID, part))
	}
	s := t.service
	log, err := s.backend.Log(part.bucket)
	var p Pending
	if err == nil {
		p, err = s.appendArrow(ctx, log, tablet.ArrowAppend{
			SchemaID: t.rows.schema.ID, Metadata: part.header, Body: part.body, Count: int32(part.rows), WriterID: mink.NoWriter,
		})
	}
	if err != nil {
		return nil, s.leaderError(part.bucket, err)
	}
	return p, nil
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
			_, far := part.p.(*farPart)
			if res, err = part.p.Result(); err != nil {
				if !far { // else it says itself what may have happened
					err = outcome(err, false)
				}
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
