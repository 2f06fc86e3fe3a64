package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// keyed makes batches of random keys below n with one payload column.
type keyed struct {
	schema  *arrow.Schema
	n       int64
	payload arrow.Array // nil: keys alone
}

func newKeyed(s *arrow.Schema, f benchFlags) (*keyed, error) {
	if s.NumFields() == 1 && s.Field(0).Type.ID() == arrow.INT64 { // keys of lookups
		return &keyed{schema: s, n: f.keys}, nil
	}
	rec, err := benchBatch(s, f)
	if err != nil {
		return nil, err
	}
	defer rec.Release()
	k := &keyed{schema: s, n: f.keys, payload: rec.Column(1)}
	k.payload.Retain()
	return k, nil
}

func (k *keyed) batch(rows int64) arrow.RecordBatch {
	b := array.NewInt64Builder(defaultAllocator)
	defer b.Release()
	b.Reserve(int(rows))
	for range rows {
		b.UnsafeAppend(rand.Int64N(k.n))
	}
	keys := b.NewArray()
	defer keys.Release()
	columns := []arrow.Array{keys}
	if k.payload != nil {
		payload := array.NewSlice(k.payload, 0, rows)
		defer payload.Release()
		columns = append(columns, payload)
	}
	return array.NewRecordBatch(k.schema, columns, rows)
}

// benchUpsert upserts rows of random keys.
func benchUpsert(ctx context.Context, c *client.Client, name string, f benchFlags, m *meter) error {
	w, err := c.NewUpsertWriter(ctx, name, client.DefaultUpsert())
	if err != nil {
		return err
	}
	rows, err := newKeyed(w.Schema(), f)
	if err != nil {
		return err
	}
	return f.write(ctx, m, rows.batch, w.Upsert, w.Close)
}

// benchLookup looks random keys up; each of the goroutines waits for its answer.
func benchLookup(ctx context.Context, c *client.Client, name string, f benchFlags, m *meter) error {
	l, err := c.NewLookuper(ctx, name, client.DefaultLookup())
	if err != nil {
		return err
	}
	defer l.Close()
	keys, err := newKeyed(l.KeySchema(), f)
	if err != nil {
		return err
	}
	return f.each(func(n int64, _ *sync.WaitGroup) error {
		rec := keys.batch(n)
		defer rec.Release()
		start := time.Now()
		found, err := l.Lookup(ctx, rec)
		m.done(n, time.Since(start), err)
		if err == nil {
			m.found.Add(found.Rows.NumRows())
			found.Rows.Release()
		}
		return ctx.Err()
	})
}

// each runs batches on so many goroutines until all rows were claimed or the time is
// over; waits are waited for.
func (f benchFlags) each(run func(rows int64, waits *sync.WaitGroup) error) error {
	began := time.Now()
	var taken atomic.Int64
	var g errgroup.Group
	for range f.concurrency {
		g.Go(func() error {
			var waits sync.WaitGroup
			defer waits.Wait()
			for n := f.claim(&taken, began); n > 0; n = f.claim(&taken, began) {
				if err := run(n, &waits); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// processCPU is the user and system time of a process so far, by proc(5); its clock
// ticks are 1/100 s on every Linux that Go runs on.
func processCPU(pid int) (time.Duration, error) {
	if pid == 0 {
		return 0, nil
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("--server-pid: %w", err)
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]) // from the state on: the name may hold anything
	var ticks int64
	for _, at := range []int{11, 12} { // utime, stime
		if at >= len(fields) {
			return 0, fmt.Errorf("--server-pid: /proc/%d/stat is not what proc(5) says: %w", pid, mink.ErrInvalid)
		}
		n, err := strconv.ParseInt(string(fields[at]), 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}
