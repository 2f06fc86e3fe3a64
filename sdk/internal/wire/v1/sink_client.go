package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"google.golang.org/grpc"

	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

type sinkClient struct {
	conn   grpc.ClientConnInterface
	rpc    pb.SinkClient
	id     uint64
	d      sink.Description
	closed atomic.Bool

	watchAfter time.Duration // how long a call may be silent before it is watched
}

const (
	watchAfter = 5 * time.Second // most calls are over
	watchEvery = time.Second
)

// OpenTieringSink opens a sink in the plugin at the other end of conn. What it
// answers is a sink.Reader too, though ReaderOf may say no.
func OpenTieringSink(ctx context.Context, conn grpc.ClientConnInterface, options map[string]string) (sink.Sink, error) {
	s := &sinkClient{conn: conn, rpc: pb.NewSinkClient(conn), watchAfter: watchAfter}
	resp, err := s.rpc.Open(ctx, &pb.OpenSinkRequest{Options: options})
	if err != nil {
		return nil, sinks.failed(ctx, err, reads)
	}
	s.id, s.d = resp.GetSink(), decodeDescription(resp.GetDescription())
	if err := s.d.Validate(); err != nil || s.id == 0 {
		return nil, sinks.failed(ctx, protocolError("sink %d: %v", s.id, err), reads)
	}
	return s, nil
}

func (s *sinkClient) Describe() sink.Description { return s.d }

func (s *sinkClient) begin(ctx context.Context) error {
	if s.closed.Load() {
		return fmt.Errorf("%w: the sink is closed", sink.ErrUnavailable)
	}
	return ctx.Err()
}

func (s *sinkClient) Open(ctx context.Context, req sink.OpenRequest) (sink.Table, error) {
	if err := errors.Join(s.begin(ctx), req.Table.Validate()); err != nil {
		return nil, sinkCall("open", req.Table, "", err)
	}
	spec, err := encodeSpec(req.Table)
	if err != nil {
		return nil, sinkCall("open", req.Table, "", err)
	}
	resp, err := s.rpc.OpenTable(ctx, &pb.OpenTableRequest{Sink: s.id, Table: spec, Drop: req.Drop})
	if err == nil && resp.GetTable() == 0 {
		err = protocolError("a handle without an id")
	}
	if err != nil {
		return nil, sinkCall("open", req.Table, "", sinks.failed(ctx, err, reads))
	}
	return &tableClient{sink: s, spec: req.Table, id: resp.GetTable()}, nil
}

func (s *sinkClient) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if _, err := s.rpc.Close(ctx, &pb.CloseSinkRequest{Sink: s.id}); err != nil {
		return fmt.Errorf("close: %w", sinks.failed(ctx, err, reads))
	}
	return nil
}

func (s *sinkClient) Read(ctx context.Context, req sink.ReadRequest, yield func(arrow.RecordBatch, []mink.Change) bool) error {
	if err := s.begin(ctx); err != nil {
		return sinkCall("read", req.Table, "", err)
	}
	spec, err := encodeSpec(req.Table)
	if err != nil {
		return sinkCall("read", req.Table, "", err)
	}
	err = s.read(ctx, &pb.ReadTableRequest{Sink: s.id, Table: spec}, len(req.Table.PrimaryKey) > 0 && s.d.Changes == sink.ChangesKept, yield)
	if err != nil {
		err = sinkCall("read", req.Table, "", sinks.failed(ctx, err, reads))
	}
	return err
}

func (s *sinkClient) read(ctx context.Context, req *pb.ReadTableRequest, kinds bool, yield func(arrow.RecordBatch, []mink.Change) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.conn.NewStream(ctx, getDesc, pb.Sink_Read_FullMethodName)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(req); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		batch, changes, err := receiveBatch(stream, kinds)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		more := yield(batch, changes)
		batch.Release()
		if !more {
			return nil
		}
	}
}

// receiveBatch answers io.EOF at the end.
func receiveBatch(stream grpc.ClientStream, kinds bool) (arrow.RecordBatch, []mink.Change, error) {
	header := &pb.ReadTableHeader{}
	f := &frame{header: header}
	if err := stream.RecvMsg(f); err != nil {
		return nil, nil, err
	}
	if !f.has || header.GetSize() < 0 || header.GetSize() > sink.BatchBytesMax+schemaBytesMax {
		return nil, nil, protocolError("a batch without a header, or of %d bytes", header.GetSize())
	}
	var data []byte // grows with what comes, whatever the header says
	for {
		for _, c := range f.chunks {
			data = append(data, c...)
		}
		f.release()
		if int64(len(data)) >= header.GetSize() {
			break
		}
		f = &frame{}
		if err := stream.RecvMsg(f); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, nil, err
		}
	}
	if int64(len(data)) != header.GetSize() {
		return nil, nil, protocolError("the header says %d bytes and %d came", header.GetSize(), len(data))
	}
	_, batch, err := decodeIPC([][]byte{data})
	if err != nil || batch == nil {
		return nil, nil, protocolError("a batch that is none: %v", err)
	}
	changes := decodeChanges(header.GetChanges(), kinds)
	if kinds && int64(len(changes)) != batch.NumRows() {
		batch.Release()
		return nil, nil, protocolError("%d kinds of changes for %d rows", len(changes), batch.NumRows())
	}
	return batch, changes, nil
}

type tableClient struct {
	sink   *sinkClient
	spec   sink.TableSpec
	id     uint64
	round  sink.RoundID // the open one, for errors
	closed atomic.Bool
}

// begin refuses a call that is to have no effect.
func (t *tableClient) begin(ctx context.Context, requests ...error) error {
	if t.closed.Load() {
		return fmt.Errorf("%w: the handle is closed: open the table again", sink.ErrUnavailable)
	}
	return errors.Join(append(requests, t.sink.begin(ctx))...)
}

// watch hands what a call that takes long says of its progress to the listener of ctx,
// until stop is called.
func (t *tableClient) watch(ctx context.Context) (stop func()) {
	watching, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	timer := time.AfterFunc(t.sink.watchAfter, func() {
		defer close(done)
		stream, err := t.sink.rpc.Watch(watching, &pb.WatchTableRequest{Table: t.id})
		for err == nil { // a plugin without Watch is silent
			if _, err = stream.Recv(); err == nil {
				sink.Progress(ctx)
			}
		}
	})
	return func() {
		cancel()
		if !timer.Stop() {
			<-done
		}
	}
}

func (t *tableClient) failed(ctx context.Context, op string, round sink.RoundID, err error, ef effect) error {
	if err == nil {
		return nil
	}
	return sinkCall(op, t.spec, round, sinks.failed(ctx, err, ef))
}

func (t *tableClient) Recover(ctx context.Context, req sink.RecoverRequest) (sink.RecoverResponse, error) {
	if err := t.begin(ctx); err != nil {
		return sink.RecoverResponse{}, sinkCall("recover", t.spec, "", err)
	}
	defer t.watch(ctx)()
	resp, err := t.sink.rpc.Recover(ctx, &pb.RecoverRequest{Table: t.id, Fence: int64(req.Fence)})
	var c sink.Committed
	if err == nil {
		c, err = decodeCommitted(resp)
	}
	return sink.RecoverResponse{Committed: c}, t.failed(ctx, "recover", "", err, reads)
}

func (t *tableClient) BeginRound(ctx context.Context, req sink.BeginRoundRequest) (sink.BeginRoundResponse, error) {
	if err := t.begin(ctx, req.Validate()); err != nil {
		return sink.BeginRoundResponse{}, sinkCall("begin", t.spec, req.Round, err)
	}
	t.round = req.Round
	defer t.watch(ctx)()
	_, err := t.sink.rpc.BeginRound(ctx, &pb.BeginRoundRequest{Table: t.id, Round: string(req.Round), Base: string(req.Base), Fence: int64(req.Fence)})
	return sink.BeginRoundResponse{}, t.failed(ctx, "begin", req.Round, err, reads)
}

func (t *tableClient) Write(ctx context.Context, req sink.WriteRequest) (sink.WriteResponse, error) {
	if err := t.begin(ctx, req.Validate(t.spec)); err != nil {
		return sink.WriteResponse{}, sinkCall("write to", t.spec, t.round, err)
	}
	data, err := encodeBatch(req.Batch)
	if err != nil {
		return sink.WriteResponse{}, sinkCall("write to", t.spec, t.round, err)
	}
	header := &pb.WriteHeader{
		Table: t.id, Bucket: encodeBucket(req.Bucket), PartitionValues: req.PartitionValues, Changes: encodeChanges(req.Changes),
		Start: int64(req.Start), End: int64(req.End), Snapshot: req.Snapshot, Size: int64(len(data)),
	}
	defer t.watch(ctx)()
	err = sendObject(ctx, t.sink.conn, pb.Sink_Write_FullMethodName, header, [][]byte{data}, &pb.WriteResponse{})
	return sink.WriteResponse{}, t.failed(ctx, "write to", t.round, err, reads)
}

func (t *tableClient) Prepare(ctx context.Context, _ sink.PrepareRequest) (sink.PrepareResponse, error) {
	if err := t.begin(ctx); err != nil {
		return sink.PrepareResponse{}, sinkCall("prepare", t.spec, t.round, err)
	}
	defer t.watch(ctx)()
	resp, err := t.sink.rpc.Prepare(ctx, &pb.PrepareRequest{Table: t.id})
	if err == nil && len(resp.GetStaged()) > sink.StagedBytesMax {
		err = protocolError("%d bytes of staged state, at most %d", len(resp.GetStaged()), sink.StagedBytesMax)
	}
	if err != nil {
		return sink.PrepareResponse{}, t.failed(ctx, "prepare", t.round, err, reads)
	}
	return sink.PrepareResponse{Staged: resp.GetStaged()}, nil
}

func (t *tableClient) Commit(ctx context.Context, req sink.CommitRequest) (sink.CommitResponse, error) {
	if err := t.begin(ctx, req.Validate()); err != nil {
		return sink.CommitResponse{}, sinkCall("commit", t.spec, req.Round, err)
	}
	defer t.watch(ctx)()
	resp, err := t.sink.rpc.Commit(ctx, encodeCommit(t.id, req))
	out := sink.CommitResponse{Snapshot: resp.GetSnapshot()}
	if err == nil && out.Validate() != nil {
		err = protocolError("%v", out.Validate())
	}
	if err != nil {
		return sink.CommitResponse{}, t.failed(ctx, "commit", req.Round, err, writes)
	}
	return out, nil
}

func (t *tableClient) Abort(ctx context.Context, req sink.AbortRequest) (sink.AbortResponse, error) {
	if err := t.begin(ctx, req.Validate()); err != nil {
		return sink.AbortResponse{}, sinkCall("abort", t.spec, req.Round, err)
	}
	defer t.watch(ctx)()
	_, err := t.sink.rpc.Abort(ctx, &pb.AbortRequest{Table: t.id, Round: string(req.Round), Staged: req.Staged})
	return sink.AbortResponse{}, t.failed(ctx, "abort", req.Round, err, reads)
}

func (t *tableClient) SchemaChange(ctx context.Context, req sink.SchemaChangeRequest) (sink.SchemaChangeResponse, error) {
	if err := t.begin(ctx, req.Schema.Validate()); err != nil {
		return sink.SchemaChangeResponse{}, sinkCall("change the schema of", t.spec, "", err)
	}
	schema, err := encodeTableSchema(req.Schema)
	if err != nil {
		return sink.SchemaChangeResponse{}, sinkCall("change the schema of", t.spec, "", err)
	}
	defer t.watch(ctx)()
	_, err = t.sink.rpc.SchemaChange(ctx, &pb.SchemaChangeRequest{Table: t.id, Schema: schema})
	if err == nil {
		t.spec.Schema = req.Schema
	}
	return sink.SchemaChangeResponse{}, t.failed(ctx, "change the schema of", "", err, reads)
}

func (t *tableClient) Drop(ctx context.Context, _ sink.DropRequest) (sink.DropResponse, error) {
	if err := t.begin(ctx); err != nil {
		return sink.DropResponse{}, sinkCall("drop", t.spec, "", err)
	}
	defer t.watch(ctx)()
	_, err := t.sink.rpc.Drop(ctx, &pb.DropRequest{Table: t.id})
	return sink.DropResponse{}, t.failed(ctx, "drop", "", err, reads)
}

func (t *tableClient) Close() error {
	if t.closed.Swap(true) || t.sink.closed.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_, err := t.sink.rpc.CloseTable(ctx, &pb.CloseTableRequest{Table: t.id})
	return t.failed(ctx, "close", "", err, reads)
}
