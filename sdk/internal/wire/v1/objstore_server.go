package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
	"github.com/mink-project/mink/sdk/objstore"
)

// receiveMax bounds the bytes of the objects that a plugin is receiving and
// writing, all together; callers beyond it wait. An object above it goes alone.
const receiveMax = 256 << 20

// OpenStore makes a store from a URI and options.
type OpenStore func(ctx context.Context, uri string, options map[string]string) (objstore.Store, error)

type objectStoreServer struct {
	pb.UnimplementedObjectStoreServer
	open      OpenStore
	memory    Region
	receiving *semaphore.Weighted

	mu struct {
		sync.Mutex
		last   uint64
		stores map[uint64]objstore.Store
		closed bool
	}
}

// RegisterObjectStore serves stores that open makes; memory is what the host
// shares, nil for nothing. Closing what it answers closes every store and lets no
// other open.
func RegisterObjectStore(s *grpc.Server, open OpenStore, memory Region) io.Closer {
	srv := &objectStoreServer{open: open, memory: memory, receiving: semaphore.NewWeighted(receiveMax)}
	srv.mu.stores = map[uint64]objstore.Store{}
	pb.RegisterObjectStoreServer(s, storeService{srv})
	return srv
}

func (s *objectStoreServer) Close() error {
	s.mu.Lock()
	s.mu.closed = true
	stores := slices.Collect(maps.Values(s.mu.stores))
	clear(s.mu.stores)
	s.mu.Unlock()
	errs := make([]error, len(stores))
	var wg sync.WaitGroup
	for i, store := range stores {
		wg.Go(func() { errs[i] = store.Close() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *objectStoreServer) store(id uint64) (objstore.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	store, ok := s.mu.stores[id]
	if !ok {
		return nil, objectStore.status(fmt.Errorf("%w: it is closed", objstore.ErrUnavailable))
	}
	return store, nil
}

func (s *objectStoreServer) parts(id uint64) (objstore.Multiparter, error) {
	store, err := s.store(id)
	if err != nil {
		return nil, err
	}
	m, ok := objstore.Multipart(store)
	if !ok {
		return nil, objectStore.status(fmt.Errorf("%w: multipart uploads", objstore.ErrUnimplemented))
	}
	return m, nil
}

func (s *objectStoreServer) Open(ctx context.Context, req *pb.OpenStoreRequest) (*pb.OpenStoreResponse, error) {
	store, err := s.open(ctx, req.GetUri(), req.GetOptions())
	if err != nil {
		return nil, objectStore.status(err)
	}
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil, objectStore.status(errors.Join(fmt.Errorf("%w: the plugin is ending", objstore.ErrUnavailable), store.Close()))
	}
	defer s.mu.Unlock()
	s.mu.last++
	s.mu.stores[s.mu.last] = store
	c := store.Capabilities()
	if _, ok := objstore.Multipart(store); !ok {
		c.PartSizeMin, c.PartSizeMax = 0, 0
	}
	return &pb.OpenStoreResponse{Store: s.mu.last, SharedMemory: s.memory != nil, Capabilities: &pb.Capabilities{
		CreateOnlyPut: c.CreateOnlyPut, CompareAndSwap: c.CompareAndSwap, ListPageMax: int64(c.ListPageMax),
		PutSizeMax: c.PutSizeMax, PartSizeMin: c.PartSizeMin, PartSizeMax: c.PartSizeMax,
		PutLatency: durationpb.New(c.PutLatency), Local: c.Local,
	}}, nil
}

func (s *objectStoreServer) closeStore(id uint64) error {
	s.mu.Lock()
	store, ok := s.mu.stores[id]
	delete(s.mu.stores, id)
	s.mu.Unlock()
	if !ok {
		return nil
	}
	return store.Close()
}

// storeService gives the RPC Close its name back, which the server's own Close
// has.
type storeService struct{ *objectStoreServer }

func (s storeService) Close(_ context.Context, req *pb.CloseStoreRequest) (*pb.CloseStoreResponse, error) {
	return &pb.CloseStoreResponse{}, objectStore.status(s.closeStore(req.GetStore()))
}

func (s *objectStoreServer) Put(stream grpc.ClientStreamingServer[pb.PutRequest, pb.PutResponse]) error {
	header := &pb.PutHeader{}
	object, err := s.receive(stream, header)
	if err != nil {
		return err
	}
	store, err := s.store(header.GetStore())
	if err != nil {
		object.done(err)
		return err
	}
	resp, err := store.Put(stream.Context(), objstore.PutRequest{
		Key: header.GetKey(), Chunks: object.chunks, CreateOnly: header.GetCreateOnly(), IfMatch: header.GetIfMatch(),
		CRC32C: header.GetCrc32C(), HasCRC32C: header.Crc32C != nil,
	})
	object.done(err)
	if err != nil {
		return objectStore.status(err)
	}
	return stream.SendAndClose(&pb.PutResponse{Version: resp.Version})
}

func (s *objectStoreServer) PutPart(stream grpc.ClientStreamingServer[pb.PutPartRequest, pb.PutPartResponse]) error {
	header := &pb.PutPartHeader{}
	object, err := s.receive(stream, header)
	if err != nil {
		return err
	}
	store, err := s.parts(header.GetStore())
	if err != nil {
		object.done(err)
		return err
	}
	part, err := store.PutPart(stream.Context(), objstore.PutPartRequest{
		Key: header.GetKey(), Upload: objstore.UploadID(header.GetUpload()), Number: int(header.GetNumber()),
		Chunks: object.chunks, CRC32C: header.GetCrc32C(), HasCRC32C: header.Crc32C != nil,
	})
	object.done(err)
	if err != nil {
		return objectStore.status(err)
	}
	return stream.SendAndClose(&pb.PutPartResponse{Part: &pb.Part{Number: int32(part.Number), Size: part.Size, Tag: part.Tag}}) //nolint:gosec // as asked
}

// GetRange puts the bytes into the request's span when there is one and they fit;
// else it sends the store's memory as it lies: nobody else has it.
func (s *objectStoreServer) GetRange(req *pb.GetRangeRequest, stream grpc.ServerStreamingServer[pb.GetRangeResponse]) error {
	store, err := s.store(req.GetStore())
	if err != nil {
		return err
	}
	span, err := s.memory.at(req.GetSpan())
	if err != nil {
		return objectStore.status(err)
	}
	ask := objstore.GetRangeRequest{Key: req.GetKey(), Offset: req.GetOffset(), Length: req.GetLength(), Into: span}
	told := announcer{stream: stream}
	if req.GetProgress() {
		ask.Filled = told.tell
	}
	resp, err := store.GetRange(stream.Context(), ask)
	if err != nil {
		return objectStore.status(err)
	}
	f := &frame{header: &pb.GetRangeHeader{
		Size: resp.Size, Length: int64(len(resp.Data)), Version: resp.Version, InSpan: len(span) > 0 && len(resp.Data) <= len(span),
	}}
	rest := resp.Data
	if len(span) > 0 && len(rest) <= len(span) {
		if len(rest) > 0 && &rest[0] != &span[0] { // the store read into memory of its own
			told.tell(0)
			copy(span, rest)
		}
		rest = nil
	}
	for first := true; first || len(rest) > 0; first = false {
		n := min(len(rest), frameMax)
		f.chunks, f.size = [][]byte{rest[:n]}, n
		if err := stream.SendMsg(f); err != nil {
			return err
		}
		f.header, rest = nil, rest[n:]
	}
	return nil
}

func (s *objectStoreServer) Head(ctx context.Context, req *pb.HeadRequest) (*pb.HeadResponse, error) {
	store, err := s.store(req.GetStore())
	if err != nil {
		return nil, err
	}
	info, err := store.Head(ctx, req.GetKey())
	if err != nil {
		return nil, objectStore.status(err)
	}
	return &pb.HeadResponse{Info: encodeInfo(info)}, nil
}

func encodeInfo(o objstore.ObjectInfo) *pb.ObjectInfo {
	info := &pb.ObjectInfo{Key: o.Key, Size: o.Size, Version: o.Version}
	if !o.Modified.IsZero() {
		info.Modified = timestamppb.New(o.Modified)
	}
	return info
}

func (s *objectStoreServer) List(ctx context.Context, req *pb.ListRequest) (*pb.ListResponse, error) {
	store, err := s.store(req.GetStore())
	if err != nil {
		return nil, err
	}
	page, err := store.List(ctx, objstore.ListRequest{Prefix: string(req.GetPrefix()), StartAfter: string(req.GetStartAfter()), Limit: int(req.GetLimit())})
	if err != nil {
		return nil, objectStore.status(err)
	}
	resp := &pb.ListResponse{Objects: make([]*pb.ObjectInfo, len(page.Objects)), More: page.More}
	for i, o := range page.Objects {
		resp.Objects[i] = encodeInfo(o)
	}
	return resp, nil
}

func (s *objectStoreServer) DeleteBatch(ctx context.Context, req *pb.DeleteBatchRequest) (*pb.DeleteBatchResponse, error) {
	store, err := s.store(req.GetStore())
	if err != nil {
		return nil, err
	}
	deleted, err := store.DeleteBatch(ctx, req.GetKeys())
	if err != nil {
		return nil, objectStore.status(err)
	}
	resp := &pb.DeleteBatchResponse{Errors: make([]*pb.Error, len(deleted.Errors))}
	for i, err := range deleted.Errors {
		if err == nil {
			resp.Errors[i] = &pb.Error{}
			continue
		}
		if resp.Errors[i] = objectStore.encode(err); len(resp.Errors[i].GetCodes()) == 0 {
			resp.Errors[i].Codes = []pb.Code{pb.Code_UNAVAILABLE}
		}
	}
	return resp, nil
}

func (s *objectStoreServer) StartUpload(ctx context.Context, req *pb.StartUploadRequest) (*pb.StartUploadResponse, error) {
	store, err := s.parts(req.GetStore())
	if err != nil {
		return nil, err
	}
	id, err := store.StartUpload(ctx, req.GetKey())
	if err != nil {
		return nil, objectStore.status(err)
	}
	return &pb.StartUploadResponse{Upload: string(id)}, nil
}

func (s *objectStoreServer) CompleteUpload(ctx context.Context, req *pb.CompleteUploadRequest) (*pb.PutResponse, error) {
	store, err := s.parts(req.GetStore())
	if err != nil {
		return nil, err
	}
	parts := make([]objstore.Part, len(req.GetParts()))
	for i, p := range req.GetParts() {
		parts[i] = objstore.Part{Number: int(p.GetNumber()), Size: p.GetSize(), Tag: p.GetTag()}
	}
	resp, err := store.CompleteUpload(ctx, objstore.CompleteUploadRequest{
		Key: req.GetKey(), Upload: objstore.UploadID(req.GetUpload()), Parts: parts, CreateOnly: req.GetCreateOnly(),
	})
	if err != nil {
		return nil, objectStore.status(err)
	}
	return &pb.PutResponse{Version: resp.Version}, nil
}

func (s *objectStoreServer) AbortUpload(ctx context.Context, req *pb.AbortUploadRequest) (*pb.AbortUploadResponse, error) {
	store, err := s.parts(req.GetStore())
	if err != nil {
		return nil, err
	}
	return &pb.AbortUploadResponse{}, objectStore.status(store.AbortUpload(ctx, req.GetKey(), objstore.UploadID(req.GetUpload())))
}
