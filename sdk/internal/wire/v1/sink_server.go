package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// OpenSink makes a sink from options.
type OpenSink func(ctx context.Context, options map[string]string) (sink.Sink, error)

type sinkServer struct {
	pb.UnimplementedSinkServer
	open      OpenSink
	receiving *semaphore.Weighted

	mu struct {
		sync.Mutex
		last   uint64
		sinks  map[uint64]*openSink
		tables map[uint64]*openTable
		closed bool
	}
}

type openSink struct{ sink.Sink }

// openTable lets one call at a time reach a handle: a host whose call was
// cancelled makes the next one while the sink is still at the first.
type openTable struct {
	turn  chan struct{} // holds one token
	sink  uint64
	table sink.Table
	kinds bool          // of rows: a primary-key table
	alive chan struct{} // holds a token when a call said that it goes on
}

// RegisterSink serves sinks that open makes. Closing what it answers closes every
// table and sink and lets no other open.
func RegisterSink(s *grpc.Server, open OpenSink) io.Closer {
	srv := &sinkServer{open: open, receiving: semaphore.NewWeighted(receiveMax)}
	srv.mu.sinks, srv.mu.tables = map[uint64]*openSink{}, map[uint64]*openTable{}
	pb.RegisterSinkServer(s, sinkService{srv})
	return srv
}

func (s *sinkServer) Close() error {
	s.mu.Lock()
	s.mu.closed = true
	ids := slices.Collect(maps.Keys(s.mu.sinks))
	s.mu.Unlock()
	errs := make([]error, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() { errs[i] = s.closeSink(context.Background(), id) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *sinkServer) closeSink(ctx context.Context, id uint64) error {
	s.mu.Lock()
	opened, ok := s.mu.sinks[id]
	delete(s.mu.sinks, id)
	var tables []uint64
	for t, entry := range s.mu.tables {
		if entry.sink == id {
			tables = append(tables, t)
		}
	}
	s.mu.Unlock()
	if !ok {
		return nil
	}
	var err error
	for _, t := range tables {
		err = errors.Join(err, s.closeTable(ctx, t))
	}
	return errors.Join(err, opened.Close())
}

func (s *sinkServer) closeTable(ctx context.Context, id uint64) error {
	s.mu.Lock()
	t, ok := s.mu.tables[id]
	delete(s.mu.tables, id)
	s.mu.Unlock()
	if !ok {
		return nil
	}
	if err := t.lock(ctx); err != nil {
		go func() { // the host does not wait: it is closed when its call ends
			<-t.turn
			_ = t.table.Close()
		}()
		return err
	}
	return t.table.Close()
}

func (t *openTable) lock(ctx context.Context) error {
	select {
	case <-t.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *openTable) unlock() { t.turn <- struct{}{} }

// lives is what the calls of a handle tell sink.Progress.
func (t *openTable) lives() {
	select {
	case t.alive <- struct{}{}:
	default:
	}
}

func (s *sinkServer) table(id uint64) (*openTable, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.mu.tables[id]
	if !ok {
		return nil, sinks.status(fmt.Errorf("%w: the handle is closed: open the table again", sink.ErrUnavailable))
	}
	return t, nil
}

// with runs a call on a handle.
func (s *sinkServer) with(ctx context.Context, id uint64, call func(context.Context, *openTable) error) error {
	t, err := s.table(id)
	if err != nil {
		return err
	}
	if err := t.lock(ctx); err != nil {
		return sinks.status(err)
	}
	defer t.unlock()
	return sinks.status(call(sink.WithProgress(ctx, t.lives), t))
}

// Watch ends with the call of the host that it is for.
func (s *sinkServer) Watch(req *pb.WatchTableRequest, stream grpc.ServerStreamingServer[pb.WatchTableResponse]) error {
	t, err := s.table(req.GetTable())
	if err != nil {
		return err
	}
	ctx := stream.Context()
	for {
		select {
		case <-t.alive:
			if err := stream.Send(&pb.WatchTableResponse{}); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-time.After(watchEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *sinkServer) sink(id uint64) (*openSink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	opened, ok := s.mu.sinks[id]
	if !ok {
		return nil, sinks.status(fmt.Errorf("%w: the sink is closed", sink.ErrUnavailable))
	}
	return opened, nil
}

var errEnding = fmt.Errorf("%w: the plugin is ending", sink.ErrUnavailable)

func (s *sinkServer) Open(ctx context.Context, req *pb.OpenSinkRequest) (*pb.OpenSinkResponse, error) {
	opened, err := s.open(ctx, req.GetOptions())
	if err != nil {
		return nil, sinks.status(err)
	}
	d := opened.Describe()
	if _, ok := sink.ReaderOf(opened); !ok {
		d.ReadBack = false
	}
	if err := d.Validate(); err != nil {
		return nil, sinks.status(errors.Join(err, opened.Close()))
	}
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil, sinks.status(errors.Join(errEnding, opened.Close()))
	}
	defer s.mu.Unlock()
	s.mu.last++
	s.mu.sinks[s.mu.last] = &openSink{opened}
	return &pb.OpenSinkResponse{Sink: s.mu.last, Description: encodeDescription(d)}, nil
}

func (s *sinkServer) OpenTable(ctx context.Context, req *pb.OpenTableRequest) (*pb.OpenTableResponse, error) {
	spec, err := decodeSpec(req.GetTable())
	if err != nil {
		return nil, sinks.status(err)
	}
	opened, err := s.sink(req.GetSink())
	if err != nil {
		return nil, err
	}
	table, err := opened.Open(ctx, sink.OpenRequest{Table: spec, Drop: req.GetDrop()})
	if err != nil {
		return nil, sinks.status(err)
	}
	t := &openTable{turn: make(chan struct{}, 1), sink: req.GetSink(), table: table, kinds: len(spec.PrimaryKey) > 0, alive: make(chan struct{}, 1)}
	t.unlock()
	s.mu.Lock()
	if _, ok := s.mu.sinks[t.sink]; !ok { // closed meanwhile
		s.mu.Unlock()
		return nil, sinks.status(errors.Join(errEnding, table.Close()))
	}
	defer s.mu.Unlock()
	s.mu.last++
	s.mu.tables[s.mu.last] = t
	return &pb.OpenTableResponse{Table: s.mu.last}, nil
}

// sinkService gives the RPC Close its name back, which the server's own Close has.
type sinkService struct{ *sinkServer }

func (s sinkService) Close(ctx context.Context, req *pb.CloseSinkRequest) (*pb.CloseSinkResponse, error) {
	return &pb.CloseSinkResponse{}, sinks.status(s.closeSink(ctx, req.GetSink()))
}

func (s *sinkServer) CloseTable(ctx context.Context, req *pb.CloseTableRequest) (*pb.CloseTableResponse, error) {
	return &pb.CloseTableResponse{}, sinks.status(s.closeTable(ctx, req.GetTable()))
}

func (s *sinkServer) Recover(ctx context.Context, req *pb.RecoverRequest) (resp *pb.RecoverResponse, err error) {
	err = s.with(ctx, req.GetTable(), func(ctx context.Context, t *openTable) error {
		r, err := t.table.Recover(ctx, sink.RecoverRequest{Fence: mink.LeaseEpoch(req.GetFence())})
		resp = encodeCommitted(r.Committed)
		return err
	})
	return resp, err
}

func (s *sinkServer) BeginRound(ctx context.Context, req *pb.BeginRoundRequest) (*pb.BeginRoundResponse, error) {
	in := sink.BeginRoundRequest{Round: sink.RoundID(req.GetRound()), Base: sink.RoundID(req.GetBase()), Fence: mink.LeaseEpoch(req.GetFence())}
	return &pb.BeginRoundResponse{}, s.with(ctx, req.GetTable(), func(ctx context.Context, t *openTable) error {
		if err := in.Validate(); err != nil {
			return err
		}
		_, err := t.table.BeginRound(ctx, in)
		return err
	})
}

func (s *sinkServer) Write(stream grpc.ClientStreamingServer[pb.WriteRequest, pb.WriteResponse]) error {
	header := &pb.WriteHeader{}
	in, err := receive(stream, header, header.GetSize, s.receiving, sink.BatchBytesMax+schemaBytesMax, &sinks)
	if err != nil {
		return err
	}
	_, batch, err := decodeIPC(in.chunks) // copies
	in.done(nil)
	if err == nil && batch == nil {
		err = fmt.Errorf("%w: Arrow IPC without a batch", sink.ErrInvalid)
	}
	if err != nil {
		return sinks.status(err)
	}
	defer batch.Release()
	ctx := stream.Context()
	err = s.with(ctx, header.GetTable(), func(ctx context.Context, t *openTable) error {
		_, err := t.table.Write(ctx, sink.WriteRequest{
			Bucket: decodeBucket(header.GetBucket()), PartitionValues: header.GetPartitionValues(), Batch: batch,
			Changes: decodeChanges(header.GetChanges(), t.kinds), Start: mink.Offset(header.GetStart()), End: mink.Offset(header.GetEnd()),
			Snapshot: header.GetSnapshot(),
		})
		return err
	})
	if err != nil {
		return err
	}
	return stream.SendAndClose(&pb.WriteResponse{})
}

func (s *sinkServer) Prepare(ctx context.Context, req *pb.PrepareRequest) (resp *pb.PrepareResponse, err error) {
	err = s.with(ctx, req.GetTable(), func(ctx context.Context, t *openTable) error {
		r, err := t.table.Prepare(ctx, sink.PrepareRequest{})
		resp = &pb.PrepareResponse{Staged: r.Staged}
		return err
	})
	return resp, err
}

func (s *sinkServer) Commit(ctx context.Context, req *pb.CommitRequest) (resp *pb.CommitResponse, err error) {
	in, err := decodeCommit(req)
	if err != nil {
		return nil, sinks.status(err)
	}
	err = s.with(ctx, req.GetTable(), func(ctx context.Context, t *openTable) error {
		r, err := t.table.Commit(ctx, in)
		resp = &pb.CommitResponse{Snapshot: r.Snapshot}
		return err
	})
	return resp, err
}

func (s *sinkServer) Abort(ctx context.Context, req *pb.AbortRequest) (*pb.AbortResponse, error) {
	in := sink.AbortRequest{Round: sink.RoundID(req.GetRound()), Staged: req.GetStaged()}
	return &pb.AbortResponse{}, s.with(ctx, req.GetTable(), func(ctx context.Context, t *openTable) error {
		if err := in.Validate(); err != nil {
			return err
		}
		_, err := t.table.Abort(ctx, in)
		return err
	})
}

func (s *sinkServer) SchemaChange(ctx context.Context, req *pb.SchemaChangeRequest) (*pb.SchemaChangeResponse, error) {
	schema, err := decodeTableSchema(req.GetSchema())
	if err != nil {
		return nil, sinks.status(err)
	}
	return &pb.SchemaChangeResponse{}, s.with(ctx, req.GetTable(), func(ctx context.Context, t *openTable) error {
		_, err := t.table.SchemaChange(ctx, sink.SchemaChangeRequest{Schema: schema})
		return err
	})
}

func (s *sinkServer) Drop(ctx context.Context, req *pb.DropRequest) (*pb.DropResponse, error) {
	return &pb.DropResponse{}, s.with(ctx, req.GetTable(), func(ctx context.Context, t *openTable) error {
		_, err := t.table.Drop(ctx, sink.DropRequest{})
		return err
	})
}

func (s *sinkServer) Read(req *pb.ReadTableRequest, stream grpc.ServerStreamingServer[pb.ReadTableResponse]) error {
	spec, err := decodeSpec(req.GetTable())
	if err != nil {
		return sinks.status(err)
	}
	opened, err := s.sink(req.GetSink())
	if err != nil {
		return err
	}
	r, ok := sink.ReaderOf(opened.Sink)
	if !ok {
		return sinks.status(fmt.Errorf("%w: reading rows back", sink.ErrUnimplemented))
	}
	var sending error
	err = r.Read(stream.Context(), sink.ReadRequest{Table: spec}, func(batch arrow.RecordBatch, changes []mink.Change) bool {
		sending = sendBatch(stream, batch, changes)
		return sending == nil
	})
	return sinks.status(errors.Join(err, sending))
}

func sendBatch(stream grpc.ServerStream, batch arrow.RecordBatch, changes []mink.Change) error {
	data, err := encodeBatch(batch)
	if err != nil {
		return err
	}
	f := &frame{header: &pb.ReadTableHeader{Changes: encodeChanges(changes), Size: int64(len(data))}}
	for rest := f.fill([][]byte{data}); ; rest = f.fill(rest) {
		if err := stream.SendMsg(f); err != nil || len(rest) == 0 {
			return err
		}
		f = &frame{}
	}
}
