package storescan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// SinkState is what a sink has of a table that the metadata know to be tiered there.
type SinkState struct {
	Table  mink.TableID
	Sink   string
	Fence  mink.LeaseEpoch                // of its last round; 0: it has none
	Schema mink.SchemaID                  // the newest that it follows; 0: not known
	Ends   map[mink.BucketRef]mink.Offset // of every bucket that a round named
	// Unknown says why that could not be found out, for people; "": it was.
	Unknown string
}

// StoppedSink is a table at a sink that cannot go on from these metadata.
type StoppedSink struct {
	Table  mink.TableID
	Sink   string
	Reason string
}

// RespectSinks adds what sinks show of the lost entries:
//
//	offsets that a sink has          are not given out again
//	fences that it saw               are passed
//	a log table                      goes on behind what the sink has, which stays there
//	a primary-key table whose sink   stops: a key that only the sink has would be inserted
//	has changes that are lost        beside its old row
//	a sink with a newer schema       stops: the next version of the columns would be another
//	                                 one under the same number
func (l *Lost) RespectSinks(state *cluster.State, sinks []SinkState) {
	ends := map[mink.StreamID]mink.Offset{}
	for _, e := range l.Ends {
		ends[e.Stream] = e.End
	}
	for _, s := range sinks {
		table, ok := state.Table(s.Table)
		if !ok {
			continue
		}
		l.Fence = max(l.Fence, s.Fence)
		ahead := ""
		for _, ref := range sortedBuckets(s.Ends) {
			id, ok := state.StreamOf(ref)
			if !ok {
				if !state.PartitionGone(ref.Partition) {
					ahead = cmp.Or(ahead, fmt.Sprintf("it has bucket %s, whose partition the metadata do not know", ref))
				}
				continue // its rows stay at the sink
			}
			if st, _ := state.Stream(id); s.Ends[ref] > st.End {
				ends[id] = max(ends[id], s.Ends[ref])
				ahead = cmp.Or(ahead, fmt.Sprintf("it has bucket %s up to offset %d, the metadata know %d", ref, s.Ends[ref], st.End))
			}
		}
		reason := ""
		switch d := table.Descriptor; {
		case s.Unknown != "":
			reason = "what it has could not be found out: " + s.Unknown
		case s.Schema > d.Schema.ID:
			reason = fmt.Sprintf("it has schema %d of the table, the metadata know %d", s.Schema, d.Schema.ID)
		case ahead != "" && len(d.PrimaryKey) > 0:
			reason = ahead + ", so that it has changes of keys that are lost here"
		}
		if reason != "" {
			l.Stopped = append(l.Stopped, StoppedSink{s.Table, s.Sink, stopReason(s.Sink, table.Descriptor, reason)})
		}
	}
	l.Ends = l.Ends[:0]
	for st := range state.Streams() {
		if end := ends[st.ID]; end > st.End {
			l.Ends = append(l.Ends, StreamEnd{Stream: st.ID, Bucket: st.Bucket, Known: st.End, End: end})
		}
	}
	slices.SortFunc(l.Ends, func(a, b StreamEnd) int { return cmp.Compare(a.Stream, b.Stream) })
}

func sortedBuckets(ends map[mink.BucketRef]mink.Offset) []mink.BucketRef {
	refs := make([]mink.BucketRef, 0, len(ends))
	for ref := range ends {
		refs = append(refs, ref)
	}
	slices.SortFunc(refs, func(a, b mink.BucketRef) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Index, b.Index))
	})
	return refs
}

// stopReason has the command to go on with, within what the metadata take.
func stopReason(sink string, d *schema.Descriptor, why string) string {
	if len(why) > 500 {
		why = strings.ToValidUTF8(why[:500], "") + "..."
	}
	return fmt.Sprintf("the metadata were restored from an older copy, or went back, and sink %s cannot be gone on with: %s. Copy what is wanted of the table there, then drop it there and fill it anew: mink table alter %s --set %s=%d",
		sink, why, d.Name(), schema.SinkGenerationOption(sink), d.SinkGeneration(sink)+1)
}
