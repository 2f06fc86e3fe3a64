package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
)

// acks are what one writer was promised of its numbered rows, in order: row i
// is durable at offset[i], -1 when the writer was not told where.
type acks struct {
	mu      sync.Mutex
	offsets []int64
	failed  error
}

func (a *acks) ack(seq int64, offset int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if seq != int64(len(a.offsets)) {
		a.fail(fmt.Errorf("row %d is acknowledged after row %d", seq, len(a.offsets)-1))
		return
	}
	a.offsets = append(a.offsets, offset)
}

// fail keeps the first error; the lock is held.
func (a *acks) fail(err error) {
	if a.failed == nil {
		a.failed = err
	}
}

// snapshot is what is acknowledged now.
func (a *acks) snapshot(t *testing.T) []int64 {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed != nil {
		t.Fatalf("a writer failed: %v", a.failed)
	}
	return a.offsets[:len(a.offsets):len(a.offsets)]
}

// pause waits, or ends with the context.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// produceLoad is one idempotent franz-go producer that writes numbered records
// to every partition, through any number of kills, until stop is done; then it
// waits for what is on its way.
func produceLoad(ctx, stop context.Context, k *kgo.Client, topic, name string, perPartition []*acks) error {
	seqs := make([]int64, len(perPartition))
	for stop.Err() == nil {
		for p := range perPartition {
			for range 5 {
				seq, a := seqs[p], perPartition[p]
				seqs[p]++
				r := &kgo.Record{Topic: topic, Partition: int32(p), Key: []byte(name), Value: fmt.Appendf(nil, "%s/%d/%d", name, p, seq)}
				k.Produce(ctx, r, func(r *kgo.Record, err error) {
					if err == nil {
						a.ack(seq, r.Offset)
						return
					}
					a.mu.Lock()
					a.fail(fmt.Errorf("record %d of %s to partition %d: %w", seq, name, p, err))
					a.mu.Unlock()
				})
			}
		}
		pause(stop, 20*time.Millisecond)
	}
	return k.Flush(ctx)
}

// numbered is rows (part, seq ...) of a batch.
func numbered(s *arrow.Schema, part int32, first, count int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	for i := range count {
		b.Field(0).(*array.Int32Builder).Append(part)
		b.Field(1).(*array.Int64Builder).Append(first + i)
		b.Field(2).(*array.StringBuilder).Append(fmt.Sprintf("row %d of part %d", first+i, part))
	}
	return b.NewRecordBatch()
}

// appendLoad writes numbered rows through the idempotent Go writer, one order
// per part, until stop is done; then it waits for what is on its way.
func appendLoad(ctx, stop context.Context, w *client.Writer, part int32, a *acks) error {
	type sent struct {
		first, count int64
		of           *client.Append
	}
	queue := make(chan sent, 64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := range queue {
			err := s.of.Wait(ctx)
			for i := range s.count {
				if err == nil {
					a.ack(s.first+i, -1)
				}
			}
			if err != nil {
				a.mu.Lock()
				a.fail(fmt.Errorf("rows from %d of part %d: %w", s.first, part, err))
				a.mu.Unlock()
			}
		}
	}()
	defer func() { <-done }()
	defer close(queue)
	for seq := int64(0); stop.Err() == nil; {
		rec := numbered(w.Schema(), part, seq, 1+seq%7)
		p, err := w.Append(ctx, rec)
		if err != nil {
			rec.Release()
			return err
		}
		queue <- sent{seq, rec.NumRows(), p}
		seq += rec.NumRows()
		rec.Release()
		pause(stop, 5*time.Millisecond)
	}
	return nil
}

// plainLoad writes numbered rows by path, as any Flight client does, and sends
// nothing twice: acknowledged rows are there once, the others at most once.
type plainLoad struct {
	mu    sync.Mutex
	sent  int64
	acked map[int64]bool
}

func (l *plainLoad) snapshot() map[int64]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[int64]bool, len(l.acked))
	for k := range l.acked {
		out[k] = true
	}
	return out
}

func (l *plainLoad) run(ctx, stop context.Context, address string, s *arrow.Schema, path ...string) error {
	again := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1, MaxDelay: 50 * time.Millisecond}, MinConnectTimeout: time.Second}
	c, err := flight.NewClientWithMiddleware(address, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(again))
	if err != nil {
		return err
	}
	defer c.Close()
	for stop.Err() == nil {
		l.stream(ctx, stop, c, s, path)
		pause(stop, 10*time.Millisecond)
	}
	return nil
}

// stream writes on one DoPut until it breaks or stop is done.
func (l *plainLoad) stream(ctx, stop context.Context, c flight.Client, s *arrow.Schema, path []string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	put, err := c.DoPut(ctx)
	if err != nil {
		return
	}
	var mu sync.Mutex
	var waiting [][2]int64 // first and count of each batch without an answer
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			r, err := put.Recv()
			if err != nil {
				return
			}
			var res api.PutResult
			if decodeJSON(r.AppMetadata, &res) != nil {
				return
			}
			mu.Lock()
			known := waiting[:res.Batches]
			waiting = waiting[res.Batches:]
			mu.Unlock()
			l.mu.Lock()
			for _, b := range known {
				for i := range b[1] {
					if res.Buckets[0].Error == "" {
						l.acked[b[0]+i] = true
					}
				}
			}
			l.mu.Unlock()
		}
	}()
	defer func() { <-done }()
	defer cancel()
	out := flight.NewRecordWriter(put, ipc.WithSchema(s))
	defer out.Close()
	out.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: path})
	for stop.Err() == nil {
		first, count := l.sent, 1+l.sent%5
		rec := numbered(s, 0, first, count)
		mu.Lock()
		waiting = append(waiting, [2]int64{first, count})
		mu.Unlock()
		l.sent += count
		err := out.Write(rec)
		rec.Release()
		if err != nil {
			return
		}
		select {
		case <-done:
			return
		default:
			pause(stop, 5*time.Millisecond)
		}
	}
	if err := put.CloseSend(); err != nil && !errors.Is(err, io.EOF) {
		return
	}
	<-done // answers of what was sent
}
