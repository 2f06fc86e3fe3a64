package kv

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// bombOf is a put of one row, k, whose value has size bytes and compresses well.
func bombOf(t testing.TB, b *bed, k int32, size int) Put {
	t.Helper()
	s := b.current()
	rows := array.NewRecordBuilder(allocator, s.Arrow())
	defer rows.Release()
	rows.Field(0).(*array.Int32Builder).Append(k)
	rows.Field(1).(*array.StringBuilder).Append(strings.Repeat("a", size))
	rows.Field(2).AppendNull()
	rec := rows.NewRecordBatch()
	defer rec.Release()
	p := Put{SchemaID: s.ID, Count: 1, WriterID: mink.NoWriter}
	var err error
	if p.Metadata, p.Body, err = arrowipc.Encode(rec, ipc.WithZstd()); err != nil {
		t.Fatal(err)
	}
	return p
}

func inflationBed(t *testing.T, f *tablet.Inflation) *bed {
	sh := newShared(t, func(c *SharedConfig) { c.Inflation = f })
	b := makeBed(t, sh, t.TempDir(), table(t, 1, nil, column("k", "INT"), column("v", "STRING"), column("n", "BIGINT")), true)
	t.Cleanup(b.close)
	return b
}

// Many puts that expand to much are unpacked within the bound, and none is lost; small
// ones go on meanwhile.
func TestBombsAreUnpackedInTurns(t *testing.T) {
	const size, puts = 3 << 20, 40
	f := tablet.NewInflation(2*size+size/2, time.Hour)
	b := inflationBed(t, f)
	g, ctx := errgroup.WithContext(t.Context())
	done := func(p *Pending, err error) error {
		if err != nil {
			return err
		}
		<-p.Done()
		_, err = p.Result()
		return err
	}
	for k := range int32(puts) {
		p := bombOf(t, b, k, size)
		g.Go(func() error { return done(b.kv.Put(ctx, p)) })
		g.Go(func() error { return done(b.tryPut(false, nil, Row{1000 + k, "small", nil})) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if s := f.Stats(); s.Peak < size || s.Peak > s.Max || s.Taken != 0 {
		t.Fatalf("%+v", s)
	}
	if n, err := b.kv.Count(t.Context()); n != 2*puts || err != nil {
		t.Fatal(n, err)
	}
}

// While others unpack what may be unpacked at a time, a put waits; then it is refused,
// to be sent again.
func TestBombIsThrottled(t *testing.T) {
	const size = 3 << 20
	f := tablet.NewInflation(size+size/2, time.Millisecond)
	b := inflationBed(t, f)
	p := bombOf(t, b, 1, size)
	give, err := f.Take(t.Context(), p.Metadata, p.Body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.kv.Put(t.Context(), p); !errors.Is(err, mink.ErrThrottled) {
		t.Fatal(err)
	}
	wait(t, b.put(false, nil, Row{int32(2), "small", nil}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.kv.Put(ctx, p); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	give()
	pending, err := b.kv.Put(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, pending)
	if s := f.Stats(); s.Taken != 0 {
		t.Fatalf("%+v", s)
	}
	if _, err := b.kv.Put(t.Context(), bombOf(t, b, 3, 2*size)); !errors.Is(err, mink.ErrTooLarge) {
		t.Fatal(err)
	}
}
