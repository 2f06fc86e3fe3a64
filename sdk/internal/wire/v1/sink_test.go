package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"

	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

var sinkSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "note", Type: arrow.BinaryTypes.String, Nullable: true},
}, nil)

func sinkSpec() sink.TableSpec {
	return sink.TableSpec{ID: 7, Database: "d", Name: "t", Schema: sink.Schema{ID: 1, Arrow: sinkSchema}, BucketCount: 1}
}

func sinkBatch(notes ...string) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, sinkSchema)
	defer b.Release()
	for i, n := range notes {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.StringBuilder).Append(n)
	}
	return b.NewRecordBatch()
}

// fakeSink answers what it is told to.
type fakeSink struct {
	pb.UnimplementedSinkServer
	open    *pb.OpenSinkResponse
	table   *pb.OpenTableResponse
	recover *pb.RecoverResponse
	prepare *pb.PrepareResponse
	commit  *pb.CommitResponse
	read    []*pb.ReadTableResponse
}

func goodFake() *fakeSink {
	return &fakeSink{
		open: &pb.OpenSinkResponse{Sink: 1, Description: encodeDescription(sink.Description{
			Name: "fake", Delivery: sink.ExactlyOnce, Changes: sink.ChangesKept, ReadBack: true,
		})},
		table: &pb.OpenTableResponse{Table: 1}, recover: &pb.RecoverResponse{}, prepare: &pb.PrepareResponse{}, commit: &pb.CommitResponse{},
	}
}

func (f *fakeSink) Open(context.Context, *pb.OpenSinkRequest) (*pb.OpenSinkResponse, error) {
	return f.open, nil
}

func (f *fakeSink) OpenTable(context.Context, *pb.OpenTableRequest) (*pb.OpenTableResponse, error) {
	return f.table, nil
}

func (f *fakeSink) CloseTable(context.Context, *pb.CloseTableRequest) (*pb.CloseTableResponse, error) {
	return &pb.CloseTableResponse{}, nil
}

func (f *fakeSink) Recover(context.Context, *pb.RecoverRequest) (*pb.RecoverResponse, error) {
	return f.recover, nil
}

func (f *fakeSink) Prepare(context.Context, *pb.PrepareRequest) (*pb.PrepareResponse, error) {
	return f.prepare, nil
}

func (f *fakeSink) Commit(context.Context, *pb.CommitRequest) (*pb.CommitResponse, error) {
	return f.commit, nil
}

func (f *fakeSink) Read(_ *pb.ReadTableRequest, s grpc.ServerStreamingServer[pb.ReadTableResponse]) error {
	for _, r := range f.read {
		if err := s.Send(r); err != nil {
			return err
		}
	}
	return nil
}

// useFake makes every call whose answer has content, and answers the first error.
func useFake(t *testing.T, f *fakeSink) error {
	t.Helper()
	conn := Dial(t, func(s *grpc.Server) { pb.RegisterSinkServer(s, f) })
	s, err := OpenTieringSink(t.Context(), conn, nil)
	if err != nil {
		return err
	}
	r, ok := sink.ReaderOf(s)
	if !ok {
		t.Fatal("no reader")
	}
	if err := r.Read(t.Context(), sink.ReadRequest{Table: sinkSpec()}, func(arrow.RecordBatch, []mink.Change) bool { return true }); err != nil {
		return err
	}
	table, err := s.Open(t.Context(), sink.OpenRequest{Table: sinkSpec()})
	if err != nil {
		return err
	}
	if _, err := table.Recover(t.Context(), sink.RecoverRequest{Fence: 1}); err != nil {
		return err
	}
	if _, err := table.Prepare(t.Context(), sink.PrepareRequest{}); err != nil {
		return err
	}
	_, err = table.Commit(t.Context(), sink.CommitRequest{Round: "r", Fence: 1})
	return err
}

func TestMalformedAnswersOfSinksAreErrors(t *testing.T) {
	if err := useFake(t, goodFake()); err != nil {
		t.Fatal(err)
	}
	data, err := encodeBatch(sinkBatch("a"))
	if err != nil {
		t.Fatal(err)
	}
	bucket := &pb.BucketRef{TableId: 7, PartitionId: 1}
	for name, c := range map[string]struct {
		change func(*fakeSink)
		commit bool
	}{
		"sink without an id":      {change: func(f *fakeSink) { f.open.Sink = 0 }},
		"no description":          {change: func(f *fakeSink) { f.open.Description = nil }},
		"unknown delivery":        {change: func(f *fakeSink) { f.open.Description.Delivery = 99 }},
		"delivery that overflows": {change: func(f *fakeSink) { f.open.Description.Delivery = 258 }},
		"unknown changes":         {change: func(f *fakeSink) { f.open.Description.Changes = -1 }},
		"endless name":            {change: func(f *fakeSink) { f.open.Description.Name = strings.Repeat("x", 1000) }},
		"handle without an id":    {change: func(f *fakeSink) { f.table.Table = 0 }},
		"round id":                {change: func(f *fakeSink) { f.recover = &pb.RecoverResponse{Round: "../x", Fence: 1} }},
		"offsets without a round": {change: func(f *fakeSink) { f.recover.Ends = []*pb.BucketEnd{{Bucket: bucket, End: 1}} }},
		"negative offset": {change: func(f *fakeSink) {
			f.recover = &pb.RecoverResponse{Round: "r", Fence: 1, Ends: []*pb.BucketEnd{{Bucket: bucket, End: -1}}}
		}},
		"bucket twice": {change: func(f *fakeSink) {
			f.recover = &pb.RecoverResponse{Round: "r", Fence: 1, Ends: []*pb.BucketEnd{{Bucket: bucket, End: 1}, {Bucket: bucket, End: 2}}}
		}},
		"fence 0":             {change: func(f *fakeSink) { f.recover = &pb.RecoverResponse{Round: "r"} }},
		"endless staged":      {change: func(f *fakeSink) { f.prepare.Staged = make([]byte, sink.StagedBytesMax+1) }},
		"endless snapshot":    {change: func(f *fakeSink) { f.commit.Snapshot = strings.Repeat("x", sink.SnapshotLengthMax+1) }, commit: true},
		"batch without head":  {change: func(f *fakeSink) { f.read = []*pb.ReadTableResponse{{Data: data}} }},
		"batch of no size":    {change: func(f *fakeSink) { f.read = []*pb.ReadTableResponse{{Header: &pb.ReadTableHeader{Size: -1}}} }},
		"batch of huge size":  {change: func(f *fakeSink) { f.read = []*pb.ReadTableResponse{{Header: &pb.ReadTableHeader{Size: 1 << 60}}} }},
		"batch cut off":       {change: func(f *fakeSink) { f.read = frames(data, int64(len(data)), data[:20]) }},
		"batch with more":     {change: func(f *fakeSink) { f.read = frames(data, 20, data) }},
		"batch of garbage":    {change: func(f *fakeSink) { f.read = frames(data, 4000, bytes.Repeat([]byte("ab"), 2000)) }},
		"schema for a batch":  {change: func(f *fakeSink) { d, _ := encodeSchema(sinkSchema); f.read = frames(d, int64(len(d)), d) }},
		"batch with no bytes": {change: func(f *fakeSink) { f.read = frames(nil, 0, nil) }},
	} {
		t.Run(name, func(t *testing.T) {
			f := goodFake()
			c.change(f)
			err := useFake(t, f)
			if !errors.Is(err, sink.ErrUnavailable) || errors.Is(err, sink.ErrUnknownOutcome) != c.commit || !strings.Contains(err.Error(), "breaks the protocol") {
				t.Fatal(err)
			}
		})
	}
}

func frames(_ []byte, size int64, data []byte) []*pb.ReadTableResponse {
	return []*pb.ReadTableResponse{{Header: &pb.ReadTableHeader{Size: size}, Data: data}}
}

// countingSink is a sink whose calls can be held, and are counted.
type countingSink struct {
	sink.Sink
	sink.Table
	held    chan struct{} // each Recover takes one
	running atomic.Int32
	most    atomic.Int32
	writes  atomic.Int32
	drops   atomic.Int32 // opened for that
	closed  atomic.Int32
}

func (c *countingSink) Describe() sink.Description {
	return sink.Description{Name: "counting", Delivery: sink.AtLeastOnce, Changes: sink.ChangesKept}
}
func (c *countingSink) Close() error { c.closed.Add(1); return nil }
func (c *countingSink) Open(_ context.Context, req sink.OpenRequest) (sink.Table, error) {
	if req.Drop {
		c.drops.Add(1)
	}
	return countingTable{c}, nil
}

type countingTable struct{ *countingSink }

func (c countingTable) Recover(context.Context, sink.RecoverRequest) (sink.RecoverResponse, error) {
	c.most.Store(max(c.most.Load(), c.running.Add(1)))
	<-c.held
	c.running.Add(-1)
	return sink.RecoverResponse{}, mink.ErrFenced
}

func (c countingTable) Write(_ context.Context, req sink.WriteRequest) (sink.WriteResponse, error) {
	c.writes.Add(int32(req.Batch.NumRows())) //nolint:gosec // few
	return sink.WriteResponse{}, nil
}

func serveCounting(t *testing.T) (*countingSink, *grpc.ClientConn, io.Closer) {
	t.Helper()
	c := &countingSink{held: make(chan struct{})}
	var service io.Closer
	conn := Dial(t, func(s *grpc.Server) {
		service = RegisterSink(s, func(context.Context, map[string]string) (sink.Sink, error) { return c, nil })
	})
	return c, conn, service
}

// TestOneCallAtATimeReachesAHandle: a host that gave a call up makes the next one
// while the sink is still at the first.
func TestOneCallAtATimeReachesAHandle(t *testing.T) {
	c, conn, service := serveCounting(t)
	s, err := OpenTieringSink(t.Context(), conn, nil)
	if err != nil {
		t.Fatal(err)
	}
	table, err := s.Open(t.Context(), sink.OpenRequest{Table: sinkSpec()})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if _, err := table.Recover(ctx, sink.RecoverRequest{Fence: 1}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		cancel()
	}
	if n := c.most.Load(); n != 1 {
		t.Errorf("%d calls at once reached the handle", n)
	}
	if _, err := s.Open(t.Context(), sink.OpenRequest{Table: sinkSpec(), Drop: true}); err != nil || c.drops.Load() != 1 {
		t.Errorf("open to drop: %v, %d of them", err, c.drops.Load())
	}
	close(c.held)
	if _, err := table.Recover(t.Context(), sink.RecoverRequest{Fence: 1}); !errors.Is(err, sink.ErrFenced) || errors.Is(err, sink.ErrUnavailable) {
		t.Fatal(err)
	}
	if err := errors.Join(table.Close(), service.Close()); err != nil {
		t.Fatal(err)
	}
	if n := c.closed.Load(); n != 3 { // handles and sink
		t.Errorf("closed %d times", n)
	}
	if _, err := s.Open(t.Context(), sink.OpenRequest{Table: sinkSpec()}); !errors.Is(err, sink.ErrUnavailable) {
		t.Errorf("open after the end: %v", err)
	}
}

// slowSink is in Prepare until its host has heard three times that it goes on.
type slowSink struct {
	sink.Sink
	sink.Table
	heard chan struct{}
}

func (s slowSink) Describe() sink.Description {
	return sink.Description{Name: "slow", Delivery: sink.AtLeastOnce, Changes: sink.ChangesKept}
}
func (s slowSink) Close() error                                               { return nil }
func (s slowSink) Open(context.Context, sink.OpenRequest) (sink.Table, error) { return s, nil }
func (s slowSink) Prepare(ctx context.Context, _ sink.PrepareRequest) (sink.PrepareResponse, error) {
	for n := 0; n < 3; {
		sink.Progress(ctx)
		select {
		case <-s.heard:
			n++
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return sink.PrepareResponse{}, ctx.Err()
		}
	}
	return sink.PrepareResponse{Staged: []byte("done")}, nil
}

// A call that takes long is heard of, through the plugin's process; a sink that says
// nothing, or that has no Watch, is not, and its calls are as they were.
func TestProgressCrossesTheBorder(t *testing.T) {
	use := func(register func(*grpc.Server), heard func()) {
		t.Helper()
		s, err := OpenTieringSink(t.Context(), Dial(t, register), nil)
		if err != nil {
			t.Fatal(err)
		}
		s.(*sinkClient).watchAfter = 0
		table, err := s.Open(t.Context(), sink.OpenRequest{Table: sinkSpec()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := table.Prepare(sink.WithProgress(t.Context(), heard), sink.PrepareRequest{}); err != nil {
			t.Fatal(err)
		}
		if err := table.Close(); err != nil {
			t.Fatal(err)
		}
	}
	slow := slowSink{heard: make(chan struct{})}
	use(func(s *grpc.Server) {
		RegisterSink(s, func(context.Context, map[string]string) (sink.Sink, error) { return slow, nil })
	}, func() {
		select {
		case slow.heard <- struct{}{}:
		case <-t.Context().Done():
		}
	})
	f := goodFake()
	use(func(s *grpc.Server) { pb.RegisterSinkServer(s, f) }, func() { t.Error("a plugin without Watch was heard") })
}

func TestMalformedBatchesDoNotReachASink(t *testing.T) {
	c, conn, _ := serveCounting(t)
	s, err := OpenTieringSink(t.Context(), conn, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(t.Context(), sink.OpenRequest{Table: sinkSpec()}); err != nil {
		t.Fatal(err)
	}
	good, err := encodeBatch(sinkBatch("a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	var two bytes.Buffer
	w := ipc.NewWriter(&two, ipc.WithSchema(sinkSchema))
	if err := errors.Join(w.Write(sinkBatch("a")), w.Write(sinkBatch("b")), w.Close()); err != nil {
		t.Fatal(err)
	}
	write := func(size int64, data []byte) error {
		header := &pb.WriteHeader{Table: 2, Bucket: &pb.BucketRef{TableId: 7}, End: 2, Size: size}
		return sinks.failed(t.Context(), sendObject(t.Context(), conn, pb.Sink_Write_FullMethodName, header, [][]byte{data}, &pb.WriteResponse{}), reads)
	}
	spoilt := bytes.Clone(good)
	for i := len(spoilt) - 200; i < len(spoilt)-8; i++ { // lengths and offsets
		spoilt[i] = 0xff
	}
	for name, c := range map[string]struct {
		size int64
		data []byte
	}{
		"negative":    {-1, good},
		"huge":        {1 << 50, good},
		"too long":    {10, good},
		"too short":   {int64(len(good)) + 1, good},
		"garbage":     {1000, bytes.Repeat([]byte{0xff}, 1000)},
		"nothing":     {0, nil},
		"two batches": {int64(two.Len()), two.Bytes()},
		"spoilt":      {int64(len(spoilt)), spoilt},
	} {
		if err := write(c.size, c.data); !errors.Is(err, sink.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := c.writes.Load(); n != 0 {
		t.Errorf("%d rows reached the sink", n)
	}
	sendErr := sendObject(t.Context(), conn, pb.Sink_Write_FullMethodName, &pb.WriteHeader{Table: 2, Bucket: &pb.BucketRef{TableId: 7}, End: 2, Size: int64(len(good))}, [][]byte{good}, &pb.WriteResponse{})
	if sendErr != nil || c.writes.Load() != 2 {
		t.Errorf("a good one: %v, %d rows", sendErr, c.writes.Load())
	}
}

func TestErrorsOfSinksCrossTheBorder(t *testing.T) {
	for _, s := range []error{sink.ErrNotExist, sink.ErrAlreadyExists, sink.ErrConflict, sink.ErrFenced, sink.ErrInvalid, sink.ErrUnauthorized, sink.ErrThrottled,
		sink.ErrUnavailable, sink.ErrUnknownOutcome, sink.ErrCorrupt, sink.ErrNoSpace, sink.ErrReadOnly, sink.ErrUnimplemented} {
		err := sinks.failed(t.Context(), sinks.status(fmt.Errorf("round r: %w", s)), writes)
		for _, w := range sinks.words {
			if errors.Is(err, w.sentinel) != errors.Is(w.sentinel, s) {
				t.Errorf("%v is %v: %v", s, w.sentinel, errors.Is(err, w.sentinel))
			}
		}
	}
}

// FuzzDecodeIPC spoils everything but the metadata, which Arrow's reader trusts:
// whatever comes, an error or a batch all of whose values can be looked at.
func FuzzDecodeIPC(f *testing.F) {
	good, err := encodeBatch(sinkBatch("a", "", "ccc", strings.Repeat("d", 40)))
	if err != nil {
		f.Fatal(err)
	}
	metadata := 8 + int(binary.LittleEndian.Uint32(good[4:]))
	body := metadata + 8 + int(binary.LittleEndian.Uint32(good[metadata+4:]))
	f.Add(uint32(0), uint32(0), good[body:])
	f.Add(uint32(7), uint32(1<<30), good[body:len(good)-9])
	f.Fuzz(func(t *testing.T, first, second uint32, tail []byte) {
		data := append(bytes.Clone(good[:body]), tail...)
		binary.LittleEndian.PutUint32(data[4:], binary.LittleEndian.Uint32(data[4:])^first)
		binary.LittleEndian.PutUint32(data[metadata+4:], binary.LittleEndian.Uint32(data[metadata+4:])^second)
		_, rec, err := decodeIPC([][]byte{data[:len(data)/2], data[len(data)/2:]})
		if err != nil || rec == nil {
			return
		}
		defer rec.Release()
		for _, c := range rec.Columns() {
			for i := range c.Len() {
				_ = c.ValueStr(i)
			}
		}
	})
}
