package cluster

import (
	"fmt"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
)

// This file is translate.go, snapshot.go and decode.go of primary-key tables.

// CommitKVSnapshotCommand is the command's wire form. The snapshot's ID and
// CommittedMs are apply's to give.
func CommitKVSnapshotCommand(stream mink.StreamID, s kvplan.Snapshot, retain int) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_CommitKvSnapshot{CommitKvSnapshot: &clusterpb.CommitKVSnapshot{
		Stream: int64(stream), LeaderEpoch: int32(s.Epoch), Offset: int64(s.Offset), Rows: s.Rows, Files: kvFilesPB(s.Files), Retain: int32(retain),
	}}}
}

// ForgetKVFilesCommand is the command's wire form.
func ForgetKVFilesCommand(files []kvplan.BucketFile) *clusterpb.Command {
	c := &clusterpb.ForgetKVFiles{Files: make([]*clusterpb.KVFileRef, len(files))}
	for i, f := range files {
		c.Files[i] = &clusterpb.KVFileRef{Bucket: bucketRefPB(f.Bucket), LeaderEpoch: int32(f.Epoch), Number: f.Number}
	}
	return &clusterpb.Command{Kind: &clusterpb.Command_ForgetKvFiles{ForgetKvFiles: c}}
}

// LeaseAutoIncrementCommand is the command's wire form; its result is read by
// LeasedNumbers.
func LeaseAutoIncrementCommand(stream mink.StreamID, epoch mink.LeaderEpoch, count int) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_LeaseAutoIncrement{LeaseAutoIncrement: &clusterpb.LeaseAutoIncrement{
		Stream: int64(stream), LeaderEpoch: int32(epoch), Count: int32(min(count, MaxAutoIncrementLease)),
	}}}
}

// LeasedNumbers reads the verdict on a LeaseAutoIncrement: the first and the last
// number, at least one and at most as many as asked for.
func LeasedNumbers(r *clusterpb.Result) (first, last int64, err error) {
	if err := ResultError(r); err != nil {
		return 0, 0, err
	}
	if len(r.GetIds()) != 2 {
		return 0, 0, fmt.Errorf("a lease of auto-increment numbers with %d ids: %w", len(r.GetIds()), mink.ErrUnsupported)
	}
	return r.GetIds()[0], r.GetIds()[1], nil
}

func kvFilesPB(files []kvplan.File) []*clusterpb.KVFile {
	out := make([]*clusterpb.KVFile, len(files))
	for i, f := range files {
		out[i] = kvFilePB(f)
	}
	return out
}

func kvFilePB(f kvplan.File) *clusterpb.KVFile {
	return &clusterpb.KVFile{LeaderEpoch: int32(f.Epoch), Number: f.Number, Nonce: f.Nonce, Content: f.Content[:], Size: f.Size}
}

func kvFilesOf(list []*clusterpb.KVFile) ([]kvplan.File, error) {
	out := make([]kvplan.File, len(list))
	for i, f := range list {
		var err error
		if out[i], err = kvFileOf(f); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func kvFileOf(f *clusterpb.KVFile) (kvplan.File, error) {
	out := kvplan.File{Epoch: mink.LeaderEpoch(f.GetLeaderEpoch()), Number: f.GetNumber(), Nonce: f.GetNonce(), Size: f.GetSize()}
	if len(f.GetContent()) != len(out.Content) {
		return out, fmt.Errorf("file %d of leader epoch %d has a content id of %d bytes: %w", f.GetNumber(), f.GetLeaderEpoch(), len(f.GetContent()), mink.ErrInvalid)
	}
	out.Content = kvplan.ContentID(f.GetContent())
	return out, nil
}

// primaryKey writes the records of primary-key tables.
func (e *encoder) primaryKey(s *State) {
	for id, b := range s.kv.all() {
		e.put(&clusterpb.Record{Kind: &clusterpb.Record_KvBucket{KvBucket: &clusterpb.KVBucket{
			Stream: int64(id), LeaderEpoch: int32(b.Epoch), Number: b.Number, LastId: b.LastID,
		}}})
	}
	for id, b := range s.kv.all() { // one record each: a snapshot may have many files
		for _, k := range b.Snapshots {
			e.put(&clusterpb.Record{Kind: &clusterpb.Record_KvSnapshot{KvSnapshot: &clusterpb.KVSnapshot{
				Stream: int64(id), Id: k.ID, LeaderEpoch: int32(k.Epoch), Offset: int64(k.Offset), Rows: k.Rows, CommittedMs: k.CommittedMs, Files: kvFilesPB(k.Files),
			}}})
		}
	}
	for d := range s.kvDestroyed.all() {
		e.put(&clusterpb.Record{Kind: &clusterpb.Record_DestroyedKvFile{DestroyedKvFile: &clusterpb.DestroyedKVFile{
			Bucket: bucketRefPB(d.Bucket), File: kvFilePB(d.File), DestroyedMs: d.DestroyedMs, Index: d.Index,
		}}})
	}
	for id, next := range s.autoIncrement.all() {
		e.put(&clusterpb.Record{Kind: &clusterpb.Record_AutoIncrement{AutoIncrement: &clusterpb.AutoIncrement{Table: int64(id), Next: next}}})
	}
}

func (d *decoder) kvBucket(r *clusterpb.KVBucket) error {
	return insertMap(&d.t.s.kv, mink.StreamID(r.GetStream()), &kvplan.Bucket{
		Epoch: mink.LeaderEpoch(r.GetLeaderEpoch()), Number: r.GetNumber(), LastID: r.GetLastId(),
	})
}

func (d *decoder) kvSnapshot(r *clusterpb.KVSnapshot) error {
	b, found := d.t.s.kv.get(mink.StreamID(r.GetStream()))
	if !found {
		return corrupt("KV snapshot of stream %d, which has none", r.GetStream())
	}
	files, err := kvFilesOf(r.GetFiles())
	if err != nil {
		return corrupt("KV snapshot %d of stream %d: %v", r.GetId(), r.GetStream(), err)
	}
	b.Snapshots = append(b.Snapshots, kvplan.Snapshot{ // the decoder's own until the state is handed out
		ID: r.GetId(), Epoch: mink.LeaderEpoch(r.GetLeaderEpoch()), Offset: mink.Offset(r.GetOffset()), Rows: r.GetRows(), CommittedMs: r.GetCommittedMs(), Files: files,
	})
	return nil
}
