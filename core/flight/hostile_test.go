package flight_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	aflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mink-project/mink/core/flight/wire"
	"github.com/mink-project/mink/sdk/api"
)

// rawPut sends messages as they are and answers how the put ended; nil when all
// was written.
func (w *world) rawPut(d *aflight.FlightDescriptor, messages ...*aflight.FlightData) error {
	w.t.Helper()
	s, err := w.raw.DoPut(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	messages[0].FlightDescriptor = d
	for _, m := range messages {
		if err := s.Send(m); err != nil && !errors.Is(err, io.EOF) {
			w.t.Fatal(err)
		}
	}
	_ = s.CloseSend()
	for err == nil {
		_, err = s.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// bothWays are an append to bucket 0 of db.t, and a put by path.
func (w *world) bothWays() map[string]*aflight.FlightDescriptor {
	return map[string]*aflight.FlightDescriptor{
		"native": cmd(api.Command{Append: &api.Append{Bucket: w.bucket(0), SchemaID: 1}}), "by path": path("db", "t"),
	}
}

// Schemas that are not the table's are refused with what is wrong, before a row
// is read.
func TestWrongArrowSchemas(t *testing.T) {
	w := newWorld(t)
	w.table(idName, "")
	f := func(name string, typ arrow.DataType) arrow.Field {
		return arrow.Field{Name: name, Type: typ, Nullable: true}
	}
	i64, str := arrow.PrimitiveTypes.Int64, arrow.BinaryTypes.String
	deep := i64
	for range 40 {
		deep = arrow.ListOf(deep)
	}
	for name, c := range map[string]struct {
		fields []arrow.Field
		path   string // what an error by path names, "": it is fine there
	}{
		"no columns":         {nil, "id"},
		"a column too few":   {[]arrow.Field{f("name", str)}, "id"},
		"a column too many":  {[]arrow.Field{f("id", i64), f("name", str), f("more", str)}, "more"},
		"a name twice":       {[]arrow.Field{f("id", i64), f("id", i64)}, "id"},
		"another type":       {[]arrow.Field{f("id", str), f("name", str)}, "id"},
		"a nested type":      {[]arrow.Field{f("id", i64), f("name", arrow.ListOf(str))}, "name"},
		"far too nested":     {[]arrow.Field{f("id", deep), f("name", str)}, ""},
		"a dictionary":       {[]arrow.Field{f("id", i64), f("name", &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: str})}, "name"},
		"a string view":      {[]arrow.Field{f("id", i64), f("name", arrow.BinaryTypes.StringView)}, "name"},
		"a union":            {[]arrow.Field{f("id", i64), f("name", arrow.DenseUnionOf([]arrow.Field{f("a", str)}, []arrow.UnionTypeCode{0}))}, "name"},
		"an extension's own": {[]arrow.Field{f("id", i64), f("name", arrow.FixedWidthTypes.MonthInterval)}, "name"},
	} {
		t.Run(name, func(t *testing.T) {
			for way, d := range w.bothWays() {
				err := w.rawPut(d, &aflight.FlightData{DataHeader: wire.SchemaMessage(arrow.NewSchema(c.fields, nil))})
				t.Run(way, func(t *testing.T) { wantStatus(t, err, api.ReasonInvalid, c.path) })
			}
		})
	}
	if hw := w.log(w.bucket(0)).HighWatermark(); hw != 0 {
		t.Errorf("refused streams left %d rows", hw)
	}
}

// Batches of a dictionary come after messages that are no rows: refused, not
// misread.
func TestDictionaryBatchesAreRefused(t *testing.T) {
	w := newWorld(t)
	w.table(idName, "")
	dict := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String}
	s := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "name", Type: dict, Nullable: true}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	b.Field(0).(*array.Int64Builder).Append(1)
	if err := b.Field(1).(*array.BinaryDictionaryBuilder).AppendString("a"); err != nil {
		t.Fatal(err)
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	var sent sentMessages
	out := aflight.NewRecordWriter(&sent, ipc.WithSchema(s))
	if err := out.Write(rec); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	if len(sent.all) != 3 {
		t.Fatalf("%d messages, want schema, dictionary and batch", len(sent.all))
	}
	for way, d := range w.bothWays() {
		t.Run(way, func(t *testing.T) {
			// The dictionary's schema is refused. Under the table's own schema the
			// messages that follow it are.
			wantStatus(t, w.rawPut(d, sent.copies()...), api.ReasonInvalid, "name")
			lying := sent.copies()
			lying[0] = &aflight.FlightData{DataHeader: wire.SchemaMessage(idNameSchema)}
			wantStatus(t, w.rawPut(d, lying...), api.ReasonUnsupported, "dictionary")
			wantStatus(t, w.rawPut(d, lying[0], lying[2]), api.ReasonInvalid, "")
		})
	}
	if hw := w.log(w.bucket(0)).HighWatermark(); hw != 0 {
		t.Errorf("refused batches left %d rows", hw)
	}
}

// sentMessages keeps what a Flight writer sends.
type sentMessages struct{ all []*aflight.FlightData }

func (s *sentMessages) Send(m *aflight.FlightData) error {
	s.all = append(s.all, &aflight.FlightData{DataHeader: slices.Clone(m.DataHeader), DataBody: slices.Clone(m.DataBody)})
	return nil
}

func (s *sentMessages) copies() []*aflight.FlightData {
	out := make([]*aflight.FlightData, len(s.all))
	for i, m := range s.all {
		out[i] = &aflight.FlightData{DataHeader: m.DataHeader, DataBody: m.DataBody}
	}
	return out
}

// allocated is how much f allocates, of this process's server and client.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Truncated messages, plain and compressed, and lengths that cannot be: an error
// of the stream, no memory of the size that a message claims.
func TestTruncatedAndAbsurdBatches(t *testing.T) {
	w := newWorld(t)
	w.table(idName, "")
	schema := wire.SchemaMessage(idNameSchema)
	rec := idNames(0, 500)
	defer rec.Release()
	refused := 0
	try := func(d *aflight.FlightDescriptor, what string, header, body []byte) {
		t.Helper()
		var err error
		grown := allocated(func() {
			err = w.rawPut(d, &aflight.FlightData{DataHeader: schema}, &aflight.FlightData{DataHeader: header, DataBody: body})
		})
		if c := status.Code(err); err != nil && c != codes.InvalidArgument && c != codes.ResourceExhausted && c != codes.Unimplemented {
			t.Errorf("%s: %v", what, err)
		}
		if err != nil {
			refused++
		}
		if grown > 16<<20 {
			t.Errorf("%s: %d MiB were allocated", what, grown>>20)
		}
	}
	for codec, opts := range map[string][]ipc.Option{"plain": nil, "lz4": {ipc.WithLZ4()}, "zstd": {ipc.WithZstd()}} {
		header, body := payload(t, rec, opts...)
		for way, d := range w.bothWays() {
			for n := 0; n < len(body); n += max(len(body)/40, 1) {
				before := refused
				try(d, fmt.Sprintf("%s %s: body cut at %d of %d", codec, way, n, len(body)), header, body[:n])
				if refused == before {
					t.Errorf("%s %s: a body cut at %d of %d is taken", codec, way, n, len(body))
				}
			}
			for n := 0; n < len(header); n += 4 {
				try(d, fmt.Sprintf("%s %s: header cut at %d", codec, way, n), header[:n], body)
			}
			for at := 0; at+8 <= len(header); at += 4 {
				for _, v := range []uint64{math.MaxInt64, math.MaxUint64, 1 << 62, 1 << 40, math.MaxUint32, math.MaxInt32} {
					damaged := slices.Clone(header)
					binary.LittleEndian.PutUint64(damaged[at:], v)
					try(d, fmt.Sprintf("%s %s: %#x at %d of the header", codec, way, v, at), damaged, body)
				}
			}
			// A compressed buffer begins with the length that it claims to have.
			if codec == "plain" {
				continue
			}
			for _, v := range []uint64{1 << 62, 1 << 34, 1 << 31} {
				damaged := slices.Clone(body)
				binary.LittleEndian.PutUint64(damaged, v)
				before := refused
				try(d, fmt.Sprintf("%s %s: a buffer that claims %d bytes", codec, way, v), header, damaged)
				if refused == before {
					t.Errorf("%s %s: a buffer that claims %d bytes is taken", codec, way, v)
				}
			}
		}
	}
	// A bomb: a few kB that are 300 MiB when decompressed, as they say.
	bomb := array.NewRecordBuilder(memory.DefaultAllocator, idNameSchema)
	bomb.Field(0).(*array.Int64Builder).Append(1)
	bomb.Field(1).(*array.StringBuilder).Append(string(make([]byte, 300<<20)))
	large := bomb.NewRecordBatch()
	header, body := payload(t, large, ipc.WithZstd())
	large.Release()
	bomb.Release()
	if len(body) > 1<<20 {
		t.Fatalf("the bomb is of %d bytes", len(body))
	}
	for way, d := range w.bothWays() {
		before := refused
		if try(d, way+": a bomb", header, body); refused == before {
			t.Errorf("%s: a bomb is taken", way)
		}
	}
	// The node goes on, for others.
	p := w.put(path("db", "t"), idNameSchema)
	p.send(idNames(0, 3), nil)
	if r := mustResult[api.PutResult](p); r.Rows != 3 {
		t.Errorf("result %+v", r)
	}
	p.finish()
}
