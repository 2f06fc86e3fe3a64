package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// Model knows what clients were told and what readers saw, and says when the two
// do not go together. Safe for concurrent use.
type Model struct {
	world *World
	truth *Truth
	mu    sync.Mutex
	logs  map[mink.BucketRef]*bucketLog
}

type bucketLog struct {
	ref     mink.BucketRef
	ttl     time.Duration // the shortest the table ever had; 0: for ever
	dropped bool          // or about to be
	acked   map[mink.Offset]acked
	seen    map[mink.Offset]string // which record anybody ever read at an offset
	records map[string]*attempt
	maxAck  mink.Offset // end of the acknowledged
}

type acked struct {
	id     string
	commit int64
}

// attempt is one record that a client sent.
type attempt struct {
	idempotent bool
	tries      int           // how often it was sent anew
	offsets    []mink.Offset // where it was read
	told       bool          // acknowledged
}

// NewModel knows nothing.
func (w *World) NewModel(t *Truth) *Model {
	return &Model{world: w, truth: t, logs: map[mink.BucketRef]*bucketLog{}}
}

func (m *Model) log(ref mink.BucketRef) *bucketLog {
	b := m.logs[ref]
	if b == nil {
		b = &bucketLog{ref: ref, acked: map[mink.Offset]acked{}, seen: map[mink.Offset]string{}, records: map[string]*attempt{}}
		m.logs[ref] = b
	}
	return b
}

// Expire says that the table of the bucket may forget records after ttl.
func (m *Model) Expire(ref mink.BucketRef, ttl time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.log(ref); b.ttl == 0 || ttl < b.ttl {
		b.ttl = ttl
	}
}

// Dropped says that the bucket's records may vanish from now on.
func (m *Model) Dropped(ref mink.BucketRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log(ref).dropped = true
}

// Sent says that a client sends the records.
func (m *Model) Sent(ref mink.BucketRef, ids []string, idempotent bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.log(ref)
	for _, id := range ids {
		a := b.records[id]
		if a == nil {
			a = &attempt{idempotent: idempotent}
			b.records[id] = a
		}
		a.tries++
	}
}

// Acknowledged says that a client was told where its records are.
func (m *Model) Acknowledged(ref mink.BucketRef, ids []string, r tablet.AppendResult) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.log(ref)
	for i, id := range ids {
		b.records[id].told = true
		if r.First < 0 {
			continue // a duplicate older than the window: stored, place unknown
		}
		at := r.First + mink.Offset(i)
		if old, ok := b.acked[at]; ok && old.id != id {
			m.world.Broken("bucket %s offset %d was acknowledged for %s and for %s", ref, at, old.id, id)
		}
		if old, ok := b.seen[at]; ok && old != id {
			m.world.Broken("bucket %s offset %d was read as %s and then acknowledged for %s", ref, at, old, id)
		}
		b.acked[at] = acked{id, r.CommitTimestamp}
		b.maxAck = max(b.maxAck, at+1)
	}
	if r.First >= 0 && r.Last != r.First+mink.Offset(len(ids)-1) {
		m.world.Broken("bucket %s: %d records were acknowledged as [%d, %d]", ref, len(ids), r.First, r.Last)
	}
}

// Acks is how many records were acknowledged in all.
func (m *Model) Acks() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, b := range m.logs {
		for _, a := range b.records {
			if a.told {
				n++
			}
		}
	}
	return n
}

// Buckets are all that are known and not dropped, in order.
func (m *Model) Buckets() []mink.BucketRef {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []mink.BucketRef
	for ref, b := range m.logs {
		if !b.dropped {
			out = append(out, ref)
		}
	}
	slices.SortFunc(out, func(a, b mink.BucketRef) int {
		return strings.Compare(fmt.Sprint(a.Table, a.Partition, a.Index), fmt.Sprint(b.Table, b.Partition, b.Index))
	})
	return out
}

// Read reads the bucket from a process and checks everything that it sees. leads
// says that it must have all that was acknowledged before. nil: all was read.
func (m *Model) Read(ctx context.Context, log *tablet.Log, leads bool) error {
	ref := log.Bucket()
	m.mu.Lock()
	told := m.log(ref).maxAck
	m.mu.Unlock()
	end := log.HighWatermark()
	if leads && end < told {
		m.broken(ref, "records below %d are acknowledged, the leader's log ends at %d", told, end)
	}
	at := log.LogStart()
	first := at
	for at < end {
		r, err := log.Read(ctx, tablet.ReadRequest{From: at, MaxBytes: 2000})
		var out *mink.OutOfRangeError
		if errors.As(err, &out) && out.Start > at && out.Start <= end { // trimmed meanwhile
			at, first = out.Start, out.Start
			continue
		}
		if err != nil {
			return err
		}
		if len(r.Batches) == 0 || r.Next <= at {
			return fmt.Errorf("bucket %s: a read at %d of %d brings nothing", ref, at, end)
		}
		for _, b := range r.Batches {
			if b.BaseOffset() > at || b.NextOffset() <= at {
				m.broken(ref, "a read at %d brings the batch [%d, %d)", at, b.BaseOffset(), b.NextOffset())
			}
			m.batch(ref, b, first)
			at = b.NextOffset()
		}
		if at != r.Next {
			m.broken(ref, "a read ends at %d and says to go on at %d", at, r.Next)
			at = max(at, r.Next)
		}
	}
	m.complete(ref, first, min(end, told), leads)
	return nil
}

func (m *Model) broken(ref mink.BucketRef, format string, args ...any) {
	m.mu.Lock()
	dropped := m.log(ref).dropped
	m.mu.Unlock()
	if !dropped {
		m.world.Broken("bucket %s: %s", ref, fmt.Sprintf(format, args...))
	}
}

// batch checks the records of one batch; those below from may be trimmed.
func (m *Model) batch(ref mink.BucketRef, b record.Batch, from mink.Offset) {
	v, err := kafkabatch.Parse(b.Kafka())
	if err != nil {
		m.broken(ref, "batch at %d: %v", b.BaseOffset(), err)
		return
	}
	r := kafkabatch.NewReader(v, b.Kafka()[kafkabatch.HeaderSize:])
	n := mink.Offset(0)
	for rec := (kafkabatch.Record{}); r.Next(&rec); n++ {
		m.record(ref, b.BaseOffset()+mink.Offset(rec.Delta), string(rec.Value))
	}
	if r.Err() != nil || b.BaseOffset()+n != b.NextOffset() {
		m.broken(ref, "batch [%d, %d) holds %d records: %v", b.BaseOffset(), b.NextOffset(), n, r.Err())
	}
}

func (m *Model) record(ref mink.BucketRef, at mink.Offset, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.log(ref)
	if b.dropped {
		return
	}
	if old, ok := b.seen[at]; ok {
		if old != id {
			m.world.Broken("bucket %s offset %d was read as %s, now it is %s", ref, at, old, id)
		}
		return
	}
	b.seen[at] = id
	if a, ok := b.acked[at]; ok && a.id != id {
		m.world.Broken("bucket %s offset %d is acknowledged for %s and holds %s", ref, at, a.id, id)
	}
	a := b.records[id]
	if a == nil {
		m.world.Broken("bucket %s offset %d holds %q, which nobody sent", ref, at, id)
		return
	}
	a.offsets = append(a.offsets, at)
	if most := a.tries; len(a.offsets) > most || a.idempotent && len(a.offsets) > 1 {
		m.world.Broken("bucket %s: record %s is there %d times, at %d (idempotent %t, sent %d times)", ref, id, len(a.offsets), a.offsets, a.idempotent, a.tries)
	}
}

// complete checks that the acknowledged records of [from, to) were seen, and that
// what lies below from was let go for its age.
func (m *Model) complete(ref mink.BucketRef, from, to mink.Offset, leads bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.log(ref)
	if b.dropped {
		return
	}
	for at, a := range b.acked {
		switch {
		case at >= from && at < to && b.seen[at] != a.id:
			m.world.Broken("bucket %s: acknowledged record %s at %d is not there (found %q)", ref, a.id, at, b.seen[at])
		case at < from && (b.ttl == 0 || a.commit+b.ttl.Milliseconds() > time.Now().UnixMilli()):
			m.world.Broken("bucket %s: record %s at %d, of %d, was trimmed early: the log starts at %d", ref, a.id, at, a.commit, from)
		}
	}
}

// Finish checks what only holds at the end, when every bucket was read by its
// leader: nothing acknowledged is missing, writers' records are in their order.
func (m *Model) Finish() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ref, b := range m.logs {
		if b.dropped {
			continue
		}
		last := map[string]int{}
		offsets := make([]mink.Offset, 0, len(b.seen))
		for at := range b.seen {
			offsets = append(offsets, at)
		}
		slices.Sort(offsets)
		for _, at := range offsets {
			writer, seq, _ := strings.Cut(b.seen[at], ":")
			n, _ := strconv.Atoi(seq)
			if a := b.records[b.seen[at]]; a != nil && a.idempotent && n < last[writer] {
				m.world.Broken("bucket %s: writer %s's record %d at offset %d comes after its record %d", ref, writer, n, at, last[writer])
			}
			last[writer] = n
		}
		trimmed := len(offsets) == 0 || offsets[0] > 0 || b.ttl > 0
		for id, a := range b.records {
			if a.told && len(a.offsets) == 0 && !trimmed {
				m.world.Broken("bucket %s: record %s was acknowledged and is nowhere", ref, id)
			}
		}
	}
}
