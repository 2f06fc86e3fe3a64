package flight

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/flight/wire"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// viewRowsMax is how many rows one step of a read by key holds; Config.ReadBytes
// bounds their bytes.
const viewRowsMax = 8192

// rowsRead is a Snapshot, KeyRange or KeyPrefix.
type rowsRead struct {
	what    string
	bucket  mink.BucketRef
	columns []string
	filter  string
	limit   int64
	from    json.RawMessage
	to      json.RawMessage
	prefix  json.RawMessage
}

func readOf(t *api.Ticket) rowsRead {
	switch {
	case t.Range != nil:
		return rowsRead{what: "range", bucket: t.Range.Bucket, columns: t.Range.Columns, limit: t.Range.Limit, from: t.Range.From, to: t.Range.To}
	case t.Prefix != nil:
		r := rowsRead{what: "prefix", bucket: t.Prefix.Bucket, columns: t.Prefix.Columns, limit: t.Prefix.Limit, prefix: t.Prefix.Key}
		if r.prefix == nil {
			r.prefix = json.RawMessage("{}") // refused as such
		}
		return r
	}
	return rowsRead{what: "snapshot", bucket: t.Snapshot.Bucket, columns: t.Snapshot.Columns, filter: t.Snapshot.Filter, limit: t.Snapshot.Limit}
}

// bounds are the key bytes of the read: [lo, hi), nil is none.
func (r *rowsRead) bounds(k *primaryKey) (lo, hi []byte, err error) {
	if r.prefix != nil {
		lo, err = k.leading("prefix: key", r.prefix)
		return lo, keyenc.PrefixEnd(lo), err
	}
	if r.from != nil {
		if lo, err = k.leading("range: from", r.from); err != nil {
			return nil, nil, err
		}
	}
	if r.to != nil {
		hi, err = k.leading("range: to", r.to)
	}
	return lo, hi, err
}

// readRows sends the rows of one bucket of a primary-key table, as of one moment.
func (s *service) readRows(ctx context.Context, ticket *api.Ticket, send func(*flight.FlightData) error) error {
	read := readOf(ticket)
	if read.limit < 0 {
		return fmt.Errorf("%w: %s: limit is not negative", mink.ErrInvalid, read.what)
	}
	var view *kv.View
	err := s.withKV(ctx, read.bucket, func(store KV) (err error) {
		view, err = store.View()
		return err
	})
	if err != nil {
		return err
	}
	defer view.Close()
	t, ok := s.backend.View().Table(read.bucket.Table)
	if !ok {
		return fmt.Errorf("table %d %w", read.bucket.Table, mink.ErrNotExist)
	}
	rows, err := newFilteredReader(t, read.columns, read.filter)
	if err != nil {
		return fmt.Errorf("%s: %w", read.what, err)
	}
	key := keyOf(t)
	lo, hi, err := read.bounds(&key)
	if err != nil {
		return err
	}
	out := &rowSender{service: s, arrow: rows.out, send: send}
	out.metadata = func(bool) []byte {
		return api.JSON(api.SnapshotMetadata{LogOffset: view.Offset(), SchemaID: rows.target.ID})
	}
	if err := out.begin(); err != nil {
		return err
	}
	if err := s.sendView(ctx, view, &read, rows, lo, hi, out); err != nil {
		return s.leaderError(read.bucket, err)
	}
	if out.sent == 0 {
		none := noRows(out.arrow)
		defer none.Release()
		return out.rows(none)
	}
	return nil
}

func (s *service) sendView(ctx context.Context, view *kv.View, read *rowsRead, rows *rowReader, lo, hi []byte, out *rowSender) error {
	if hi != nil && bytes.Compare(lo, hi) >= 0 {
		return nil
	}
	left, most := noLimit, viewRowsMax
	if read.limit > 0 {
		left, most = read.limit, int(min(read.limit, viewRowsMax))
	}
	for batch, err := range view.Scan(ctx, lo, hi, rows.ids, most, s.cfg.ReadBytes) {
		if err != nil {
			return err
		}
		if batch, err = rows.conform(batch); err != nil {
			return err
		}
		part := batch.NewSlice(0, min(left, batch.NumRows()))
		batch.Release()
		left -= part.NumRows()
		err = out.rows(part)
		part.Release()
		if err != nil || left <= 0 {
			return err
		}
	}
	return nil
}

// rowSender sends rows that have no offsets.
type rowSender struct {
	service  *service
	arrow    *arrow.Schema
	send     func(*flight.FlightData) error
	metadata func(more bool) []byte // app_metadata; more: of a message that is not the last of its rows
	sent     int                    // messages
}

func (o *rowSender) begin() error {
	return o.send(&flight.FlightData{DataHeader: wire.SchemaMessage(o.arrow)})
}

// rows sends rows, in halves when they do not fit into one message.
func (o *rowSender) rows(rows arrow.RecordBatch) error { return o.part(rows, false) }

func (o *rowSender) part(rows arrow.RecordBatch, more bool) error {
	header, body, err := arrowipc.Encode(rows)
	if err != nil {
		return err
	}
	n := rows.NumRows()
	if len(header)+len(body) > o.service.cfg.batchBytesMax() && n > 1 {
		for _, half := range []struct {
			from, to int64
			more     bool
		}{{0, n / 2, true}, {n / 2, n, more}} {
			part := rows.NewSlice(half.from, half.to)
			err := o.part(part, half.more)
			part.Release()
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := o.send(&flight.FlightData{DataHeader: header, DataBody: body, AppMetadata: o.metadata(more)}); err != nil {
		return err
	}
	o.service.metrics.RecordBytes(0, len(header)+len(body))
	o.sent++
	return nil
}
