package node

import (
	"fmt"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
)

// What holds a trim.
const (
	HeldByUpload     = "upload"          // an upload, or the checkpoint that comes with it
	HeldByTiering    = "tiering"         // a sink that does not have it yet
	HeldByReadGrace  = "lake_read_grace" // readers of an older snapshot of a sink
	HeldByKVSnapshot = "kv_snapshot"     // the oldest retained snapshot of a primary-key bucket, or that there is none
)

// HeldTrim is a trim that retention has asked for and that has not happened.
type HeldTrim struct {
	Want mink.Offset // the start that was asked for
	At   mink.Offset // how far it may go now
	By   string      // HeldByUpload, HeldByTiering, ...
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
	view := b.inc.node.View()
	h := heldTrim(want, limit, len(e.table.Descriptor.PrimaryKey) > 0, view.KVSnapshots(e.id), e.stream.Start())
	hold, tiered := view.TierBound(e.id)
	if at := want; tiered {
		if h != nil {
			at = min(at, h.At)
		}
		if hold.Bound < at {
			t, _ := view.Tiering(e.ref.Table, hold.Sink)
			h = heldByTiering(want, &hold, t, view.TimeMs())
		}
	}
	return h
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

// heldByTiering says what of a sink holds a trim.
func heldByTiering(want mink.Offset, hold *cluster.TierHold, t *cluster.Tiering, nowMs int64) *HeldTrim {
	h := &HeldTrim{Want: want, At: hold.Bound, By: HeldByTiering}
	option := "sink." + hold.Sink + ".stall_limit"
	if hold.Sink == cluster.LakeSink {
		option = "lake_stall_limit"
	}
	ago := func(ms int64) time.Duration { return (time.Duration(nowMs-ms) * time.Millisecond).Round(time.Second) }
	switch {
	case hold.Grace:
		h.By = HeldByReadGrace
		h.Why = fmt.Sprintf("readers may use snapshot %s of sink %s, which needs the log from offset %d on, for %s more (read_grace)",
			hold.Snapshot, hold.Sink, hold.Bound, max(0, -ago(hold.UntilMs)))
	case t == nil || t.Round == "":
		h.Why = fmt.Sprintf("sink %s has taken no round yet: see mink cluster stats, and the option %s", hold.Sink, option)
	default:
		h.Why = fmt.Sprintf("sink %s has the log up to offset %d, its last round was %s ago: see mink cluster stats, and the option %s", hold.Sink, hold.Bound, ago(t.CommittedMs), option)
	}
	return h
}
