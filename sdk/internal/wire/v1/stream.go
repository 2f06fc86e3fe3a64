package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
	"github.com/mink-project/mink/sdk/objstore"
)

// received is one object as it came, in gRPC's buffers.
type received struct {
	chunks [][]byte
	frames []*frame
	free   func()
}

// done ends the use of the bytes. After a failed call an attempt may still be
// reading them: they are left to the garbage collector then, not used again.
func (r *received) done(err error) {
	if err == nil {
		for _, f := range r.frames {
			f.release()
		}
	}
	r.free()
}

// objectHeader is the header of an object that is sent: PutHeader, PutPartHeader.
type objectHeader interface {
	proto.Message
	GetSize() int64
	GetSpan() *pb.Span
}

// receive reads an object from the stream's messages, or from the span that its
// header names. Out of a span it is copied: the host uses the span again after the
// answer, when an attempt of the store may still be reading the chunks.
func (s *objectStoreServer) receive(stream grpc.ServerStream, header objectHeader) (*received, error) {
	coming := func() int64 {
		if header.GetSpan() != nil {
			return 0
		}
		return header.GetSize()
	}
	r, err := receive(stream, header, coming, s.receiving, math.MaxInt64, &objectStore)
	if err != nil || header.GetSpan() == nil {
		return r, err
	}
	b, err := s.memory.at(header.GetSpan())
	if err == nil && int64(len(b)) != header.GetSize() {
		err = fmt.Errorf("%w: a span of %d bytes for an object of %d", objstore.ErrInvalid, len(b), header.GetSize())
	}
	if err != nil {
		r.done(nil)
		return nil, objectStore.status(err)
	}
	r.chunks = [][]byte{bytes.Clone(b)}
	return r, nil
}

// receive reads a whole stream of frames. The header says the size, at most most,
// which is waited for before the bytes are read: until then they stay with the
// sender.
func receive(stream grpc.ServerStream, header proto.Message, size func() int64, room *semaphore.Weighted, most int64, v *vocabulary) (*received, error) {
	refuse := func(format string, args ...any) (*received, error) {
		return nil, v.status(fmt.Errorf("%w: %s", objstore.ErrInvalid, fmt.Sprintf(format, args...)))
	}
	first := &frame{header: header}
	if err := stream.RecvMsg(first); err != nil {
		return nil, err
	}
	if !first.has || size() < 0 {
		return refuse("the first message of an object has no header, or a size of %d", size())
	}
	if size() > most {
		return refuse("the header says %d bytes, at most %d may come", size(), most)
	}
	free, err := acquire(stream.Context(), room, size())
	if err != nil {
		return nil, v.status(err)
	}
	r := &received{free: free}
	var n int64
	for f := first; ; {
		if f.size > 0 {
			n += int64(f.size)
			r.frames = append(r.frames, f)
			r.chunks = append(r.chunks, f.chunks...)
		}
		if n > size() {
			break
		}
		f = &frame{}
		if err := stream.RecvMsg(f); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			r.done(nil)
			return nil, err
		}
	}
	if n != size() {
		r.done(nil)
		return refuse("the header says %d bytes and the messages carry %d or more", size(), n)
	}
	return r, nil
}

func acquire(ctx context.Context, s *semaphore.Weighted, size int64) (free func(), err error) {
	weight := min(size, receiveMax)
	if err := s.Acquire(ctx, weight); err != nil {
		return nil, err
	}
	return func() { s.Release(weight) }, nil
}

var putDesc = &grpc.StreamDesc{ClientStreams: true}

// sendObject sends an object as a client stream and reads its answer. A frame
// that is the only one goes as a unary call, which is the same on the wire and a
// system call less.
func sendObject(ctx context.Context, conn grpc.ClientConnInterface, method string, header proto.Message, chunks [][]byte, resp proto.Message) error {
	f := &frame{header: header}
	chunks = f.fill(slices.Clone(chunks))
	if len(chunks) == 0 {
		return conn.Invoke(ctx, method, f, resp)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // frees the stream however this ends
	stream, err := conn.NewStream(ctx, putDesc, method)
	if err != nil {
		return err
	}
	for {
		if err := stream.SendMsg(f); errors.Is(err, io.EOF) {
			break // the answer is there already and says why
		} else if err != nil {
			return err
		}
		if len(chunks) == 0 {
			if err := stream.CloseSend(); err != nil {
				return err
			}
			break
		}
		f = &frame{}
		chunks = f.fill(chunks)
	}
	return stream.RecvMsg(resp)
}

// fill takes up to frameMax bytes from chunks and answers the rest, which lies in
// the same slice.
func (f *frame) fill(chunks [][]byte) (rest [][]byte) {
	for i, c := range chunks {
		room := frameMax - f.size
		if len(c) > room {
			f.chunks = append(f.chunks, c[:room])
			f.size += room
			chunks[i] = c[room:]
			return chunks[i:]
		}
		if len(c) > 0 {
			f.chunks = append(f.chunks, c)
			f.size += len(c)
		}
	}
	return nil
}
