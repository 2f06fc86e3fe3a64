package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/sdk/mink"
)

// fataler is testing.T or rapid.T.
type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

// kvRun is one primary-key table on a node that crashes, and what a client knows of
// it: each bucket's history, of which the log's end after a crash says how much there
// is. Everything is called from one goroutine; puts are pipelined.
type kvRun struct {
	t     fataler
	w     *sim.World
	p     *sim.Process
	point *crashPoint

	id      mink.TableID
	d       *schema.Descriptor
	schemas []*schema.Schema // all versions, oldest first
	// altering: which one of two versions the table has is not known.
	altering bool
	buckets  []*kvBucket
	made     int64 // buckets ever

	// The auto-increment column's numbers: those of the model, which does not know the
	// leases, and those that the table gave in their place.
	numbers map[int64]int64
	given   map[int64]bool

	kvCounts
}

// kvCounts say what a run did.
type kvCounts struct {
	puts, refused, skipped, resent, lost, crashes, alters, olders, snapshots, trims, idled, drops int

	committed, sourced int // changes, and KV snapshots, that were read without leadership
}

func (c *kvCounts) add(o kvCounts) {
	c.puts, c.refused, c.skipped, c.resent, c.lost = c.puts+o.puts, c.refused+o.refused, c.skipped+o.skipped, c.resent+o.resent, c.lost+o.lost
	c.crashes, c.alters, c.olders, c.snapshots = c.crashes+o.crashes, c.alters+o.alters, c.olders+o.olders, c.snapshots+o.snapshots
	c.committed, c.sourced = c.committed+o.committed, c.sourced+o.sourced
	c.trims, c.idled, c.drops = c.trims+o.trims, c.idled+o.idled, c.drops+o.drops
}

type kvBucket struct {
	ref     mink.BucketRef
	values  []string // of its partition
	h       *mergetest.History[kvNote]
	tablet  *kv.Tablet // the puts on their way went through it
	unknown bool       // how much of the history the log has
	dropped bool       // or about to be

	// What somebody who follows the changelog has read.
	seen []seenChange
	next mink.Offset
	last int64 // the newest number of the auto-increment column
}

// kvNote is what the client keeps beside each put.
type kvNote struct {
	put     kv.Put
	keys    [][]byte // of the rows
	pending *kv.Pending
	acked   bool
}

type seenChange struct {
	mergetest.Change
	at mink.Offset
	by *schema.Schema
}

const (
	kvIdle     = 30 * time.Second
	kvInterval = time.Minute // of snapshots
	kvWriter   = mink.WriterID(5)
)

// kvWorld is the configuration of the node: everything that takes hours takes a minute.
func kvWorld(seed uint64, point *crashPoint) sim.Config {
	cfg := sim.Quiet(seed)
	cfg.Node = func(c *node.Config) {
		c.KVIdleClose = kvIdle
		c.KVSnapshots.Interval, c.KVSnapshots.RetryMin = kvInterval, time.Second
	}
	cfg.Store, cfg.Log = point.store, point.log
	return cfg
}

// inKVRun runs f in a bubble with a node and an empty table. Panics, which are how rapid
// ends a test, leave the bubble after all else has ended.
func inKVRun(t *testing.T, cfg sim.Config, point *crashPoint, fail fataler, d *schema.Descriptor, f func(r *kvRun)) (counts kvCounts) {
	var caught any
	synctest.Test(t, func(t *testing.T) {
		defer func() { caught = recover() }()
		w := sim.NewWorld(t, cfg)
		defer w.Close()
		point.kill = func() {
			for _, p := range w.Processes() {
				p.Crash()
			}
		}
		r := &kvRun{t: fail, w: w, point: point, numbers: map[int64]int64{}, given: map[int64]bool{}}
		r.start()
		r.create(d)
		f(r)
		counts = r.kvCounts
		for _, b := range w.Violations() {
			fail.Fatalf("%s", b)
		}
	})
	switch {
	case caught == nil:
	case fmt.Sprintf("%T", caught) == "rapid.invalidData": // rapid tells failures apart by where they panic
		panic(caught)
	default:
		panic(caught)
	}
	return counts
}

// start starts processes until one serves: a crash may come while it starts.
func (r *kvRun) start() {
	r.t.Helper()
	for range 20 {
		p := r.w.Start(1)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		err := p.WaitReady(ctx)
		cancel()
		if p.Running() && err != nil {
			r.t.Fatalf("the node is not ready: %v", err)
		}
		if p.Running() {
			r.p = p
			return
		}
		_ = p.Wait()
		r.crashes++
	}
	r.t.Fatalf("no process lives")
}

func (r *kvRun) create(d *schema.Descriptor) {
	r.t.Helper()
	ctx := context.Background()
	if err := r.p.Node().CreateDatabase(ctx, d.Database, true); err != nil {
		r.t.Fatalf("create database: %v", err)
	}
	table, err := r.p.Node().CreateTable(ctx, d, false)
	if err != nil {
		r.t.Fatalf("create table: %v\n%s", err, d.Encode())
	}
	r.id, r.d, r.schemas = table.ID, table.Descriptor, slices.Clone(table.Schemas)
	for p := range r.p.Node().View().Partitions(r.id) {
		r.add(p)
	}
}

func (r *kvRun) add(p *cluster.Partition) {
	for i := range p.Streams {
		b := &kvBucket{ref: mink.BucketRef{Table: r.id, Partition: p.ID, Index: int32(i)}, values: p.Values, h: mergetest.NewHistory[kvNote](r.d)}
		b.h.LastID = r.made * 10_000 // numbers of the model are one bucket's
		r.made++
		r.buckets = append(r.buckets, b)
	}
}

// passing errors say that something else than the table is in the way.
func passing(err error) bool {
	return slices.ContainsFunc([]error{mink.ErrUnavailable, mink.ErrUnknownOutcome, mink.ErrThrottled, mink.ErrClosed, mink.ErrFenced, context.DeadlineExceeded, context.Canceled},
		func(class error) bool { return errors.Is(err, class) }) && !errors.Is(err, mink.ErrCorrupt)
}

// store is the open store of a bucket; nil: the process is dead.
func (r *kvRun) store(b *kvBucket) *kv.Tablet {
	r.t.Helper()
	for end := time.Now().Add(10 * time.Minute); r.p.Running(); time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		s, err := r.p.Node().KV(ctx, b.ref)
		cancel()
		switch {
		case err == nil:
			return s
		case !r.p.Running():
		case !passing(err), time.Now().After(end):
			r.t.Fatalf("bucket %s does not open: %v", b.ref, err)
		}
	}
	return nil
}

// settle waits until the outcome of every put is known, after a crash by a new process.
func (r *kvRun) settle() {
	r.t.Helper()
	for {
		for _, b := range r.buckets {
			r.wait(b)
		}
		if !r.p.Running() {
			_ = r.p.Wait()
			r.crashes++
			for _, b := range r.buckets {
				r.wait(b)
				b.unknown, b.tablet = true, nil
			}
			r.start()
		}
		done := true
		for _, b := range r.buckets {
			done = done && r.cut(b)
		}
		if done {
			return
		}
	}
}

// wait waits for the answers of a bucket's puts. A dead process answers, too, when its
// stores close.
func (r *kvRun) wait(b *kvBucket) {
	r.t.Helper()
	for _, e := range b.h.Events {
		n := &e.Note
		if n.pending == nil {
			continue
		}
		<-n.pending.Done()
		res, err := n.pending.Result()
		n.pending = nil
		switch {
		case err == nil && res.Last-res.First+1 != e.Offsets:
			r.t.Fatalf("bucket %s: a put of %d offsets was placed at [%d, %d]", b.ref, e.Offsets, res.First, res.Last)
		case err == nil:
			n.acked = true
		case errors.Is(err, mink.ErrUnknownOutcome):
			b.unknown = true
		default:
			r.t.Fatalf("bucket %s: a put that was taken answers %v", b.ref, err)
		}
	}
}

// cut brings a history of which nobody knows the end to that of the log, and sends the
// puts of the writer that were not acknowledged again. false: the process died.
func (r *kvRun) cut(b *kvBucket) bool {
	r.t.Helper()
	if !b.unknown || b.dropped {
		return true
	}
	s := r.store(b)
	if s == nil {
		return false
	}
	end := s.Log().LogEnd()
	if b.next > end {
		r.t.Fatalf("bucket %s: a reader of the changelog got to %d and the log ends at %d", b.ref, b.next, end)
	}
	var again []*mergetest.Event[kvNote]
	for _, e := range b.h.ByWriter() {
		if !e.Note.acked {
			again = append(again, e)
		}
	}
	lost, err := b.h.Cut(end)
	if err != nil {
		r.t.Fatalf("bucket %s: %v", b.ref, err)
	}
	for _, e := range lost {
		if e.Note.acked && e.Offsets > 0 {
			r.t.Fatalf("bucket %s: a put was acknowledged and is not in the log, which ends at %d", b.ref, end)
		}
	}
	r.lost += len(lost)
	b.unknown, b.tablet = false, s
	for _, e := range b.h.Events {
		e.Note.acked = true // the log has it
	}
	for _, e := range again {
		switch {
		case !slices.Contains(lost, e):
			r.duplicate(b, e)
		case r.altering, e.Schema != &b.h.Descriptor().Schema, !r.send(b, e.Note.put, e.Note.keys, e.Writes):
			return !b.unknown // a client that gives up
		}
		r.resent++
	}
	r.wait(b)
	return !b.unknown
}

// story is a bucket's history for people.
func (b *kvBucket) story() string {
	var out []byte
	at := mink.Offset(0)
	for _, e := range b.h.Events {
		if e.Altered != nil {
			out = fmt.Appendf(out, "  altered to schema %d\n", e.Altered.Schema.ID)
			continue
		}
		out = fmt.Appendf(out, "  [%d, %d) by writer %d, sequence %d, schema %d, acknowledged %t: %v\n", at, at+e.Offsets, e.Note.put.WriterID, e.Note.put.Sequence, e.Note.put.SchemaID, e.Note.acked, e.Writes)
		at += e.Offsets
	}
	return string(out)
}

// duplicate sends a put again that the log has.
func (r *kvRun) duplicate(b *kvBucket, e *mergetest.Event[kvNote]) {
	r.t.Helper()
	s := r.store(b)
	if s == nil {
		return
	}
	pending, err := s.Put(context.Background(), e.Note.put)
	if err == nil {
		<-pending.Done()
		var res tablet.AppendResult
		if res, err = pending.Result(); err == nil && !res.Duplicate {
			r.t.Fatalf("bucket %s: a put that was sent again was taken twice: %+v\n%s", b.ref, res, b.story())
		}
	}
	if err != nil && !passing(err) {
		r.t.Fatalf("bucket %s: a put that was sent again: %v", b.ref, err)
	}
}
