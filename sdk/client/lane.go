package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/cenkalti/backoff/v5"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// lane sends one bucket's lookups: one request on its way, on a stream that stays
// open; what comes meanwhile gathers into the next. It never waits for its own queue:
// a request that failed is tried again from where it is.
//
//	queue -> batch (up to BatchKeys) -> DoExchange -> answers
type lane struct {
	l    *Lookuper
	ref  mink.BucketRef
	kick chan struct{}

	mu struct {
		sync.Mutex
		queue []*asked
	}
	batch []*asked // on its way, or to be sent again; used by run only
}

func (p *lane) push(a *asked) {
	p.mu.Lock()
	p.mu.queue = append(p.mu.queue, a)
	p.mu.Unlock()
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// run serves until ctx is done; then whoever waits is told.
func (p *lane) run(ctx context.Context) {
	defer func() { p.failOlder(0, context.Cause(ctx)) }()
	pauses := p.l.table.c.backOff()
	for ctx.Err() == nil {
		if !p.take() {
			select {
			case <-ctx.Done():
			case <-p.kick:
			}
			continue
		}
		progress, err := p.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if progress {
			pauses.Reset()
		}
		p.afterFailure(ctx, pauses, err)
	}
}

// take gathers the next batch unless there is one; false: nobody waits.
func (p *lane) take() bool {
	if len(p.batch) > 0 {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n, keys := 0, int64(0)
	for ; n < len(p.mu.queue); n++ {
		a := p.mu.queue[n]
		if a.gone.Load() { // nobody waits for it
			a.keys.Release()
			continue
		}
		if keys += a.keys.NumRows(); keys > int64(p.l.cfg.BatchKeys) {
			break
		}
		p.batch = append(p.batch, a)
	}
	p.mu.queue = slices.Delete(p.mu.queue, 0, n)
	return len(p.batch) > 0
}

// afterFailure tells those who waited long enough, or all of the batch when the error
// stays, and pauses.
func (p *lane) afterFailure(ctx context.Context, pauses *backoff.ExponentialBackOff, err error) {
	t := p.l.table
	if errors.Is(err, mink.ErrNotExist) && p.partitionGone(ctx) {
		p.giveNothing()
		return
	}
	if !retriable(err) {
		p.failBatch(err)
		return
	}
	p.failOlder(t.c.cfg.RetryTimeout, fmt.Errorf("gave up after %s: %w", t.c.cfg.RetryTimeout, err))
	t.c.logger.Debug("lookup is tried again", "bucket", p.ref.String(), "error", err)
	if err := t.lookAgain(ctx, pauses); err != nil {
		p.failOlder(0, err)
	}
}

// partitionGone reports whether the bucket's partition was dropped, of a table that
// is still there: then its keys have no rows.
func (p *lane) partitionGone(ctx context.Context) bool {
	t := p.l.table
	return t.refresh(ctx) == nil && !t.has(p.ref.Partition)
}

// giveNothing answers the batch: no key has a row.
func (p *lane) giveNothing() {
	for _, a := range p.batch {
		missing := make([]int32, a.keys.NumRows())
		for i := range missing {
			missing[i] = int32(i)
		}
		a.give(answer{rows: emptyRows(p.l.rows), missing: missing})
	}
	p.batch = nil
}

func (p *lane) failBatch(err error) {
	for _, a := range p.batch {
		a.give(answer{err: err})
	}
	p.batch = nil
}

// failOlder fails everything that has waited for so long.
func (p *lane) failOlder(age time.Duration, err error) {
	p.mu.Lock()
	var old []*asked
	young := func(all []*asked) (kept []*asked) {
		for _, a := range all {
			if age > 0 && time.Since(a.since) < age {
				kept = append(kept, a)
			} else {
				old = append(old, a)
			}
		}
		return kept
	}
	p.batch, p.mu.queue = young(p.batch), young(p.mu.queue)
	p.mu.Unlock()
	for _, a := range old {
		a.give(answer{err: err})
	}
}

func (p *lane) wrap(err error) error { return FromStatus("lookup in "+p.l.table.name, err) }

// session asks on one stream, batch after batch, until it breaks.
func (p *lane) session(ctx context.Context) (progress bool, err error) {
	t := p.l.table
	led := t.bucket(p.ref)
	if led.Address == "" {
		return false, fmt.Errorf("lookup in %s: bucket %d has no known leader: %w", t.name, p.ref.Index, mink.ErrUnavailable)
	}
	conn, err := t.c.at(led.Address)
	if err != nil {
		return false, err
	}
	ctx, silence := t.watch(ctx, led, false)
	defer silence.end()
	defer func() { err = silence.why(err) }()
	silence.expect()
	x, err := conn.DoExchange(ctx)
	if err != nil {
		return false, p.wrap(err)
	}
	out := flight.NewRecordWriter(x, ipc.WithSchema(p.l.key), ipc.WithAllocator(p.l.cfg.Allocator))
	defer out.Close()
	out.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: api.JSON(api.Exchange{
		Lookup: &api.LookupStream{Bucket: &p.ref, Columns: p.columns()},
	})})
	in := &answers{stream: x}
	defer in.release()
	for {
		for !p.take() {
			select {
			case <-ctx.Done():
				return progress, ctx.Err()
			case <-p.kick:
			}
		}
		silence.expect()
		if err := p.ask(out, in); err != nil {
			return progress, err
		}
		silence.heard()
		progress = true
	}
}

// columns of the rows: always named, so that a column that is added later does not
// change what comes.
func (p *lane) columns() []string {
	names := make([]string, len(p.l.columns.Columns))
	for i, c := range p.l.columns.Columns {
		names[i] = c.Name
	}
	return names
}

// ask sends the batch and hands out its answers.
func (p *lane) ask(out *flight.Writer, in *answers) error {
	recs := make([]arrow.RecordBatch, len(p.batch))
	for i, a := range p.batch {
		recs[i] = a.keys
	}
	keys, err := join(p.l.cfg.Allocator, p.l.key, recs)
	if err != nil {
		return err
	}
	defer keys.Release()
	if err := out.Write(keys); err != nil {
		if !errors.Is(err, io.EOF) { // EOF: the node's status says why
			return p.wrap(err)
		}
		if _, err = in.stream.Recv(); err == nil || errors.Is(err, io.EOF) {
			err = fmt.Errorf("lookup in %s: the node ended the stream: %w", p.l.table.name, mink.ErrUnavailable)
		}
		return p.wrap(err)
	}
	rows, missing, err := in.next(p.l, keys.NumRows())
	if err != nil {
		return p.wrap(err)
	}
	defer rows.Release()
	p.give(rows, missing)
	return nil
}

// give cuts the rows of the whole batch into those of each who asked.
func (p *lane) give(rows arrow.RecordBatch, missing []int32) {
	key, row := int32(0), int64(0) // of the batch
	for _, a := range p.batch {
		n := int32(a.keys.NumRows())
		end, _ := slices.BinarySearch(missing, key+n)
		mine := slices.Clone(missing[:end])
		for i := range mine {
			mine[i] -= key
		}
		missing = missing[end:]
		found := int64(n) - int64(len(mine))
		a.give(answer{rows: rows.NewSlice(row, row+found), missing: mine})
		key, row = key+n, row+found
	}
	p.batch = nil
}

// answers reads what a node answers on a stream of lookups.
type answers struct {
	stream flight.FlightService_DoExchangeClient
	reader *flight.Reader // nil before the first answer: it reads the schema at once
}

func (in *answers) release() {
	if in.reader != nil {
		in.reader.Release()
	}
}

// next reads the answer to one batch of keys, which may come in several messages.
func (in *answers) next(l *Lookuper, keys int64) (rows arrow.RecordBatch, missing []int32, err error) {
	var recs []arrow.RecordBatch
	defer func() {
		for _, r := range recs {
			r.Release()
		}
	}()
	if in.reader == nil {
		if in.reader, err = flight.NewRecordReader(in.stream); err != nil {
			return nil, nil, err
		}
		if err := sameColumns(in.reader.Schema(), l.rows); err != nil {
			return nil, nil, err
		}
	}
	for {
		if !in.reader.Next() {
			if err := in.reader.Err(); err != nil && !errors.Is(err, io.EOF) {
				return nil, nil, err
			}
			return nil, nil, fmt.Errorf("the node ended the stream: %w", mink.ErrUnavailable)
		}
		var m api.LookupMetadata
		if err := decode("lookup", in.reader.LatestAppMetadata(), &m); err != nil {
			return nil, nil, err
		}
		rec, err := relabel(in.reader.RecordBatch(), l.rows)
		if err != nil {
			return nil, nil, err
		}
		recs = append(recs, rec)
		if m.More {
			continue
		}
		if rows, err = join(l.cfg.Allocator, l.rows, recs); err != nil {
			return nil, nil, err
		}
		if m.Keys != keys || rows.NumRows()+int64(len(m.Missing)) != keys || !slices.IsSorted(m.Missing) {
			n := rows.NumRows()
			rows.Release()
			return nil, nil, fmt.Errorf("the node answered %d rows and %d missing keys for %d of %d keys: %w", n, len(m.Missing), m.Keys, keys, mink.ErrCorrupt)
		}
		return rows, m.Missing, nil
	}
}
