package node

import (
	"fmt"

	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
)

// What holds a trim.
const (
	HeldByUpload     = "upload"      // an upload, or the checkpoint that comes with it
	HeldByKVSnapshot = "kv_snapshot" // the oldest retained snapshot of a primary-key bucket, or that there is none
)

// HeldTrim is a trim that retention has asked for and that has not happened.
type HeldTrim struct {
	Want mink.Offset // the start that was asked for
	At   mink.Offset // how far it may go now
	By   string      // HeldByUpload, HeldByKVSnapshot
	Why  string      // for a person
}

func (b *buckets) heldTrim(e *bucket) *HeldTrim {
	if e.stream == nil {
		return nil
	}
	want, limit, held := e.stream.HeldTrim()
	if !held {
		return nil
	}
	return heldTrim(want, limit, len(e.table.Descriptor.PrimaryKey) > 0, b.inc.node.View().KVSnapshots(e.id), e.stream.Start())
}

// heldTrim says what holds a trim to want: limit is what the log's own objects allow,
// snapshots are the bucket's, oldest first.
func heldTrim(want, limit mink.Offset, keyed bool, snapshots []kvplan.Snapshot, start mink.Offset) *HeldTrim {
	h := &HeldTrim{Want: want, At: limit, By: HeldByUpload, Why: fmt.Sprintf("records from offset %d on are not in a stream object with a checkpoint yet: the next upload lets go of them", limit)}
	switch {
	case keyed && len(snapshots) == 0:
		h.At, h.By = start, HeldByKVSnapshot
		h.Why = "there is no KV snapshot: the bucket's rows are rebuilt from the whole log"
	case keyed && snapshots[0].Offset < min(want, limit):
		old := snapshots[0]
		h.At, h.By = old.Offset, HeldByKVSnapshot
		h.Why = fmt.Sprintf("KV snapshot %d, the oldest of %d, needs the log from offset %d on: newer snapshots replace it (kv_snapshot_interval, kv_snapshots_retained)", old.ID, len(snapshots), old.Offset)
	case limit >= want:
		return nil // it is about to happen
	}
	return h
}
