package node

import (
	"context"
	"fmt"
	"math"

	"github.com/mink-project/mink/sdk/mink"
)

// deleteTries bounds how often DeleteRecords uploads for a trim that another
// upload overtook.
const deleteTries = 5

// DeleteRecords trims a bucket led here to an offset, for good, and answers its
// log start then, which is higher when it was trimmed further before. The log of a
// primary-key table goes up to its oldest retained KV snapshot, and to what its sinks
// have, no further: mink.ErrInvalid. Sinks of other tables will lack what they do not have yet. Above the
// latest checkpoint a trim needs a newer one: what is written so far is uploaded
// for it. Errors: those of Log; *mink.OutOfRangeError beyond the high watermark;
// mink.ErrUnavailable when it is held: the records go with a later upload.
func (n *Node) DeleteRecords(ctx context.Context, bucket mink.BucketRef, to mink.Offset) (mink.Offset, error) {
	log, err := n.Log(bucket)
	if err != nil {
		return 0, err
	}
	if hw := log.HighWatermark(); to < 0 || to > hw {
		return 0, fmt.Errorf("delete records of bucket %s: %w", bucket, &mink.OutOfRangeError{Asked: to, Start: log.LogStart(), End: hw})
	}
	keyed, err := n.checkKVBound(bucket, to)
	if err != nil {
		return 0, fmt.Errorf("delete records of bucket %s: %w", bucket, err)
	}
	for try := 0; ; try++ {
		if keyed {
			err = log.Trim(ctx, to)
		} else {
			err = log.Discard(ctx, to, math.MaxInt64)
		}
		if err != nil {
			return 0, err
		}
		start := log.LogStart()
		if start >= to {
			return start, nil
		}
		engine := n.Engine()
		if engine == nil || try == deleteTries {
			return 0, fmt.Errorf("delete records of bucket %s: it is trimmed to %d, the rest up to %d waits for the next upload: %w", bucket, start, to, mink.ErrUnavailable)
		}
		if err := engine.UploadNow(ctx); err != nil {
			return 0, fmt.Errorf("delete records of bucket %s: %w", bucket, err)
		}
	}
}

// checkKVBound refuses what the metadata would not trim: rows of a primary-key table are
// rebuilt from its oldest retained snapshot and the log behind that, and its sinks need
// every change.
func (n *Node) checkKVBound(bucket mink.BucketRef, to mink.Offset) (keyed bool, err error) {
	view := n.View()
	t, ok := view.Table(bucket.Table)
	if !ok || len(t.Descriptor.PrimaryKey) == 0 {
		return false, nil
	}
	id, _ := view.StreamOf(bucket)
	bound, some := view.KVBucket(id).TrimBound()
	switch {
	case !some && to > bound:
		return true, fmt.Errorf("%w: offset %d: the table has a primary key and the bucket no KV snapshot yet: its whole log is needed to rebuild its rows", mink.ErrInvalid, to)
	case to > bound:
		return true, fmt.Errorf("%w: offset %d: the table has a primary key and the bucket's oldest KV snapshot is of offset %d: the log from there on is needed to rebuild its rows", mink.ErrInvalid, to, bound)
	}
	if hold, held := view.TierBound(id); held && to > hold.Bound {
		return true, fmt.Errorf("%w: offset %d: the table has a primary key and sink %s and its readers need the log from offset %d on", mink.ErrInvalid, to, hold.Sink, hold.Bound)
	}
	return true, nil
}
