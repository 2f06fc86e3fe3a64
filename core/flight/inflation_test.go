package flight_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	aflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/flight"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// bombRowCount is enough for each of four buckets to get some.
const bombRowCount = 64

// bombRows are rows of idName from id on, whose names have size bytes together.
func bombRows(id int64, size int) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, idNameSchema)
	defer b.Release()
	for i := range int64(bombRowCount) {
		b.Field(0).(*array.Int64Builder).Append(id + i)
		b.Field(1).(*array.StringBuilder).Append(strings.Repeat("a", size/bombRowCount))
	}
	return b.NewRecordBatch()
}

// bombWays are the ways to write compressed rows, each with its table.
var bombWays = []struct {
	name, rest string
	to         func(w *world) *aflight.FlightDescriptor
}{
	{"native append", "", func(w *world) *aflight.FlightDescriptor {
		return cmd(api.Command{Append: &api.Append{Bucket: w.bucket(0), SchemaID: 1}})
	}},
	{"append by path", "", func(*world) *aflight.FlightDescriptor { return path("db", "t") }},
	{"append by path in parts", `"bucket_keys":["id"],"bucket_count":4`, func(*world) *aflight.FlightDescriptor { return path("db", "t") }},
	{"native put", `"primary_key":["id"],"bucket_count":1`, func(w *world) *aflight.FlightDescriptor {
		return cmd(api.Command{Put: &api.Put{Bucket: w.bucket(0), SchemaID: 1}})
	}},
	{"put by path", `"primary_key":["id"],"bucket_count":1`, func(*world) *aflight.FlightDescriptor { return path("db", "t") }},
	{"put by path in parts", `"primary_key":["id"],"bucket_count":4`, func(*world) *aflight.FlightDescriptor { return path("db", "t") }},
}

// putBomb writes one compressed batch and answers how the put ended. It may be called
// from several goroutines at a time.
func (w *world) putBomb(d *aflight.FlightDescriptor, id int64, size int) error {
	s, err := w.raw.DoPut(w.t.Context())
	if err != nil {
		return err
	}
	out := aflight.NewRecordWriter(s, ipc.WithSchema(idNameSchema), ipc.WithZstd())
	out.SetFlightDescriptor(d)
	rows := bombRows(id, size)
	defer rows.Release()
	if err := errors.Join(out.Write(rows), out.Close(), s.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for err == nil {
		_, err = s.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// By every way a compressed batch is unpacked only while there is room: it waits, is
// refused so that it is sent again, and many at once stay within the bound.
func TestBombsByEveryWay(t *testing.T) {
	const size, puts = 3 << 20, 12
	for _, c := range bombWays {
		t.Run(c.name, func(t *testing.T) {
			impatient := tablet.NewInflation(size+size/2, time.Millisecond)
			w := newWorld(t, func(cfg *flight.Config) {
				cfg.Inflation = impatient
				if c.rest == "" { // no store has to open within it
					cfg.ThrottleWait = time.Second
				}
			})
			w.table(idName, c.rest)
			d := c.to(w)
			rows := bombRows(0, size)
			metadata, body, err := arrowipc.Encode(rows, ipc.WithZstd())
			rows.Release()
			if err != nil {
				t.Fatal(err)
			}
			give, err := impatient.Take(t.Context(), metadata, body)
			if err != nil {
				t.Fatal(err)
			}
			wantStatus(t, w.putBomb(d, 0, size), api.ReasonThrottled, "")
			if err := w.putBomb(d, 0, 1000); err != nil { // small ones go on
				t.Fatal(err)
			}
			give()
			if err := w.putBomb(d, 0, size); err != nil {
				t.Fatal(err)
			}
			wantStatus(t, w.putBomb(d, 0, 2*size), api.ReasonTooLarge, "")
			if s := impatient.Stats(); s.Taken != 0 {
				t.Fatalf("%+v", s)
			}
		})
		t.Run("many by "+c.name, func(t *testing.T) {
			patient := tablet.NewInflation(2*size+size/2, time.Hour)
			w := newWorld(t, func(cfg *flight.Config) { cfg.Inflation = patient })
			w.table(idName, c.rest)
			d := c.to(w)
			var wg sync.WaitGroup
			for i := range int64(puts) {
				wg.Go(func() {
					if err := w.putBomb(d, bombRowCount*i, size); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if s := patient.Stats(); s.Peak < size || s.Peak > s.Max || s.Taken != 0 {
				t.Fatalf("%+v", s)
			}
			if n := len(w.read(path("db", "t"))); n != bombRowCount*puts {
				t.Fatalf("%d rows of %d", n, bombRowCount*puts)
			}
		})
	}
}

// takenKV notes how much is unpacked when a put arrives.
type takenKV struct {
	flight.KV
	inflation *tablet.Inflation
	taken     *atomic.Int64
}

func (k takenKV) Put(ctx context.Context, p kv.Put) (flight.Pending, error) {
	k.taken.Store(max(k.taken.Load(), k.inflation.Stats().Taken))
	return k.KV.Put(ctx, p)
}

// Rows of a batch that goes to several buckets are held unpacked until the last of them
// has them, and are counted for so long.
func TestPartsHoldTheirRoom(t *testing.T) {
	const size = 3 << 20
	f := tablet.NewInflation(2*size, time.Hour)
	w := newWorld(t, func(cfg *flight.Config) { cfg.Inflation = f })
	w.table(idName, `"primary_key":["id"],"bucket_count":4`)
	var taken atomic.Int64
	w.backend.throughKV(func(store flight.KV) (flight.KV, error) { return takenKV{store, f, &taken}, nil })
	if err := w.putBomb(path("db", "t"), 0, size); err != nil {
		t.Fatal(err)
	}
	if n, s := taken.Load(), f.Stats(); n < size || s.Taken != 0 {
		t.Fatal(n, fmt.Sprintf("%+v", s))
	}
}

// Room is given back also when the client goes away before the rows were handed over.
func TestAbandonedPutGivesItsRoomBack(t *testing.T) {
	const size = 3 << 20
	f := tablet.NewInflation(size+size/2, time.Minute)
	w := newWorld(t, func(cfg *flight.Config) { cfg.Inflation, cfg.ThrottleWait = f, time.Hour })
	w.table(idName, `"primary_key":["id"],"bucket_count":4`)
	refused := make(chan struct{}, 1)
	w.backend.throughKV(func(flight.KV) (flight.KV, error) {
		select {
		case refused <- struct{}{}:
		default:
		}
		return nil, mink.ErrThrottled
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := w.raw.DoPut(ctx)
	if err != nil {
		t.Fatal(err)
	}
	out := aflight.NewRecordWriter(s, ipc.WithSchema(idNameSchema), ipc.WithZstd())
	out.SetFlightDescriptor(path("db", "t"))
	rows := bombRows(0, size)
	defer rows.Release()
	if err := out.Write(rows); err != nil {
		t.Fatal(err)
	}
	<-refused
	metadata, body, err := arrowipc.Encode(rows, ipc.WithZstd())
	if err != nil {
		t.Fatal(err)
	}
	if n := f.Stats().Taken; n < size {
		t.Fatal("the rows that wait take", n)
	}
	cancel()
	give, err := f.Take(t.Context(), metadata, body) // waits for it
	if err != nil {
		t.Fatal(err)
	}
	give()
}
