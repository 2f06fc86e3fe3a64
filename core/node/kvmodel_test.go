package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/routing"
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
}

func (c *kvCounts) add(o kvCounts) {
	c.puts, c.refused, c.skipped, c.resent, c.lost = c.puts+o.puts, c.refused+o.refused, c.skipped+o.skipped, c.resent+o.resent, c.lost+o.lost
	c.crashes, c.alters, c.olders, c.snapshots = c.crashes+o.crashes, c.alters+o.alters, c.olders+o.olders, c.snapshots+o.snapshots
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

// put sends the rows of one put to their buckets, a put for each. sent are by version,
// writes by the current one. They stay on their way.
func (r *kvRun) put(version *schema.Schema, sent, writes []mergetest.Write, writer bool) {
	r.t.Helper()
	type part struct{ sent, writes []mergetest.Write }
	parts := map[*kvBucket]*part{}
	var order []*kvBucket
	for i, w := range writes {
		b := r.bucketOf(w.Row)
		if b == nil {
			r.skipped++
			return
		}
		if parts[b] == nil {
			parts[b] = &part{}
			order = append(order, b)
		}
		parts[b].sent, parts[b].writes = append(parts[b].sent, sent[i]), append(parts[b].writes, w)
	}
	for _, b := range order {
		p := parts[b]
		put := kv.Put{SchemaID: version.ID, Count: int32(len(p.sent)), WriterID: mink.NoWriter}
		var err error
		if put.Columns, put.Changes, put.Metadata, put.Body, err = mergetest.Message(version, p.sent); err != nil {
			r.t.Fatalf("%v", err)
		}
		s := r.store(b)
		if s == nil {
			return
		}
		if s != b.tablet { // what went through the one before is in this one, or nowhere
			r.wait(b)
			if !r.cut(b) {
				return
			}
			b.tablet = s
		}
		if writer {
			put.WriterID, put.Sequence = kvWriter, int32(len(b.h.ByWriter()))
		}
		var keys [][]byte
		for _, w := range p.writes {
			key, err := mergetest.BucketKey(r.d, w.Row)
			if err != nil {
				r.t.Fatalf("%v", err)
			}
			keys = append(keys, key)
		}
		r.send(b, put, keys, p.writes)
	}
}

// send hands a put to the bucket's store; false: for reasons of the node it is not taken.
func (r *kvRun) send(b *kvBucket, put kv.Put, keys [][]byte, writes []mergetest.Write) bool {
	r.t.Helper()
	s := b.tablet
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pending, err := s.Put(ctx, put)
	if err != nil && !errors.Is(err, mink.ErrInvalid) && !errors.Is(err, mink.ErrOutOfRange) {
		if !passing(err) {
			r.t.Fatalf("bucket %s: put: %v", b.ref, err)
		}
		r.skipped++
		return false
	}
	_, refused := b.h.Put(writes, put.WriterID >= 0, kvNote{put: put, keys: keys, pending: pending})
	if (err != nil) != (refused != nil) {
		r.t.Fatalf("bucket %s: put: %v, the model: %v\n%s\n%v", b.ref, err, refused, r.d.Encode(), writes)
	}
	if err != nil {
		r.refused++
		return true
	}
	r.puts++
	return true
}

// bucketOf is the bucket of a row; it makes the partition. nil: that did not succeed.
func (r *kvRun) bucketOf(row mergetest.Row) *kvBucket {
	r.t.Helper()
	router, err := routing.New(r.d)
	if err != nil {
		r.t.Fatalf("%v", err)
	}
	rec := mergetest.Batch(&r.d.Schema, []mergetest.Row{row})
	defer rec.Release()
	parts, err := router.Split(memory.DefaultAllocator, rec, 0)
	if err != nil {
		r.t.Fatalf("route %v: %v", row, err)
	}
	part := parts[0]
	defer part.Rows.Release()
	find := func() *kvBucket {
		for _, b := range r.buckets {
			if slices.Equal(b.values, part.Values) && b.ref.Index == part.Bucket {
				return b
			}
		}
		return nil
	}
	if b := find(); b != nil {
		return b
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, err := r.p.Node().EnsurePartition(ctx, r.id, part.Values)
	if err != nil {
		if r.p.Running() && !passing(err) {
			r.t.Fatalf("partition %v: %v", part.Values, err)
		}
		return nil
	}
	r.add(p)
	return find()
}

// dropPartition drops the partition of some bucket, with all its rows.
func (r *kvRun) dropPartition(which int) {
	r.t.Helper()
	r.settle()
	if len(r.buckets) == 0 || len(r.buckets[0].values) == 0 {
		return
	}
	id := r.buckets[which%len(r.buckets)].ref.Partition
	for _, b := range r.buckets {
		b.dropped = b.ref.Partition == id
	}
	r.certainly("drop partition", func(ctx context.Context) (bool, error) {
		err := r.p.Node().DropPartition(ctx, r.id, id, true)
		_, there := r.p.Node().View().Partition(id)
		return !there, err
	})
	r.buckets = slices.DeleteFunc(r.buckets, func(b *kvBucket) bool { return b.dropped })
	r.drops++
}

// certainly does a change of the metadata, again when nobody knows whether it happened.
func (r *kvRun) certainly(what string, f func(context.Context) (done bool, err error)) {
	r.t.Helper()
	for range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		done, err := f(ctx)
		cancel()
		switch {
		case err != nil && r.p.Running() && !passing(err):
			r.t.Fatalf("%s: %v", what, err)
		case err == nil && !done:
			r.t.Fatalf("%s: it is said to be done and is not", what)
		case err == nil:
			return
		}
		r.settle()
	}
	r.t.Fatalf("%s does not succeed", what)
}

func (r *kvRun) alter(changes []schema.Change) {
	r.t.Helper()
	if len(changes) == 0 {
		return
	}
	for _, b := range r.buckets {
		if b.unknown {
			r.settle() // a history is cut before what comes after it
			break
		}
	}
	want, err := r.d.Apply(changes)
	if err != nil {
		r.t.Fatalf("%s: %v", schema.EncodeChanges(changes), err)
	}
	version := r.d.Schema.ID
	var now *cluster.Table
	r.altering = true
	r.certainly("alter", func(ctx context.Context) (bool, error) {
		same := func() bool {
			now, _ = r.p.Node().View().Table(r.id)
			return bytes.Equal(now.Descriptor.Encode(), want.Encode())
		}
		if same() { // the try before has happened
			return true, nil
		}
		_, err := r.p.Node().AlterTable(ctx, r.id, changes, version)
		done := same()
		if done && r.p.Running() {
			err = nil
		}
		return done, err
	})
	r.altering = false
	r.alters++
	if now.Descriptor.Schema.ID != version {
		r.schemas = append(r.schemas, now.Schemas[len(now.Schemas)-1])
	}
	r.d = now.Descriptor
	for _, b := range r.buckets {
		b.h.Alter(r.d)
	}
}

// trim trims the logs as far as may be, now or once a checkpoint allows it.
func (r *kvRun) trim() {
	r.t.Helper()
	r.check() // the reader has all
	for _, b := range r.buckets {
		s := r.store(b)
		if s == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err := s.Log().Trim(ctx, b.next)
		cancel()
		if err != nil && r.p.Running() && !passing(err) {
			r.t.Fatalf("bucket %s: trim: %v", b.ref, err)
		}
		if s.Log().LogStart() > 0 {
			r.trims++
		}
	}
}

// crash kills the process.
func (r *kvRun) crash() {
	r.t.Helper()
	r.p.Crash()
	r.settle()
}

// restart stops the process in order and starts the next.
func (r *kvRun) restart() {
	r.t.Helper()
	if err := r.p.Stop(); err != nil && r.p.Running() {
		r.t.Fatalf("the process does not stop in order: %v", err)
	}
	for _, b := range r.buckets {
		r.wait(b)
		b.unknown, b.tablet = true, nil
	}
	r.start()
	r.settle()
}

// idle lets the stores close.
func (r *kvRun) idle() {
	r.settle()
	time.Sleep(3 * kvIdle)
	for _, b := range r.p.Node().Stats().Buckets {
		if b.KV == nil {
			r.idled++
		}
	}
}

// snapshot lets the time for one pass.
func (r *kvRun) snapshot() {
	before := r.taken()
	time.Sleep(kvInterval + 10*time.Second)
	if r.taken() > before {
		r.snapshots++
	}
}

func (r *kvRun) taken() (ids int64) {
	for _, b := range r.buckets {
		if id, ok := r.p.Node().View().StreamOf(b.ref); ok {
			n, _ := r.p.Node().View().KVBucket(id).Newest()
			ids += n.ID
		}
	}
	return ids
}

// check requires of every bucket what the model says.
func (r *kvRun) check() {
	r.t.Helper()
	var err error
	for range 50 {
		r.settle()
		err = nil
		for _, b := range r.buckets {
			if err = r.checkBucket(b); err != nil {
				break
			}
		}
		switch {
		case err == nil:
			return
		case r.p.Running() && !passing(err):
			r.t.Fatalf("%v\n%s", err, r.d.Encode())
		}
		time.Sleep(100 * time.Millisecond)
	}
	r.t.Fatalf("nothing can be read: %v", err)
}

func (r *kvRun) checkBucket(b *kvBucket) error {
	s := r.store(b)
	if s == nil {
		return mink.ErrUnavailable
	}
	ctx := context.Background()
	if end, visible := s.Log().LogEnd(), s.VisibleHighWatermark(); end != b.h.End || visible != end {
		return fmt.Errorf("bucket %s: the log ends at %d and is visible to %d, want %d", b.ref, end, visible, b.h.End)
	}
	if err := r.follow(b, s.Log()); err != nil {
		return err
	}
	if err := r.again(b, s.Log()); err != nil {
		return err
	}
	want, err := r.real(&r.d.Schema, b.h.Rows())
	if err != nil {
		return fmt.Errorf("bucket %s: %w", b.ref, err)
	}
	if got := r.fold(b); !mergetest.Equal(got, want) {
		return fmt.Errorf("bucket %s: the changelog folds to %v\nwant %v", b.ref, got, want)
	}
	v, err := s.View()
	if err != nil {
		return err
	}
	defer v.Close()
	var got []mergetest.Row
	for rec, err := range v.Scan(ctx, nil, nil, nil, 3, 1<<20) {
		if err != nil {
			return err
		}
		got = append(got, released(rec)...)
	}
	if !mergetest.Equal(got, want) || v.Offset() != b.h.End {
		return fmt.Errorf("bucket %s: a snapshot as of %d has %v\nwant as of %d %v", b.ref, v.Offset(), got, b.h.End, want)
	}
	n, err := s.Count(ctx)
	if err != nil {
		return err
	}
	if n != int64(len(want)) {
		return fmt.Errorf("bucket %s: it counts %d rows, want %d", b.ref, n, len(want))
	}
	return r.lookup(b, s)
}

func released(rec arrow.RecordBatch) []mergetest.Row {
	defer rec.Release()
	return mergetest.Rows(rec)
}

// lookup looks every key up that ever was.
func (r *kvRun) lookup(b *kvBucket, s *kv.Tablet) error {
	keys := map[string]string{}
	for _, e := range b.h.Events {
		for i, k := range e.Keys {
			keys[string(e.Note.keys[i])] = k
		}
	}
	order := slices.Sorted(maps.Keys(keys))
	var ask [][]byte
	var want []mergetest.Row
	for _, k := range order {
		ask = append(ask, []byte(k))
		if row := b.h.Get(keys[k]); row != nil {
			want = append(want, row)
		}
	}
	want, err := r.real(&r.d.Schema, want)
	if err != nil {
		return err
	}
	rec, hit, err := s.Lookup(context.Background(), ask, nil)
	if err != nil {
		return err
	}
	for i, k := range order {
		if there := b.h.Get(keys[k]) != nil; hit[i] != there {
			rec.Release()
			return fmt.Errorf("bucket %s: key %x is found: %t, want %t", b.ref, k, hit[i], there)
		}
	}
	if got := released(rec); !mergetest.Equal(got, want) {
		return fmt.Errorf("bucket %s: a lookup answers %v\nwant %v", b.ref, got, want)
	}
	return nil
}

// read answers the changes of the log from an offset on, and where they end.
func (r *kvRun) read(log *tablet.Log, from mink.Offset) (changes []seenChange, next mink.Offset, err error) {
	for next = from; next < log.HighWatermark(); {
		res, err := log.Read(context.Background(), tablet.ReadRequest{From: next, MaxBytes: math.MaxInt32})
		if err != nil {
			return nil, 0, err
		}
		if res.Next <= next {
			return nil, 0, fmt.Errorf("a read at %d of %d brings nothing", next, log.HighWatermark())
		}
		for _, batch := range res.Batches {
			if batch.Count() == 0 {
				continue
			}
			by := r.schemas[slices.IndexFunc(r.schemas, func(s *schema.Schema) bool { return s.ID == batch.SchemaID() })]
			rec, _, err := log.Rows(batch, nil)
			if err != nil {
				return nil, 0, err
			}
			for i, row := range released(rec) {
				changes = append(changes, seenChange{mergetest.Change{Kind: mink.Change(batch.Changes()[i]), Row: row}, batch.BaseOffset() + mink.Offset(i), by})
			}
		}
		next = res.Next
	}
	return changes, next, nil
}

// follow reads what is new in the changelog and compares it with the history.
func (r *kvRun) follow(b *kvBucket, log *tablet.Log) error {
	changes, next, err := r.read(log, b.next)
	if err != nil {
		return fmt.Errorf("bucket %s: read from %d: %w", b.ref, b.next, err)
	}
	want := wanted(b.h)
	if next != b.h.End || len(b.seen)+len(changes) != len(want) {
		return fmt.Errorf("bucket %s: a reader comes to %d with %d changes, want %d with %d", b.ref, next, len(b.seen)+len(changes), b.h.End, len(want))
	}
	for i, got := range changes {
		w := want[len(b.seen)+i]
		if err := r.bind(b, got, w); err != nil {
			return err
		}
		row, err := r.real(w.by, []mergetest.Row{w.Row})
		if err != nil {
			return err
		}
		if got.Kind != w.Kind || !mergetest.Equal(got.Row, row[0]) || got.by.ID != w.by.ID {
			return fmt.Errorf("bucket %s: the change at %d is %v %v of schema %d\nwant %v %v of schema %d", b.ref, got.at, got.Kind, got.Row, got.by.ID, w.Kind, row[0], w.by.ID)
		}
	}
	b.seen, b.next = append(b.seen, changes...), next
	return nil
}

func wanted(h *mergetest.History[kvNote]) (all []seenChange) {
	for _, e := range h.Events {
		for _, c := range e.Changes {
			all = append(all, seenChange{Change: c, by: e.Schema})
		}
	}
	return all
}

// again reads the whole changelog once more: from its start on, nothing has changed.
func (r *kvRun) again(b *kvBucket, log *tablet.Log) error {
	start := log.LogStart()
	changes, _, err := r.read(log, start)
	if out := (*mink.OutOfRangeError)(nil); errors.As(err, &out) && out.Start > start { // it has not heard of the trim
		start = out.Start
		changes, _, err = r.read(log, start)
	}
	if err != nil {
		return fmt.Errorf("bucket %s: read again from %d: %w", b.ref, start, err)
	}
	was := b.seen
	for len(was) > 0 && was[0].at < start {
		was = was[1:]
	}
	same := len(changes) == len(was)
	for i := range changes {
		same = same && changes[i].at == was[i].at && changes[i].Kind == was[i].Kind && mergetest.Equal(changes[i].Row, was[i].Row)
	}
	if !same {
		return fmt.Errorf("bucket %s: the changelog from %d was %v\nand now is %v", b.ref, start, was, changes)
	}
	return nil
}

// fold is what somebody has who keeps the newest row of each key of the changelog.
func (r *kvRun) fold(b *kvBucket) []mergetest.Row {
	rows := map[string]mergetest.Row{}
	for _, c := range b.seen {
		row := mergetest.Follow(c.Row, c.by, &r.d.Schema)
		key, err := mergetest.BucketKey(r.d, row)
		if err != nil {
			r.t.Fatalf("%v", err)
		}
		switch c.Kind {
		case mink.ChangeUpdateBefore:
			if !mergetest.Equal(rows[string(key)], row) {
				r.t.Fatalf("bucket %s: at %d the old row is %v, the changelog had %v", b.ref, c.at, row, rows[string(key)])
			}
		case mink.ChangeDelete:
			delete(rows, string(key))
		default:
			rows[string(key)] = row
		}
	}
	var out []mergetest.Row
	for _, k := range slices.Sorted(maps.Keys(rows)) {
		out = append(out, rows[k])
	}
	return out
}

// autoColumn is the position of the auto-increment column, -1: there is none.
func autoColumn(s *schema.Schema) int {
	return slices.IndexFunc(s.Columns, func(c schema.Column) bool { return c.AutoIncrement })
}

// bind notes which number a new row was given: none that another row has, and a larger
// one than the bucket gave before.
func (r *kvRun) bind(b *kvBucket, got, want seenChange) error {
	i := autoColumn(want.by)
	if i < 0 || want.Kind != mink.ChangeInsert || len(got.Row) != len(want.Row) || got.Row[i] == nil {
		return nil
	}
	mine, theirs := number(want.Row[i]), number(got.Row[i])
	if r.given[theirs] {
		return fmt.Errorf("bucket %s: number %d was given twice", b.ref, theirs)
	}
	if theirs <= b.last {
		return fmt.Errorf("bucket %s: number %d was given after %d", b.ref, theirs, b.last)
	}
	b.last, r.given[theirs], r.numbers[mine] = theirs, true, theirs
	return nil
}

func number(v any) int64 {
	if v, ok := v.(int32); ok {
		return int64(v)
	}
	return v.(int64)
}

// real are rows of the model with the numbers that the table gave.
func (r *kvRun) real(s *schema.Schema, rows []mergetest.Row) ([]mergetest.Row, error) {
	i := autoColumn(s)
	if i < 0 {
		return rows, nil
	}
	var out []mergetest.Row
	for _, row := range rows {
		row = slices.Clone(row)
		if row[i] != nil {
			n, ok := r.numbers[number(row[i])]
			if !ok {
				return nil, fmt.Errorf("nobody has seen how row %v came to be", row)
			}
			if _, small := row[i].(int32); small {
				row[i] = int32(n)
			} else {
				row[i] = n
			}
		}
		out = append(out, row)
	}
	return out, nil
}
