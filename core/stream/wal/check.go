package wal

import (
	"context"
	"errors"
	"fmt"

	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// CheckSlot reads an occupied slot as recovery would, once: nil for a bulk of
// this log and for an exact tombstone, *CorruptSlotError for anything else,
// otherwise the store's error. Deep reads a bulk's records too.
func CheckSlot(ctx context.Context, store objstore.Store, id plan.WALID, s Slot, deep bool) error {
	get := func(offset, n int64) ([]byte, error) {
		resp, err := store.GetRange(ctx, objstore.GetRangeRequest{Key: s.Key, Offset: offset, Length: n})
		if err == nil && int64(len(resp.Data)) != n {
			err = fmt.Errorf("%w: short read: %d bytes of %d", objstore.ErrUnavailable, len(resp.Data), n)
		}
		return resp.Data, err
	}
	err := fmt.Errorf("%w: %d bytes are less than a header", mink.ErrCorrupt, s.Size)
	if s.Size >= object.HeaderLen {
		var c content
		if c, err = readContent(id, s.Seq, s.Size, get); err == nil && deep && c.kind == slotBulk {
			var whole []byte
			if whole, err = get(0, s.Size); err == nil {
				_, _, err = object.Verify(whole)
			}
		}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, mink.ErrCorrupt), errors.Is(err, objstore.ErrCorrupt), errors.Is(err, objstore.ErrInvalid):
		return &CorruptSlotError{WAL: id, Slot: s.Seq, Key: s.Key, Why: err.Error()}
	}
	return fmt.Errorf("read slot %d of wal %s: %w", s.Seq, id, err)
}
