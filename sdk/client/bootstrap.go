package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/core/schema/routing"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// BootstrapRequest says what of a primary-key table to copy and to follow.
type BootstrapRequest struct {
	Table     string   // "database.table"
	Partition []string // values of one partition; nil: all
	Bucket    int32    // -1: all; otherwise this one of every partition
	Columns   []string // projection, by name; empty: all
	// Resume has the last Position of each bucket as an earlier Bootstrap of the same
	// table gave it, in any order; buckets without one begin anew.
	Resume []BootstrapPosition
	// MinBytes and MaxWaitMs tune the following, as in TailRequest.
	MinBytes  int64
	MaxWaitMs int64
}

// BootstrapBatch is rows of one bucket: first its rows, as inserts, then the changes
// since. Record is valid until the next step of the iteration. It may have no rows:
// then only Position moved on.
type BootstrapBatch struct {
	Bucket    mink.BucketRef
	Partition []string
	Record    arrow.RecordBatch
	// Changes has the kind of each row: mink.ChangeInsert for the rows that were there.
	Changes []mink.Change
	// Following: the rows are changes of the log, at Offsets in it; Meta is the log's.
	Following bool
	Offsets   []mink.Offset
	Meta      api.BatchMetadata
	// Position goes on behind this batch. Store it with what the batch did.
	Position BootstrapPosition
}

// BootstrapPosition is how far a Bootstrap of one bucket is, with a JSON form to be
// stored.
//
// The rows are read in the order of their keys, each stretch as of one moment; a
// stream that breaks begins a new stretch behind the last key, at a later moment. The
// log is followed from the first stretch's moment on, without the changes that a
// later stretch has already seen:
//
//	keys      ...  k1  ...  k2  ...
//	seen up to  100  |  120  |  150       offsets
//	log from 100: a change at 130 of a key <= k2 is news, of a key > k2 is not
type BootstrapPosition struct {
	Bucket mink.BucketRef `json:"bucket"`
	// Next is where the log goes on.
	Next mink.Offset `json:"next_offset"`
	// Stretches are those that the log has not passed yet, by ascending keys.
	Stretches []Stretch `json:"stretches,omitempty"`
	// Following: all rows were read. Else they go on behind the last stretch.
	Following bool `json:"following,omitempty"`
}

// Stretch is the rows with keys up to To, and above the stretch before it, as of an
// offset.
type Stretch struct {
	To     []byte          `json:"to,omitempty"`  // encoded key; nil: no end
	Key    json.RawMessage `json:"key,omitempty"` // the same as an object of its columns
	Offset mink.Offset     `json:"offset"`        // first offset that the rows have not seen
}

// seen reports whether the rows that were read have the change of a key at an offset.
func (p *BootstrapPosition) seen(key []byte, at mink.Offset) bool {
	for _, s := range p.Stretches {
		if s.To == nil || bytes.Compare(key, s.To) <= 0 {
			return at < s.Offset
		}
	}
	return false
}

// advance moves the log on and forgets stretches when it has passed them all.
func (p *BootstrapPosition) advance(next mink.Offset) {
	p.Next = next
	if !slices.ContainsFunc(p.Stretches, func(s Stretch) bool { return s.Offset > next }) {
		p.Stretches = nil
	}
}

// Bootstrap copies a primary-key table and follows its changes, without loss and
// without repetition: for each bucket the rows as of a moment, as inserts, then the
// log from that moment on, for ever. Broken streams, restarts and new leaders are
// ridden out, and a position that was stored resumes it in another process. Buckets
// interleave; partitions that are made later are found within Config.DiscoverInterval.
// It ends when ctx is done or the caller stops.
//
//	for b, err := range c.Bootstrap(ctx, client.BootstrapRequest{Table: "shop.items", Bucket: -1, Resume: stored}) {
//		for i, change := range b.Changes { apply(change, b.Record, i) }
//		store(b.Position) // with what was applied, in one transaction
//	}
//
// mink.ErrOutOfRange: the log before the position was removed meanwhile (log_ttl);
// begin without Resume.
func (c *Client) Bootstrap(ctx context.Context, r BootstrapRequest) iter.Seq2[BootstrapBatch, error] {
	return func(yield func(BootstrapBatch, error) bool) {
		v, copies, err := c.copies(ctx, r)
		if err != nil {
			yield(BootstrapBatch{}, err)
			return
		}
		interleave(ctx, yield, func(b BootstrapBatch) { b.Record.Release() }, func(g *errgroup.Group, ctx context.Context, out chan<- BootstrapBatch) {
			known := map[mink.BucketRef]bool{}
			for _, b := range copies {
				known[b.bucket.Bucket] = true
				g.Go(func() error { return b.run(ctx, out) })
			}
			g.Go(func() error {
				return v.discover(ctx, r.Partition, r.Bucket, known, func(found api.Bucket, values []string) error {
					b, err := c.newCopy(v, r, found, values)
					if err == nil {
						g.Go(func() error { return b.run(ctx, out) })
					}
					return err
				})
			})
		})
	}
}

// bucketCopy is the Bootstrap of one bucket.
type bucketCopy struct {
	c        *Client
	v        *tableView
	r        BootstrapRequest
	bucket   api.Bucket
	values   []string
	columns  []string // to ask for: those of the request, and the key's behind them; nil: all
	show     int      // how many of them the caller sees; 0: all
	key      *keyenc.Encoder
	names    []string // of the key's columns
	position BootstrapPosition
	sent     int // batches
}

func (c *Client) copies(ctx context.Context, r BootstrapRequest) (*tableView, []*bucketCopy, error) {
	v, err := c.openTable(ctx, r.Table)
	if err != nil {
		return nil, nil, err
	}
	if err := v.wantPrimaryKey("bootstrap"); err != nil {
		return nil, nil, err
	}
	if err := v.checkColumns(r.Columns); err != nil {
		return nil, nil, err
	}
	buckets, err := v.buckets(r.Partition)
	if err != nil {
		return nil, nil, err
	}
	var out []*bucketCopy
	for _, b := range buckets {
		if r.Bucket >= 0 && b.Bucket.Index != r.Bucket {
			continue
		}
		k, err := c.newCopy(v, r, b, v.valuesOf(b.Bucket.Partition))
		if err != nil {
			return nil, nil, err
		}
		out = append(out, k)
	}
	if r.Bucket >= 0 && len(out) == 0 && len(buckets) > 0 {
		return nil, nil, fmt.Errorf("bootstrap of %s: bucket %d %w, the table has buckets 0 to %d", r.Table, r.Bucket, mink.ErrNotExist, v.desc.BucketCount-1)
	}
	return v, out, nil
}

func (c *Client) newCopy(v *tableView, r BootstrapRequest, b api.Bucket, values []string) (*bucketCopy, error) {
	columns := slices.Clone(r.Columns)
	rowKey := v.rowKey()
	names := make([]string, len(rowKey))
	for i, k := range rowKey {
		names[i] = k.Name
		if len(columns) > 0 && !slices.Contains(columns, k.Name) {
			columns = append(columns, k.Name)
		}
	}
	key, err := keyenc.New(&schema.Schema{Columns: rowKey}, names)
	if err != nil {
		return nil, err
	}
	p := BootstrapPosition{Bucket: b.Bucket}
	if i := slices.IndexFunc(r.Resume, func(p BootstrapPosition) bool { return p.Bucket == b.Bucket }); i >= 0 {
		p = r.Resume[i]
		p.Stretches = slices.Clone(p.Stretches)
	}
	return &bucketCopy{c: c, v: v, r: r, bucket: b, values: values, columns: columns, show: len(r.Columns), key: key, names: names, position: p}, nil
}

// run reads the rows, then follows the log.
func (b *bucketCopy) run(ctx context.Context, out chan<- BootstrapBatch) error {
	for !b.position.Following {
		if err := b.again(ctx, func() error { return b.rows(ctx, out) }); err != nil {
			return fmt.Errorf("copy %s, bucket %d: %w", b.r.Table, b.bucket.Bucket.Index, err)
		}
	}
	for ctx.Err() == nil {
		if err := b.again(ctx, func() error { return b.follow(ctx, out) }); err != nil {
			return fmt.Errorf("follow %s, bucket %d, from offset %d: %w", b.r.Table, b.bucket.Bucket.Index, b.position.Next, err)
		}
	}
	return ctx.Err()
}

// again runs a stream, and again while it may succeed; one that had progress ends it.
func (b *bucketCopy) again(ctx context.Context, stream func() error) error {
	return b.c.retry(ctx, func(turn int) error {
		if turn > 0 {
			if err := b.v.refresh(ctx); err != nil {
				return err
			}
		}
		began := b.sent
		err := stream()
		if b.sent > began && retriable(err) {
			return nil // the retry's clock begins again
		}
		return err
	})
}

// send hands a batch over and moves on behind it.
func (b *bucketCopy) send(ctx context.Context, out chan<- BootstrapBatch, batch BootstrapBatch) error {
	batch.Bucket, batch.Partition = b.bucket.Bucket, b.values
	if b.show > 0 {
		batch.Record = leading(batch.Record, b.show)
	} else {
		batch.Record.Retain()
	}
	p := batch.Position
	batch.Position.Stretches = slices.Clone(p.Stretches)
	select {
	case out <- batch:
		b.position = p
		b.sent++
		return nil
	case <-ctx.Done():
		batch.Record.Release()
		return ctx.Err()
	}
}

// leading answers the first n columns.
func leading(rec arrow.RecordBatch, n int) arrow.RecordBatch {
	return array.NewRecordBatch(arrow.NewSchema(rec.Schema().Fields()[:n], nil), rec.Columns()[:n], rec.NumRows())
}

// rows reads one stretch: from the last key that is known to the end.
func (b *bucketCopy) rows(ctx context.Context, out chan<- BootstrapBatch) error {
	ticket := api.Ticket{Snapshot: &api.Snapshot{Bucket: b.bucket.Bucket, Columns: b.columns}}
	known := b.position.Stretches
	if len(known) > 0 {
		ticket = api.Ticket{Range: &api.KeyRange{Bucket: b.bucket.Bucket, From: known[len(known)-1].Key, Columns: b.columns}}
	}
	var rows *arrow.Schema
	var offset mink.Offset
	err := b.c.getSnapshot(ctx, b.v, b.bucket.Bucket, ticket, func(s SnapshotBatch) error {
		first := rows == nil
		rows, offset = s.Record.Schema(), s.LogOffset
		n := s.Record.NumRows()
		if n == 0 {
			return nil
		}
		if err := b.key.Bind(s.Record); err != nil {
			return err
		}
		rec := s.Record
		if first && len(known) > 0 && bytes.Equal(b.key.Append(nil, 0), known[len(known)-1].To) {
			rec = rec.NewSlice(1, n) // the bound is inclusive, and that row is known
			defer rec.Release()
		}
		if rec.NumRows() == 0 {
			return nil
		}
		p := b.reached(known, Stretch{To: b.key.Append(nil, int(n)-1), Key: keyJSON(s.Record, b.names, int(n)-1), Offset: offset})
		return b.send(ctx, out, BootstrapBatch{Record: rec, Changes: slices.Repeat([]mink.Change{mink.ChangeInsert}, int(rec.NumRows())), Position: p})
	})
	if err != nil {
		return err
	}
	if rows == nil {
		return fmt.Errorf("the node ended the rows without a word of where the log goes on: %w", mink.ErrUnavailable)
	}
	p := b.reached(known, Stretch{Offset: offset}) // above the last key there was nothing
	p.Following = true
	p.advance(p.Stretches[0].Offset)
	none := emptyRows(rows)
	defer none.Release()
	return b.send(ctx, out, BootstrapBatch{Record: none, Position: p})
}

// reached is the position with the rows up to the end of a stretch, behind those that
// were known.
func (b *bucketCopy) reached(known []Stretch, s Stretch) BootstrapPosition {
	return BootstrapPosition{Bucket: b.bucket.Bucket, Next: append(known[:len(known):len(known)], s)[0].Offset, Stretches: append(known[:len(known):len(known)], s)}
}

// follow hands the changes on that the rows have not seen.
func (b *bucketCopy) follow(ctx context.Context, out chan<- BootstrapBatch) error {
	scan := api.Scan{Bucket: b.bucket.Bucket, From: b.position.Next, Columns: b.columns, MinBytes: b.r.MinBytes, MaxWaitMs: b.r.MaxWaitMs}
	return b.c.follow(ctx, b.v, scan, func(l Batch) error {
		news, err := b.news(l)
		if err != nil {
			return err
		}
		rec := l.Record
		if int64(len(news)) < rec.NumRows() {
			if rec, err = routing.Take(memory.DefaultAllocator, rec, news); err != nil {
				return err
			}
			defer rec.Release()
		}
		changes, offsets := make([]mink.Change, len(news)), make([]mink.Offset, len(news))
		for i, row := range news {
			changes[i], offsets[i] = l.Change(int(row)), l.Meta.Base+mink.Offset(row)
		}
		p := b.position
		p.Stretches = slices.Clone(p.Stretches)
		p.advance(l.Meta.Next)
		return b.send(ctx, out, BootstrapBatch{Record: rec, Changes: changes, Offsets: offsets, Following: true, Meta: l.Meta, Position: p})
	})
}

// news lists the rows of a batch of the log that are no part of the rows that were
// read.
func (b *bucketCopy) news(l Batch) ([]int32, error) {
	n := int(l.Record.NumRows())
	rows := make([]int32, 0, n)
	if len(b.position.Stretches) > 0 {
		if err := b.key.Bind(l.Record); err != nil {
			return nil, err
		}
	}
	var key []byte
	for row := range n {
		if len(b.position.Stretches) > 0 {
			key = b.key.Append(key[:0], row)
			if b.position.seen(key, l.Meta.Base+mink.Offset(row)) {
				continue
			}
		}
		rows = append(rows, int32(row))
	}
	return rows, nil
}
