package wire

import (
	"errors"
	"io"
	"runtime"

	"google.golang.org/grpc"

	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
	"github.com/mink-project/mink/sdk/objstore"
)

// announcedMax is the most announcements in one answer.
const announcedMax = 64

// announcer tells the host how much of a span is filled.
type announcer struct {
	stream grpc.ServerStream
	filled int64 // as told last
	sent   int
}

// tell is objstore.GetRangeRequest.Filled. Half of the announcements are kept for
// taking back what was told, which happens once for each growth at most.
func (a *announcer) tell(n int64) {
	if n == a.filled || n > a.filled && a.sent >= announcedMax/2 {
		return
	}
	a.filled = n
	a.sent++
	// An error means that the call is over: the answer's tells.
	_ = a.stream.SendMsg(&frame{header: &pb.GetRangeHeader{Filled: &n}})
	// A plugin with one processor would write it when the read waits: too late, where
	// bytes come as fast as they are read.
	runtime.Gosched()
}

// earlyFrom is the length, in bytes, from which on a read is copied out of its slot
// while the plugin goes on filling it: shorter ones are copied in less time than an
// announcement takes.
const earlyFrom = 1 << 20

// early is the part of a read's answer that comes before it: bytes that the plugin
// says are in the slot for good.
//
//	slot  [ copied | told and copied now |  being read by the plugin  ]
//	data  [ copied | copied now          |
//
// What the plugin says is no more trusted than the bytes themselves: it moves
// copies within the slot and within the memory of the length that was asked for.
type early struct {
	req  objstore.GetRangeRequest
	slot *slot
	data []byte // copied so far; nil: nothing was announced
	told int
}

// wanted says whether the plugin is to announce.
func (e *early) wanted() bool { return e.slot != nil && e.req.Length >= earlyFrom }

// answer reads up to the answer's header and follows the announcements before it. The
// caller releases the frame.
func (e *early) answer(stream grpc.ClientStream) (*pb.GetRangeHeader, *frame, error) {
	for {
		header := &pb.GetRangeHeader{}
		f := &frame{header: header}
		if err := stream.RecvMsg(f); errors.Is(err, io.EOF) {
			return nil, nil, protocolError("no bytes and no error came")
		} else if err != nil {
			return nil, nil, err
		}
		if header.Filled == nil {
			return header, f, nil
		}
		n, size := header.GetFilled(), f.size
		f.release()
		if e.told++; !e.wanted() || e.told > announcedMax || n < 0 || n > e.req.Length || size > 0 {
			return nil, nil, protocolError("announcement %d, of %d bytes with data of %d, for the range [%d, +%d)", e.told, n, size, e.req.Offset, e.req.Length)
		}
		e.copy(int(n))
	}
}

// copy makes data what the slot has up to n.
func (e *early) copy(n int) {
	if e.data == nil {
		e.data = e.req.Memory(e.req.Length)[:0]
	}
	if n < len(e.data) {
		e.data = e.data[:n]
		return
	}
	e.data = append(e.data, e.slot.mem[len(e.data):n]...)
}
