package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/mink-project/mink/core/builtin/memstore"
	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
	"github.com/mink-project/mink/sdk/objstore"
)

// script is a plugin that answers one read, step by step. The host has done with a
// message when it asks for the next: the steps see what it made of it.
type script struct {
	grpc.ClientStream
	steps []step
	ask   *pb.GetRangeRequest
}

type step struct {
	before func() // runs when the host asks for the message
	header *pb.GetRangeHeader
	data   []byte
	err    error
}

func (s *script) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return s, nil
}

func (s *script) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return errors.ErrUnsupported
}

func (s *script) CloseSend() error { return nil }

func (s *script) SendMsg(m any) error {
	s.ask = m.(*pb.GetRangeRequest) //nolint:forcetypeassert // a read's request
	return nil
}

func (s *script) RecvMsg(m any) error {
	if len(s.steps) == 0 {
		return io.EOF
	}
	next := s.steps[0]
	s.steps = s.steps[1:]
	if next.before != nil {
		next.before()
	}
	if next.err != nil {
		return next.err
	}
	data, err := proto.Marshal(&pb.GetRangeResponse{Header: next.header, Data: next.data})
	if err != nil {
		return err
	}
	return Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, m)
}

func filled(n int64) step { return step{header: &pb.GetRangeHeader{Filled: &n}} }

func answered(n int64) step {
	return step{header: &pb.GetRangeHeader{Size: n, Length: n, InSpan: true}}
}

// play reads length bytes from a plugin that follows the script. span is the memory
// that it may write to.
func play(t *testing.T, length int64, into []byte, steps func(span []byte, s *script) []step) (objstore.GetRangeResponse, *Shared, error) {
	t.Helper()
	shared := newShared(t)
	s := &script{}
	last := shared.mem[(slotCount-1)*slotSize:] // take's first
	clear(last)
	s.steps = steps(last, s)
	store := &objectStoreClient{conn: s, id: 1, shared: shared}
	resp, err := store.GetRange(t.Context(), objstore.GetRangeRequest{Key: "k", Length: length, Into: into})
	return resp, shared, err
}

// A copy follows each announcement, before the plugin goes on, and what was copied is
// not looked at again.
func TestReadIsCopiedWhileItIsFilled(t *testing.T) {
	const n = 4 << 20
	want := pattern(1, n)
	into := make([]byte, n)
	resp, shared, err := play(t, n, into, func(span []byte, s *script) []step {
		fill := func(from, to int) func() {
			return func() {
				if !bytes.Equal(into[:from], want[:from]) {
					t.Errorf("not copied when it was announced: %d bytes", from)
				}
				clear(span[:from]) // what was announced counts as it was then
				copy(span[from:to], want[from:to])
			}
		}
		steps := []step{filled(1 << 20), filled(3 << 20), answered(n)}
		steps[0].before, steps[1].before, steps[2].before = fill(0, 1<<20), fill(1<<20, 3<<20), fill(3<<20, n)
		return steps
	})
	if err != nil || !bytes.Equal(resp.Data, want) || &resp.Data[0] != &into[0] {
		t.Errorf("%d bytes, %v", len(resp.Data), err)
	}
	if free(shared) != slotCount {
		t.Errorf("%d slots are free after the answer", free(shared))
	}
}

func TestAnnouncementsThatAreTakenBackAreCopiedAnew(t *testing.T) {
	const n = 2<<20 + 77
	wrong, want := pattern(9, n), pattern(1, n)
	for name, back := range map[string][]int64{"to the beginning": {0}, "a little": {1<<20 - 5}, "in steps": {1 << 20, 1, 0}, "and forth": {0, n, 0, 5}} {
		resp, _, err := play(t, n, nil, func(span []byte, _ *script) []step {
			steps := []step{filled(n)}
			steps[0].before = func() { copy(span, wrong) }
			for _, b := range back {
				steps = append(steps, filled(b))
			}
			least := back[len(back)-1]
			steps = append(steps, answered(n))
			steps[len(steps)-1].before = func() { copy(span[least:], want[least:]) }
			copy(want[:least], wrong) // it said that these stay
			return steps
		})
		if err != nil || !bytes.Equal(resp.Data, want) {
			t.Errorf("%s: %d bytes, %v", name, len(resp.Data), err)
		}
		copy(want, pattern(1, n))
	}
}

func TestAnnouncementsOfAHostilePlugin(t *testing.T) {
	const n = 1 << 20
	detail, err := status.New(codes.NotFound, "").WithDetails(&pb.Error{Codes: []pb.Code{pb.Code_NOT_EXIST}, Message: "gone"})
	if err != nil {
		t.Fatal(err)
	}
	many := func(count int) (steps []step) {
		for i := range count {
			steps = append(steps, filled(int64(i%2)))
		}
		return steps
	}
	for name, c := range map[string]struct {
		length int64 // n if 0
		steps  []step
		want   error // nil: the bytes of the slot
		lost   int   // slots that are not used again
	}{
		"one byte too many":              {steps: []step{filled(n + 1), answered(n)}, want: objstore.ErrUnavailable, lost: 1},
		"far too many":                   {steps: []step{filled(math.MaxInt64), answered(n)}, want: objstore.ErrUnavailable, lost: 1},
		"a negative number":              {steps: []step{filled(-1), answered(n)}, want: objstore.ErrUnavailable, lost: 1},
		"more than the object has":       {steps: []step{filled(n), answered(n - 1)}, want: objstore.ErrUnavailable, lost: 1},
		"bytes beside it":                {steps: []step{{header: filled(5).header, data: []byte("bytes")}, answered(n)}, want: objstore.ErrUnavailable, lost: 1},
		"not asked for: too short":       {length: earlyFrom - 1, steps: []step{filled(1), answered(earlyFrom - 1)}, want: objstore.ErrUnavailable, lost: 1},
		"not asked for: unknown length":  {length: -1, steps: []step{filled(1), answered(n)}, want: objstore.ErrUnavailable, lost: 1},
		"not asked for: no slot":         {length: slotSize + 1, steps: []step{filled(1), answered(slotSize + 1)}, want: objstore.ErrUnavailable},
		"without an end":                 {steps: append(many(announcedMax+1), answered(n)), want: objstore.ErrUnavailable, lost: 1},
		"as many as there may be":        {steps: append(many(announcedMax), answered(n))},
		"then silence":                   {steps: []step{filled(n / 2)}, want: objstore.ErrUnavailable, lost: 1},
		"then a broken connection":       {steps: []step{filled(n / 2), {err: status.Error(codes.Unavailable, "broken")}}, want: objstore.ErrUnavailable, lost: 1},
		"then an error":                  {steps: []step{filled(n / 2), {err: detail.Err()}}, want: objstore.ErrNotExist},
		"after the answer":               {steps: []step{answered(n), filled(1)}, want: objstore.ErrUnavailable, lost: 1},
		"then bytes as messages instead": {steps: []step{filled(n), {header: &pb.GetRangeHeader{Size: n, Length: n}, data: make([]byte, n)}}},
		"then too few bytes as messages": {steps: []step{filled(n), {header: &pb.GetRangeHeader{Size: n, Length: n}, data: make([]byte, 9)}}, want: objstore.ErrUnavailable, lost: 1},
	} {
		t.Run(name, func(t *testing.T) {
			length := c.length
			if length == 0 {
				length = n
			}
			memory := bytes.Repeat([]byte{0xaa}, slotSize+100)
			into := memory[:0:max(length, n)]
			resp, shared, err := play(t, length, into, func([]byte, *script) []step { return c.steps })
			if c.want == nil && (err != nil || !bytes.Equal(resp.Data, make([]byte, n))) {
				t.Errorf("%d bytes, %v", len(resp.Data), err)
			}
			if c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if shared.Lost() != c.lost || free(shared) != slotCount-c.lost {
				t.Errorf("%d slots lost, %d free", shared.Lost(), free(shared))
			}
			if rest := memory[max(length, n):]; bytes.Count(rest, []byte{0xaa}) != len(rest) {
				t.Error("bytes beyond the memory of the call")
			}
		})
	}
}

// talker tells of every 4 KiB, and reads everything several times over, other bytes
// first.
type talker struct {
	objstore.Store
	want     []byte
	attempts int  // the last one has the right bytes
	own      bool // none has: they are answered in memory of the store's own
}

func (s talker) GetRange(_ context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	into := req.Memory(req.Length)
	for attempt := range s.attempts {
		if req.Filled != nil {
			req.Filled(0)
		}
		for at := 0; at < len(into); at += 4 << 10 {
			end := min(at+4<<10, len(into))
			copy(into[at:end], s.want[at:end])
			if attempt < s.attempts-1 || s.own {
				into[at] = ^into[at]
			}
			if req.Filled != nil {
				req.Filled(int64(end))
			}
		}
	}
	if s.own {
		into = bytes.Clone(s.want)
	}
	return objstore.GetRangeResponse{Data: into, Size: req.Length}, nil
}

// Whatever a store tells of, the host gets what it answers.
func TestTalkativeStore(t *testing.T) {
	for _, c := range []talker{{attempts: 1}, {attempts: 2}, {attempts: 40}, {attempts: 1, own: true}, {attempts: 40, own: true}} {
		shared := newShared(t)
		want := pattern(4, 3<<20+1)
		c.Store, c.want = memstore.New(memstore.Default()), want
		s := serveShared(t, shared, c)
		for range 3 {
			got, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "k", Length: int64(len(want))})
			if err != nil || !bytes.Equal(got.Data, want) {
				t.Fatalf("%d attempts, own %v: %d bytes, equal %v, %v", c.attempts, c.own, len(got.Data), bytes.Equal(got.Data, want), err)
			}
		}
		if free(shared) != slotCount {
			t.Errorf("%d slots are free", free(shared))
		}
	}
}

// A host that does not know announcements gets none. One that does gets as many as
// there may be, and what was told is taken back before other bytes are put there.
func TestWhatAPluginAnnounces(t *testing.T) {
	for name, c := range map[string]struct {
		talker
		asked   bool
		in, out int64 // bytes that are told of when the answer comes, at least and at most
	}{
		"unasked":             {talker: talker{attempts: 2}},
		"once":                {talker: talker{attempts: 1}, asked: true, in: 4 << 10, out: 2 << 20},
		"too often":           {talker: talker{attempts: 40}, asked: true, out: 2 << 20},
		"then in its own":     {talker: talker{attempts: 1, own: true}, asked: true},
		"too often, then own": {talker: talker{attempts: 40, own: true}, asked: true},
	} {
		t.Run(name, func(t *testing.T) {
			shared := newShared(t)
			c.Store, c.want = memstore.New(memstore.Default()), pattern(4, 2<<20)
			rpc := pb.NewObjectStoreClient(Dial(t, func(s *grpc.Server) {
				RegisterObjectStore(s, func(context.Context, string, map[string]string) (objstore.Store, error) { return c.talker, nil }, Region(shared.mem))
			}))
			opened, err := rpc.Open(t.Context(), &pb.OpenStoreRequest{})
			if err != nil {
				t.Fatal(err)
			}
			stream, err := rpc.GetRange(t.Context(), &pb.GetRangeRequest{
				Store: opened.GetStore(), Key: "k", Length: 2 << 20, Span: &pb.Span{Length: slotSize}, Progress: c.asked,
			})
			if err != nil {
				t.Fatal(err)
			}
			count, told := 0, int64(0)
			resp, err := stream.Recv()
			for ; err == nil && resp.GetHeader().Filled != nil; resp, err = stream.Recv() {
				count, told = count+1, resp.GetHeader().GetFilled()
			}
			if err != nil || !resp.GetHeader().GetInSpan() || !bytes.Equal(shared.mem[:2<<20], c.want) {
				t.Errorf("%v, %v", resp, err)
			}
			if told < c.in || told > c.out || (count > 0) != c.asked || count > announcedMax {
				t.Errorf("%d announcements, the last one of %d bytes", count, told)
			}
		})
	}
}

func TestOnlyLongReadsAskForAnnouncements(t *testing.T) {
	for length, want := range map[int64]bool{earlyFrom - 1: false, earlyFrom: true, slotSize: true, slotSize + 1: false, -1: false} {
		var asked bool
		_, _, _ = play(t, length, nil, func(_ []byte, s *script) []step {
			return []step{{before: func() { asked = s.ask.GetProgress() }, err: status.Error(codes.Unavailable, "enough")}}
		})
		if asked != want {
			t.Errorf("%d bytes: %v", length, asked)
		}
	}
}
