package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// Compacted knows what clients wrote to the keys of compacted topics and what readers
// saw: of each key the latest record is there, a tombstone until its time has come, and
// no offset ever has another record. Safe for concurrent use.
type Compacted struct {
	world     *World
	truth     *Truth
	retention time.Duration // delete.retention.ms

	mu   sync.Mutex
	logs map[mink.BucketRef]*compactedLog
}

type compactedLog struct {
	records map[string]*keyedRecord // that were sent, by id
	at      map[mink.Offset]*keyedRecord
	told    mink.Offset // end of the acknowledged
	cleaned int         // records that the last whole reading did not find
}

// keyedRecord is a record that a client sent, once.
type keyedRecord struct {
	id, key   string
	tombstone bool
	sent      time.Time
	offset    mink.Offset // -1: nobody knows
}

// idHeader is the record's header with its id: tombstones have no value to tell them
// apart by.
const idHeader = "id"

// NewCompacted knows nothing of topics with this delete.retention.ms.
func (w *World) NewCompacted(t *Truth, retention time.Duration) *Compacted {
	return &Compacted{world: w, truth: t, retention: retention, logs: map[mink.BucketRef]*compactedLog{}}
}

func (c *Compacted) log(ref mink.BucketRef) *compactedLog {
	l := c.logs[ref]
	if l == nil {
		l = &compactedLog{records: map[string]*keyedRecord{}, at: map[mink.Offset]*keyedRecord{}}
		c.logs[ref] = l
	}
	return l
}

// Options of such a topic, which is cleaned as often as it can be.
func (c *Compacted) Options() map[string]string {
	return map[string]string{
		"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01",
		"delete.retention.ms": fmt.Sprint(c.retention.Milliseconds()),
	}
}

// Write is a client that writes to a few keys until ctx ends, mean apart. It sends everything once.
func (c *Compacted) Write(ctx context.Context, ref mink.BucketRef, name string, mean time.Duration, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 3))
	for n := 0; ctx.Err() == nil; {
		var batch []*keyedRecord
		for range 1 + r.IntN(3) {
			batch = append(batch, &keyedRecord{id: fmt.Sprint(name, ":", n), key: fmt.Sprint("k", r.IntN(6)), tombstone: r.IntN(4) == 0, sent: time.Now(), offset: -1})
			n++
		}
		c.send(ctx, ref, r, batch)
		select {
		case <-time.After(time.Duration(r.ExpFloat64() * float64(mean))):
		case <-ctx.Done():
		}
	}
}

func (c *Compacted) send(ctx context.Context, ref mink.BucketRef, r *rand.Rand, batch []*keyedRecord) {
	procs := c.world.Processes()
	r.Shuffle(len(procs), func(i, j int) { procs[i], procs[j] = procs[j], procs[i] })
	for _, p := range procs {
		if p.Node() == nil {
			continue
		}
		log, err := p.Node().Log(ref)
		if err != nil {
			continue
		}
		records := make([]kmsg.Record, len(batch))
		c.mu.Lock()
		for i, k := range batch {
			c.log(ref).records[k.id] = k
			records[i].Key, records[i].Headers = []byte(k.key), []kmsg.Header{{Key: idHeader, Value: []byte(k.id)}}
			if !k.tombstone {
				records[i].Value = []byte(k.id)
			}
		}
		c.mu.Unlock()
		pending, err := log.AppendKafka(kafkaBatch(mink.NoWriter, -1, records), tablet.KafkaAppend{})
		if errors.Is(err, mink.ErrInvalid) {
			c.world.Broken("bucket %s: records with keys are refused: %v", ref, err)
		}
		if err != nil {
			return
		}
		select {
		case <-pending.Done():
			if res, err := pending.Result(); err == nil {
				c.acknowledged(ref, batch, res)
			}
		case <-p.Dead():
		case <-ctx.Done():
		}
		return
	}
}

func (c *Compacted) acknowledged(ref mink.BucketRef, batch []*keyedRecord, res tablet.AppendResult) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, k := range batch {
		c.is(ref, res.First+mink.Offset(i), k)
	}
	c.log(ref).told = max(c.log(ref).told, res.Last+1)
}

// is notes that a record is, or was, at an offset. Under mu.
func (c *Compacted) is(ref mink.BucketRef, at mink.Offset, k *keyedRecord) {
	l := c.log(ref)
	if old := l.at[at]; old != nil && old != k {
		c.world.Broken("bucket %s offset %d was record %s, now it is %s", ref, at, old.id, k.id)
	}
	if k.offset >= 0 && k.offset != at {
		c.world.Broken("bucket %s: record %s, which was sent once, is at %d and at %d", ref, k.id, k.offset, at)
	}
	l.at[at], k.offset = k, at
}

// Buckets are all that were written to.
func (c *Compacted) Buckets() (refs []mink.BucketRef) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ref := range c.logs {
		refs = append(refs, ref)
	}
	slices.SortFunc(refs, func(a, b mink.BucketRef) int { return int(a.Index - b.Index) })
	return refs
}

// Cleaned is how many records of all buckets the last whole readings did not find.
func (c *Compacted) Cleaned() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.logs {
		n += l.cleaned
	}
	return n
}

// Read reads a bucket from a process to its end and checks what it finds. leads says that
// it must have all that was acknowledged before. nil: all was read.
func (c *Compacted) Read(ctx context.Context, log *tablet.Log, leads bool) error {
	ref := log.Bucket()
	c.mu.Lock()
	told := c.log(ref).told
	c.mu.Unlock()
	if start := log.LogStart(); start != 0 {
		c.world.Broken("bucket %s of a topic that is compacted only begins at %d", ref, start)
	}
	found := map[mink.Offset]bool{}
	at, last := mink.Offset(0), mink.Offset(-1)
	for at < log.HighWatermark() { // also what comes meanwhile: a cleaning goes by it
		res, err := log.Read(ctx, tablet.ReadRequest{From: at, MaxBytes: 3000})
		if err != nil {
			return err
		}
		if res.Next <= at {
			return fmt.Errorf("bucket %s: a read at %d of %d brings nothing", ref, at, log.HighWatermark())
		}
		for _, b := range res.Batches {
			v, err := kafkabatch.Parse(b.Kafka())
			if err != nil {
				c.world.Broken("bucket %s: batch at %d: %v", ref, b.BaseOffset(), err)
				return nil
			}
			records := kafkabatch.NewReader(v, b.Kafka()[kafkabatch.HeaderSize:])
			for rec := (kafkabatch.Record{}); records.Next(&rec); {
				o := b.BaseOffset() + mink.Offset(rec.Delta)
				if o <= last {
					c.world.Broken("bucket %s: offset %d comes after %d", ref, o, last)
				}
				last = o
				found[o] = c.record(ref, o, &rec)
			}
			if records.Err() != nil {
				c.world.Broken("bucket %s: batch at %d: %v", ref, b.BaseOffset(), records.Err())
			}
		}
		at = res.Next
	}
	if leads && at < told {
		c.world.Broken("bucket %s: records below %d are acknowledged, the leader's log ends at %d", ref, told, at)
	}
	c.latest(ref, found, at)
	return nil
}

func (c *Compacted) record(ref mink.BucketRef, at mink.Offset, rec *kafkabatch.Record) bool {
	headers := rec.Headers()
	_, id, _ := headers.Next()
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.log(ref).records[string(id)]
	if k == nil || k.key != string(rec.Key) || k.tombstone != (rec.Value == nil) || !k.tombstone && k.id != string(rec.Value) {
		c.world.Broken("bucket %s offset %d holds %q = %q with id %q, which nobody sent", ref, at, rec.Key, rec.Value, id)
		return false
	}
	c.is(ref, at, k)
	return true
}

// latest checks that a reading up to end has the latest record of each key. A tombstone
// may be gone when its time has come, and then what it deleted is gone.
func (c *Compacted) latest(ref mink.BucketRef, found map[mink.Offset]bool, end mink.Offset) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.log(ref)
	latest, kept := map[string]*keyedRecord{}, map[string]mink.Offset{}
	known := 0
	for at, k := range l.at {
		if at >= end {
			continue
		}
		known++
		if latest[k.key] == nil || latest[k.key].offset < at {
			latest[k.key] = k
		}
		if found[at] {
			kept[k.key] = max(kept[k.key], at+1)
		}
	}
	l.cleaned = known - len(found)
	for key, k := range latest {
		switch expired := k.tombstone && !time.Now().Before(k.sent.Add(c.retention)); {
		case found[k.offset]:
		case !k.tombstone && l.unseenTombstone(key, c.retention):
		case !expired:
			c.world.Broken("bucket %s: the latest record of key %s, %s at %d (tombstone: %t), is gone", ref, key, k.id, k.offset, k.tombstone)
		case kept[key] > 0:
			c.world.Broken("bucket %s: the tombstone of key %s at %d is gone, and the record at %d, which it deleted, is there", ref, key, k.offset, kept[key]-1)
		}
	}
}

// unseenTombstone: one was sent that nobody acknowledged or read, and whose time has come.
func (l *compactedLog) unseenTombstone(key string, retention time.Duration) bool {
	for _, k := range l.records {
		if k.key == key && k.tombstone && k.offset < 0 && !time.Now().Before(k.sent.Add(retention)) {
			return true
		}
	}
	return false
}
