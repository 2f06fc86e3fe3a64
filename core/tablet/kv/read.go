package kv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/cockroachdb/pebble/v2"

	"github.com/mink-project/mink/core/record/row"
	"github.com/mink-project/mink/sdk/mink"
)

// Lookup answers the rows of the keys that have one, in the order of the keys, and
// which those are; all as of one moment. A key is the keyenc bytes of the primary key
// without partition columns. The rows are those of the current schema version, cut to
// columns (field ids, in that order; nil: all). Release them.
//
// Errors: mink.ErrUnavailable (a column is not known here), mink.ErrTooLarge (the rows
// are more than Config.LookupBytesMax), mink.ErrCorrupt, that of Config.MayAnswer and
// those of a tablet that has ended.
func (t *Tablet) Lookup(ctx context.Context, keys [][]byte, columns []mink.FieldID) (rows arrow.RecordBatch, found []bool, err error) {
	if err := t.enter(); err != nil {
		return nil, nil, err
	}
	defer t.gate.leave()
	rows, found, err = t.lookup(ctx, keys, columns)
	if err == nil {
		if err = t.mayAnswer(); err != nil {
			rows.Release()
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("lookup in bucket %s: %w", t.bucket, t.broken(err))
	}
	t.counts.lookups.Add(int64(len(keys)))
	t.counts.found.Add(rows.NumRows())
	return rows, found, nil
}

// lookupKeys is how many keys of a lookup are read at a time.
const lookupKeys = 1024

var lookupPool = sync.Pool{New: func() any { return new(lookupWork) }}

// lookupWork is the memory of a lookup.
type lookupWork struct {
	read    rowsRead
	keys    []byte // of the store
	scratch []byte
}

func (w *lookupWork) free() {
	w.read.shrink()
	if cap(w.keys) > keepBytes || cap(w.scratch) > keepBytes {
		w.keys, w.scratch = nil, nil
	}
	lookupPool.Put(w)
}

func (t *Tablet) lookup(ctx context.Context, keys [][]byte, columns []mink.FieldID) (arrow.RecordBatch, []bool, error) {
	snap := t.store.db.NewSnapshot()
	defer func() { _ = snap.Close() }() // of a store that is open
	set := t.settings.Load()            // after the snapshot: it knows the versions of all rows
	b, err := set.takeBuilder(columns)
	if err != nil {
		return nil, nil, err
	}
	defer set.giveBuilder(columns, b)
	w := lookupPool.Get().(*lookupWork)
	defer w.free()
	found := make([]bool, len(keys))
	for at := 0; at < len(keys); at += lookupKeys {
		if at > 0 && ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		if err := w.step(set, snap, keys, at, found, b, t.cfg.LookupBytesMax); err != nil {
			return nil, nil, err
		}
	}
	return b.NewBatch(), found, nil
}

// step adds the rows of the next keys from at on to a batch.
func (w *lookupWork) step(set *settings, snap *pebble.Snapshot, keys [][]byte, at int, found []bool, b *row.Builder, bytesMax int) (err error) {
	some := keys[at:min(at+lookupKeys, len(keys))]
	size := 0
	for _, k := range some {
		size += 1 + len(k)
	}
	w.keys = slices.Grow(w.keys[:0], size)
	w.read.begin(len(some))
	for _, k := range some {
		from := len(w.keys)
		w.keys = rowKey(w.keys, k)
		w.read.add(w.keys[from:len(w.keys):len(w.keys)])
	}
	if err := w.read.read(snap); err != nil {
		return err
	}
	for i := range some {
		value, read := w.read.get(i)
		var held io.Closer
		if !read {
			if value, held, err = get(snap, w.read.keys[i]); err != nil {
				return err
			}
		}
		if value == nil {
			continue
		}
		found[at+i] = true
		w.scratch, err = appendRow(set, b, w.scratch, value)
		if held != nil {
			err = errors.Join(err, held.Close())
		}
		if err != nil {
			return err
		}
		if b.Bytes() > bytesMax {
			return fmt.Errorf("%w: the rows of the first %d of %d keys take more than %d bytes: ask for fewer at a time", mink.ErrTooLarge, at+i+1, len(keys), bytesMax)
		}
	}
	return nil
}

// appendRow adds a stored row; scratch is for one of an older version.
func appendRow(set *settings, b *row.Builder, scratch, value []byte) ([]byte, error) {
	up, scratch, err := set.upgrade(scratch[:0], value)
	if err == nil {
		err = b.Append(up)
	}
	return scratch, err
}

// mayAnswer comes after the read that it is about: while the leadership still held, what
// was read before was the truth.
func (t *Tablet) mayAnswer() error {
	if t.cfg.MayAnswer == nil {
		return nil
	}
	return t.cfg.MayAnswer()
}

// Count is the number of rows: known, or counted by reading every key where puts do
// not look at old rows (changelog_image = wal with merge_engine = last_write).
func (t *Tablet) Count(ctx context.Context) (int64, error) {
	if err := t.enter(); err != nil {
		return 0, err
	}
	defer t.gate.leave()
	n, err := t.meta.Load().rows, error(nil)
	if n < 0 {
		snap := t.store.db.NewSnapshot()
		defer func() { _ = snap.Close() }()
		n, err = rowCount(snap, func() error { return t.goOn(ctx) })
	}
	if err == nil {
		err = t.mayAnswer()
	}
	if err != nil {
		return 0, fmt.Errorf("count bucket %s: %w", t.bucket, t.broken(err))
	}
	return n, nil
}

// goOn says whether a long read must stop.
func (t *Tablet) goOn(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.stop:
		return t.usable()
	default:
		return nil
	}
}

// View is the rows as of one moment. It ends with its tablet. Not for concurrent use.
type View struct {
	t    *Tablet
	meta meta
	snap *pebble.Snapshot // the gate's
}

// View is the rows of now. It keeps room on the disk until it is closed. Errors as of
// Lookup.
func (t *Tablet) View() (*View, error) {
	if err := t.enter(); err != nil {
		return nil, err
	}
	defer t.gate.leave()
	v := &View{t: t, snap: t.store.db.NewSnapshot()}
	var err error
	if v.meta, err = t.store.readMeta(v.snap); err == nil {
		err = t.mayAnswer()
	}
	if err != nil {
		return nil, fmt.Errorf("view of bucket %s: %w", t.bucket, errors.Join(t.broken(err), v.snap.Close()))
	}
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	if t.gate.views == nil {
		t.gate.views = map[*View]struct{}{}
	}
	t.gate.views[v] = struct{}{}
	return v, nil
}

// Offset is the first offset of the changelog that is not in the view.
func (v *View) Offset() mink.Offset { return v.meta.flushed }

// Rows is the number of rows, -1 when it is not known.
func (v *View) Rows() int64 { return v.meta.rows }

// Close frees what the view keeps.
func (v *View) Close() {
	g := &v.t.gate
	g.mu.Lock()
	_, open := g.views[v]
	delete(g.views, v)
	g.mu.Unlock()
	if open {
		v.end()
	}
}

// end needs that nobody scans, and that the view is in no list.
func (v *View) end() { _ = v.snap.Close() }

// Scan answers the rows with keys in [lo, hi), in their order, in batches of at most
// rowsMax rows and about bytesMax bytes; nil bounds are none, a key's prefix is a
// range (keyenc.PrefixEnd). The rows are those of the current schema version, cut to
// columns (field ids; nil: all). The consumer releases the batches, and stops when it
// has enough: no more than a batch is read ahead. Errors as of Lookup, and mink.ErrClosed
// when the tablet was closed meanwhile; the last pair is (nil, err).
func (v *View) Scan(ctx context.Context, lo, hi []byte, columns []mink.FieldID, rowsMax, bytesMax int) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		set := v.t.settings.Load()
		at, err := set.positions(columns)
		var b *row.Builder
		if err == nil {
			b, err = set.codec.Builder(at)
		}
		from, to := keyRange(lo, hi)
		for more := true; more; {
			if err == nil {
				from, more, err = v.fill(ctx, set, b, from, to, max(rowsMax, 1), max(bytesMax, 1))
			}
			if err != nil {
				yield(nil, fmt.Errorf("scan of bucket %s: %w", v.t.bucket, v.t.broken(err)))
				return
			}
			if b.Len() > 0 && !yield(b.NewBatch(), nil) {
				return
			}
		}
	}
}

// fill reads one batch of rows and answers the key to go on at. The store is used no
// longer than that: a consumer may take its time.
func (v *View) fill(ctx context.Context, set *settings, b *row.Builder, from, to []byte, rowsMax, bytesMax int) (next []byte, more bool, err error) {
	t := v.t
	if err := t.goOn(ctx); err != nil {
		return nil, false, err
	}
	if err := t.enter(); err != nil {
		return nil, false, err
	}
	defer t.gate.leave()
	t.gate.mu.Lock()
	_, open := t.gate.views[v]
	t.gate.mu.Unlock()
	if !open {
		return nil, false, fmt.Errorf("the view was closed: %w", mink.ErrClosed)
	}
	it, err := v.snap.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return nil, false, storeError(err)
	}
	defer func() { err = errors.Join(err, storeError(it.Close())) }()
	var scratch []byte
	for ok := it.First(); ok; ok = it.Next() {
		if b.Len() >= rowsMax || b.Len() > 0 && b.Bytes() >= bytesMax {
			return append(from[:0:0], it.Key()...), true, nil
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return nil, false, storeError(err)
		}
		if scratch, err = appendRow(set, b, scratch, value); err != nil {
			return nil, false, err
		}
		if b.Len()%1024 == 0 {
			if err := t.goOn(ctx); err != nil {
				return nil, false, err
			}
		}
	}
	return nil, false, storeError(it.Error())
}
