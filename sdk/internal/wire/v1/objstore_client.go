package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
	"github.com/mink-project/mink/sdk/objstore"
)

// closeTimeout bounds Close, which has no context of its own.
const closeTimeout = 30 * time.Second

// growFrom is the most memory that a length in an answer makes the host take at
// once; beyond it the bytes themselves must come.
const growFrom = 64 << 20

type objectStoreClient struct {
	conn   grpc.ClientConnInterface
	rpc    pb.ObjectStoreClient
	id     uint64
	caps   objstore.Capabilities
	shared *Shared // nil: bytes go as messages
	closed atomic.Bool
}

// OpenObjectStore opens a store in the plugin at the other end of conn. shared is
// the memory that its process inherited, nil for none. What it answers is an
// objstore.Multiparter too, though Multipart may say no.
func OpenObjectStore(ctx context.Context, conn grpc.ClientConnInterface, uri string, options map[string]string, shared *Shared) (objstore.Store, error) {
	s := &objectStoreClient{conn: conn, rpc: pb.NewObjectStoreClient(conn)}
	resp, err := s.rpc.Open(ctx, &pb.OpenStoreRequest{Uri: uri, Options: options})
	if err != nil {
		return nil, objectStore.failed(ctx, err, reads)
	}
	s.id = resp.GetStore()
	if resp.GetSharedMemory() {
		s.shared = shared
	}
	c := resp.GetCapabilities()
	s.caps = objstore.Capabilities{
		CreateOnlyPut: c.GetCreateOnlyPut(), CompareAndSwap: c.GetCompareAndSwap(), ListPageMax: int(c.GetListPageMax()),
		PutSizeMax: c.GetPutSizeMax(), PartSizeMin: c.GetPartSizeMin(), PartSizeMax: c.GetPartSizeMax(),
		PutLatency: c.GetPutLatency().AsDuration(), Local: c.GetLocal(),
	}
	if s.id == 0 || s.caps.ListPageMax < 1 || s.caps.PutSizeMax < 1 || s.caps.PartSizeMin < 0 || s.caps.PutLatency < 0 ||
		s.caps.PartSizeMin > 0 && s.caps.PartSizeMax < s.caps.PartSizeMin {
		return nil, objectStore.failed(ctx, protocolError("store %d with the capabilities %+v", s.id, s.caps), reads)
	}
	return s, nil
}

func (s *objectStoreClient) Capabilities() objstore.Capabilities { return s.caps }

func (s *objectStoreClient) Alloc(n int) objstore.Buffer { return objstore.HeapAlloc(n) }

// begin refuses a call that is to have no effect.
func (s *objectStoreClient) begin(ctx context.Context, op, key string) error {
	if s.closed.Load() {
		return fmt.Errorf("%s %q: %w: it is closed", op, key, objstore.ErrUnavailable)
	}
	return objstore.ContextError(ctx, op, key)
}

// failed names the call in an error that gRPC or the plugin made.
func failed(ctx context.Context, op, key string, err error, ef effect) error {
	if e := answer(err); e != nil && strings.Contains(e.GetMessage(), strconv.Quote(key)) {
		return objectStore.failed(ctx, err, ef) // the store has said it, as the contract asks
	}
	return fmt.Errorf("%s %q: %w", op, key, objectStore.failed(ctx, err, ef))
}

// send sends an object through shared memory when a slot is free for it, else as
// messages. span is the header's. A write is copied out of its slot before the
// store sees it, so that any answer frees the slot.
func (s *objectStoreClient) send(ctx context.Context, method string, header objectHeader, span **pb.Span, chunks [][]byte, resp proto.Message) error {
	size := header.GetSize()
	slot := s.shared.take(size)
	if slot != nil {
		slot.fill(chunks)
		*span, chunks = slot.span(size), nil
	}
	err := sendObject(ctx, s.conn, method, header, chunks, resp)
	slot.done(err == nil || answer(err) != nil)
	return err
}

func (s *objectStoreClient) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	if err := s.begin(ctx, "put", req.Key); err != nil {
		return objstore.PutResponse{}, err
	}
	if err := objstore.ValidateKey(req.Key); err != nil {
		return objstore.PutResponse{}, err
	}
	size := objstore.SizeOf(req.Chunks)
	if size > s.caps.PutSizeMax {
		return objstore.PutResponse{}, fmt.Errorf("%w: put of %q has %d bytes, this store takes %d", objstore.ErrInvalid, req.Key, size, s.caps.PutSizeMax)
	}
	header := &pb.PutHeader{Store: s.id, Key: req.Key, Size: size, CreateOnly: req.CreateOnly, IfMatch: req.IfMatch}
	if req.HasCRC32C {
		header.Crc32C = &req.CRC32C
	}
	resp := &pb.PutResponse{}
	if err := s.send(ctx, pb.ObjectStore_Put_FullMethodName, header, &header.Span, req.Chunks, resp); err != nil {
		return objstore.PutResponse{}, failed(ctx, "put", req.Key, err, writes)
	}
	return objstore.PutResponse{Version: resp.GetVersion()}, nil
}

var getDesc = &grpc.StreamDesc{ServerStreams: true}

func (s *objectStoreClient) GetRange(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	if err := s.begin(ctx, "get", req.Key); err != nil {
		return objstore.GetRangeResponse{}, err
	}
	if err := objstore.ValidateKey(req.Key); err != nil {
		return objstore.GetRangeResponse{}, err
	}
	if req.Offset < 0 || req.Length < -1 {
		return objstore.GetRangeResponse{}, fmt.Errorf("%w: range [%d, +%d) of %q", objstore.ErrInvalid, req.Offset, req.Length, req.Key)
	}
	room := req.Length
	if room < 0 {
		room = slotSize // unknown: if it fits
	}
	slot := s.shared.take(room)
	resp, err := s.getRange(ctx, req, slot)
	slot.done(err == nil || settled(answer(err)))
	if err != nil {
		return objstore.GetRangeResponse{}, failed(ctx, "get", req.Key, err, reads)
	}
	return resp, nil
}

// settled says that nobody in the plugin still reads into the call's slot. One whose
// context ended there may be.
func settled(e *pb.Error) bool {
	return e != nil && !slices.Contains(e.GetCodes(), pb.Code_CANCELED) && !slices.Contains(e.GetCodes(), pb.Code_DEADLINE_EXCEEDED)
}

func (s *objectStoreClient) getRange(ctx context.Context, req objstore.GetRangeRequest, slot *slot) (objstore.GetRangeResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.conn.NewStream(ctx, getDesc, pb.ObjectStore_GetRange_FullMethodName)
	if err != nil {
		return objstore.GetRangeResponse{}, err
	}
	ask := &pb.GetRangeRequest{Store: s.id, Key: req.Key, Offset: req.Offset, Length: req.Length}
	if slot != nil {
		ask.Span = slot.span(int64(len(slot.mem)))
	}
	early := early{req: req, slot: slot}
	ask.Progress = early.wanted()
	err = stream.SendMsg(ask)
	if err != nil && !errors.Is(err, io.EOF) {
		return objstore.GetRangeResponse{}, err
	}
	if err := stream.CloseSend(); err != nil {
		return objstore.GetRangeResponse{}, err
	}
	header, f, err := early.answer(stream)
	if err != nil {
		return objstore.GetRangeResponse{}, err
	}
	defer func() { f.release() }()
	n := header.GetLength()
	if !f.has || n < 0 || header.GetSize() < 0 || req.Offset > header.GetSize() || n > header.GetSize()-req.Offset ||
		req.Length >= 0 && n != req.Length || req.Length < 0 && n != header.GetSize()-req.Offset {
		return objstore.GetRangeResponse{}, protocolError("%d bytes of an object of %d for the range [%d, +%d)", n, header.GetSize(), req.Offset, req.Length)
	}
	data := early.data
	if data == nil {
		data = req.Memory(min(n, growFrom))[:0]
		if req.Length >= 0 {
			data = req.Memory(n)[:0]
		}
	}
	if header.GetInSpan() {
		if slot == nil || n > int64(len(slot.mem)) || f.size > 0 {
			return objstore.GetRangeResponse{}, protocolError("%d bytes in a span that has not so many, or data beside them", n)
		}
		data = append(data, slot.mem[len(data):n]...)
	} else {
		data = data[:0]
	}
	for {
		if int64(len(data)+f.size) > n {
			return objstore.GetRangeResponse{}, protocolError("%d bytes where %d were announced", len(data)+f.size, n)
		}
		for _, c := range f.chunks {
			data = append(data, c...)
		}
		f.release()
		f.header = nil
		if err := stream.RecvMsg(f); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return objstore.GetRangeResponse{}, err
		}
	}
	if int64(len(data)) != n {
		return objstore.GetRangeResponse{}, protocolError("%d bytes where %d were announced", len(data), n)
	}
	return objstore.GetRangeResponse{Data: data, Size: header.GetSize(), Version: header.GetVersion()}, nil
}

func (s *objectStoreClient) Head(ctx context.Context, key string) (objstore.ObjectInfo, error) {
	if err := s.begin(ctx, "head", key); err != nil {
		return objstore.ObjectInfo{}, err
	}
	if err := objstore.ValidateKey(key); err != nil {
		return objstore.ObjectInfo{}, err
	}
	resp, err := s.rpc.Head(ctx, &pb.HeadRequest{Store: s.id, Key: key})
	if err != nil {
		return objstore.ObjectInfo{}, failed(ctx, "head", key, err, reads)
	}
	o := decodeInfo(resp.GetInfo())
	if o.Key != key || o.Size < 0 {
		return objstore.ObjectInfo{}, failed(ctx, "head", key, protocolError("it speaks of %q with %d bytes", cut(o.Key, objstore.KeyMax), o.Size), reads)
	}
	return o, nil
}

func decodeInfo(o *pb.ObjectInfo) objstore.ObjectInfo {
	info := objstore.ObjectInfo{Key: o.GetKey(), Size: o.GetSize(), Version: o.GetVersion()}
	if o.GetModified().IsValid() {
		info.Modified = o.GetModified().AsTime()
	}
	return info
}

func (s *objectStoreClient) List(ctx context.Context, req objstore.ListRequest) (objstore.ListResponse, error) {
	if err := s.begin(ctx, "list", req.Prefix); err != nil {
		return objstore.ListResponse{}, err
	}
	limit, err := req.PageSize(s.caps.ListPageMax)
	if err != nil {
		return objstore.ListResponse{}, err
	}
	resp, err := s.rpc.List(ctx, &pb.ListRequest{Store: s.id, Prefix: []byte(req.Prefix), StartAfter: []byte(req.StartAfter), Limit: int64(limit)})
	if err != nil {
		return objstore.ListResponse{}, failed(ctx, "list", req.Prefix, err, reads)
	}
	page := objstore.ListResponse{Objects: make([]objstore.ObjectInfo, len(resp.GetObjects())), More: resp.GetMore()}
	last := req.StartAfter
	for i, o := range resp.GetObjects() {
		page.Objects[i] = decodeInfo(o)
		// Whoever walks the pages goes on from the last key: out of order, it would
		// walk for ever.
		if key := o.GetKey(); key <= last || !strings.HasPrefix(key, req.Prefix) || o.GetSize() < 0 || len(key) > objstore.KeyMax {
			return objstore.ListResponse{}, failed(ctx, "list", req.Prefix, protocolError("the key %q after %q", cut(key, objstore.KeyMax), last), reads)
		}
		last = o.GetKey()
	}
	if len(page.Objects) > limit || page.More && len(page.Objects) == 0 {
		return objstore.ListResponse{}, failed(ctx, "list", req.Prefix, protocolError("a page of %d keys, at most %d may come, more to come: %v", len(page.Objects), limit, page.More), reads)
	}
	return page, nil
}

func (s *objectStoreClient) DeleteBatch(ctx context.Context, keys []string) (objstore.DeleteResponse, error) {
	if err := s.begin(ctx, "delete", ""); err != nil {
		return objstore.DeleteResponse{}, err
	}
	if err := objstore.ValidateDelete(keys); err != nil {
		return objstore.DeleteResponse{}, err
	}
	// What is no UTF-8 cannot travel, and is no key.
	out := objstore.DeleteResponse{Errors: make([]error, len(keys))}
	var sent []string
	var slots []int
	for i, k := range keys {
		if !utf8.ValidString(k) || len(k) > objstore.KeyMax {
			out.Errors[i] = objstore.ValidateKey(k)
			continue
		}
		sent, slots = append(sent, k), append(slots, i)
	}
	resp, err := s.rpc.DeleteBatch(ctx, &pb.DeleteBatchRequest{Store: s.id, Keys: sent})
	if err != nil {
		return objstore.DeleteResponse{}, fmt.Errorf("delete %d keys: %w", len(keys), objectStore.failed(ctx, err, reads))
	}
	if len(resp.GetErrors()) != len(sent) {
		return objstore.DeleteResponse{}, fmt.Errorf("delete %d keys: %w", len(keys), objectStore.failed(ctx, protocolError("%d answers for %d keys", len(resp.GetErrors()), len(sent)), reads))
	}
	for i, e := range resp.GetErrors() {
		if len(e.GetCodes()) > 0 {
			out.Errors[slots[i]] = objectStore.decode(e, objstore.ErrUnavailable)
		}
	}
	return out, nil
}

func (s *objectStoreClient) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if _, err := s.rpc.Close(ctx, &pb.CloseStoreRequest{Store: s.id}); err != nil {
		return fmt.Errorf("close: %w", objectStore.failed(ctx, err, reads))
	}
	return nil
}

func (s *objectStoreClient) StartUpload(ctx context.Context, key string) (objstore.UploadID, error) {
	if err := s.begin(ctx, "start upload", key); err != nil {
		return "", err
	}
	if err := objstore.ValidateKey(key); err != nil {
		return "", err
	}
	resp, err := s.rpc.StartUpload(ctx, &pb.StartUploadRequest{Store: s.id, Key: key})
	if err != nil {
		return "", failed(ctx, "start upload", key, err, reads)
	}
	if resp.GetUpload() == "" {
		return "", failed(ctx, "start upload", key, protocolError("an upload without an id"), reads)
	}
	return objstore.UploadID(resp.GetUpload()), nil
}

// PutPart is safe to repeat: a call that broke is unavailable.
func (s *objectStoreClient) PutPart(ctx context.Context, req objstore.PutPartRequest) (objstore.Part, error) {
	if err := s.begin(ctx, "put part", req.Key); err != nil {
		return objstore.Part{}, err
	}
	unchecked := req
	unchecked.HasCRC32C = false // the store's to check, at the far end
	if err := unchecked.Validate(); err != nil {
		return objstore.Part{}, err
	}
	size := objstore.SizeOf(req.Chunks)
	header := &pb.PutPartHeader{Store: s.id, Key: req.Key, Upload: string(req.Upload), Number: int32(req.Number), Size: size} //nolint:gosec // validated
	if req.HasCRC32C {
		header.Crc32C = &req.CRC32C
	}
	resp := &pb.PutPartResponse{}
	if err := s.send(ctx, pb.ObjectStore_PutPart_FullMethodName, header, &header.Span, req.Chunks, resp); err != nil {
		return objstore.Part{}, failed(ctx, "put part", req.Key, err, reads)
	}
	p := objstore.Part{Number: int(resp.GetPart().GetNumber()), Size: resp.GetPart().GetSize(), Tag: resp.GetPart().GetTag()}
	if p.Number != req.Number || p.Size != size {
		return objstore.Part{}, failed(ctx, "put part", req.Key, protocolError("the receipt of part %d of %d bytes for part %d of %d", p.Number, p.Size, req.Number, size), reads)
	}
	return p, nil
}

func (s *objectStoreClient) CompleteUpload(ctx context.Context, req objstore.CompleteUploadRequest) (objstore.PutResponse, error) {
	if err := s.begin(ctx, "complete upload", req.Key); err != nil {
		return objstore.PutResponse{}, err
	}
	if err := req.Validate(s.caps.PartSizeMin); err != nil {
		return objstore.PutResponse{}, err
	}
	parts := make([]*pb.Part, len(req.Parts))
	for i, p := range req.Parts {
		parts[i] = &pb.Part{Number: int32(p.Number), Size: p.Size, Tag: p.Tag} //nolint:gosec // validated
	}
	resp, err := s.rpc.CompleteUpload(ctx, &pb.CompleteUploadRequest{
		Store: s.id, Key: req.Key, Upload: string(req.Upload), Parts: parts, CreateOnly: req.CreateOnly,
	})
	if err != nil {
		return objstore.PutResponse{}, failed(ctx, "complete upload", req.Key, err, writes)
	}
	return objstore.PutResponse{Version: resp.GetVersion()}, nil
}

func (s *objectStoreClient) AbortUpload(ctx context.Context, key string, id objstore.UploadID) error {
	if err := s.begin(ctx, "abort upload", key); err != nil {
		return err
	}
	if err := objstore.ValidateKey(key); err != nil {
		return err
	}
	if _, err := s.rpc.AbortUpload(ctx, &pb.AbortUploadRequest{Store: s.id, Key: key, Upload: string(id)}); err != nil {
		return failed(ctx, "abort upload", key, err, reads)
	}
	return nil
}
