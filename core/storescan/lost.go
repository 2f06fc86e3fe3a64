package storescan

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// Lost is what metadata lack of what the store shows.
type Lost struct {
	// Objects and Bytes are of all that the metadata do not name, but for slots whose
	// recovery is to come. Damaged of them cannot be read.
	Objects, Damaged int
	Bytes            int64
	// Ends are how far offsets were given out, of the streams that the metadata know to
	// end sooner; by stream.
	Ends []StreamEnd
	// WALs are the logs that wait for recovery and lack slots; by node epoch.
	WALs []LostWAL
	// Fence is the highest that a sink has of a round, Stopped are the tables at sinks that
	// cannot go on: see RespectSinks.
	Fence   mink.LeaseEpoch
	Stopped []StoppedSink
}

// StreamEnd says that offsets [Known, End) of a stream were given out, and that the
// metadata do not know of them.
type StreamEnd struct {
	Stream     mink.StreamID
	Bucket     mink.BucketRef
	Known, End mink.Offset
}

// LostWAL is a log whose slots were uploaded and deleted after the last entry of
// the metadata: those below Trim and those in Missing.
type LostWAL struct {
	WAL     plan.WALID
	Trim    uint64
	Missing []uint64
}

// Command makes the metadata go on under another incarnation, without giving out
// again what was given out.
func (l Lost) Command(incarnation uint64) *clusterpb.SetIncarnation {
	c := &clusterpb.SetIncarnation{Incarnation: incarnation, Lost: true, SinkFence: int64(l.Fence)}
	for _, e := range l.Ends {
		c.Ends = append(c.Ends, &clusterpb.StreamEnd{Stream: int64(e.Stream), End: int64(e.End)})
	}
	for _, w := range l.WALs {
		c.Wals = append(c.Wals, &clusterpb.LostWAL{
			Wal: &clusterpb.WALID{Node: int32(w.WAL.Node), Epoch: int64(w.WAL.Epoch), Nonce: w.WAL.Nonce}, Trim: w.Trim, Missing: w.Missing,
		})
	}
	for _, s := range l.Stopped {
		c.Stopped = append(c.Stopped, &clusterpb.StoppedSink{Table: int64(s.Table), Sink: s.Sink, Reason: s.Reason})
	}
	return c
}

// missingMax bounds the missing slots that are listed of one log. With more, what
// lies before the last ones is given up with them: islands that moved buckets left.
const missingMax = 4096

// FindLost scans the stores for what the state lacks. No node may run meanwhile.
func FindLost(ctx context.Context, s Stores, state *cluster.State) (Lost, error) {
	var l Lost
	ends := map[mink.StreamID]mink.Offset{}
	uploaded := map[plan.WALID]bool{}
	pending := map[plan.WALID]*slots{}
	err := Scan(ctx, s, state, func(f Found) error {
		for _, it := range f.Items {
			ends[it.Stream] = max(ends[it.Stream], it.End)
		}
		switch {
		case f.Pending:
			if pending[f.WAL] == nil {
				pending[f.WAL] = &slots{first: cluster.NoSlot}
			}
			pending[f.WAL].add(f)
			return nil
		case f.Tombstone:
			return nil
		case !f.IsSlot && f.WAL.Epoch > 0:
			uploaded[f.WAL] = true
		}
		l.Objects++
		l.Bytes += f.Bytes
		if f.Damage != nil {
			l.Damaged++
			s.Logger.Warn("an object that the metadata do not name cannot be read: which offsets it holds is not known", "object", f.Key, "error", f.Damage)
		}
		return nil
	})
	if err != nil {
		return Lost{}, err
	}
	for _, id := range slices.Sorted(maps.Keys(ends)) {
		if st, ok := state.Stream(id); ok && ends[id] > st.End {
			l.Ends = append(l.Ends, StreamEnd{Stream: id, Bucket: st.Bucket, Known: st.End, End: ends[id]})
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(pending), func(a, b plan.WALID) int { return cmp.Compare(a.Epoch, b.Epoch) }) {
		have, _ := state.WAL(id.Epoch)
		if trim, missing := pending[id].missing(have.Trim, uploaded[id]); trim > have.Trim || len(missing) > 0 {
			l.WALs = append(l.WALs, LostWAL{WAL: id, Trim: trim, Missing: missing})
		}
	}
	return l, nil
}

// slots is what is left of a log.
type slots struct {
	bulks  []uint64 // damaged ones too: those are for a person to decide on
	first  uint64   // tombstone: the log ended there, or a late recoverer came by
	window uint64
}

func (s *slots) add(f Found) {
	if f.Tombstone {
		s.first = min(s.first, f.Slot)
		return
	}
	s.bulks = append(s.bulks, f.Slot)
	s.window = max(s.window, f.Window)
}

// missing answers the first slot that is needed, and the slots behind it that are
// gone. A free slot can also be where the log ended, with late bulks behind it that
// were never acknowledged. It was deleted when the log was uploaded from after the
// metadata's last entry, or when a bulk lies further behind than a writer goes
// ahead; for certain then, as deletion follows an upload.
func (s *slots) missing(trim uint64, uploaded bool) (from uint64, gone []uint64) {
	slices.Sort(s.bulks)
	bulks := s.bulks
	if i := slices.IndexFunc(bulks, func(b uint64) bool { return b > s.first }); i >= 0 {
		bulks = bulks[:i]
	}
	if len(bulks) == 0 {
		return trim, nil
	}
	from, next := max(trim, bulks[0]), bulks[0]
	if from > trim && !uploaded && bulks[len(bulks)-1]-trim < max(s.window, 1) {
		return trim, nil
	}
	for _, b := range bulks {
		if b > next && (uploaded || bulks[len(bulks)-1]-next >= max(s.window, 1)) {
			if b-next > missingMax {
				from, gone, next = b, nil, b
			}
			for ; next < b; next++ {
				gone = append(gone, next)
			}
		}
		next = b + 1
	}
	if n := len(gone) - missingMax; n > 0 {
		from, gone = gone[n-1]+1, gone[n:]
	}
	return from, gone
}
