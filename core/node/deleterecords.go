package node

import (
	"context"
	"fmt"

	"github.com/mink-project/mink/sdk/mink"
)

// deleteTries bounds how often DeleteRecords uploads for a trim that another
// upload overtook.
const deleteTries = 5

// DeleteRecords trims a bucket led here to an offset, for good, and answers its
// log start then, which is higher when it was trimmed further before. Above the
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
	for try := 0; ; try++ {
		if err := log.Trim(ctx, to); err != nil {
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
