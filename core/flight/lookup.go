package flight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/flight/wire"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/core/schema/routing"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// A lookup step holds the rows of so many keys; fewer once rows turned out to be
// large.
const (
	stepKeysMax  = 1024
	stepBytesMax = 16 << 20
)

// finder looks rows up by their keys, of a table or of one bucket. Not for
// concurrent use. Close it.
type finder struct {
	service *service
	table   *cluster.Table
	key     primaryKey
	bucket  *mink.BucketRef // nil: keys find their buckets
	router  *routing.Router // of a table
	encoder *keyenc.Encoder
	rows    *rowReader
	arrow   *arrow.Schema // of the rows
	step    int           // keys at a time

	mu  sync.Mutex // of encoder, and of:
	far map[mink.BucketRef]*farLookup
}

func (s *service) newFinder(t *cluster.Table, bucket *mink.BucketRef, columns []string) (*finder, error) {
	if err := wantKey(t); err != nil {
		return nil, fmt.Errorf("lookup: %w", err)
	}
	f := &finder{service: s, table: t, key: keyOf(t), bucket: bucket, step: stepKeysMax}
	var err error
	if f.rows, err = newRowReader(t, columns); err != nil {
		return nil, fmt.Errorf("lookup: %w", err)
	}
	f.arrow = f.rows.target.Arrow()
	if f.encoder, err = f.key.encoder(len(f.key.inStore)); err != nil {
		return nil, err
	}
	if bucket == nil {
		f.router, err = routing.New(t.Descriptor)
	}
	return f, err
}

// positionColumn carries a key's place through the routing; no column has its name.
const positionColumn = "__position"

// part is the keys of one bucket.
type part struct {
	bucket mink.BucketRef
	absent bool // its partition does not exist: no key has a row
	keys   arrow.RecordBatch
	places []int32 // in the client's batch; nil: as they come
}

// find answers the rows of the keys that have one, in the order of the keys, and the
// places of the others, ascending. Release the rows.
func (f *finder) find(ctx context.Context, keys arrow.RecordBatch) (rows arrow.RecordBatch, missing []int32, err error) {
	parts, err := f.split(keys)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		for _, p := range parts {
			p.keys.Release()
		}
	}()
	var found []arrow.RecordBatch
	defer func() {
		for _, r := range found {
			r.Release()
		}
	}()
	located, err := f.ofParts(ctx, parts)
	if err != nil {
		return nil, nil, err
	}
	var places []int32 // of the rows of found, one after the other
	for k, p := range parts {
		has := make([]bool, p.keys.NumRows())
		if !p.absent {
			found, has = append(found, located[k].rows), located[k].found
		}
		for i, ok := range has {
			at := int32(i)
			if p.places != nil {
				at = p.places[i]
			}
			if ok {
				places = append(places, at)
			} else {
				missing = append(missing, at)
			}
		}
	}
	slices.Sort(missing)
	rows, err = inPlace(f.arrow, found, places)
	return rows, missing, err
}

// split finds the buckets of keys.
func (f *finder) split(keys arrow.RecordBatch) ([]part, error) {
	if f.bucket != nil {
		keys.Retain()
		return []part{{bucket: *f.bucket, keys: keys}}, nil
	}
	b := array.NewInt32Builder(allocator)
	defer b.Release()
	for i := range int32(keys.NumRows()) {
		b.Append(i)
	}
	positions := b.NewArray()
	defer positions.Release()
	fields := append(slices.Clone(keys.Schema().Fields()), arrow.Field{Name: positionColumn, Type: positions.DataType()})
	with := array.NewRecordBatch(arrow.NewSchema(fields, nil), append(slices.Clone(keys.Columns()), positions), keys.NumRows())
	defer with.Release()
	routed, err := f.router.Split(allocator, with, 0)
	if err != nil {
		return nil, err
	}
	view := f.service.backend.View()
	parts := make([]part, len(routed))
	for i, r := range routed {
		parts[i] = part{keys: r.Rows, places: r.Rows.Column(int(r.Rows.NumCols()) - 1).(*array.Int32).Int32Values()}
		p, perr := partitionNamed(view, f.table, r.Values)
		switch {
		case perr == nil:
			parts[i].bucket = mink.BucketRef{Table: f.table.ID, Partition: p.ID, Index: r.Bucket}
		case errors.Is(perr, mink.ErrNotExist):
			parts[i].absent = true
		default:
			err = firstOf(err, perr)
		}
	}
	if err != nil {
		for _, p := range parts {
			p.keys.Release()
		}
		return nil, err
	}
	return parts, nil
}

// ofBucket looks keys of one bucket up.
func (f *finder) ofBucket(ctx context.Context, p *part) (rows arrow.RecordBatch, found []bool, err error) {
	keys, err := f.encode(p.keys)
	if err != nil {
		return nil, nil, err
	}
	err = f.service.withKV(ctx, p.bucket, func(store KV) error {
		rows, found, err = store.Lookup(ctx, keys, f.rows.ids)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	rows, err = f.rows.conform(rows)
	return rows, found, err
}

func (f *finder) encode(rows arrow.RecordBatch) ([][]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.encoder.Bind(rows); err != nil {
		return nil, err
	}
	keys := make([][]byte, rows.NumRows())
	var buf []byte
	for i := range keys {
		start := len(buf)
		buf = f.encoder.Append(buf, i)
		keys[i] = buf[start:len(buf):len(buf)]
	}
	return keys, nil
}

// inPlace puts batches together in the order of the places of their rows.
func inPlace(s *arrow.Schema, batches []arrow.RecordBatch, places []int32) (arrow.RecordBatch, error) {
	switch {
	case len(batches) == 0:
		return noRows(s), nil
	case len(batches) == 1:
		batches[0].Retain()
		return batches[0], nil
	}
	// order[i] is where the row that comes i-th is now.
	order := make([]int32, len(places))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return int(places[a]) - int(places[b]) })
	b := array.NewInt32Builder(allocator)
	defer b.Release()
	b.AppendValues(order, nil)
	indices := b.NewArray()
	defer indices.Release()
	columns := make([]arrow.Array, 0, s.NumFields())
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for i := range s.NumFields() {
		chunks := make([]arrow.Array, len(batches))
		for k, rec := range batches {
			chunks[k] = rec.Column(i)
		}
		all, err := array.Concatenate(chunks, allocator)
		if err != nil {
			return nil, err
		}
		taken, err := compute.TakeArray(compute.WithAllocator(context.Background(), allocator), all, indices)
		all.Release()
		if err != nil {
			return nil, err
		}
		columns = append(columns, taken)
	}
	return array.NewRecordBatch(s, columns, int64(len(places))), nil
}

// lookups is a DoExchange of lookups.
func (s *service) lookups(ctx context.Context, l *api.LookupStream, first *flight.FlightData, in <-chan received, send func(*flight.FlightData) error) error {
	t, err := s.lookupTable(l)
	if err != nil {
		return err
	}
	f, err := s.newFinder(t, l.Bucket, l.Columns)
	if err != nil {
		return err
	}
	defer f.close()
	x := &lookupStream{finder: f, in: in, out: &rowSender{service: s, arrow: f.arrow, send: send}, checker: arrowipc.NewChecker(arrowipc.DefaultMaxBytes), decoder: arrowipc.NewDecoder(arrowipc.DefaultMaxBytes)}
	x.out.metadata = x.metadata
	if err := x.out.begin(); err != nil { // a client may wait for it before it sends keys
		return err
	}
	header, err := s.schemaAfter(ctx, first, in)
	if err != nil {
		return err
	}
	as, err := wire.ReadSchema(header)
	if err != nil {
		return err
	}
	if x.layout, err = f.keyLayout(as); err != nil {
		return fmt.Errorf("lookup in table %s: %w", t.Descriptor.Name(), err)
	}
	return x.run(ctx)
}

func (s *service) lookupTable(l *api.LookupStream) (*cluster.Table, error) {
	switch {
	case (l.Table == "") == (l.Bucket == nil):
		return nil, fmt.Errorf("%w: lookup: want either table or bucket", mink.ErrInvalid)
	case l.Bucket == nil:
		return tableNamed(s.backend.View(), l.Table)
	}
	t, ok := s.backend.View().Table(l.Bucket.Table)
	if !ok {
		return nil, fmt.Errorf("table %d %w", l.Bucket.Table, mink.ErrNotExist)
	}
	return t, nil
}

// keyLayout is the layout of batches of keys: the primary key's columns in any
// order; in a stream of one bucket those of the partition may be left out.
func (f *finder) keyLayout(as *arrow.Schema) (*arrowipc.Layout, error) {
	sent := &schema.Schema{}
	for _, field := range as.Fields() {
		at := slices.IndexFunc(f.key.columns, func(c schema.Column) bool { return c.Name == field.Name })
		if at < 0 {
			return nil, fmt.Errorf("%w: column %.200q is not in the primary key (%s): send key columns", mink.ErrInvalid, field.Name, strings.Join(namesOf(f.key.columns), ", "))
		}
		sent.Columns = append(sent.Columns, f.key.columns[at])
	}
	if err := sent.CheckArrow(as); err != nil {
		return nil, err
	}
	want := f.key.columns
	if f.bucket != nil {
		want = f.key.inStore
	}
	for _, c := range want {
		if sent.Index(c.Name) < 0 {
			return nil, fmt.Errorf("%w: column %q of the primary key (%s) is absent", mink.ErrInvalid, c.Name, strings.Join(namesOf(f.key.columns), ", "))
		}
	}
	return arrowipc.NewLayout(sent.Arrow())
}

// lookupStream answers batches of keys, one after the other.
type lookupStream struct {
	*finder
	in      <-chan received
	out     *rowSender
	layout  *arrowipc.Layout
	checker *arrowipc.Checker
	decoder *arrowipc.Decoder

	answer api.LookupMetadata // of the batch that is being answered
	last   bool               // its last step is
}

func (x *lookupStream) metadata(more bool) []byte {
	if more || !x.last {
		return api.JSON(api.LookupMetadata{Keys: x.answer.Keys, More: true})
	}
	return api.JSON(x.answer)
}

func (x *lookupStream) run(ctx context.Context) error {
	for {
		select {
		case m := <-x.in:
			if errors.Is(m.err, io.EOF) {
				return nil
			}
			if m.err != nil {
				return m.err
			}
			if len(m.data.DataHeader) == 0 {
				continue // metadata alone
			}
			if err := x.batch(ctx, m.data); err != nil {
				return fmt.Errorf("lookup in table %s: %w", x.table.Descriptor.Name(), err)
			}
		case <-x.service.stopping:
			return errStopping
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (x *lookupStream) batch(ctx context.Context, m *flight.FlightData) error {
	if _, err := x.checker.Check(x.layout, m.DataHeader, m.DataBody); err != nil {
		return err
	}
	keys, err := x.decoder.Decode(x.layout, m.DataHeader, m.DataBody, nil)
	if err != nil {
		return err
	}
	defer keys.Release()
	x.answer, x.last = api.LookupMetadata{Keys: keys.NumRows()}, false
	for at := int64(0); !x.last; {
		end := min(at+int64(x.step), keys.NumRows())
		x.last = end == keys.NumRows()
		if err := x.stepOf(ctx, keys, at, end); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// stepOf answers the keys [at, end) of a batch.
func (x *lookupStream) stepOf(ctx context.Context, keys arrow.RecordBatch, at, end int64) error {
	part := keys.NewSlice(at, end)
	defer part.Release()
	rows, missing, err := x.find(ctx, part)
	if err != nil {
		return err
	}
	defer rows.Release()
	for _, i := range missing {
		x.answer.Missing = append(x.answer.Missing, int32(at)+i)
	}
	if bytesIn(rows) > stepBytesMax {
		x.step = max(1, x.step/2)
	}
	return x.out.rows(rows)
}

// bytesIn is about what rows take in memory.
func bytesIn(rows arrow.RecordBatch) (n int64) {
	for _, c := range rows.Columns() {
		n += int64(c.Data().SizeInBytes())
	}
	return n
}
