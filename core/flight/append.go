package flight

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// DoPut appends: to one bucket when the descriptor is a command with append, to
// a table otherwise.
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
	if len(m.DataHeader) == 0 { // the descriptor came alone
		select {
		case next := <-in:
			if errors.Is(next.err, io.EOF) {
				return fmt.Errorf("%w: the stream ended after its descriptor, before the Arrow schema of the rows", mink.ErrInvalid)
			}
			if next.err != nil {
				return next.err
			}
			m = next.data
		case <-s.stopping:
			return errStopping
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if c.Put != nil {
		return fmt.Errorf("command descriptor: put: %w", mink.ErrUnsupported)
	}
	if c.Append != nil {
		return s.appendBucket(ctx, c.Append, m.DataHeader, in, stream.Send)
	}
	if c.Mode != "" && c.Mode != "log" || len(c.Columns) > 0 || c.From != "" || len(c.Partition) > 0 {
		return fmt.Errorf(`%w: command descriptor: a put takes {"table":...} or {"append":...}`, mink.ErrInvalid)
	}
	return s.appendTable(ctx, t, m.DataHeader, in, stream.Send)
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
	if err := logTable(t); err != nil {
		return err
	}
	switch {
	case to.SchemaID < 1:
		return fmt.Errorf("%w: append: schema_id is %d, versions start at 1", mink.ErrInvalid, to.SchemaID)
	case int(to.SchemaID) > len(t.Schemas):
		return fmt.Errorf("append: schema %d of table %s is not known here yet: %w", to.SchemaID, t.Descriptor.Name(), mink.ErrUnavailable)
	}
	as, err := readSchema(header)
	if err != nil {
		return err
	}
	if err := t.Schemas[to.SchemaID-1].CheckArrow(as); err != nil {
		return fmt.Errorf("append to table %s: %w", t.Descriptor.Name(), err)
	}
	p := &pump{service: s, in: in, prepare: a.prepare}
	return p.run(ctx)
}

// prepare makes an append of a message as it came.
func (a *bucketAppend) prepare(_ context.Context, m *flight.FlightData) (unit, error) {
	if len(m.DataHeader) == 0 {
		return nil, fmt.Errorf("%w: append: a message without a batch", mink.ErrInvalid)
	}
	if err := a.service.checkSize(m); err != nil {
		return nil, err
	}
	if err := open(a.service, a.to.Bucket); err != nil {
		return nil, err
	}
	rows, err := arrowipc.Rows(m.DataHeader)
	if err != nil {
		return nil, err
	}
	if rows > 1<<31-1 {
		return nil, fmt.Errorf("a batch of %d rows: %w", rows, mink.ErrTooLarge)
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
		if err := decodeBody("app_metadata", m.AppMetadata, &md); err != nil {
			return nil, err
		}
		if md.Sequence < 0 {
			return nil, fmt.Errorf("%w: app_metadata: sequence is %d, the first is 0", mink.ErrInvalid, md.Sequence)
		}
		u.req.Sequence = md.Sequence
	}
	return u, nil
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

func (u *bucketUnit) append(last bool) error {
	p, err := u.of.log.AppendArrow(u.req)
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
	res, err := u.p.Result()
	if err != nil {
		return outcome(err, u.req.WriterID != mink.NoWriter)
	}
	return u.of.send(&flight.PutResult{AppMetadata: api.JSON(api.AppendResult{
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
		return fmt.Errorf("%w: send it again under the same sequence: %w", mink.ErrUnavailable, err)
	default:
		return fmt.Errorf("%w: %w", mink.ErrUnknownOutcome, err)
	}
}
