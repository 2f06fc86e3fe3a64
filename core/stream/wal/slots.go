package wal

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"

	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// maxSlot is the last slot that a log can have.
const maxSlot = math.MaxInt64

// Slot is one occupied slot.
type Slot struct {
	Seq  uint64
	Key  string
	Size int64
}

type page struct {
	slots []Slot
	last  string // to go on after, when more
	more  bool
}

// listPage answers the occupied slots >= from whose keys come after key. Keys
// that name no slot are left out.
func listPage(ctx context.Context, store objstore.Store, id plan.WALID, from uint64, after string) (page, error) {
	prefix := plan.WALPrefix(id)
	if after == "" && from > 0 {
		after = plan.Key(id, plan.KindWAL, from-1)
	}
	resp, err := store.List(ctx, objstore.ListRequest{Prefix: prefix, StartAfter: after})
	if err != nil {
		return page{}, err
	}
	p := page{last: after, more: resp.More && len(resp.Objects) > 0, slots: make([]Slot, 0, len(resp.Objects))}
	for _, o := range resp.Objects {
		p.last = o.Key
		if seq, ok := plan.ParseSeq(strings.TrimPrefix(o.Key, prefix)); ok && seq >= from && seq <= maxSlot {
			p.slots = append(p.slots, Slot{Seq: seq, Key: o.Key, Size: o.Size})
		}
	}
	return p, nil
}

// Slots lists the occupied slots of [from, to), in order, page by page. It ends
// with the first error. Which of them may be deleted is for metadata to say
// (plan.SlotDeletable), never for this listing.
func Slots(ctx context.Context, store objstore.Store, id plan.WALID, from, to uint64) iter.Seq2[Slot, error] {
	return func(yield func(Slot, error) bool) {
		p := page{more: true}
		for p.more {
			var err error
			if p, err = listPage(ctx, store, id, from, p.last); err != nil {
				yield(Slot{}, fmt.Errorf("wal %s: list: %w", id, err))
				return
			}
			for _, s := range p.slots {
				if s.Seq >= to || !yield(s, nil) {
					return
				}
			}
		}
	}
}

// wholeBelow is the size up to which a bulk is read at once; of larger ones the
// header and so much of the end.
const wholeBelow = 128 << 10

// putTombstone reports whether the slot was free.
func (d *driver) putTombstone(ctx context.Context, slot uint64) (free bool, err error) {
	b := object.Tombstone(d.cfg.WAL, slot, d.cfg.Nonce)
	req := objstore.PutRequest{
		Key: plan.Key(d.cfg.WAL, plan.KindTombstone, slot), Chunks: [][]byte{b},
		CreateOnly: true, CRC32C: objstore.Checksum(b), HasCRC32C: true,
	}
	// An attempt whose answer is lost is repeated: if it landed, the next one finds
	// the slot taken, and reading it shows a tombstone.
	_, err = retry(ctx, d, func(ctx context.Context) (objstore.PutResponse, error) { return d.cfg.Store.Put(ctx, req) })
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, objstore.ErrAlreadyExists):
		return false, nil
	}
	return false, fmt.Errorf("tombstone in slot %d: %w", slot, err)
}

// readSlot tells what a slot holds. What looks damaged is read again, in case it
// was damaged on the way. An error is the store's or the end of ctx, or says that
// the slot is of a later version.
func (d *driver) readSlot(ctx context.Context, slot uint64, size int64) (content, error) {
	p := newPause(d.cfg.RetryMin, d.cfg.RetryMax, d.jitter)
	for tries := 1; ; tries++ {
		c, err := d.readOnce(ctx, slot, size)
		switch {
		case err == nil && c.kind == slotCorrupt && tries < maxBadLooks:
			size = -1
			if !sleep(ctx, p.after(nil)) {
				return content{}, context.Cause(ctx)
			}
		case errors.Is(err, objstore.ErrNotExist):
			return content{kind: slotGone}, nil
		case err != nil:
			return content{}, fmt.Errorf("read slot %d: %w", slot, err)
		default:
			return c, nil
		}
	}
}

func (d *driver) readOnce(ctx context.Context, slot uint64, size int64) (content, error) {
	key := plan.Key(d.cfg.WAL, plan.KindWAL, slot)
	if size < 0 {
		info, err := retry(ctx, d, func(ctx context.Context) (objstore.ObjectInfo, error) { return d.cfg.Store.Head(ctx, key) })
		if err != nil {
			return content{}, err
		}
		size = info.Size
	}
	if size < object.HeaderLen {
		return content{kind: slotCorrupt, why: fmt.Sprintf("%d bytes are less than a header", size)}, nil
	}
	get := func(offset, n int64) ([]byte, error) {
		resp, err := retry(ctx, d, func(ctx context.Context) (objstore.GetRangeResponse, error) {
			resp, err := d.cfg.Store.GetRange(ctx, objstore.GetRangeRequest{Key: key, Offset: offset, Length: n})
			if err == nil && int64(len(resp.Data)) != n {
				err = fmt.Errorf("%w: short read: %d bytes of %d", objstore.ErrUnavailable, len(resp.Data), n)
			}
			return resp, err
		})
		return resp.Data, err
	}
	c, err := readContent(d.cfg.WAL, slot, size, get)
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, mink.ErrCorrupt), errors.Is(err, objstore.ErrCorrupt), errors.Is(err, objstore.ErrInvalid):
		return content{kind: slotCorrupt, why: err.Error()}, nil
	}
	return content{}, err
}

// readContent tells what an object of size bytes is, as slot of log id. It reads
// the header and the end of it by get.
func readContent(id plan.WALID, slot uint64, size int64, get func(offset, n int64) ([]byte, error)) (content, error) {
	whole := size <= wholeBelow
	first := int64(object.HeaderLen)
	if whole {
		first = size
	}
	head, err := get(0, first)
	if err != nil {
		return content{}, err
	}
	h, err := object.ParseHeader(head)
	switch {
	case err != nil:
		return content{}, err
	case h.WAL != id || h.Seq != slot:
		return content{}, fmt.Errorf("%w: it belongs to wal %s slot %d", mink.ErrCorrupt, h.WAL, h.Seq)
	case h.Kind == plan.KindTombstone:
		if size != object.HeaderLen || !object.IsTombstone(head, id, slot) {
			return content{}, fmt.Errorf("%w: a tombstone of %d bytes is not exact", mink.ErrCorrupt, size)
		}
		return content{kind: slotTombstone}, nil
	case h.Kind != plan.KindWAL || h.Window == 0:
		return content{}, fmt.Errorf("%w: object of kind %d, window %d", mink.ErrCorrupt, h.Kind, h.Window)
	}
	tail := head
	if !whole {
		if tail, err = get(size-wholeBelow, wholeBelow); err != nil {
			return content{}, err
		}
	}
	head = head[:object.HeaderLen]
	f, x, need, err := object.ReadFooterAndIndex(head, tail, size)
	if err == nil && need > 0 && !whole {
		if tail, err = get(size-need, need); err == nil {
			f, x, need, err = object.ReadFooterAndIndex(head, tail, size)
		}
	}
	if err != nil {
		return content{}, err
	}
	if need > 0 {
		return content{}, fmt.Errorf("%w: an index of %d bytes in an object of %d", mink.ErrCorrupt, f.IndexLen, size)
	}
	oid := plan.ObjectID{Epoch: id.Epoch, Kind: plan.KindWAL, Seq: slot}
	return content{
		kind: slotBulk, size: size, window: uint64(h.Window), items: x.Items(oid),
		object: plan.Object{
			ID: oid, WAL: id, Size: size,
			IndexPos: f.IndexPos, IndexLen: f.IndexLen, IndexCRC: f.IndexCRC, CreatedMs: h.CreatedMs,
		},
	}, nil
}
