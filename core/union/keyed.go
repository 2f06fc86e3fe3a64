package union

import (
	"context"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/twmb/murmur3"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/sdk/mink"
)

// keyOverhead is about what a map takes for a key beside its bytes.
const keyOverhead = 80

// classBitsMax bounds the passes: 2^classBitsMax of them.
const classBitsMax = 12

// class is the keys whose hash begins with some bits.
type class struct {
	bits  int
	value uint64
}

func (c class) has(key []byte) bool { return c.bits == 0 || murmur3.Sum64(key)>>(64-c.bits) == c.value }

func (c class) halves() (class, class) {
	return class{c.bits + 1, c.value << 1}, class{c.bits + 1, c.value<<1 | 1}
}

// fold is where each key of a class changed last in the tail: its offset, or the
// complement of the offset of a delete.
type fold map[string]mink.Offset

// keyed reads a primary-key bucket: class by class when the tail has too many keys.
func (u *reading) keyed(ctx context.Context) error {
	for todo := []class{{}}; len(todo) > 0 && !u.ended; {
		c := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		f, c, left, err := u.fold(ctx, c)
		if err != nil {
			return err
		}
		todo = append(todo, left...)
		if err := u.pass(ctx, c, f); err != nil {
			return err
		}
	}
	return nil
}

// fold reads the tail's keys. When they do not fit it goes on with half of the class, and
// answers the other halves.
func (u *reading) fold(ctx context.Context, c class) (f fold, half class, left []class, err error) {
	limit := u.KeyBytes
	if limit <= 0 {
		limit = DefaultKeyBytes
	}
	key, encoder, err := u.keySchema()
	if err != nil {
		return nil, c, nil, err
	}
	f = fold{}
	size := int64(0)
	var buf []byte
	for rows, err := range u.tailRows(ctx, key) {
		if err != nil {
			return nil, c, nil, err
		}
		if err := encoder.Bind(rows.Batch); err != nil {
			return nil, c, nil, err
		}
		for i := range int(rows.Batch.NumRows()) {
			at, kind := rows.Start+mink.Offset(i), mink.ChangeInsert
			if rows.Changes != nil {
				kind = mink.Change(rows.Changes[i])
			}
			switch kind {
			case mink.ChangeUpdateBefore: // the row after it follows
				continue
			case mink.ChangeDelete:
				at = ^at
			}
			if buf = encoder.Append(buf[:0], i); !c.has(buf) {
				continue
			}
			if _, ok := f[string(buf)]; !ok {
				size += int64(len(buf)) + keyOverhead
			}
			f[string(buf)] = at
			for size > limit {
				var other class
				if c, other = c.halves(); c.bits > classBitsMax {
					return nil, c, nil, fmt.Errorf("%w: the keys of the log's tail [%d, %d) do not fit into %d bytes in %d passes; "+
						"raise union_key_memory, or wait until the table is tiered further", mink.ErrTooLarge, u.From, u.Until, limit, 1<<classBitsMax)
				}
				left = append(left, other)
				f, size = f.of(c)
			}
		}
	}
	return f, c, left, nil
}

// of is the part of the fold in a class, and its size.
func (f fold) of(c class) (fold, int64) {
	part, size := fold{}, int64(0)
	for key, at := range f {
		if c.has([]byte(key)) {
			part[key] = at
			size += int64(len(key)) + keyOverhead
		}
	}
	return part, size
}

// pass yields the rows of a class.
func (u *reading) pass(ctx context.Context, c class, f fold) error {
	columns, err := u.withKey()
	if err != nil {
		return err
	}
	_, encoder, err := u.keySchema()
	if err != nil {
		return err
	}
	var buf []byte
	keep := func(batch arrow.RecordBatch) ([]int32, error) {
		if err := encoder.Bind(batch); err != nil {
			return nil, fmt.Errorf("a row of the lake: %w", err)
		}
		rows := make([]int32, 0, batch.NumRows())
		for i := range int(batch.NumRows()) {
			if buf = encoder.Append(buf[:0], i); !c.has(buf) {
				continue
			}
			if _, changed := f[string(buf)]; !changed {
				rows = append(rows, int32(i))
			}
		}
		return rows, nil
	}
	if len(f) == 0 && c.bits == 0 { // an empty tail: the lake is all there is
		columns, keep = u.Columns, nil
	}
	if err := u.lake(ctx, columns, keep); err != nil || u.ended {
		return err
	}
	live := make([]mink.Offset, 0, len(f))
	for _, at := range f {
		if at >= 0 {
			live = append(live, at)
		}
	}
	clear(f)
	slices.Sort(live)
	return u.live(ctx, live)
}

// live yields the rows of the tail at the given offsets, ascending.
func (u *reading) live(ctx context.Context, live []mink.Offset) error {
	if len(live) == 0 {
		return nil
	}
	err := u.readTail(ctx, func(rows Rows) ([]int32, error) {
		places := []int32{}
		end := rows.Start + mink.Offset(rows.Batch.NumRows())
		for len(live) > 0 && live[0] < end {
			if live[0] < rows.Start {
				return nil, fmt.Errorf("offset %d of the log has no row any more: %w", live[0], mink.ErrUnavailable)
			}
			places = append(places, int32(live[0]-rows.Start))
			live = live[1:]
		}
		return places, nil
	})
	if err == nil && !u.ended && len(live) > 0 {
		err = fmt.Errorf("offset %d of the log has no row any more: %w", live[0], mink.ErrUnavailable)
	}
	return err
}

// keySchema is the primary key's columns.
func (u *reading) keySchema() (*schema.Schema, *keyenc.Encoder, error) {
	s := &schema.Schema{ID: u.Target.ID}
	if err := addColumns(s, u.Target, u.Descriptor.PrimaryKey); err != nil {
		return nil, nil, err
	}
	e, err := keyenc.New(s, u.Descriptor.PrimaryKey)
	return s, e, err
}

// withKey is the columns of out, and the key's that are not among them.
func (u *reading) withKey() ([]mink.FieldID, error) {
	s := &schema.Schema{Columns: slices.Clone(u.out.Columns)}
	if err := addColumns(s, u.Target, u.Descriptor.PrimaryKey); err != nil {
		return nil, err
	}
	ids := make([]mink.FieldID, len(s.Columns))
	for i, c := range s.Columns {
		ids[i] = c.ID
	}
	return ids, nil
}
