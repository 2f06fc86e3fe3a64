package wire

import (
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	goproto "google.golang.org/protobuf/proto"
)

// frameMax is the most data that one message carries, in bytes.
const frameMax = 1 << 20

// frame is a message of the protocol's data shape (field 1 a header, field 2
// bytes) whose bytes are not copied on their way: sent, the chunks go to the
// socket as they lie; received, they lie in gRPC's buffers.
//
// A received frame holds its buffers until release. Sent chunks must not change
// before the call is over.
type frame struct {
	header goproto.Message // to send, nil for none; to receive, where to put it
	has    bool            // received a header
	chunks [][]byte
	size   int // of the chunks
	held   mem.BufferSlice
}

// release gives the buffers back to gRPC: nobody may read the chunks any more.
func (f *frame) release() {
	f.held.Free()
	f.held, f.chunks = nil, nil
}

const (
	headerTag = 1<<3 | uint64(protowire.BytesType)
	dataTag   = 2<<3 | uint64(protowire.BytesType)
)

// codec is protobuf on the wire, for frames without a copy.
type codec struct{ other encoding.CodecV2 }

// Codec is the codec of both sides. What is no frame is gRPC's own protobuf
// codec's.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

func (codec) Name() string { return proto.Name }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return c.other.Marshal(v)
	}
	out := make(mem.BufferSlice, 1, 1+len(f.chunks))
	var prefix []byte
	if f.header != nil {
		n := goproto.Size(f.header)
		prefix = make([]byte, 0, n+2*protowire.SizeVarint(1<<31))
		prefix = protowire.AppendVarint(prefix, headerTag)
		prefix = protowire.AppendVarint(prefix, uint64(n))
		var err error
		if prefix, err = (goproto.MarshalOptions{UseCachedSize: true}).MarshalAppend(prefix, f.header); err != nil {
			return nil, err
		}
	}
	if f.size > 0 {
		prefix = protowire.AppendVarint(prefix, dataTag)
		prefix = protowire.AppendVarint(prefix, uint64(f.size))
		for _, c := range f.chunks {
			if len(c) > 0 {
				out = append(out, mem.SliceBuffer(c))
			}
		}
	}
	out[0] = mem.SliceBuffer(prefix)
	return out, nil
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return c.other.Unmarshal(data, v)
	}
	return f.parse(data)
}

var (
	errFrameCut   = errors.New("message ends within a field")
	errFrameField = errors.New("message has a malformed field")
)

// parse reads what any protobuf encoder may write for the shape: fields in any
// order, headers that are to be merged, the last data winning, unknown fields.
func (f *frame) parse(data mem.BufferSlice) error {
	f.has, f.chunks, f.size = false, f.chunks[:0], 0
	r := cursor{rest: data}
	for {
		tag, err := r.varint()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if tag>>3 == 0 || tag>>3 > uint64(protowire.MaxValidNumber) {
			return errFrameField
		}
		switch tag {
		case headerTag:
			if err := f.parseHeader(&r); err != nil {
				return err
			}
		case dataTag:
			n, err := r.length()
			if err != nil {
				return err
			}
			f.chunks, f.size = f.chunks[:0], n
			if err := r.take(n, func(b []byte) { f.chunks = append(f.chunks, b) }); err != nil {
				return err
			}
		default:
			if err := r.skip(protowire.Number(tag>>3), protowire.Type(tag&7)); err != nil {
				return err
			}
		}
	}
	if len(f.chunks) > 0 {
		data.Ref()
		f.held = data
	}
	return nil
}

func (f *frame) parseHeader(r *cursor) error {
	n, err := r.length()
	if err != nil {
		return err
	}
	buf := make([]byte, 0, min(n, 4<<10))
	if err := r.take(n, func(b []byte) { buf = append(buf, b...) }); err != nil {
		return err
	}
	f.has = true
	if f.header == nil {
		return fmt.Errorf("%w: a second header", errFrameField)
	}
	return goproto.UnmarshalOptions{Merge: true}.Unmarshal(buf, f.header)
}

// cursor reads through buffers as if they were one.
type cursor struct {
	rest mem.BufferSlice
	at   int // in rest[0]
}

// next answers what is left of the present buffer, none at the end.
func (c *cursor) next() []byte {
	for len(c.rest) > 0 {
		if b := c.rest[0].ReadOnlyData()[c.at:]; len(b) > 0 {
			return b
		}
		c.rest, c.at = c.rest[1:], 0
	}
	return nil
}

// varint answers io.EOF when there is not even a first byte.
func (c *cursor) varint() (uint64, error) {
	var buf [protowireVarintMax]byte
	for i := range buf {
		b := c.next()
		if len(b) == 0 {
			if i == 0 {
				return 0, io.EOF
			}
			return 0, errFrameCut
		}
		buf[i] = b[0]
		c.at++
		if b[0] < 0x80 {
			v, n := protowire.ConsumeVarint(buf[:i+1])
			if n < 0 {
				return 0, errFrameField
			}
			return v, nil
		}
	}
	return 0, errFrameField
}

const protowireVarintMax = 10

// length reads the length of a field's bytes, which must all be there.
func (c *cursor) length() (int, error) {
	v, err := c.varint()
	if errors.Is(err, io.EOF) {
		return 0, errFrameCut
	}
	if err != nil {
		return 0, err
	}
	if v > uint64(c.left()) {
		return 0, errFrameCut
	}
	return int(v), nil
}

func (c *cursor) left() int { return c.rest.Len() - c.at }

func (c *cursor) take(n int, piece func([]byte)) error {
	for n > 0 {
		b := c.next()
		if len(b) == 0 {
			return errFrameCut
		}
		b = b[:min(n, len(b))]
		piece(b)
		c.at += len(b)
		n -= len(b)
	}
	return nil
}

// skip passes over the value of an unknown field.
func (c *cursor) skip(num protowire.Number, typ protowire.Type) error {
	switch typ {
	case protowire.VarintType:
		_, err := c.varint()
		if errors.Is(err, io.EOF) {
			return errFrameCut
		}
		return err
	case protowire.Fixed32Type:
		return c.take(4, func([]byte) {})
	case protowire.Fixed64Type:
		return c.take(8, func([]byte) {})
	case protowire.BytesType:
		n, err := c.length()
		if err != nil {
			return err
		}
		return c.take(n, func([]byte) {})
	case protowire.StartGroupType:
		// Groups are a relic that no message here has: copied, then protowire's.
		var buf []byte
		left := cursor{rest: c.rest, at: c.at}
		if err := left.take(left.left(), func(b []byte) { buf = append(buf, b...) }); err != nil {
			return err
		}
		n := protowire.ConsumeFieldValue(num, typ, buf)
		if n < 0 {
			return errFrameField
		}
		return c.take(n, func([]byte) {})
	}
	return errFrameField
}
