package flight_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	aflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mink-project/mink/core/flight"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

func TestClientScanAndTail(t *testing.T) {
	w := newWorld(t)
	w.table(`{"name":"day","type":"STRING NOT NULL"},`+idName, `"partition_keys":["day"],"bucket_count":2,"bucket_keys":["id"]`)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	wr, err := w.client.NewWriter(ctx, "db.t", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, wr.Schema())
	defer b.Release()
	write := func(first, n int) {
		t.Helper()
		for i := first; i < first+n; i++ {
			b.Field(0).(*array.StringBuilder).Append([]string{"mon", "tue", "wed"}[i%3])
			b.Field(1).(*array.Int64Builder).Append(int64(i))
			b.Field(2).AppendNull()
		}
		rec := b.NewRecordBatch()
		defer rec.Release()
		a, err := wr.Append(ctx, rec)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 {
		write(i*30, 30)
	}
	var all []int64
	for batch, err := range w.client.Scan(ctx, client.ScanRequest{Table: "db.t", Bucket: -1, Columns: []string{"id"}}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, batch.Record.Column(0).(*array.Int64).Int64Values()...)
	}
	slices.Sort(all)
	if !slices.Equal(all, seq(0, 300)) {
		t.Errorf("scan has %d ids: %v", len(all), all)
	}
	n := 0
	for batch, err := range w.client.Scan(ctx, client.ScanRequest{Table: "db.t", Partition: []string{"tue"}, Bucket: -1, Limit: 40}) {
		if err != nil {
			t.Fatal(err)
		}
		n += int(batch.Record.NumRows())
	}
	if n != 40 {
		t.Errorf("limited scan has %d rows", n)
	}
	seen := map[int64]bool{}
	for batch, err := range w.client.Tail(ctx, client.TailRequest{ScanRequest: client.ScanRequest{Table: "db.t", Bucket: -1, Columns: []string{"id"}, From: "earliest"}}) {
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range batch.Record.Column(0).(*array.Int64).Int64Values() {
			if seen[id] {
				t.Errorf("id %d twice", id)
			}
			seen[id] = true
		}
		if len(seen) == 300 {
			write(300, 3)
		}
		if len(seen) == 303 {
			break
		}
	}
	if err := wr.Close(ctx); err != nil {
		t.Error(err)
	}
}

// A tail follows partitions that are made while it runs, from their beginning although
// it began at the end of the others: every row of them once.
func TestTailFollowsLaterPartitions(t *testing.T) {
	w := newWorld(t)
	w.table(`{"name":"day","type":"STRING NOT NULL"},`+idName, `"partition_keys":["day"],"bucket_count":2,"bucket_keys":["id"]`)
	cfg := client.Default()
	cfg.Bootstrap, cfg.DiscoverInterval = []string{w.address}, 5*time.Millisecond
	c, err := client.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	defer func() { _ = c.Close() }()
	put := func(day string, first, n int) error {
		rows := idNames(first, n)
		days := array.NewStringBuilder(memory.DefaultAllocator)
		for range n {
			days.Append(day)
		}
		s, err := w.raw.DoPut(ctx)
		if err != nil {
			return err
		}
		fields := append([]arrow.Field{{Name: "day", Type: arrow.BinaryTypes.String}}, rows.Schema().Fields()...)
		rec := array.NewRecordBatch(arrow.NewSchema(fields, nil), append([]arrow.Array{days.NewArray()}, rows.Columns()...), int64(n))
		out := aflight.NewRecordWriter(s, ipc.WithSchema(rec.Schema()))
		out.SetFlightDescriptor(path("db", "t"))
		if err := errors.Join(out.Write(rec), out.Close(), s.CloseSend()); err != nil {
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
	if err := put("mon", 0, 10); err != nil {
		t.Fatal(err)
	}
	var writers errgroup.Group
	follows := make(chan struct{})
	writers.Go(func() error {
		for at := 10; ; at++ { // until one of them shows that the tail has begun
			select {
			case <-follows:
			case <-ctx.Done():
				return ctx.Err()
			default:
				if err := put("mon", at, 1); err != nil {
					return err
				}
				continue
			}
			break
		}
		var days errgroup.Group
		for d := range 5 {
			days.Go(func() error {
				for k := range 4 {
					if err := put(fmt.Sprintf("later-%d", d), 10_000+d*100+k*25, 25); err != nil {
						return err
					}
				}
				return nil
			})
		}
		return days.Wait()
	})
	seen := map[int64]bool{}
	began, late := false, 0
	for batch, err := range c.Tail(ctx, client.TailRequest{ScanRequest: client.ScanRequest{Table: "db.t", Bucket: -1, Columns: []string{"id"}, From: "latest"}}) {
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range batch.Record.Column(0).(*array.Int64).Int64Values() {
			if id < 10 {
				t.Errorf("id %d was there before the tail", id)
			}
			if seen[id] {
				t.Errorf("id %d twice", id)
			}
			seen[id] = true
			if id >= 10_000 {
				late++
				if !slices.Equal(batch.Partition, []string{fmt.Sprintf("later-%d", (id-10_000)/100)}) {
					t.Errorf("id %d of partition %v", id, batch.Partition)
				}
			}
			if !began {
				began = true
				close(follows)
			}
		}
		if late == 500 {
			break
		}
	}
	if err := writers.Wait(); err != nil {
		t.Fatal(err)
	}
}

// refusing refuses every append for good, while it is told to.
type refusing struct {
	flight.Log
	on *atomic.Bool
}

func (r refusing) AppendArrow(a tablet.ArrowAppend) (flight.Pending, error) {
	if r.on.Load() {
		return nil, fmt.Errorf("no room for this batch: %w", mink.ErrTooLarge)
	}
	return r.Log.AppendArrow(a)
}

// Nobody waits for an append, it fails, and only then the writer is flushed or
// closed: that must not look like success.
func TestFlushTellsOfEarlierFailures(t *testing.T) {
	w := newWorld(t)
	w.table(idName, "")
	var on atomic.Bool
	w.backend.through(func(l flight.Log) flight.Log { return refusing{l, &on} })
	wr, err := w.client.NewWriter(t.Context(), "db.t", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	write := func(first int) {
		t.Helper()
		rec := idNames(first, 10)
		defer rec.Release()
		a, err := wr.Append(t.Context(), rec)
		if err != nil {
			t.Fatal(err)
		}
		<-a.Done()
	}
	on.Store(true)
	write(0)
	on.Store(false)
	write(10)
	if err := wr.Flush(t.Context()); !errors.Is(err, mink.ErrTooLarge) || !strings.Contains(err.Error(), "append to db.t") {
		t.Errorf("flush after a failed append: %v", err)
	}
	if err := wr.Flush(t.Context()); err != nil {
		t.Errorf("the failure was told, the second flush says %v", err)
	}
	on.Store(true)
	write(20)
	if err := wr.Close(t.Context()); !errors.Is(err, mink.ErrTooLarge) {
		t.Errorf("close after a failed append: %v", err)
	}
}

// A partition is dropped under a writer: its rows fail once, then the writer
// makes the partition anew.
func TestWriterOutlivesADroppedPartition(t *testing.T) {
	w := newWorld(t)
	w.table(`{"name":"day","type":"STRING NOT NULL"},`+idName, `"partition_keys":["day"]`)
	wr, err := w.client.NewWriter(t.Context(), "db.t", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	write := func(id int64) error {
		b := array.NewRecordBuilder(memory.DefaultAllocator, wr.Schema())
		defer b.Release()
		b.Field(0).(*array.StringBuilder).Append("mon")
		b.Field(1).(*array.Int64Builder).Append(id)
		b.Field(2).AppendNull()
		rec := b.NewRecordBatch()
		defer rec.Release()
		a, err := wr.Append(t.Context(), rec)
		if err != nil {
			return err
		}
		return a.Wait(t.Context())
	}
	if err := write(1); err != nil {
		t.Fatal(err)
	}
	if err := w.client.DropPartition(t.Context(), "db.t", []string{"mon"}, false); err != nil {
		t.Fatal(err)
	}
	if err := write(2); !errors.Is(err, mink.ErrNotExist) {
		t.Errorf("write to a dropped partition: %v", err)
	}
	if err := write(3); err != nil {
		t.Errorf("the next write: %v", err)
	}
	var got []int64
	for batch, err := range w.client.Scan(t.Context(), client.ScanRequest{Table: "db.t", Bucket: -1, Columns: []string{"id"}}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, batch.Record.Column(0).(*array.Int64).Int64Values()...)
	}
	if !slices.Equal(got, []int64{3}) {
		t.Errorf("rows %v", got)
	}
	_ = wr.Close(t.Context()) // tells of row 2 again
}

// Errors of reads name the table and what is wrong, in a person's words.
func TestClientErrors(t *testing.T) {
	w := newWorld(t)
	w.table(idName, `"bucket_count":2`)
	for want, r := range map[string]client.ScanRequest{
		`invalid column: table db.t has no "nmae"; did you mean "name"?`:             {Table: "db.t", Bucket: -1, Columns: []string{"nmae"}},
		`invalid column: table db.t has no "zzz"; it has id, name`:                   {Table: "db.t", Bucket: -1, Columns: []string{"zzz"}},
		`read db.t: bucket 7 does not exist, the table has buckets 0 to 1`:           {Table: "db.t", Bucket: 7},
		`read db.t, bucket 0, from offset 0: invalid: scan: limit`:                   {Table: "db.t", Bucket: -1, Limit: -1},
		`table db.tt does not exist; did you mean "db.t"?`:                           {Table: "db.tt", Bucket: -1},
		`partition mon of table db.t does not exist`:                                 {Table: "db.t", Bucket: -1, Partition: []string{"mon"}},
		`position "yesterday": want "earliest", "latest", an offset, or a timestamp`: {Table: "db.t", Bucket: -1, From: "yesterday"},
	} {
		if r.Limit != 0 { // there must be something to read
			p := w.appendTo(1, 0, idNameSchema)
			p.send(idNames(0, 1), nil)
			mustResult[api.AppendResult](p)
			p.finish()
		}
		var err error
		for _, err = range w.client.Scan(t.Context(), r) {
			if err != nil {
				break
			}
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v:\n got %v\nwant %s", r, err, want)
		}
	}
	for _, err := range w.client.Tail(t.Context(), client.TailRequest{ScanRequest: client.ScanRequest{Table: "db.t", Bucket: 1, From: "99"}}) {
		if !errors.Is(err, mink.ErrOutOfRange) || !strings.HasPrefix(err.Error(), "follow db.t, bucket 1, from offset 99: ") {
			t.Errorf("a tail beyond the end: %v", err)
		}
	}
}

// A tail that gathers does not wait while the log has more: batches may not add
// up to min_bytes in one read.
func TestTailThatGathersCatchesUp(t *testing.T) {
	w := newWorld(t)
	w.table(idName, "")
	p := w.appendTo(1, 0, idNameSchema)
	const batches, rows = 4, 30_000 // some 700 KB each
	for i := range batches {
		p.send(idNames(i*rows, rows), nil)
		mustResult[api.AppendResult](p)
	}
	p.finish()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	n := int64(0)
	for b, err := range w.client.Tail(ctx, client.TailRequest{ScanRequest: client.ScanRequest{Table: "db.t", Bucket: -1}, MinBytes: 1 << 20, MaxWaitMs: 60_000}) {
		if err != nil {
			t.Fatalf("after %d rows: %v", n, err)
		}
		if n += b.Record.NumRows(); n >= (batches-1)*rows {
			break
		}
	}
	if n < (batches-1)*rows {
		t.Errorf("%d rows came", n)
	}
}

// A rebalance answers many bodies: each move when it has ended, then the report.
func TestClientRebalance(t *testing.T) {
	w := newWorld(t)
	w.table(idName, `"bucket_count":3`)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	// The coordinator takes the lease a moment after the node serves; until then the
	// answer is "unavailable", which the client rides out.
	r, err := w.client.Rebalance(ctx, true, nil)
	if err != nil || !r.DryRun || len(r.Moves) != 0 || len(r.Nodes) != 1 || r.Nodes[0].Before != 3 {
		t.Errorf("dry run on one node: %+v, %v", r, err)
	}
	moves := []api.Move{
		{Bucket: w.bucket(0), Table: "db.t", From: 1, To: 2, Outcome: api.MoveMoved, TookMs: 3},
		{Bucket: w.bucket(1), Table: "db.t", From: 1, To: 2, Outcome: api.MoveRefused, Reason: "why"},
	}
	w.backend.rebalance = func(each func(api.MoveProgress)) (api.RebalanceReport, error) {
		for i, m := range moves {
			each(api.MoveProgress{Ended: i + 1, Total: 2, Move: m})
		}
		return api.RebalanceReport{Moves: moves, TookMs: 4}, nil
	}
	var seen []api.Move
	r, err = w.client.Rebalance(ctx, false, func(p api.MoveProgress) { seen = append(seen, p.Move) })
	if err != nil || !slices.Equal(r.Moves, moves) || !slices.Equal(seen, moves) || r.Count(api.MoveMoved) != 1 {
		t.Errorf("%+v, %v; seen %+v", r, err, seen)
	}
	w.backend.rebalance = func(each func(api.MoveProgress)) (api.RebalanceReport, error) {
		each(api.MoveProgress{Ended: 1, Total: 2, Move: moves[0]})
		return api.RebalanceReport{}, fmt.Errorf("another one is under way: %w", mink.ErrConflict)
	}
	if _, err := w.client.Rebalance(ctx, false, nil); !errors.Is(err, mink.ErrConflict) {
		t.Errorf("a rebalance that fails on its way: %v", err)
	}
}

// A bucket's leader is asked for a move by release_bucket.
func TestReleaseBucketAction(t *testing.T) {
	w := newWorld(t)
	w.table(idName, "")
	for to, want := range map[mink.NodeID]codes.Code{1: codes.OK, 9: codes.InvalidArgument} { // it leads it already; nobody has that id
		if err := w.action(api.ActionReleaseBucket, api.ReleaseBucket{Bucket: w.bucket(0), To: to}, nil); status.Code(err) != want {
			t.Errorf("move to node %d: %v, want %v", to, err, want)
		}
	}
}
