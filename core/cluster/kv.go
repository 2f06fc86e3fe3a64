package cluster

import (
	"errors"
	"fmt"
	"iter"
	"math"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
)

// This file is all of primary-key tables: snapshots of their buckets' stores and
// numbers for their auto-increment columns. The rules of files are kvplan's.

// MaxAutoIncrementLease bounds the numbers of one LeaseAutoIncrement.
const MaxAutoIncrementLease = 1 << 20

// led finds a stream of a primary-key table that the proposer leads under that
// leader epoch.
func (t *txn) led(what string, stream int64, epoch int32) (*plan.Stream, *Table, *clusterpb.Result) {
	st, found := t.s.streams.get(mink.StreamID(stream))
	if !found {
		return nil, nil, notExist("%s of stream %d: it does not exist", what, stream)
	}
	if owner := st.Owner; !t.s.faults.noKVFence && (owner.NodeEpoch != t.epoch || owner.LeaderEpoch != mink.LeaderEpoch(epoch)) {
		return nil, nil, conflict("%s of bucket %s by node epoch %d, leader epoch %d: it is led by node %d, epoch %d, under leader epoch %d",
			what, st.Bucket, t.epoch, epoch, owner.Node, owner.NodeEpoch, owner.LeaderEpoch)
	}
	table, _ := t.s.tables.get(st.Bucket.Table)
	if len(table.Descriptor.PrimaryKey) == 0 {
		return nil, nil, invalid("%s of bucket %s: table %s has no primary key", what, st.Bucket, table.Descriptor.Name())
	}
	return st, table, nil
}

// commitKVSnapshot retains a snapshot of a bucket and lets go of the oldest.
func (t *txn) commitKVSnapshot(c *clusterpb.CommitKVSnapshot) *clusterpb.Result {
	files, err := kvFilesOf(c.GetFiles())
	s := kvplan.Snapshot{Epoch: mink.LeaderEpoch(c.GetLeaderEpoch()), Offset: mink.Offset(c.GetOffset()), Rows: c.GetRows(), CommittedMs: t.s.timeMs, Files: files}
	if err == nil {
		err = s.Check()
	}
	if err != nil {
		return invalid("KV snapshot of stream %d: %s", c.GetStream(), refuseErr(err).GetMessage())
	}
	b, _ := t.s.kv.get(mink.StreamID(c.GetStream()))
	if old, again := b.Committed(s.Head()); again { // before any other rule: its answer was lost
		return okID(old.ID)
	}
	st, _, r := t.led("KV snapshot", c.GetStream(), c.GetLeaderEpoch())
	if r != nil {
		return r
	}
	switch newest, _ := b.Newest(); {
	case c.GetRetain() < 1 || c.GetRetain() > kvplan.RetainMax:
		return invalid("KV snapshot of bucket %s: %d snapshots retained, 1 to %d are allowed", st.Bucket, c.GetRetain(), kvplan.RetainMax)
	case s.Offset < newest.Offset:
		return conflict("KV snapshot of bucket %s at offset %d: one at %d is committed", st.Bucket, s.Offset, newest.Offset)
	case s.Offset < st.Start:
		return conflict("KV snapshot of bucket %s at offset %d: the log begins at %d", st.Bucket, s.Offset, st.Start)
	case s.Offset > st.End && !t.s.faults.noKVEnd:
		return conflict("KV snapshot of bucket %s at offset %d: the log is committed up to %d, wait for its upload", st.Bucket, s.Offset, st.End)
	}
	if err := b.CheckFiles(s); err != nil && !(t.s.faults.noKVReuse && errors.Is(err, mink.ErrConflict)) {
		return refuse(refuseErr(err).GetCode(), "KV snapshot of bucket %s: %s", st.Bucket, refuseErr(err).GetMessage())
	}
	next, dropped := b.Add(s, int(c.GetRetain()))
	if t.s.faults.pruneNamed && b != nil && next.Snapshots[0].ID != b.Snapshots[0].ID {
		dropped = kvplan.FilesOf(b.Snapshots[:1], nil)
	}
	t.s.kv.set(st.ID, next)
	t.destroyKV(st.Bucket, dropped)
	return okID(next.LastID)
}

// dropKV gives up the snapshots of a stream that is dropped. A stream that only
// changes its leader keeps them.
func (t *txn) dropKV(st *plan.Stream) {
	if b, found := t.s.kv.get(st.ID); found {
		t.destroyKV(st.Bucket, kvplan.FilesOf(b.Snapshots, nil))
		t.s.kv.del(st.ID)
	}
}

func (t *txn) destroyKV(bucket mink.BucketRef, files []kvplan.File) {
	for _, f := range files {
		t.s.kvDestroyed.set(&kvplan.Destroyed{BucketFile: kvplan.BucketFile{Bucket: bucket, File: f}, DestroyedMs: t.s.timeMs, Index: t.s.index})
	}
}

// forgetKVFiles drops destroyed files whose bytes are deleted. Unknown ones are
// skipped: the answer to an earlier command was lost.
func (t *txn) forgetKVFiles(c *clusterpb.ForgetKVFiles) *clusterpb.Result {
	files := make([]kvplan.BucketFile, len(c.GetFiles()))
	for i, f := range c.GetFiles() {
		files[i] = kvplan.BucketFile{Bucket: bucketRefOf(f.GetBucket()), File: kvplan.File{Epoch: mink.LeaderEpoch(f.GetLeaderEpoch()), Number: f.GetNumber()}}
		if t.s.namesKV(files[i]) {
			return invalid("forget file %d of leader epoch %d of bucket %s: a retained snapshot names it", f.GetNumber(), f.GetLeaderEpoch(), files[i].Bucket)
		}
	}
	for _, f := range files {
		t.s.kvDestroyed.del(&kvplan.Destroyed{BucketFile: f})
	}
	return ok()
}

func (s *State) namesKV(f kvplan.BucketFile) bool {
	b, found := s.kvOf(f.Bucket)
	return found && b.Names(f.File)
}

func (s *State) kvOf(bucket mink.BucketRef) (*kvplan.Bucket, bool) {
	id, found := s.StreamOf(bucket)
	if !found {
		return nil, false
	}
	return s.kv.get(id)
}

// leaseAutoIncrement gives out numbers that nobody else gets, ever.
func (t *txn) leaseAutoIncrement(c *clusterpb.LeaseAutoIncrement) *clusterpb.Result {
	st, table, r := t.led("auto-increment numbers", c.GetStream(), c.GetLeaderEpoch())
	if r != nil {
		return r
	}
	if c.GetCount() < 1 || c.GetCount() > MaxAutoIncrementLease {
		return invalid("lease %d auto-increment numbers: 1 to %d at a time", c.GetCount(), MaxAutoIncrementLease)
	}
	column, last := autoIncrementColumn(&table.Descriptor.Schema)
	if column == "" {
		return invalid("auto-increment numbers of table %s: it has no auto-increment column", table.Descriptor.Name())
	}
	next := t.s.nextAutoIncrement(table.ID)
	if next > last || next < 1 {
		return refuse(clusterpb.Code_INVALID, "auto-increment column %q of table %s: its type holds numbers up to %d and all are used up: copy the table to one with a BIGINT column", column, table.Descriptor.Name(), last)
	}
	if last-next >= int64(c.GetCount()) {
		last = next + int64(c.GetCount()) - 1
	}
	t.s.autoIncrement.set(st.Bucket.Table, last+1) // wraps behind the last BIGINT: below 1 is used up
	return okID(next, next, last)
}

// nextAutoIncrement is the next number to give out; below 1 when BIGINT has no more.
func (s *State) nextAutoIncrement(table mink.TableID) int64 {
	if next, found := s.autoIncrement.get(table); found {
		return next
	}
	return 1
}

// autoIncrementColumn is the schema's auto-increment column and the largest number
// of its type; "" when there is none.
func autoIncrementColumn(s *schema.Schema) (name string, last int64) {
	for _, c := range s.Columns {
		if c.AutoIncrement {
			if c.Type.Kind == schema.Int {
				return c.Name, math.MaxInt32
			}
			return c.Name, math.MaxInt64
		}
	}
	return "", 0
}

// KVSnapshots are a bucket's retained snapshots, oldest first; nil when it has
// none. Recovery begins at any of them: the log behind the oldest is not trimmed.
func (s *State) KVSnapshots(stream mink.StreamID) []kvplan.Snapshot {
	b, found := s.kv.get(stream)
	if !found {
		return nil
	}
	return b.Snapshots
}

// KVBuckets are the streams with a snapshot, by id, with what is known of it.
func (s *State) KVBuckets() iter.Seq2[mink.StreamID, *kvplan.Bucket] { return s.kv.all() }

// KVBucket is what is known of a stream's snapshots; nil without any.
func (s *State) KVBucket(stream mink.StreamID) *kvplan.Bucket {
	b, _ := s.kv.get(stream)
	return b
}

// DestroyedKV are the files that no retained snapshot names and none ever will, by
// bucket.
func (s *State) DestroyedKV() iter.Seq[kvplan.Destroyed] {
	return func(yield func(kvplan.Destroyed) bool) {
		for d := range s.kvDestroyed.all() {
			if !yield(*d) {
				return
			}
		}
	}
}

// KVDestroyed reports that a file waits to be deleted.
func (s *State) KVDestroyed(f kvplan.BucketFile) bool {
	_, destroyed := s.kvDestroyed.get(&kvplan.Destroyed{BucketFile: f})
	return destroyed
}

// KVOrphan reports that a file on the store is named by nothing and never will be:
// its bucket was dropped, or its leadership is over and no retained snapshot names
// it. Destroyed files are none: their deletion has a rule of its own. Neither is what
// this metadata cannot have given out, a file of another timeline before a restore.
func (s *State) KVOrphan(f kvplan.BucketFile) bool {
	if s.KVDestroyed(f) {
		return false
	}
	id, found := s.StreamOf(f.Bucket)
	if !found {
		return s.dropped(f.Bucket)
	}
	st, found := s.streams.get(id)
	if !found || f.Epoch < 1 || f.Epoch >= st.Owner.LeaderEpoch {
		return false
	}
	b, _ := s.kv.get(id)
	return !b.Names(f.File)
}

// dropped reports that the bucket's partition may have existed once and does not now.
func (s *State) dropped(b mink.BucketRef) bool {
	_, found := s.partitions.get(b.Partition)
	return b.Table > 0 && b.Table < s.nextTable && b.Partition > 0 && b.Partition < s.nextPartition && !found
}

// checkKV verifies that snapshots, streams and destroyed files agree.
func (s *State) checkKV() error {
	for id, b := range s.kv.all() {
		st, found := s.streams.get(id)
		if !found {
			return fmt.Errorf("stream %d has KV snapshots and does not exist", id)
		}
		if t, found := s.tables.get(st.Bucket.Table); !found || len(t.Descriptor.PrimaryKey) == 0 {
			return fmt.Errorf("stream %d has KV snapshots and table %d no primary key", id, st.Bucket.Table)
		}
		if err := b.Validate(); err != nil {
			return fmt.Errorf("KV snapshots of stream %d: %w", id, err)
		}
		oldest, newest := b.Snapshots[0], b.Snapshots[len(b.Snapshots)-1]
		switch {
		case b.Epoch > st.Owner.LeaderEpoch || newest.CommittedMs > s.timeMs:
			return fmt.Errorf("stream %d, of leader epoch %d, has a KV snapshot of leader epoch %d at %d, now is %d", id, st.Owner.LeaderEpoch, b.Epoch, newest.CommittedMs, s.timeMs)
		case oldest.Offset < st.Start || newest.Offset > st.End:
			return fmt.Errorf("stream %d [%d, %d) has KV snapshots from offset %d to %d", id, st.Start, st.End, oldest.Offset, newest.Offset)
		}
		for _, f := range kvplan.FilesOf(b.Snapshots, nil) {
			if _, destroyed := s.kvDestroyed.get(&kvplan.Destroyed{BucketFile: kvplan.BucketFile{Bucket: st.Bucket, File: f}}); destroyed {
				return fmt.Errorf("stream %d: %s is retained and destroyed", id, f)
			}
		}
	}
	for _, st := range s.streams.all() {
		t, found := s.tables.get(st.Bucket.Table)
		if _, snapshots := s.kv.get(st.ID); found && len(t.Descriptor.PrimaryKey) > 0 && st.Start > 0 && !snapshots {
			return fmt.Errorf("stream %d of a primary-key table is trimmed to %d and has no KV snapshot", st.ID, st.Start)
		}
	}
	for d := range s.kvDestroyed.all() {
		if d.Index > s.index || d.DestroyedMs > s.timeMs {
			return fmt.Errorf("file %s was destroyed at index %d, the state is at %d", d.Key(), d.Index, s.index)
		}
	}
	for id, next := range s.autoIncrement.all() {
		t, found := s.tables.get(id)
		if !found {
			return fmt.Errorf("table %d has auto-increment numbers and does not exist", id)
		}
		if column, last := autoIncrementColumn(&t.Descriptor.Schema); next > 0 && next-1 > last || column == "" {
			return fmt.Errorf("table %d is at auto-increment number %d of column %q, the last one is %d", id, next, column, last)
		}
	}
	return nil
}
