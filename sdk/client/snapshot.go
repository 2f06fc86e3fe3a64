package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/schema/bucketing"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// SnapshotRequest says which rows of a primary-key table to read.
//
// Key values are those of the first columns of the primary key without the
// partition's columns, in its order: Go values as Decode has them, or Text.
type SnapshotRequest struct {
	Table     string   // "database.table"
	Partition []string // values of one partition; nil: all
	Bucket    int32    // -1: all; otherwise this one of every partition
	Columns   []string // projection, by name; empty: all
	Limit     int64    // ends after so many rows, in all; 0: none
	// Filter is a condition on the rows, as of UnionRequest; "": all. Not with Prefix, From
	// and To.
	Filter string
	// Prefix restricts to the rows whose key begins with these values. Only the
	// buckets that can have such rows are asked.
	Prefix []any
	// From and To restrict to the rows with keys in [From, To), compared in as many
	// columns as there are values: with From 1 and To 3 those with 1 and 2 come.
	From, To []any
}

// SnapshotBatch is rows of one bucket, in the order of their keys within it. Record
// is valid until the next step of the iteration; Retain it to keep it longer.
type SnapshotBatch struct {
	Bucket    mink.BucketRef
	Partition []string
	// LogOffset is where the bucket's changelog goes on: a Scan or Tail from there has
	// every change that the rows lack, and none that they have.
	LogOffset mink.Offset
	SchemaID  mink.SchemaID // version of the columns
	Record    arrow.RecordBatch
}

// ScanSnapshot reads the rows of a primary-key table, one bucket after the other,
// each as of one moment. A stream that breaks within a bucket is an error that wraps
// mink.ErrUnavailable, since the moment is gone; Bootstrap goes on from there.
//
//	for b, err := range c.ScanSnapshot(ctx, client.SnapshotRequest{Table: "shop.items", Bucket: -1, Prefix: []any{"eu"}}) {
//		items, err := client.Decode[Item](b.Record)
//	}
//
// A bucket without rows has one batch without rows, for its LogOffset.
func (c *Client) ScanSnapshot(ctx context.Context, r SnapshotRequest) iter.Seq2[SnapshotBatch, error] {
	return func(yield func(SnapshotBatch, error) bool) {
		v, tickets, err := c.snapshotTickets(ctx, r)
		if err != nil {
			yield(SnapshotBatch{}, err)
			return
		}
		left := r.Limit
		for _, t := range tickets {
			done, err := c.snapshotBucket(ctx, v, t, r, &left, yield)
			if err != nil {
				yield(SnapshotBatch{}, fmt.Errorf("read the rows of %s, %s: %w", r.Table, t.where(), err))
			}
			if err != nil || done {
				return
			}
		}
	}
}

// snapshotTicket is one bucket's share of a request.
type snapshotTicket struct {
	cursor
	ticket func(limit int64) api.Ticket
}

// snapshotBucket reads one bucket; done says that the caller had enough.
func (c *Client) snapshotBucket(ctx context.Context, v *tableView, t snapshotTicket, r SnapshotRequest, left *int64, yield func(SnapshotBatch, error) bool) (done bool, err error) {
	return c.readOnce(ctx, v, &t.cursor, r.Limit, left, yield, func(_ int, each func(SnapshotBatch) error) error {
		return c.getSnapshot(ctx, v, t.bucket.Bucket, t.ticket(*left), each)
	})
}

// readOnce reads rows that are as of one moment: get is called again only while nothing of
// them has come. done says that the caller had enough, or that limit was reached; left is
// what is left of it.
func (c *Client) readOnce(ctx context.Context, v *tableView, at *cursor, limit int64, left *int64, yield func(SnapshotBatch, error) bool, get func(turn int, each func(SnapshotBatch) error) error) (done bool, err error) {
	began := false
	err = c.retry(ctx, func(turn int) error {
		if turn > 0 {
			if err := v.refresh(ctx); err != nil {
				return err
			}
		}
		err := get(turn, func(b SnapshotBatch) error {
			b.Bucket, b.Partition = at.bucket.Bucket, at.partition
			if limit > 0 {
				*left -= b.Record.NumRows()
			}
			began = true
			if !yield(b, nil) || limit > 0 && *left <= 0 {
				return errStop
			}
			return nil
		})
		if began && retriable(err) {
			return brokenOff{err}
		}
		return err
	})
	if errors.Is(err, errStop) {
		return true, nil
	}
	if b := (brokenOff{}); errors.As(err, &b) {
		err = fmt.Errorf("the stream broke within a bucket, read again: %w", b.err)
	}
	return false, err
}

// brokenOff hides a retriable error from retry.
type brokenOff struct{ err error }

func (b brokenOff) Error() string { return b.err.Error() }

// getSnapshot runs one DoGet of rows at the bucket's leader.
func (c *Client) getSnapshot(ctx context.Context, v *tableView, b mink.BucketRef, t api.Ticket, each func(SnapshotBatch) error) error {
	return c.getRows(ctx, v, b, t, func(rec arrow.RecordBatch, metadata []byte) error {
		var m api.SnapshotMetadata
		if err := decode("read", metadata, &m); err != nil {
			return err
		}
		return each(SnapshotBatch{LogOffset: m.LogOffset, SchemaID: m.SchemaID, Record: rec})
	})
}

// snapshotTickets resolves which buckets are read, and how.
func (c *Client) snapshotTickets(ctx context.Context, r SnapshotRequest) (*tableView, []snapshotTicket, error) {
	v, err := c.openTable(ctx, r.Table)
	if err != nil {
		return nil, nil, err
	}
	if err := v.wantPrimaryKey("read of rows"); err != nil {
		return nil, nil, err
	}
	if err := v.checkColumns(r.Columns); err != nil {
		return nil, nil, err
	}
	if r.Filter != "" && len(r.Prefix)+len(r.From)+len(r.To) > 0 {
		return nil, nil, fmt.Errorf("%w request: Filter stands without Prefix, From and To", mink.ErrInvalid)
	}
	if len(r.Prefix) > 0 && len(r.From)+len(r.To) > 0 {
		return nil, nil, fmt.Errorf("%w request: Prefix stands beside From or To", mink.ErrInvalid)
	}
	keys := make([]arrow.RecordBatch, 3)
	for i, values := range [][]any{r.Prefix, r.From, r.To} {
		if len(values) == 0 {
			continue
		}
		if keys[i], err = keyRow(memory.DefaultAllocator, v.rowKey(), values); err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", r.Table, err)
		}
		defer keys[i].Release()
	}
	only := r.Bucket
	if at, ok, err := v.bucketOf(keys[0]); err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", r.Table, err)
	} else if ok {
		if only >= 0 && only != at {
			return v, nil, nil // no row of the prefix is in that bucket
		}
		only = at
	}
	buckets, err := v.buckets(r.Partition)
	if err != nil {
		return nil, nil, err
	}
	var out []snapshotTicket
	for _, b := range buckets {
		if only < 0 || b.Bucket.Index == only {
			out = append(out, snapshotTicket{cursor: cursor{bucket: b, partition: v.valuesOf(b.Bucket.Partition)}, ticket: ticketOf(b.Bucket, r.Columns, r.Filter, keys)})
		}
	}
	if r.Bucket >= v.desc.BucketCount {
		return nil, nil, fmt.Errorf("read %s: bucket %d %w, the table has buckets 0 to %d", r.Table, r.Bucket, mink.ErrNotExist, v.desc.BucketCount-1)
	}
	return v, out, nil
}

// ticketOf makes the tickets of one bucket; keys are the prefix and the two bounds.
func ticketOf(b mink.BucketRef, columns []string, filter string, keys []arrow.RecordBatch) func(limit int64) api.Ticket {
	var text [3][]byte
	for i, k := range keys {
		if k != nil {
			text[i] = keyJSON(k, fieldNames(k.Schema()), 0)
		}
	}
	return func(limit int64) api.Ticket {
		switch {
		case text[0] != nil:
			return api.Ticket{Prefix: &api.KeyPrefix{Bucket: b, Key: text[0], Columns: columns, Limit: limit}}
		case text[1] != nil || text[2] != nil:
			return api.Ticket{Range: &api.KeyRange{Bucket: b, From: text[1], To: text[2], Columns: columns, Limit: limit}}
		}
		return api.Ticket{Snapshot: &api.Snapshot{Bucket: b, Columns: columns, Filter: filter, Limit: limit}}
	}
}

// bucketOf is the one bucket, of each partition, that has the keys with a prefix; ok
// is false when it does not tell.
func (v *tableView) bucketOf(prefix arrow.RecordBatch) (at int32, ok bool, err error) {
	if prefix == nil {
		return 0, false, nil
	}
	for _, name := range v.desc.BucketKeys {
		if !prefix.Schema().HasField(name) {
			return 0, false, nil
		}
	}
	b, err := bucketing.New(v.desc)
	if err != nil {
		return 0, false, err
	}
	out := make([]int32, 1)
	err = b.Buckets(prefix, out)
	return out[0], err == nil, err
}

// valuesOf is a partition's values.
func (v *tableView) valuesOf(id mink.PartitionID) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range v.mu.partitions {
		if p.ID == id {
			return slices.Clone(p.Values)
		}
	}
	return nil
}

// Count counts the rows of a primary-key table, or with partition values of that
// partition alone: 0 when there is none.
func (c *Client) Count(ctx context.Context, table string, partition []string) (int64, error) {
	var out api.Counts
	err := c.do(ctx, api.ActionCount, api.CountRequest{Table: table, Partition: partition}, &out)
	return out.Rows, err
}
