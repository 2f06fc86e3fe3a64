package flight

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/flight/wire"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// DoPut writes: to one bucket when the descriptor is a command with append or put,
// to a table otherwise.
func (s *service) DoPut(stream flight.FlightService_DoPutServer) error {
	ctx := stream.Context()
	in := s.receive(ctx, stream.Recv)
	m, err := s.first(ctx, in)
	if err != nil {
		return err
	}
	c, t, err := command(s.backend.View(), m.FlightDescriptor)
	if err != nil {
		return err
	}
	if ref := c.Bucket(); ref != nil {
		if n, ok := s.leaderElsewhere(ctx, s.leads(*ref)); ok {
			idempotent := c.Append != nil && c.Append.WriterID > 0 || c.Put != nil && c.Put.WriterID > 0
			return s.relayPut(ctx, n, idempotent, []*flight.FlightData{m}, in, stream.Send)
		}
	}
	header, err := s.schemaAfter(ctx, m, in)
	if err != nil {
		return err
	}
	switch {
	case c.Append != nil:
		return s.appendBucket(ctx, c.Append, header, in, stream.Send)
	case c.Put != nil:
		return s.putBucket(ctx, c.Put, header, in, stream.Send)
	case c.Mode != "" || c.From != "" || len(c.Partition) > 0 || c.Filter != "" || c.Meta:
		return fmt.Errorf(`%w: command descriptor: a put takes {"table":...} with columns and delete, {"append":...} or {"put":...}`, mink.ErrInvalid)
	}
	return s.putTable(ctx, t, &c, header, in, stream.Send)
}

// schemaAfter is the schema message of a stream that rows come on: in its first
// message, or in the second when the descriptor came alone.
func (s *service) schemaAfter(ctx context.Context, first *flight.FlightData, in <-chan received) ([]byte, error) {
	if len(first.DataHeader) > 0 {
		return first.DataHeader, nil
	}
	select {
	case next := <-in:
		if errors.Is(next.err, io.EOF) {
			return nil, fmt.Errorf("%w: the stream ended after its descriptor, before the Arrow schema of the rows", mink.ErrInvalid)
		}
		if next.err != nil {
			return nil, next.err
		}
		return next.data.DataHeader, nil
	case <-s.stopping:
		return nil, errStopping
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// checkSize refuses a batch that a scan could not send back under the same limit.
func (s *service) checkSize(m *flight.FlightData) error {
	if n, limit := len(m.DataHeader)+len(m.DataBody), s.cfg.batchBytesMax(); n > limit {
		return fmt.Errorf("a batch of %d bytes, at most %d are taken: send it in parts, or raise message_bytes_max: %w", n, limit, mink.ErrTooLarge)
	}
	return nil
}

// bucketAppend is a native DoPut.
type bucketAppend struct {
	service *service
	to      api.Append
	log     Log
	send    func(*flight.PutResult) error
}

func (s *service) appendBucket(ctx context.Context, to *api.Append, header []byte, in <-chan received, send func(*flight.PutResult) error) error {
	a := &bucketAppend{service: s, to: *to, send: send}
	if a.to.WriterID == 0 {
		a.to.WriterID = mink.NoWriter
	}
	if a.to.WriterID < mink.NoWriter || a.to.WriterEpoch < 0 {
		return fmt.Errorf("%w: append: writer_id %d, writer_epoch %d", mink.ErrInvalid, a.to.WriterID, a.to.WriterEpoch)
	}
	t, ok := s.backend.View().Table(to.Bucket.Table)
	if !ok {
		return fmt.Errorf("table %d %w", to.Bucket.Table, mink.ErrNotExist)
	}
	var err error
	if a.log, err = s.backend.Log(to.Bucket); err != nil { // after View: it knows the schema versions that t has
		return err
	}
	if hasKey(t) {
		return fmt.Errorf(`%w: append: table %s has a primary key: it takes {"put":...}`, mink.ErrInvalid, t.Descriptor.Name())
	}
	version, err := versionOf(t, to.SchemaID)
	if err != nil {
		return fmt.Errorf("append: %w", err)
	}
	as, err := wire.ReadSchema(header)
	if err != nil {
		return err
	}
	if err := version.CheckArrow(as); err != nil {
		return fmt.Errorf("append to table %s: %w", t.Descriptor.Name(), err)
	}
	p := &pump{service: s, in: in, prepare: a.prepare}
	return p.run(ctx)
}

// versionOf is a schema version of a table that a client names.
func versionOf(t *cluster.Table, id mink.SchemaID) (*schema.Schema, error) {
	switch {
	case id < 1:
		return nil, fmt.Errorf("%w: schema_id is %d, versions start at 1", mink.ErrInvalid, id)
	case int(id) > len(t.Schemas):
		return nil, fmt.Errorf("schema %d of table %s is not known here yet: %w", id, t.Descriptor.Name(), mink.ErrUnavailable)
	}
	return t.Schemas[id-1], nil
}

// prepare makes an append of a message as it came.
func (a *bucketAppend) prepare(_ context.Context, m *flight.FlightData) (unit, error) {
	rows, err := a.service.batchRows(m, a.to.Bucket)
	if err != nil {
		return nil, fmt.Errorf("append: %w", err)
	}
	u := &bucketUnit{of: a, req: tablet.ArrowAppend{
		SchemaID: a.to.SchemaID, Count: int32(rows), WriterID: a.to.WriterID, WriterEpoch: a.to.WriterEpoch,
	}}
	if rows > 0 {
		u.req.Metadata, u.req.Body = m.DataHeader, m.DataBody
	}
	if a.to.WriterID != mink.NoWriter && len(m.AppMetadata) == 0 {
		return nil, fmt.Errorf(`%w: append: a batch of writer %d without app_metadata {"sequence":...}`, mink.ErrInvalid, a.to.WriterID)
	}
	if len(m.AppMetadata) > 0 {
		var md api.AppendMetadata
		if err := wire.Decode("app_metadata", m.AppMetadata, &md); err != nil {
			return nil, err
		}
		if md.Sequence < 0 {
			return nil, fmt.Errorf("%w: app_metadata: sequence is %d, the first is 0", mink.ErrInvalid, md.Sequence)
		}
		u.req.Sequence = md.Sequence
	}
	return u, nil
}

// batchRows checks what a batch of a native stream is before its buffers are looked
// at, and answers its rows.
func (s *service) batchRows(m *flight.FlightData, bucket mink.BucketRef) (int64, error) {
	if len(m.DataHeader) == 0 {
		return 0, fmt.Errorf("%w: a message without a batch", mink.ErrInvalid)
	}
	if err := s.checkSize(m); err != nil {
		return 0, err
	}
	if err := open(s, bucket); err != nil {
		return 0, err
	}
	rows, err := arrowipc.Rows(m.DataHeader)
	if err != nil {
		return 0, err
	}
	if rows > 1<<31-1 {
		return 0, fmt.Errorf("a batch of %d rows: %w", rows, mink.ErrTooLarge)
	}
	return rows, nil
}

// open refuses partitions that take no more rows.
func open(s *service, bucket mink.BucketRef) error {
	p, ok := s.backend.View().Partition(bucket.Partition)
	if !ok {
		return fmt.Errorf("bucket %s: partition %d %w", bucket, bucket.Partition, mink.ErrNotExist)
	}
	if p.Closed {
		return fmt.Errorf("%w: partition %q is closed: it takes no more rows", mink.ErrInvalid, p.Values)
	}
	return nil
}

type bucketUnit struct {
	of  *bucketAppend
	req tablet.ArrowAppend
	p   Pending
}

func (u *bucketUnit) append(ctx context.Context, last bool) error {
	p, err := u.of.service.appendArrow(ctx, u.of.log, u.req)
	if err != nil {
		if !last && errors.Is(err, mink.ErrThrottled) {
			return errLater
		}
		return u.of.service.leaderError(u.of.to.Bucket, err)
	}
	u.of.service.metrics.RecordBytes(len(u.req.Metadata)+len(u.req.Body), 0)
	u.p, u.req.Metadata, u.req.Body = p, nil, nil
	return nil
}

// appendArrow appends a batch to a log, which unpacks it to check it and stores it as it
// came.
func (s *service) appendArrow(ctx context.Context, log Log, a tablet.ArrowAppend) (Pending, error) {
	give, err := s.inflate.Take(ctx, a.Metadata, a.Body)
	if err != nil {
		return nil, err
	}
	defer give()
	return log.AppendArrow(a)
}

func (u *bucketUnit) drop() {}

func (u *bucketUnit) pending() <-chan struct{} { return unlessDone(u.p) }

// unlessDone is a pending append's channel, nil once it is closed.
func unlessDone(p Pending) <-chan struct{} {
	done := p.Done()
	select {
	case <-done:
		return nil
	default:
		return done
	}
}

func (u *bucketUnit) answer() error {
	return acknowledge(u.p, u.req.WriterID != mink.NoWriter, u.of.send)
}

// acknowledge answers a batch of a native stream.
func acknowledge(p Pending, idempotent bool, send func(*flight.PutResult) error) error {
	res, err := p.Result()
	if err != nil {
		return outcome(err, idempotent)
	}
	return send(&flight.PutResult{AppMetadata: api.JSON(api.AppendResult{
		First: res.First, Last: res.Last, CommitTimestamp: res.CommitTimestamp, Duplicated: res.Duplicate,
	})})
}

// outcome classifies the failure of a batch that was on its way: nobody knows
// whether it will be found durable. An idempotent writer sends it again.
func outcome(err error, idempotent bool) error {
	switch {
	case errors.Is(err, mink.ErrCorrupt):
		return err
	case idempotent:
		// Only the text of err: its own class, unknown outcome say, must not win.
		return fmt.Errorf("%w: send it again under the same sequence: %s", mink.ErrUnavailable, err.Error())
	default:
		return fmt.Errorf("%w: %w", mink.ErrUnknownOutcome, err)
	}
}
