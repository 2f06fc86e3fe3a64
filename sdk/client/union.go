package client

import (
	"context"
	"fmt"
	"iter"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// UnionRequest says which rows of a table in the lake to read.
type UnionRequest struct {
	Table     string   // "database.table"
	Partition []string // values of one partition; nil: all
	Bucket    int32    // -1: all; otherwise this one of every partition
	Columns   []string // projection, by name; empty: all
	// Filter is a condition on the rows, such as "price > 10 AND day = DATE '2024-01-31'";
	// "": all rows.
	Filter   string
	Limit    int64 // ends after so many rows, in all; 0: none
	LakeOnly bool  // without what is only in the log yet
}

// ScanUnion reads a table that is in the lake, one bucket after the other: the rows of one
// lake snapshot, and unless LakeOnly those that the log has behind it, up to where each
// bucket's log ends as of the beginning. Of a primary-key table that is one row per key.
// With neither Partition nor Bucket the rows of partitions that are in the lake alone come
// last, as those of bucket 0 of partition 0.
//
// A stream that breaks within a bucket is an error that wraps mink.ErrUnavailable.
// SnapshotBatch.LogOffset is where the bucket's log goes on; -1 with LakeOnly.
func (c *Client) ScanUnion(ctx context.Context, r UnionRequest) iter.Seq2[SnapshotBatch, error] {
	return func(yield func(SnapshotBatch, error) bool) {
		v, tickets, err := c.unionTickets(ctx, r)
		if err != nil {
			yield(SnapshotBatch{}, fmt.Errorf("read %s: %w", r.Table, err))
			return
		}
		left := r.Limit
		for _, t := range tickets {
			done, err := c.unionBucket(ctx, v, t, r, &left, yield)
			if err != nil {
				yield(SnapshotBatch{}, fmt.Errorf("read %s, %s: %w", r.Table, t.where(), err))
			}
			if err != nil || done {
				return
			}
		}
	}
}

// unionTicket is one endpoint of a plan.
type unionTicket struct {
	cursor
	ticket api.Ticket
}

// where names what the endpoint reads.
func (t *unionTicket) where() string {
	if t.ticket.Lake != nil && t.ticket.Lake.Bucket == nil {
		return "partitions that are in the lake alone"
	}
	return t.cursor.where()
}

// unionTickets asks a node for the plan.
func (c *Client) unionTickets(ctx context.Context, r UnionRequest) (*tableView, []*unionTicket, error) {
	v, err := c.openTable(ctx, r.Table)
	if err != nil {
		return nil, nil, err
	}
	if r.Bucket >= v.desc.BucketCount {
		return nil, nil, fmt.Errorf("bucket %d %w, the table has buckets 0 to %d", r.Bucket, mink.ErrNotExist, v.desc.BucketCount-1)
	}
	command := api.Command{Table: r.Table, Mode: api.ModeUnion, Partition: r.Partition, Columns: r.Columns, Filter: r.Filter}
	if r.LakeOnly {
		command.Mode = api.ModeLake
	}
	var out []*unionTicket
	err = c.retry(ctx, func(turn int) error {
		address := c.nodes(turn)[0]
		conn, err := c.at(address)
		if err != nil {
			return err
		}
		info, err := conn.GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: api.JSON(command)})
		if err != nil {
			return FromStatus("", err)
		}
		c.answeredBy(address)
		out = nil
		for _, e := range info.GetEndpoint() {
			t := &unionTicket{}
			var at api.BucketOffset
			if err := decode("plan", e.GetTicket().GetTicket(), &t.ticket); err != nil {
				return err
			}
			if err := decode("plan", e.GetAppMetadata(), &at); err != nil {
				return err
			}
			t.bucket, t.partition = api.Bucket{Bucket: at.Bucket}, at.Values
			whole := t.ticket.Lake != nil && t.ticket.Lake.Bucket == nil
			if r.Bucket < 0 || !whole && at.Bucket.Index == r.Bucket {
				out = append(out, t)
			}
		}
		return nil
	})
	return v, out, err
}

// unionBucket reads one endpoint; done says that the caller had enough.
func (c *Client) unionBucket(ctx context.Context, v *tableView, t *unionTicket, r UnionRequest, left *int64, yield func(SnapshotBatch, error) bool) (done bool, err error) {
	return c.readOnce(ctx, v, &t.cursor, r.Limit, left, yield, func(turn int, each func(SnapshotBatch) error) error {
		if t.ticket.Union != nil {
			t.ticket.Union.Limit = *left
		} else {
			t.ticket.Lake.Limit = *left
		}
		return c.getUnion(ctx, v, t, turn, func(rec arrow.RecordBatch, metadata []byte) error {
			var m api.SnapshotMetadata
			if err := decode("read", metadata, &m); err != nil {
				return err
			}
			return each(SnapshotBatch{LogOffset: m.LogOffset, SchemaID: m.SchemaID, Record: rec})
		})
	})
}

// getUnion runs one DoGet: at the bucket's leader, or of the lake alone at any node.
func (c *Client) getUnion(ctx context.Context, v *tableView, t *unionTicket, turn int, each func(arrow.RecordBatch, []byte) error) error {
	if t.ticket.Union != nil {
		return c.getRows(ctx, v, t.bucket.Bucket, t.ticket, each)
	}
	address := c.nodes(turn)[0]
	conn, err := c.at(address)
	if err != nil {
		return err
	}
	ctx, s := v.watch(ctx, api.Bucket{Address: address}, false)
	defer s.end()
	s.expect()
	stream, err := conn.DoGet(ctx, &flight.Ticket{Ticket: api.JSON(t.ticket)})
	if err != nil {
		return s.why(FromStatus("", err))
	}
	return s.why(readBatches(stream, s, each))
}
