package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sync/semaphore"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/routing"
	"github.com/mink-project/mink/sdk/mink"
)

// LookupConfig tunes a lookuper.
type LookupConfig struct {
	// Columns of the rows, by name; empty: all.
	Columns []string
	// BatchKeys is the most keys of one request. Default 256.
	BatchKeys int
	// PendingMax bounds the keys that wait or are on their way; a lookup waits when it
	// is reached. Default 65,536.
	PendingMax int64
	// Allocator for keys and joined answers. Default the Go heap.
	Allocator memory.Allocator
}

// DefaultLookup is a lookuper for latency and throughput both: a lone lookup goes at
// once, batches form under load.
func DefaultLookup() LookupConfig {
	return LookupConfig{BatchKeys: 256, PendingMax: 1 << 16, Allocator: memory.DefaultAllocator}
}

// Validate names the first field that makes no sense.
func (c LookupConfig) Validate() error {
	if c.BatchKeys < 1 || c.PendingMax < 1 || c.Allocator == nil {
		return fmt.Errorf("%w lookup: BatchKeys and PendingMax must be 1 or more, Allocator set", mink.ErrInvalid)
	}
	return nil
}

// Lookuper finds rows of a primary-key table by their keys. Safe for concurrent use,
// and made for it: while a bucket's node answers one request, the lookups of all
// goroutines gather into the next.
//
//	l, err := c.NewLookuper(ctx, "shop.items", client.DefaultLookup())
//	row, err := l.Get(ctx, 7)            // arrow.RecordBatch of one row, nil: there is none
//	found, err := l.Lookup(ctx, keys)    // many at once
//
// What a writer's Wait has told is found.
type Lookuper struct {
	table   *tableView
	cfg     LookupConfig
	keys    schema.Schema // the primary key
	key     *arrow.Schema
	placed  *arrow.Schema // of key, and of each key's place behind it
	columns schema.Schema // of the rows
	rows    *arrow.Schema
	budget  *semaphore.Weighted
	ctx     context.Context // of the requests; ends with Close
	cancel  context.CancelCauseFunc
	wg      sync.WaitGroup

	mu struct {
		sync.Mutex
		lanes  map[mink.BucketRef]*lane
		closed bool
	}
}

// NewLookuper opens a lookuper on "database.table", a primary-key table. ctx bounds
// the opening only. Close it.
func (c *Client) NewLookuper(ctx context.Context, table string, cfg LookupConfig) (*Lookuper, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t, err := c.openTable(ctx, table)
	if err != nil {
		return nil, err
	}
	if err := t.wantPrimaryKey("lookup"); err != nil {
		return nil, err
	}
	if err := t.checkColumns(cfg.Columns); err != nil {
		return nil, err
	}
	l := &Lookuper{table: t, cfg: cfg, keys: t.keySchema(), budget: semaphore.NewWeighted(cfg.PendingMax)}
	l.key = l.keys.Arrow()
	l.placed = arrow.NewSchema(append(slices.Clone(l.key.Fields()), arrow.Field{Name: place, Type: arrow.PrimitiveTypes.Int32}), nil)
	l.columns = t.desc.Schema
	if len(cfg.Columns) > 0 {
		l.columns = schema.Schema{ID: t.desc.Schema.ID}
		for _, name := range cfg.Columns {
			column, _ := t.desc.Schema.Column(name)
			l.columns.Columns = append(l.columns.Columns, column)
		}
	}
	l.rows = l.columns.Arrow()
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	l.mu.lanes = map[mink.BucketRef]*lane{}
	return l, nil
}

// KeySchema is the Arrow schema of the primary key, in its order.
func (l *Lookuper) KeySchema() *arrow.Schema { return l.key }

// Schema is the Arrow schema of the rows that are found: the table's as it was when
// the lookuper was opened, or Columns of it.
func (l *Lookuper) Schema() *arrow.Schema { return l.rows }

// Found answers a lookup of several keys.
type Found struct {
	// Rows that were found, in the order of the keys. The caller releases it.
	Rows arrow.RecordBatch
	// Missing has the places of the keys that have no row, ascending.
	Missing []int
}

// Get finds one row by its key's values, in the order of the primary key: Go values
// as Decode has them, or Text. The row is nil when there is none; else the caller
// releases it.
func (l *Lookuper) Get(ctx context.Context, key ...any) (arrow.RecordBatch, error) {
	if len(key) != len(l.keys.Columns) {
		return nil, fmt.Errorf("%w key: %d values, the primary key of table %s is %s", mink.ErrInvalid, len(key), l.table.name, columnNames(l.keys.Columns))
	}
	row, err := keyRow(l.cfg.Allocator, l.keys.Columns, key)
	if err != nil {
		return nil, fmt.Errorf("lookup in %s: %w", l.table.name, err)
	}
	defer row.Release()
	f, err := l.Lookup(ctx, row)
	if err != nil {
		return nil, err
	}
	if f.Rows.NumRows() == 0 {
		f.Rows.Release()
		return nil, nil
	}
	return f.Rows, nil
}

// Lookup finds the rows of keys: a record with the columns of the primary key by name
// and type; others are passed over. A key whose row or whose partition is not there is
// missing, which is no error. ctx bounds the wait.
func (l *Lookuper) Lookup(ctx context.Context, keys arrow.RecordBatch) (Found, error) {
	rec, err := l.align(keys)
	if err != nil {
		return Found{}, fmt.Errorf("lookup in %s: %w", l.table.name, err)
	}
	defer rec.Release()
	hold := min(rec.NumRows(), l.cfg.PendingMax)
	if err := l.budget.Acquire(ctx, hold); err != nil {
		return Found{}, err
	}
	defer l.budget.Release(hold)
	asked, missing, err := l.ask(ctx, rec)
	if err != nil {
		return Found{}, err
	}
	answers := make([]answer, len(asked))
	for i, a := range asked {
		select {
		case answers[i] = <-a.answer:
			err = errors.Join(err, answers[i].err)
		case <-ctx.Done():
			err = errors.Join(err, a.abandon(ctx))
		}
	}
	defer func() {
		for _, a := range answers {
			if a.rows != nil {
				a.rows.Release()
			}
		}
	}()
	if err != nil {
		return Found{}, err
	}
	return l.gather(asked, answers, missing)
}

// place is the column that keeps a key's place in its batch when the batch is split.
const place = "__place"

// align answers the key columns in the order of the primary key, and each row's place.
func (l *Lookuper) align(keys arrow.RecordBatch) (arrow.RecordBatch, error) {
	n := keys.NumRows()
	if n > 1<<31-1 {
		return nil, fmt.Errorf("%d keys at once: %w", n, mink.ErrTooLarge)
	}
	var columns []arrow.Array
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for i, c := range l.keys.Columns {
		at := keys.Schema().FieldIndices(c.Name)
		if len(at) != 1 {
			return nil, fmt.Errorf("%w keys: column %q occurs %d times, want once; the primary key is %s", mink.ErrInvalid, c.Name, len(at), columnNames(l.keys.Columns))
		}
		from := keys.Column(at[0])
		if !c.Type.Accepts(from.DataType()) {
			return nil, fmt.Errorf("%w keys: column %q is %s, which needs the Arrow type %s; got %s", mink.ErrInvalid, c.Name, c.Type, c.Type.Arrow(), from.DataType())
		}
		if from.NullN() > 0 {
			return nil, fmt.Errorf("%w keys: column %q has nulls, a key has a value in every column", mink.ErrInvalid, c.Name)
		}
		d := retype(from.Data(), l.key.Field(i).Type)
		columns = append(columns, array.MakeFromData(d))
		d.Release()
	}
	b := array.NewInt32Builder(l.cfg.Allocator)
	defer b.Release()
	b.Reserve(int(n))
	for i := range int32(n) {
		b.UnsafeAppend(i)
	}
	columns = append(columns, b.NewArray())
	return array.NewRecordBatch(l.placed, columns, n), nil
}

// asked is keys of one bucket that somebody waits for.
type asked struct {
	keys   arrow.RecordBatch // the primary key's columns
	places []int             // of the caller's batch
	since  time.Time
	answer chan answer // has room for the one answer
	gone   atomic.Bool // nobody waits any more, or the answer is there
}

// answer is what became of an asked.
type answer struct {
	rows    arrow.RecordBatch // found, in the order of the keys; nil with err
	missing []int32           // places in keys, ascending
	err     error
}

// give hands the answer over, which holds its own reference to rows.
func (a *asked) give(r answer) {
	if a.gone.CompareAndSwap(false, true) {
		a.answer <- r
	} else if r.rows != nil {
		r.rows.Release()
	}
	a.keys.Release()
}

// abandon ends the wait.
func (a *asked) abandon(ctx context.Context) error {
	if !a.gone.CompareAndSwap(false, true) {
		if r := <-a.answer; r.rows != nil {
			r.rows.Release()
		}
	}
	return ctx.Err()
}

// ask splits the keys and hands them to the lanes of their buckets; keys of
// partitions that do not exist are missing.
func (l *Lookuper) ask(ctx context.Context, rec arrow.RecordBatch) (out []*asked, missing []int, err error) {
	parts, err := l.table.router.Split(l.cfg.Allocator, rec, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("lookup in %s: %w", l.table.name, err)
	}
	defer func() {
		for _, p := range parts {
			p.Rows.Release()
		}
	}()
	partitions := make([]mink.PartitionID, len(parts))
	for i, p := range parts {
		found, ok, err := l.table.existing(ctx, p.Values)
		if err != nil {
			return nil, nil, fmt.Errorf("lookup in %s: %w", l.table.name, err)
		}
		if !ok {
			missing = append(missing, places(p.Rows)...)
			continue
		}
		partitions[i] = found.ID
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return nil, nil, fmt.Errorf("lookuper of %s: %w", l.table.name, mink.ErrClosed)
	}
	for i, p := range parts {
		if partitions[i] == 0 {
			continue
		}
		lane := l.laneLocked(mink.BucketRef{Table: l.table.id, Partition: partitions[i], Index: p.Bucket})
		n := p.Rows.NumRows()
		if n <= int64(l.cfg.BatchKeys) {
			out = append(out, l.askedOf(p.Rows))
			lane.push(out[len(out)-1])
			continue
		}
		for from := int64(0); from < n; from += int64(l.cfg.BatchKeys) {
			piece := p.Rows.NewSlice(from, min(n, from+int64(l.cfg.BatchKeys)))
			out = append(out, l.askedOf(piece))
			piece.Release()
			lane.push(out[len(out)-1])
		}
	}
	return out, missing, nil
}

func (l *Lookuper) askedOf(rows arrow.RecordBatch) *asked {
	return &asked{
		keys:   array.NewRecordBatch(l.key, rows.Columns()[:l.key.NumFields()], rows.NumRows()),
		places: places(rows), since: time.Now(), answer: make(chan answer, 1),
	}
}

// places reads the last column that align added.
func places(rec arrow.RecordBatch) []int {
	values := rec.Column(int(rec.NumCols()) - 1).(*array.Int32).Int32Values()
	out := make([]int, len(values))
	for i, v := range values {
		out[i] = int(v)
	}
	return out
}

func (l *Lookuper) laneLocked(ref mink.BucketRef) *lane {
	if p, ok := l.mu.lanes[ref]; ok {
		return p
	}
	p := &lane{l: l, ref: ref, kick: make(chan struct{}, 1)}
	l.mu.lanes[ref] = p
	l.wg.Go(func() { p.run(l.ctx) })
	return p
}

// gather puts the answers of several buckets into the order of the keys.
func (l *Lookuper) gather(all []*asked, answers []answer, missing []int) (Found, error) {
	var found []int // places, in the order of the answers' rows
	var recs []arrow.RecordBatch
	for i, a := range answers {
		next := 0
		for at, p := range all[i].places {
			if next < len(a.missing) && int(a.missing[next]) == at {
				missing = append(missing, p)
				next++
				continue
			}
			found = append(found, p)
		}
		if a.rows.NumRows() > 0 {
			recs = append(recs, a.rows)
		}
	}
	slices.Sort(missing)
	if len(recs) == 0 {
		b := array.NewRecordBuilder(l.cfg.Allocator, l.rows)
		defer b.Release()
		return Found{Rows: b.NewRecordBatch(), Missing: missing}, nil
	}
	rows, err := join(l.cfg.Allocator, l.rows, recs)
	if err != nil || slices.IsSorted(found) {
		return Found{Rows: rows, Missing: missing}, err
	}
	defer rows.Release()
	order := make([]int32, len(found))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return found[a] - found[b] })
	rows, err = routing.Take(l.cfg.Allocator, rows, order)
	return Found{Rows: rows, Missing: missing}, err
}

// Close ends the lookuper. Lookups that wait fail with mink.ErrClosed.
func (l *Lookuper) Close() error {
	l.mu.Lock()
	l.mu.closed = true
	l.mu.Unlock()
	l.cancel(fmt.Errorf("lookuper of %s: %w", l.table.name, mink.ErrClosed))
	l.wg.Wait()
	return nil
}
