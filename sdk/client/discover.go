package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// discover looks for buckets that are not known, every DiscoverInterval until ctx is
// done, and hands each of them over once: those of partitions that were made since, and
// those that a table without bucket keys got. values restricts to one partition, nil
// means all; bucket to one of every partition, -1 means all. It returns nil at once when
// there can be none.
func (v *tableView) discover(ctx context.Context, values []string, bucket int32, known map[mink.BucketRef]bool, found func(b api.Bucket, values []string) error) error {
	if (len(v.desc.PartitionKeys) == 0 || values != nil) && (len(v.desc.BucketKeys) > 0 || bucket >= 0) {
		return nil
	}
	ticker := time.NewTicker(v.c.cfg.DiscoverInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		err := v.refresh(ctx)
		var all []api.Bucket
		if err == nil {
			all, err = v.buckets(values)
		}
		if err != nil {
			if retriable(err) {
				continue
			}
			return fmt.Errorf("look for new partitions of %s: %w", v.name, err)
		}
		for _, b := range all {
			if known[b.Bucket] || bucket >= 0 && b.Bucket.Index != bucket {
				continue
			}
			of := v.valuesOf(b.Bucket.Partition)
			if len(of) < len(v.desc.PartitionKeys) {
				continue // somebody else's refresh asked a node that does not know it yet
			}
			err := found(b, of)
			if errors.Is(err, mink.ErrNotExist) {
				continue // dropped again, or the same
			}
			if err != nil {
				return err
			}
			known[b.Bucket] = true
		}
	}
}
