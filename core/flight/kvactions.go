package flight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/record/jsonrow"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/core/schema/routing"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// What an action about rows answers at most: beyond it there are streams.
const (
	lookupKeysMax = 10_000
	prefixRowsMax = 1000
)

func (s *service) lookup(ctx context.Context, b api.Lookup) (any, error) {
	t, err := tableNamed(s.backend.View(), b.Table)
	if err != nil {
		return nil, err
	}
	f, err := s.newFinder(t, nil, b.Columns)
	if err != nil {
		return nil, err
	}
	defer f.close()
	if len(b.Keys) > lookupKeysMax {
		return nil, fmt.Errorf("lookup: %d keys, at most %d are looked up at once: send fewer, or exchange a stream of them: %w", len(b.Keys), lookupKeysMax, mink.ErrTooLarge)
	}
	keys, err := rowsOf(func(i int) string { return "lookup: keys[" + strconv.Itoa(i) + "]" }, f.key.columns, b.Keys)
	if err != nil {
		return nil, err
	}
	defer keys.Release()
	out := api.LookupRows{Rows: make([]json.RawMessage, len(b.Keys)), Missing: []int{}}
	text := jsonRows{left: s.cfg.batchBytesMax()}
	for at := int64(0); at < keys.NumRows(); at += stepKeysMax {
		part := keys.NewSlice(at, min(at+stepKeysMax, keys.NumRows()))
		rows, missing, err := f.find(ctx, part)
		part.Release()
		if err != nil {
			return nil, fmt.Errorf("lookup in table %s: %w", t.Descriptor.Name(), err)
		}
		err = placeRows(&out, &text, int(at), rows, missing)
		rows.Release()
		if err != nil {
			return nil, fmt.Errorf("lookup in table %s: %w", t.Descriptor.Name(), err)
		}
	}
	return out, nil
}

// placeRows writes the rows of the keys from at on.
func placeRows(out *api.LookupRows, text *jsonRows, at int, rows arrow.RecordBatch, missing []int32) error {
	n := int(rows.NumRows()) + len(missing)
	row := 0
	for i := range n {
		if len(missing) > 0 && int(missing[0]) == i {
			out.Missing = append(out.Missing, at+i)
			missing = missing[1:]
			continue
		}
		object, ok := text.object(rows, row)
		if !ok {
			return fmt.Errorf("the rows do not fit into one answer: send fewer keys, or exchange a stream of them: %w", mink.ErrTooLarge)
		}
		out.Rows[at+i] = object
		row++
	}
	return nil
}

// jsonRows writes rows as JSON objects, up to so many bytes.
type jsonRows struct{ left int }

func (j *jsonRows) object(rows arrow.RecordBatch, row int) (json.RawMessage, bool) {
	object, ok := jsonrow.AppendObjectUpTo(nil, j.left, rows.Schema().Fields(), rows.Columns(), row)
	if ok {
		j.left -= len(object) + 1
		ok = j.left >= 0
	}
	return object, ok
}

func (s *service) prefixLookup(ctx context.Context, b api.PrefixLookup) (any, error) {
	t, err := tableNamed(s.backend.View(), b.Table)
	if err != nil {
		return nil, err
	}
	if err := wantKey(t); err != nil {
		return nil, fmt.Errorf("prefix_lookup: %w", err)
	}
	limit := int64(prefixRowsMax)
	switch {
	case b.Limit < 0 || b.Limit > prefixRowsMax:
		return nil, fmt.Errorf("%w: prefix_lookup: limit is %d, want 1 to %d; a ticket with prefix reads more", mink.ErrInvalid, b.Limit, prefixRowsMax)
	case b.Limit > 0:
		limit = b.Limit
	}
	rows, err := newRowReader(t, b.Columns)
	if err != nil {
		return nil, fmt.Errorf("prefix_lookup: %w", err)
	}
	out := api.PrefixRows{Rows: []json.RawMessage{}}
	bucket, prefix, ok, err := s.prefixOf(t, b.Prefix)
	if err != nil || !ok {
		return out, err
	}
	err = s.atLeader(ctx, func() error {
		out = api.PrefixRows{Rows: []json.RawMessage{}}
		return s.prefixHere(ctx, bucket, prefix, rows, limit, &out)
	}, func(ctx context.Context, n cluster.Node) (bool, error) {
		out = api.PrefixRows{}
		return false, s.peers.Action(ctx, n, api.ActionPrefixLookup, b, &out)
	})
	if err != nil {
		return nil, fmt.Errorf("prefix lookup in table %s: %w", t.Descriptor.Name(), err)
	}
	return out, nil
}

func (s *service) prefixHere(ctx context.Context, bucket mink.BucketRef, prefix []byte, rows *rowReader, limit int64, out *api.PrefixRows) error {
	var view *kv.View
	err := s.withKV(ctx, bucket, func(store KV) (err error) {
		view, err = store.View()
		return err
	})
	if err != nil {
		return err
	}
	defer view.Close()
	text := jsonRows{left: s.cfg.batchBytesMax()}
	return s.leaderError(bucket, prefixRows(ctx, view, prefix, rows, limit, s.cfg.ReadBytes, &text, out))
}

func prefixRows(ctx context.Context, view *kv.View, prefix []byte, rows *rowReader, limit int64, bytesMax int, text *jsonRows, out *api.PrefixRows) error {
	most := int(min(limit+1, viewRowsMax)) // one more shows that there are more
	for batch, err := range view.Scan(ctx, prefix, keyenc.PrefixEnd(prefix), rows.ids, most, bytesMax) {
		if err != nil {
			return err
		}
		if batch, err = rows.conform(batch); err != nil {
			return err
		}
		for row := range int(batch.NumRows()) {
			object, ok := text.object(batch, row)
			if !ok && len(out.Rows) == 0 {
				batch.Release()
				return fmt.Errorf("the first row does not fit into one answer; a ticket with prefix reads it: %w", mink.ErrTooLarge)
			}
			if out.More = !ok || int64(len(out.Rows)) == limit; out.More {
				batch.Release()
				return nil
			}
			out.Rows = append(out.Rows, object)
		}
		batch.Release()
	}
	return nil
}

// prefixOf finds the bucket that a prefix tells, and the bytes that the keys in it
// begin with; false when the partition does not exist.
func (s *service) prefixOf(t *cluster.Table, object json.RawMessage) (bucket mink.BucketRef, prefix []byte, ok bool, err error) {
	d, k := t.Descriptor, keyOf(t)
	var given map[string]json.RawMessage
	if err := json.Unmarshal(object, &given); err != nil || given == nil {
		return bucket, nil, false, fmt.Errorf("%w: prefix_lookup: prefix: want an object of the first columns of the primary key (%s)", mink.ErrInvalid, strings.Join(d.PrimaryKey, ", "))
	}
	for _, name := range slices.Concat(d.PartitionKeys, d.BucketKeys) {
		if _, ok := given[name]; !ok {
			return bucket, nil, false, fmt.Errorf("%w: prefix_lookup: the prefix lacks %q, without which it does not tell its bucket; read every bucket with a range or prefix ticket instead", mink.ErrInvalid, name)
		}
	}
	var columns []schema.Column
	for _, c := range k.columns {
		if slices.Contains(d.PartitionKeys, c.Name) {
			columns = append(columns, c)
			delete(given, c.Name)
		}
	}
	n, err := leadingColumns("prefix_lookup: prefix", k.inStore, api.JSON(given))
	if err != nil {
		return bucket, nil, false, err
	}
	rows, err := rowsOf(func(int) string { return "prefix_lookup: prefix" }, append(columns, k.inStore[:n]...), []json.RawMessage{object})
	if err != nil {
		return bucket, nil, false, err
	}
	defer rows.Release()
	enc, err := k.encoder(n)
	if err == nil {
		err = enc.Bind(rows)
	}
	if err != nil {
		return bucket, nil, false, err
	}
	bucket, ok, err = s.bucketOf(t, rows)
	return bucket, enc.Append(nil, 0), ok, err
}

// bucketOf finds the bucket of a row; false when its partition does not exist.
func (s *service) bucketOf(t *cluster.Table, row arrow.RecordBatch) (mink.BucketRef, bool, error) {
	router, err := routing.New(t.Descriptor)
	if err != nil {
		return mink.BucketRef{}, false, err
	}
	parts, err := router.Split(allocator, row, 0)
	if err != nil {
		return mink.BucketRef{}, false, err
	}
	parts[0].Rows.Release()
	p, err := partitionNamed(s.backend.View(), t, parts[0].Values)
	if errors.Is(err, mink.ErrNotExist) {
		return mink.BucketRef{}, false, nil
	}
	if err != nil {
		return mink.BucketRef{}, false, err
	}
	return mink.BucketRef{Table: t.ID, Partition: p.ID, Index: parts[0].Bucket}, true, nil
}

// count counts rows.
func (s *service) count(ctx context.Context, b api.CountRequest) (any, error) {
	view := s.backend.View()
	t, err := tableNamed(view, b.Table)
	if err != nil {
		return nil, err
	}
	if err := wantKey(t); err != nil {
		return nil, fmt.Errorf("count: %w", err)
	}
	refs, of, err := bucketsOf(view, t, b.Partition, b.Buckets)
	if err != nil {
		return nil, err
	}
	out := api.Counts{Buckets: make([]api.BucketCount, len(refs))}
	for i, ref := range refs {
		out.Buckets[i] = api.BucketCount{Bucket: ref, Values: of[i].Values}
	}
	errs := s.atLeaders(ctx, refs, func(i int) error {
		return s.withKV(ctx, refs[i], func(store KV) (err error) {
			out.Buckets[i].Rows, err = store.Count(ctx)
			return err
		})
	}, func(ctx context.Context, n cluster.Node, led []int) ([]error, error) {
		ask, place := api.CountRequest{Table: t.Descriptor.Name()}, map[mink.BucketRef]int{}
		for k, i := range led {
			ask.Buckets = append(ask.Buckets, refs[i])
			place[refs[i]] = k
		}
		var answer api.Counts
		if err := s.peers.Action(ctx, n, api.ActionCount, ask, &answer); err != nil {
			return nil, err
		}
		for _, c := range answer.Buckets {
			if k, ok := place[c.Bucket]; ok {
				out.Buckets[led[k]].Rows = c.Rows
				delete(place, c.Bucket)
			}
		}
		for b := range place {
			return nil, fmt.Errorf("node %d left bucket %s out of its answer: %w", n.ID, b, mink.ErrUnavailable)
		}
		return make([]error, len(led)), nil
	})
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("count table %s: %w", t.Descriptor.Name(), err)
		}
		out.Rows += out.Buckets[i].Rows
	}
	return out, nil
}
