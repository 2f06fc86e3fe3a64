package node_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/sdk/mink"
)

// check requires of every bucket what the model says.
func (r *kvRun) check() {
	r.t.Helper()
	var err error
	for range 50 {
		r.settle()
		err = nil
		for _, b := range r.buckets {
			if err = r.checkBucket(b); err != nil {
				break
			}
		}
		switch {
		case err == nil:
			return
		case r.p.Running() && !passing(err):
			r.t.Fatalf("%v\n%s", err, r.d.Encode())
		}
		time.Sleep(100 * time.Millisecond)
	}
	r.t.Fatalf("nothing can be read: %v", err)
}

func (r *kvRun) checkBucket(b *kvBucket) error {
	s := r.store(b)
	if s == nil {
		return mink.ErrUnavailable
	}
	ctx := context.Background()
	if end, visible := s.Log().LogEnd(), s.VisibleHighWatermark(); end != b.h.End || visible != end {
		return fmt.Errorf("bucket %s: the log ends at %d and is visible to %d, want %d", b.ref, end, visible, b.h.End)
	}
	if err := r.follow(b, s.Log()); err != nil {
		return err
	}
	if err := r.again(b, s.Log()); err != nil {
		return err
	}
	want, err := r.real(&r.d.Schema, b.h.Rows())
	if err != nil {
		return fmt.Errorf("bucket %s: %w", b.ref, err)
	}
	if got := r.fold(b, b.next); !mergetest.Equal(got, want) {
		return fmt.Errorf("bucket %s: the changelog folds to %v\nwant %v", b.ref, got, want)
	}
	v, err := s.View()
	if err != nil {
		return err
	}
	defer v.Close()
	var got []mergetest.Row
	for rec, err := range v.Scan(ctx, nil, nil, nil, 3, 1<<20) {
		if err != nil {
			return err
		}
		got = append(got, released(rec)...)
	}
	if !mergetest.Equal(got, want) || v.Offset() != b.h.End {
		return fmt.Errorf("bucket %s: a snapshot as of %d has %v\nwant as of %d %v", b.ref, v.Offset(), got, b.h.End, want)
	}
	n, err := s.Count(ctx)
	if err != nil {
		return err
	}
	if n != int64(len(want)) {
		return fmt.Errorf("bucket %s: it counts %d rows, want %d", b.ref, n, len(want))
	}
	if err := r.lookup(b, s); err != nil {
		return err
	}
	return r.source(b)
}

func released(rec arrow.RecordBatch) []mergetest.Row {
	defer rec.Release()
	return mergetest.Rows(rec)
}

// lookup looks every key up that ever was.
func (r *kvRun) lookup(b *kvBucket, s *kv.Tablet) error {
	keys := map[string]string{}
	for _, e := range b.h.Events {
		for i, k := range e.Keys {
			keys[string(e.Note.keys[i])] = k
		}
	}
	order := slices.Sorted(maps.Keys(keys))
	var ask [][]byte
	var want []mergetest.Row
	for _, k := range order {
		ask = append(ask, []byte(k))
		if row := b.h.Get(keys[k]); row != nil {
			want = append(want, row)
		}
	}
	want, err := r.real(&r.d.Schema, want)
	if err != nil {
		return err
	}
	rec, hit, err := s.Lookup(context.Background(), ask, nil)
	if err != nil {
		return err
	}
	for i, k := range order {
		if there := b.h.Get(keys[k]) != nil; hit[i] != there {
			rec.Release()
			return fmt.Errorf("bucket %s: key %x is found: %t, want %t", b.ref, k, hit[i], there)
		}
	}
	if got := released(rec); !mergetest.Equal(got, want) {
		return fmt.Errorf("bucket %s: a lookup answers %v\nwant %v", b.ref, got, want)
	}
	return nil
}

// read answers the changes of the log from an offset on, and where they end.
func (r *kvRun) read(log *tablet.Log, from mink.Offset) (changes []seenChange, next mink.Offset, err error) {
	for next = from; next < log.HighWatermark(); {
		res, err := log.Read(context.Background(), tablet.ReadRequest{From: next, MaxBytes: math.MaxInt32})
		if err != nil {
			return nil, 0, err
		}
		if res.Next <= next {
			return nil, 0, fmt.Errorf("a read at %d of %d brings nothing", next, log.HighWatermark())
		}
		for _, batch := range res.Batches {
			if batch.Count() == 0 {
				continue
			}
			by := r.schemas[slices.IndexFunc(r.schemas, func(s *schema.Schema) bool { return s.ID == batch.SchemaID() })]
			rec, _, err := log.Rows(batch, nil)
			if err != nil {
				return nil, 0, err
			}
			for i, row := range released(rec) {
				changes = append(changes, seenChange{mergetest.Change{Kind: mink.Change(batch.Changes()[i]), Row: row}, batch.BaseOffset() + mink.Offset(i), by})
			}
		}
		next = res.Next
	}
	return changes, next, nil
}

// follow reads what is new in the changelog and compares it with the history.
func (r *kvRun) follow(b *kvBucket, log *tablet.Log) error {
	changes, next, err := r.read(log, b.next)
	if err != nil {
		return fmt.Errorf("bucket %s: read from %d: %w", b.ref, b.next, err)
	}
	want := wanted(b.h)
	if next != b.h.End || len(b.seen)+len(changes) != len(want) {
		return fmt.Errorf("bucket %s: a reader comes to %d with %d changes, want %d with %d", b.ref, next, len(b.seen)+len(changes), b.h.End, len(want))
	}
	for i, got := range changes {
		w := want[len(b.seen)+i]
		if err := r.bind(b, got, w); err != nil {
			return err
		}
		row, err := r.real(w.by, []mergetest.Row{w.Row})
		if err != nil {
			return err
		}
		if got.Kind != w.Kind || !mergetest.Equal(got.Row, row[0]) || got.by.ID != w.by.ID {
			return fmt.Errorf("bucket %s: the change at %d is %v %v of schema %d\nwant %v %v of schema %d", b.ref, got.at, got.Kind, got.Row, got.by.ID, w.Kind, row[0], w.by.ID)
		}
	}
	b.seen, b.next = append(b.seen, changes...), next
	return nil
}

func wanted(h *mergetest.History[kvNote]) (all []seenChange) {
	for _, e := range h.Events {
		for _, c := range e.Changes {
			all = append(all, seenChange{Change: c, by: e.Schema})
		}
	}
	return all
}

// again reads the whole changelog once more: from its start on, nothing has changed.
func (r *kvRun) again(b *kvBucket, log *tablet.Log) error {
	start := log.LogStart()
	changes, _, err := r.read(log, start)
	if out := (*mink.OutOfRangeError)(nil); errors.As(err, &out) && out.Start > start { // it has not heard of the trim
		start = out.Start
		changes, _, err = r.read(log, start)
	}
	if err != nil {
		return fmt.Errorf("bucket %s: read again from %d: %w", b.ref, start, err)
	}
	was := b.seen
	for len(was) > 0 && was[0].at < start {
		was = was[1:]
	}
	same := len(changes) == len(was)
	for i := range changes {
		same = same && changes[i].at == was[i].at && changes[i].Kind == was[i].Kind && mergetest.Equal(changes[i].Row, was[i].Row)
	}
	if !same {
		return fmt.Errorf("bucket %s: the changelog from %d was %v\nand now is %v", b.ref, start, was, changes)
	}
	return nil
}

// source requires of what is read without leadership that it is what the followed
// changelog has: the committed part of it, and the newest KV snapshot, which folds to its
// offset.
func (r *kvRun) source(b *kvBucket) error {
	ctx, view, target := context.Background(), r.p.Node().View(), &r.d.Schema
	source := r.p.Node().Source()
	start, end, err := source.CommittedEnd(view, b.ref)
	if err != nil {
		return err
	}
	var got, want []seenChange
	for rows, err := range source.ReadCommitted(ctx, view, b.ref, start, end, target) {
		if err != nil {
			return err
		}
		for i, row := range mergetest.Rows(rows.Batch) {
			got = append(got, seenChange{mergetest.Change{Kind: rows.Changes[i], Row: row}, rows.Start + mink.Offset(i), nil})
		}
	}
	for _, c := range b.seen {
		if c.at >= start && c.at < end {
			want = append(want, seenChange{mergetest.Change{Kind: c.Kind, Row: mergetest.Follow(c.Row, c.by, target)}, c.at, nil})
		}
	}
	same := len(got) == len(want)
	for i := range got {
		same = same && got[i].at == want[i].at && got[i].Kind == want[i].Kind && mergetest.Equal(got[i].Row, want[i].Row)
	}
	if !same {
		return fmt.Errorf("bucket %s: the committed changelog [%d, %d) is %v\nwant %v", b.ref, start, end, got, want)
	}
	r.committed += len(got)
	at, rows, err := source.ReadKVSnapshot(ctx, view, b.ref, target)
	if errors.Is(err, mink.ErrNotExist) {
		id, _ := view.StreamOf(b.ref)
		if n, some := view.KVBucket(id).Newest(); some {
			return fmt.Errorf("bucket %s has a snapshot as of %d and it is not read: %w", b.ref, n.Offset, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	var stored []mergetest.Row
	for rows, err := range rows {
		if err != nil {
			return err
		}
		stored = append(stored, mergetest.Rows(rows.Batch)...)
	}
	if want := r.fold(b, at); !mergetest.Equal(stored, want) {
		return fmt.Errorf("bucket %s: the KV snapshot as of %d has %v\nwant %v", b.ref, at, stored, want)
	}
	r.sourced++
	return nil
}

// fold is what somebody has who keeps the newest row of each key of the changelog below
// an offset.
func (r *kvRun) fold(b *kvBucket, below mink.Offset) []mergetest.Row {
	rows := map[string]mergetest.Row{}
	for _, c := range b.seen {
		if c.at >= below {
			break
		}
		row := mergetest.Follow(c.Row, c.by, &r.d.Schema)
		key, err := mergetest.BucketKey(r.d, row)
		if err != nil {
			r.t.Fatalf("%v", err)
		}
		switch c.Kind {
		case mink.ChangeUpdateBefore:
			if !mergetest.Equal(rows[string(key)], row) {
				r.t.Fatalf("bucket %s: at %d the old row is %v, the changelog had %v", b.ref, c.at, row, rows[string(key)])
			}
		case mink.ChangeDelete:
			delete(rows, string(key))
		default:
			rows[string(key)] = row
		}
	}
	var out []mergetest.Row
	for _, k := range slices.Sorted(maps.Keys(rows)) {
		out = append(out, rows[k])
	}
	return out
}

// autoColumn is the position of the auto-increment column, -1: there is none.
func autoColumn(s *schema.Schema) int {
	return slices.IndexFunc(s.Columns, func(c schema.Column) bool { return c.AutoIncrement })
}

// bind notes which number a new row was given: none that another row has, and a larger
// one than the bucket gave before.
func (r *kvRun) bind(b *kvBucket, got, want seenChange) error {
	i := autoColumn(want.by)
	if i < 0 || want.Kind != mink.ChangeInsert || len(got.Row) != len(want.Row) || got.Row[i] == nil {
		return nil
	}
	mine, theirs := number(want.Row[i]), number(got.Row[i])
	if r.given[theirs] {
		return fmt.Errorf("bucket %s: number %d was given twice", b.ref, theirs)
	}
	if theirs <= b.last {
		return fmt.Errorf("bucket %s: number %d was given after %d", b.ref, theirs, b.last)
	}
	b.last, r.given[theirs], r.numbers[mine] = theirs, true, theirs
	return nil
}

func number(v any) int64 {
	if v, ok := v.(int32); ok {
		return int64(v)
	}
	return v.(int64)
}

// real are rows of the model with the numbers that the table gave.
func (r *kvRun) real(s *schema.Schema, rows []mergetest.Row) ([]mergetest.Row, error) {
	i := autoColumn(s)
	if i < 0 {
		return rows, nil
	}
	var out []mergetest.Row
	for _, row := range rows {
		row = slices.Clone(row)
		if row[i] != nil {
			n, ok := r.numbers[number(row[i])]
			if !ok {
				return nil, fmt.Errorf("nobody has seen how row %v came to be", row)
			}
			if _, small := row[i].(int32); small {
				row[i] = int32(n)
			} else {
				row[i] = n
			}
		}
		out = append(out, row)
	}
	return out, nil
}
