package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/mink-project/mink/core/builtin/memstore"
	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
	"github.com/mink-project/mink/sdk/objstore"
)

// newShared makes memory whose other side is this process too.
func newShared(t *testing.T) *Shared {
	t.Helper()
	s := NewShared()
	if s == nil {
		t.Skip("no shared memory here")
	}
	t.Cleanup(s.Close)
	return s
}

func serveShared(t *testing.T, s *Shared, inner objstore.Store) objstore.Store {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(ServerOptions()...)
	RegisterObjectStore(srv, func(context.Context, string, map[string]string) (objstore.Store, error) { return inner, nil }, Region(s.mem))
	go srv.Serve(l) //nolint:errcheck // ends with Stop
	conn, err := grpc.NewClient("unix:"+path, append(DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); srv.Stop() })
	store, err := OpenObjectStore(t.Context(), conn, "x://", nil, s)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func pattern(seed byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed + byte(i>>9)
	}
	return b
}

func free(s *Shared) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.free)
}

// noMessages fails when an object's bytes come as messages.
type noMessages struct {
	objstore.Store
	t    *testing.T
	into *Shared
}

func (s noMessages) GetRange(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	if len(req.Into) == 0 {
		s.t.Error("a read came without a span")
	}
	return s.Store.GetRange(ctx, req)
}

func TestObjectsPassThroughSharedMemory(t *testing.T) {
	shared := newShared(t)
	s := serveShared(t, shared, noMessages{memstore.New(memstore.Default()), t, shared})
	for _, size := range []int{sharedFrom, 1 << 20, slotSize} {
		want := pattern(byte(size), size)
		_, err := s.Put(t.Context(), objstore.PutRequest{
			Key: "k", Chunks: [][]byte{want[:7], nil, want[7:]}, CRC32C: objstore.Checksum(want), HasCRC32C: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, length := range []int64{int64(size), -1} {
			got, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "k", Length: length})
			if err != nil || !bytes.Equal(got.Data, want) {
				t.Fatalf("%d bytes of %d, %v", len(got.Data), size, err)
			}
		}
		if free(shared) != slotCount {
			t.Fatalf("%d slots are free after answered calls", free(shared))
		}
	}
	// Answers that are errors free the slot as well.
	_, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "absent", Length: sharedFrom})
	if !errors.Is(err, objstore.ErrNotExist) || free(shared) != slotCount {
		t.Errorf("%v, %d free", err, free(shared))
	}
	_, err = s.Put(t.Context(), objstore.PutRequest{Key: "k", Chunks: [][]byte{pattern(1, sharedFrom)}, CreateOnly: true})
	if !errors.Is(err, objstore.ErrAlreadyExists) || free(shared) != slotCount {
		t.Errorf("%v, %d free", err, free(shared))
	}
	_, err = s.Put(t.Context(), objstore.PutRequest{Key: "bad", Chunks: [][]byte{pattern(1, sharedFrom)}, HasCRC32C: true})
	if !errors.Is(err, objstore.ErrCorrupt) {
		t.Error(err)
	}
}

// lateStore goes on with what it was given after its caller's context is over: it
// writes into the memory of a read, and reads the chunks of a write.
type lateStore struct {
	objstore.Store
	late sync.WaitGroup
	seen chan []byte
}

func (s *lateStore) GetRange(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	if req.Key != "late" {
		return s.Store.GetRange(ctx, req)
	}
	if req.Filled != nil {
		req.Filled(req.Length / 2)
	}
	<-ctx.Done()
	into := req.Into
	s.late.Go(func() {
		for range 40 {
			time.Sleep(5 * time.Millisecond)
			copy(into, bytes.Repeat([]byte{0xee}, len(into)))
		}
	})
	return objstore.GetRangeResponse{}, ctx.Err()
}

func (s *lateStore) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	if req.Key != "late" {
		return s.Store.Put(ctx, req)
	}
	s.late.Go(func() {
		time.Sleep(200 * time.Millisecond)
		s.seen <- bytes.Join(req.Chunks, nil)
	})
	return objstore.PutResponse{}, fmt.Errorf("%w: an attempt is under way", objstore.ErrUnknownOutcome)
}

// The safety rule: memory that somebody in the plugin may still touch is in no other
// call.
func TestSlotOfAnUnansweredReadIsNotUsedAgain(t *testing.T) {
	shared := newShared(t)
	inner := &lateStore{Store: memstore.New(memstore.Default())}
	s := serveShared(t, shared, inner)
	want := pattern(3, 1<<20)
	if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "k", Chunks: [][]byte{want}}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := s.GetRange(ctx, objstore.GetRangeRequest{Key: "late", Length: 1 << 20})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	}
	if shared.Lost() != 3 || free(shared) != slotCount-3 {
		t.Errorf("%d slots lost, %d free", shared.Lost(), free(shared))
	}
	for deadline := time.Now().Add(250 * time.Millisecond); time.Now().Before(deadline); {
		got, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "k", Length: -1})
		if err != nil || !bytes.Equal(got.Data, want) {
			t.Fatalf("foreign bytes, %v", err)
		}
	}
	inner.late.Wait()
}

func TestChunksOfAFailedWriteStayWhatTheyWere(t *testing.T) {
	shared := newShared(t)
	inner := &lateStore{Store: memstore.New(memstore.Default()), seen: make(chan []byte, 1)}
	s := serveShared(t, shared, inner)
	want := pattern(9, 1<<20)
	if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "late", Chunks: [][]byte{want}}); !errors.Is(err, objstore.ErrUnknownOutcome) {
		t.Fatal(err)
	}
	for i := range 2 * slotCount { // every slot is used again
		if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "k", Chunks: [][]byte{pattern(byte(100+i), 1<<20)}}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(<-inner.seen, want) {
		t.Error("a late attempt reads foreign bytes")
	}
}

func TestWithoutAFreeSlotBytesGoAsMessages(t *testing.T) {
	shared := newShared(t)
	s := serveShared(t, shared, memstore.New(memstore.Default()))
	for range slotCount {
		shared.take(sharedFrom).done(false)
	}
	if shared.take(sharedFrom) != nil || shared.Lost() != slotCount {
		t.Fatalf("%d lost", shared.Lost())
	}
	want := pattern(5, 3<<20)
	if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "k", Chunks: [][]byte{want}}); err != nil {
		t.Fatal(err)
	}
	got, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "k", Length: -1})
	if err != nil || !bytes.Equal(got.Data, want) {
		t.Fatalf("%d bytes, %v", len(got.Data), err)
	}
}

func TestMemoryOutlivesTheCallsThatUseIt(t *testing.T) {
	shared := newShared(t)
	a, b := shared.take(sharedFrom), shared.take(sharedFrom)
	shared.Close()
	a.fill([][]byte{pattern(1, sharedFrom)}) // a fault if it were unmapped
	a.done(true)
	b.fill([][]byte{pattern(1, sharedFrom)})
	b.done(false)
	if shared.mem != nil {
		t.Error("the memory is not given back after the last call")
	}
	if shared.take(sharedFrom) != nil {
		t.Error("a slot of closed memory")
	}
}

func TestPluginCannotShrinkTheMemory(t *testing.T) {
	shared := newShared(t)
	if err := shared.File().Truncate(4096); err == nil {
		t.Error("the host's next read would be a bus error")
	}
}

func TestBytesWithoutASpanToLieInAreRefused(t *testing.T) {
	for name, answer := range map[string]*pb.GetRangeHeader{
		"no span asked for":  {Size: 100, Length: 100, InSpan: true},
		"more than the span": {Size: slotSize + 1, Length: slotSize + 1, InSpan: true},
	} {
		shared := newShared(t)
		length := answer.GetLength()
		path := filepath.Join(t.TempDir(), "s")
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
		if err != nil {
			t.Fatal(err)
		}
		srv := grpc.NewServer(ServerOptions()...)
		pb.RegisterObjectStoreServer(srv, liar{header: answer})
		go srv.Serve(l) //nolint:errcheck // ends with Stop
		conn, err := grpc.NewClient("unix:"+path, append(DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			t.Fatal(err)
		}
		s, err := OpenObjectStore(t.Context(), conn, "x://", nil, shared)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "k", Length: length}); !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		_ = conn.Close()
		srv.Stop()
	}
}

// liar answers every read with one header.
type liar struct {
	pb.UnimplementedObjectStoreServer
	header *pb.GetRangeHeader
}

func (liar) Open(context.Context, *pb.OpenStoreRequest) (*pb.OpenStoreResponse, error) {
	return &pb.OpenStoreResponse{Store: 1, SharedMemory: true, Capabilities: &pb.Capabilities{ListPageMax: 1, PutSizeMax: 1}}, nil
}

func (l liar) GetRange(_ *pb.GetRangeRequest, stream grpc.ServerStreamingServer[pb.GetRangeResponse]) error {
	return stream.Send(&pb.GetRangeResponse{Header: l.header})
}

func FuzzSpan(f *testing.F) {
	f.Add(uint64(0), uint64(8))
	f.Add(uint64(1), ^uint64(0))
	f.Add(^uint64(0), uint64(2))
	f.Fuzz(func(t *testing.T, offset, length uint64) {
		r := Region(make([]byte, 64))
		b, err := r.at(&pb.Span{Offset: offset, Length: length})
		inside := length <= 64 && offset <= 64-length
		if inside != (err == nil) || err == nil && uint64(len(b)) != length {
			t.Fatalf("[%d, +%d): %d bytes, %v", offset, length, len(b), err)
		}
	})
}
