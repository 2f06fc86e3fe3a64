package node_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/routing"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/sdk/mink"
)

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
