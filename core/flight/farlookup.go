package flight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/peers"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// farLookup is a stream of lookups in one bucket at its leader. It stays open as long
// as its finder.
type farLookup struct {
	node   cluster.Node
	done   func() // its place among the relays
	stream flight.FlightService_DoExchangeClient
	cancel context.CancelFunc
	out    *flight.Writer
	in     *flight.Reader // nil before the first answer: it reads the schema at once
}

func (l *farLookup) close() {
	_ = l.out.Close()
	l.cancel()
	l.done()
	if l.in != nil {
		l.in.Release()
	}
}

// located is what one part's lookup found.
type located struct {
	rows  arrow.RecordBatch
	found []bool
}

// ofParts looks up every part whose partition exists, here or at its leader; those of
// leaders side by side. The answer has a place per part; release its rows.
func (f *finder) ofParts(ctx context.Context, parts []part) ([]located, error) {
	out := make([]located, len(parts))
	var g errgroup.Group
	g.SetLimit(bucketsAtOnce)
	var first error
	for i := range parts {
		p := &parts[i]
		if p.absent || first != nil {
			continue
		}
		rows, found, err := f.ofBucket(ctx, p)
		if _, far := f.service.leaderElsewhere(ctx, err); !far {
			out[i], first = located{rows, found}, err
			continue
		}
		g.Go(func() (err error) {
			err = f.service.atLeader(ctx, func() (err error) {
				out[i].rows, out[i].found, err = f.ofBucket(ctx, p)
				return err
			}, func(ctx context.Context, n cluster.Node) (_ bool, err error) {
				out[i].rows, out[i].found, err = f.ofLeader(ctx, n, p)
				return false, err
			})
			return err
		})
	}
	if err := firstOf(first, g.Wait()); err != nil {
		for _, l := range out {
			if l.rows != nil {
				l.rows.Release()
			}
		}
		return nil, err
	}
	return out, nil
}

// ofLeader looks a bucket's keys up at another node.
func (f *finder) ofLeader(ctx context.Context, n cluster.Node, p *part) (rows arrow.RecordBatch, found []bool, err error) {
	l, err := f.farTo(ctx, n, p)
	if err != nil {
		return nil, nil, err
	}
	rows, found, err = f.ask(l, p)
	if err != nil {
		f.drop(p.bucket, l)
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
	}
	return rows, found, err
}

// farTo answers the stream to a bucket's leader.
func (f *finder) farTo(ctx context.Context, n cluster.Node, p *part) (*farLookup, error) {
	f.mu.Lock()
	l := f.far[p.bucket]
	f.mu.Unlock()
	if l != nil && l.node.ID == n.ID && l.node.Epoch == n.Epoch {
		return l, nil
	}
	if l != nil {
		f.drop(p.bucket, l)
	}
	conn, err := f.service.peers.At(n)
	if err != nil {
		return nil, err
	}
	done, err := f.service.calls.begin(n, f.service.cfg.RelaysMax)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	x, err := conn.DoExchange(ctx)
	if err != nil {
		cancel()
		done()
		return nil, peers.FromStatus(n, nil, err)
	}
	columns := make([]string, len(f.rows.target.Columns))
	for i, c := range f.rows.target.Columns {
		columns[i] = c.Name
	}
	l = &farLookup{node: n, done: done, stream: x, cancel: cancel, out: flight.NewRecordWriter(x, ipc.WithSchema(keysOf(p).Schema()), ipc.WithAllocator(allocator))}
	l.out.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: api.JSON(api.Exchange{
		Lookup: &api.LookupStream{Bucket: &p.bucket, Columns: columns},
	})})
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.far == nil {
		f.far = map[mink.BucketRef]*farLookup{}
	}
	f.far[p.bucket] = l
	return l, nil
}

func (f *finder) drop(bucket mink.BucketRef, l *farLookup) {
	l.close()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.far[bucket] == l {
		delete(f.far, bucket)
	}
}

// close ends the streams to leaders.
func (f *finder) close() {
	for bucket, l := range f.far {
		l.close()
		delete(f.far, bucket)
	}
}

// keysOf is a part's keys without their places in the client's batch. It shares the
// part's columns.
func keysOf(p *part) arrow.RecordBatch {
	if p.places == nil {
		return p.keys
	}
	n := int(p.keys.NumCols()) - 1
	return array.NewRecordBatch(arrow.NewSchema(p.keys.Schema().Fields()[:n], nil), p.keys.Columns()[:n], p.keys.NumRows())
}

// ask sends a part's keys and reads the answer, which may come in several messages.
func (f *finder) ask(l *farLookup, p *part) (rows arrow.RecordBatch, found []bool, err error) {
	keys := keysOf(p)
	if p.places != nil {
		defer keys.Release()
	}
	if err := l.out.Write(keys); err != nil && !errors.Is(err, io.EOF) { // EOF: the status says why
		return nil, nil, peers.FromStatus(l.node, l.stream, err)
	}
	if l.in == nil {
		if l.in, err = flight.NewRecordReader(l.stream); err != nil {
			return nil, nil, f.ended(l, err)
		}
	}
	var recs []arrow.RecordBatch
	defer func() {
		for _, r := range recs {
			r.Release()
		}
	}()
	for {
		if !l.in.Next() {
			return nil, nil, f.ended(l, l.in.Err())
		}
		var m api.LookupMetadata
		if err := json.Unmarshal(l.in.LatestAppMetadata(), &m); err != nil {
			return nil, nil, fmt.Errorf("lookup at node %d: app_metadata: %w: %w", l.node.ID, mink.ErrCorrupt, err)
		}
		rec := l.in.RecordBatch()
		if !sameTypes(rec.Schema(), f.arrow) {
			return nil, nil, fmt.Errorf("lookup at node %d: the table is being altered: %w", l.node.ID, mink.ErrUnavailable)
		}
		recs = append(recs, array.NewRecordBatch(f.arrow, rec.Columns(), rec.NumRows()))
		if m.More {
			continue
		}
		found = make([]bool, p.keys.NumRows())
		for i := range found {
			found[i] = true
		}
		for _, i := range m.Missing {
			if i < 0 || int(i) >= len(found) {
				return nil, nil, fmt.Errorf("lookup at node %d: key %d of %d is missing: %w", l.node.ID, i, len(found), mink.ErrCorrupt)
			}
			found[i] = false
		}
		places := make([]int32, 0, len(found))
		for i, ok := range found {
			if ok {
				places = append(places, int32(i))
			}
		}
		if rows, err = inPlace(f.arrow, recs, places); err != nil {
			return nil, nil, err
		}
		if rows.NumRows() != int64(len(places)) || m.Keys != p.keys.NumRows() {
			rows.Release()
			return nil, nil, fmt.Errorf("lookup at node %d: %d rows for %d keys: %w", l.node.ID, rows.NumRows(), len(places), mink.ErrCorrupt)
		}
		return rows, found, nil
	}
}

func (f *finder) ended(l *farLookup, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("lookup: node %d ended the stream: %w", l.node.ID, mink.ErrUnavailable)
	}
	return peers.FromStatus(l.node, l.stream, err)
}

func sameTypes(a, b *arrow.Schema) bool {
	if a.NumFields() != b.NumFields() {
		return false
	}
	for i, field := range a.Fields() {
		if field.Name != b.Field(i).Name || !arrow.TypeEqual(field.Type, b.Field(i).Type) {
			return false
		}
	}
	return true
}
