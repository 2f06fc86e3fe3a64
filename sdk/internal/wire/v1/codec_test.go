package wire

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
)

// pieces cuts b into buffers of up to n bytes, as HTTP/2 frames come.
func pieces(b []byte, n int) mem.BufferSlice {
	var out mem.BufferSlice
	for len(b) > 0 {
		k := min(n, len(b))
		out = append(out, mem.SliceBuffer(b[:k:k]))
		b = b[k:]
	}
	return out
}

func header() *pb.PutHeader {
	crc := uint32(0xdeadbeef)
	return &pb.PutHeader{Store: 7, Key: "a/ü", Size: 1 << 40, CreateOnly: true, IfMatch: "v", Crc32C: &crc}
}

func TestWhatTheCodecWritesIsPlainProtobuf(t *testing.T) {
	for name, c := range map[string]struct {
		frame *frame
		want  *pb.PutRequest
	}{
		"header and chunks": {&frame{header: header(), chunks: [][]byte{[]byte("ab"), nil, []byte("c")}, size: 3}, &pb.PutRequest{Header: header(), Data: []byte("abc")}},
		"header":            {&frame{header: header()}, &pb.PutRequest{Header: header()}},
		"empty header":      {&frame{header: &pb.PutHeader{}}, &pb.PutRequest{Header: &pb.PutHeader{}}},
		"data":              {&frame{chunks: [][]byte{make([]byte, 300)}, size: 300}, &pb.PutRequest{Data: make([]byte, 300)}},
		"nothing":           {&frame{}, &pb.PutRequest{}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := Codec().Marshal(c.frame)
			if err != nil {
				t.Fatal(err)
			}
			got := &pb.PutRequest{}
			if err := proto.Unmarshal(b.Materialize(), got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The payload of a message is the caller's memory, in both directions.
func TestTheCodecDoesNotCopy(t *testing.T) {
	data := make([]byte, 1<<20)
	b, err := Codec().Marshal(&frame{header: header(), chunks: [][]byte{data}, size: len(data)})
	if err != nil {
		t.Fatal(err)
	}
	if len(b) != 2 || &b[1].ReadOnlyData()[0] != &data[0] {
		t.Fatalf("%d buffers, the second is not the chunk", len(b))
	}
	f := &frame{header: &pb.PutHeader{}}
	if err := Codec().Unmarshal(b, f); err != nil {
		t.Fatal(err)
	}
	if len(f.chunks) != 1 || &f.chunks[0][0] != &data[0] {
		t.Fatalf("%d chunks, the first is not the buffer", len(f.chunks))
	}
}

func TestOtherMessagesAreProtobufsOwn(t *testing.T) {
	want := &pb.HeadRequest{Store: 3, Key: "k"}
	b, err := Codec().Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := &pb.HeadRequest{}
	if err := Codec().Unmarshal(b, got); err != nil || !proto.Equal(want, got) {
		t.Fatalf("%v, %v", got, err)
	}
	if Codec().Name() != "proto" {
		t.Errorf("its content type is %q", Codec().Name())
	}
}

// FuzzFrame holds the codec's reading against protobuf's, for whatever comes, cut
// into buffers of any size; and what it writes of what it read against what
// protobuf reads of that.
func FuzzFrame(f *testing.F) {
	full, err := proto.Marshal(&pb.PutRequest{Header: header(), Data: []byte("some bytes")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full, uint8(3))
	f.Add(append(bytes.Clone(full), full...), uint8(1)) // merged headers, the last data
	f.Add([]byte{}, uint8(1))
	f.Add([]byte{0x0a}, uint8(1))
	f.Add([]byte{0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, uint8(2))
	f.Add([]byte{0x08, 0x01, 0x12, 0x01, 'x'}, uint8(9))                    // field 1 as a number
	f.Add([]byte{0x1b, 0x08, 0x01, 0x1c, 0x12, 0x01, 'x'}, uint8(2))        // a group
	f.Add([]byte{0x25, 1, 2, 3, 4, 0x29, 1, 2, 3, 4, 5, 6, 7, 8}, uint8(4)) // unknown fields
	f.Add([]byte{0x0c}, uint8(1))                                           // the end of no group
	f.Add(protowire.AppendTag(nil, protowire.MaxValidNumber, protowire.VarintType), uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		want := &pb.PutRequest{}
		wantErr := proto.Unmarshal(data, want)
		got := &pb.PutHeader{}
		fr := &frame{header: got}
		err := fr.parse(pieces(data, int(size)+1))
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("protobuf: %v, codec: %v", wantErr, err)
		}
		if err != nil {
			return
		}
		payload := bytes.Join(fr.chunks, nil)
		if fr.has != (want.GetHeader() != nil) || fr.has && !proto.Equal(got, want.GetHeader()) || !bytes.Equal(payload, want.GetData()) || fr.size != len(payload) {
			t.Fatalf("protobuf: %v, codec: header %v (%v), %d bytes", want, got, fr.has, len(payload))
		}
		out := &frame{chunks: fr.chunks, size: fr.size}
		if fr.has {
			out.header = got
		}
		b, err := Codec().Marshal(out)
		if err != nil {
			t.Fatal(err)
		}
		back := &pb.PutRequest{}
		if err := proto.Unmarshal(b.Materialize(), back); err != nil {
			t.Fatal(err)
		}
		want.ProtoReflect().SetUnknown(nil)
		if want.GetHeader() == nil && back.GetHeader() != nil || !proto.Equal(want, back) {
			t.Fatalf("%v became %v", want, back)
		}
	})
}

func TestFillKeepsEveryByteInOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var whole []byte
		var chunks [][]byte
		for range rng.IntN(8) {
			c := make([]byte, rng.IntN(2*frameMax))
			for i := 0; i < len(c); i += 97 {
				c[i] = byte(rng.Uint32())
			}
			whole, chunks = append(whole, c...), append(chunks, c)
		}
		var got []byte
		for rest, first := chunks, true; first || len(rest) > 0; first = false {
			f := &frame{}
			rest = f.fill(rest)
			if f.size > frameMax || f.size == 0 && len(whole) > 0 {
				t.Fatalf("a frame of %d bytes", f.size)
			}
			for _, c := range f.chunks {
				got = append(got, c...)
			}
		}
		if !bytes.Equal(got, whole) {
			t.Fatalf("%d bytes became %d, or others", len(whole), len(got))
		}
	}
}
