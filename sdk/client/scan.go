package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// ScanRequest says what to read of a table's log.
type ScanRequest struct {
	Table     string   // "database.table"
	Partition []string // values of one partition; nil: all
	Bucket    int32    // -1: all; otherwise this one of every partition
	// From is "earliest", "latest", an offset, or a timestamp (RFC 3339, or
	// milliseconds with the suffix "ms"). "" is earliest.
	From    string
	Columns []string // projection, by name; empty: all
	// Limit ends the scan after so many rows, in all; 0: none.
	Limit int64
}

// Batch is rows of one bucket. Record is valid until the next step of the
// iteration; Retain it to keep it longer. It may have no rows: then only
// Meta.Next moved on, or Meta.Quarantined says what was skipped.
type Batch struct {
	Bucket    mink.BucketRef
	Partition []string
	Meta      api.BatchMetadata
	Record    arrow.RecordBatch
}

// Change is the kind of a row: mink.ChangeAppend in a log table; insert, update-before,
// update-after or delete in the changelog of a primary-key table.
func (b Batch) Change(row int) mink.Change {
	if b.Meta.Changes == nil {
		return mink.ChangeAppend
	}
	return mink.Change(b.Meta.Changes[row])
}

// cursor is where a reader stands in one bucket.
type cursor struct {
	bucket    api.Bucket
	partition []string
	next      mink.Offset
	until     mink.Offset // tail: unused
}

// where names the bucket for a person.
func (c *cursor) where() string {
	if len(c.partition) == 0 {
		return fmt.Sprintf("bucket %d", c.bucket.Bucket.Index)
	}
	return fmt.Sprintf("bucket %d of partition %s", c.bucket.Bucket.Index, strings.Join(c.partition, "/"))
}

// Scan reads one bucket after the other, up to each bucket's high watermark as
// of the beginning. Broken streams are resumed where they broke.
func (c *Client) Scan(ctx context.Context, r ScanRequest) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		v, cursors, err := c.cursors(ctx, r)
		if err != nil {
			yield(Batch{}, err)
			return
		}
		left := r.Limit
		for _, cur := range cursors {
			done, err := c.scanBucket(ctx, v, cur, r, &left, yield)
			if err != nil {
				yield(Batch{}, err)
				return
			}
			if done {
				return
			}
		}
	}
}

var errStop = errors.New("the reader stopped")

// scanBucket reads [cur.next, cur.until); done says that the caller had enough.
func (c *Client) scanBucket(ctx context.Context, v *tableView, cur *cursor, r ScanRequest, left *int64, yield func(Batch, error) bool) (done bool, err error) {
	for cur.next < cur.until {
		err := c.retry(ctx, func(turn int) error {
			if turn > 0 {
				if err := v.refresh(ctx); err != nil {
					return err
				}
			}
			ticket := api.Ticket{Scan: &api.Scan{Bucket: cur.bucket.Bucket, From: cur.next, Until: &cur.until, Columns: r.Columns, Limit: *left}}
			return c.get(ctx, v, cur.bucket.Bucket, ticket, func(b Batch) error {
				b.Bucket, b.Partition = cur.bucket.Bucket, cur.partition
				if r.Limit > 0 {
					*left -= b.Record.NumRows()
				}
				cur.next = b.Meta.Next
				if !yield(b, nil) || r.Limit > 0 && *left <= 0 {
					return errStop
				}
				return nil
			})
		})
		if errors.Is(err, errStop) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("read %s, %s, from offset %d: %w", r.Table, cur.where(), cur.next, err)
		}
	}
	return false, nil
}

// get runs one DoGet of a log at the bucket's leader and hands every batch on.
func (c *Client) get(ctx context.Context, v *tableView, b mink.BucketRef, t api.Ticket, each func(Batch) error) error {
	return c.getRows(ctx, v, b, t, logBatches(each))
}

// getRows runs one DoGet at the bucket's leader and hands every batch on, with its
// app_metadata.
func (c *Client) getRows(ctx context.Context, v *tableView, b mink.BucketRef, t api.Ticket, each func(arrow.RecordBatch, []byte) error) error {
	return c.atLeader(ctx, v, b, false, func(ctx context.Context, conn flight.Client, s *silence) error {
		stream, err := conn.DoGet(ctx, &flight.Ticket{Ticket: api.JSON(t)})
		if err != nil {
			return FromStatus("", err)
		}
		return readBatches(stream, s, each)
	})
}

// atLeader runs a stream of one bucket at its leader; an answer is awaited from its
// beginning on.
func (c *Client) atLeader(ctx context.Context, v *tableView, b mink.BucketRef, tail bool, stream func(context.Context, flight.Client, *silence) error) error {
	led := v.bucket(b)
	if led.Address == "" {
		return fmt.Errorf("no known leader: %w", mink.ErrUnavailable)
	}
	conn, err := c.at(led.Address)
	if err != nil {
		return err
	}
	ctx, s := v.watch(ctx, led, tail)
	defer s.end()
	s.expect()
	return s.why(stream(ctx, conn, s))
}

func readBatches(from flight.DataStreamReader, s *silence, each func(arrow.RecordBatch, []byte) error) error {
	r, err := flight.NewRecordReader(from, ipc.WithDelayReadSchema(true))
	if err != nil {
		return FromStatus("", err)
	}
	defer r.Release()
	for r.Next() {
		s.heard() // the caller takes its time
		if err := each(r.RecordBatch(), r.LatestAppMetadata()); err != nil {
			return err
		}
		s.expect()
	}
	if err := r.Err(); err != nil && !errors.Is(err, io.EOF) {
		return FromStatus("", err)
	}
	return nil
}

// logBatches hands batches of a log on.
func logBatches(each func(Batch) error) func(arrow.RecordBatch, []byte) error {
	return func(rec arrow.RecordBatch, metadata []byte) error {
		b := Batch{Record: rec}
		if err := decode("read", metadata, &b.Meta); err != nil {
			return err
		}
		if n := len(b.Meta.Changes); n > 0 && int64(n) != rec.NumRows() {
			return fmt.Errorf("read: the node sent %d kinds of changes for %d rows: %w", n, rec.NumRows(), mink.ErrCorrupt)
		}
		return each(b)
	}
}

// cursors resolves where each bucket's read begins and ends.
func (c *Client) cursors(ctx context.Context, r ScanRequest) (*tableView, []*cursor, error) {
	v, err := c.openTable(ctx, r.Table)
	if err != nil {
		return nil, nil, err
	}
	if err := v.checkColumns(r.Columns); err != nil {
		return nil, nil, err
	}
	buckets, err := v.buckets(r.Partition)
	if err != nil {
		return nil, nil, err
	}
	from := r.From
	if from == "" {
		from = "earliest"
	}
	begin, err := c.offsetsOf(ctx, r, from)
	if err != nil {
		return nil, nil, err
	}
	end, err := c.offsetsOf(ctx, r, "latest")
	if err != nil {
		return nil, nil, err
	}
	var out []*cursor
	for _, b := range buckets {
		if r.Bucket >= 0 && b.Bucket.Index != r.Bucket {
			continue
		}
		out = append(out, &cursor{bucket: b, partition: begin[b.Bucket].Values, next: begin[b.Bucket].Offset, until: end[b.Bucket].Offset})
	}
	if r.Bucket >= 0 && len(out) == 0 && len(buckets) > 0 {
		return nil, nil, fmt.Errorf("read %s: bucket %d %w, the table has buckets 0 to %d", r.Table, r.Bucket, mink.ErrNotExist, v.desc.BucketCount-1)
	}
	return v, out, nil
}

// fromStart is the cursor of a bucket's first row that is there.
func (c *Client) fromStart(ctx context.Context, table string, b api.Bucket, values []string) (*cursor, error) {
	begin, err := c.offsetsOf(ctx, ScanRequest{Table: table, Partition: values, Bucket: b.Bucket.Index}, "earliest")
	return &cursor{bucket: b, partition: values, next: begin[b.Bucket].Offset}, err
}

func (c *Client) offsetsOf(ctx context.Context, r ScanRequest, at string) (map[mink.BucketRef]api.BucketOffset, error) {
	m := map[mink.BucketRef]api.BucketOffset{}
	err := c.retry(ctx, func(int) error {
		list, err := c.ListOffsets(ctx, r.Table, r.Partition, at)
		if err != nil {
			return err
		}
		for _, o := range list {
			if r.Bucket >= 0 && o.Bucket.Index != r.Bucket {
				continue
			}
			if o.Error != "" {
				class := reasons[o.Code]
				if class == nil { // another node leads it by now, or a node that does not say
					class = mink.ErrUnavailable
				}
				return fmt.Errorf("read %s: where bucket %d begins and ends: %w", r.Table, o.Bucket.Index, &serverError{text: o.Error, class: class})
			}
			m[o.Bucket] = o
		}
		return nil
	})
	return m, err
}

// TailRequest follows a table's log.
type TailRequest struct {
	ScanRequest
	// MinBytes and MaxWaitMs tune how long the node gathers rows before it
	// answers. 0: every batch at once.
	MinBytes  int64
	MaxWaitMs int64
}

// Tail follows all buckets at once until ctx is done or the caller stops. Rows
// of one bucket come in order; buckets interleave. Partitions and buckets that are made
// later are found within Config.DiscoverInterval and read from their beginning, whatever
// From says.
func (c *Client) Tail(ctx context.Context, r TailRequest) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		v, cursors, err := c.cursors(ctx, r.ScanRequest)
		if err != nil {
			yield(Batch{}, err)
			return
		}
		left := r.Limit
		limited := func(b Batch, err error) bool {
			if err != nil {
				return yield(b, err)
			}
			left -= b.Record.NumRows()
			return yield(b, nil) && (r.Limit <= 0 || left > 0)
		}
		interleave(ctx, limited, func(b Batch) { b.Record.Release() }, func(g *errgroup.Group, ctx context.Context, out chan<- Batch) {
			known := map[mink.BucketRef]bool{}
			for _, cur := range cursors {
				known[cur.bucket.Bucket] = true
				g.Go(func() error { return c.tailBucket(ctx, v, cur, r, out) })
			}
			g.Go(func() error {
				return v.discover(ctx, r.Partition, r.Bucket, known, func(b api.Bucket, values []string) error {
					cur, err := c.fromStart(ctx, r.Table, b, values)
					if err == nil {
						g.Go(func() error { return c.tailBucket(ctx, v, cur, r, out) })
					}
					return err
				})
			})
		})
	}
}

// interleave hands on what several goroutines send, until one fails, all end or the
// caller stops; start starts them. Each batch is released after its turn.
func interleave[B any](ctx context.Context, yield func(B, error) bool, release func(B), start func(*errgroup.Group, context.Context, chan<- B)) {
	ctx, cancel := context.WithCancel(ctx)
	out := make(chan B)
	g, ctx := errgroup.WithContext(ctx)
	start(g, ctx, out)
	ended := make(chan error, 1)
	go func() { ended <- g.Wait() }()
	defer func() {
		cancel()
		for {
			select {
			case b := <-out:
				release(b)
			case <-ended: //nolint:errcheck // reported by the loop below, or the caller stopped
				return
			}
		}
	}()
	for {
		select {
		case b := <-out:
			more := yield(b, nil)
			release(b)
			if !more {
				return
			}
		case err := <-ended:
			ended <- err
			if err != nil && (ctx.Err() == nil || !errors.Is(err, context.Canceled)) {
				var none B
				yield(none, err)
			}
			return
		}
	}
}

// tailBucket follows one bucket; each batch that it sends is retained.
func (c *Client) tailBucket(ctx context.Context, v *tableView, cur *cursor, r TailRequest, out chan<- Batch) error {
	for ctx.Err() == nil {
		err := c.retry(ctx, func(turn int) error {
			if turn > 0 {
				if err := v.refresh(ctx); err != nil {
					return err
				}
			}
			began := cur.next
			err := c.follow(ctx, v, api.Scan{
				Bucket: cur.bucket.Bucket, From: cur.next, Columns: r.Columns, MinBytes: r.MinBytes, MaxWaitMs: r.MaxWaitMs,
			}, func(b Batch) error {
				b.Bucket, b.Partition = cur.bucket.Bucket, cur.partition
				b.Record.Retain()
				select {
				case out <- b:
					cur.next = b.Meta.Next
					return nil
				case <-ctx.Done():
					b.Record.Release()
					return ctx.Err()
				}
			})
			if cur.next > began && retriable(err) {
				return nil // progress: the retry's clock begins again
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("follow %s, %s, from offset %d: %w", r.Table, cur.where(), cur.next, err)
		}
	}
	return ctx.Err()
}

// follow runs one DoExchange tail at the bucket's leader.
func (c *Client) follow(ctx context.Context, v *tableView, scan api.Scan, each func(Batch) error) error {
	return c.atLeader(ctx, v, scan.Bucket, true, func(ctx context.Context, conn flight.Client, s *silence) error {
		x, err := conn.DoExchange(ctx)
		if err != nil {
			return FromStatus("", err)
		}
		err = x.Send(&flight.FlightData{
			FlightDescriptor: &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: api.JSON(api.Exchange{Scan: &scan})},
		})
		if err != nil && !errors.Is(err, io.EOF) {
			return FromStatus("", err)
		}
		return readBatches(x, s, logBatches(each))
	})
}
