// Package kvplan is the pure half of KV snapshots: what the metadata know of a
// primary-key bucket's snapshots, the rules of changing it, and the names of files
// on the object store. No I/O, no clock: the cluster state machine applies it, the
// leader of a bucket and the coordinator act on it.
//
//	leader: upload new files --> CommitKVSnapshot --> retained --pruned--> destroyed --bytes deleted--> unknown
//	                                 |  names files of retained snapshots again: they stay where they are
//
// A file is uploaded once, by one leadership of its bucket, under a number that
// only rises. So "was this file ever given up?" needs no memory of files: one that
// no retained snapshot names may be named only by the leadership that uploaded it,
// and only with a number above all that it named before.
package kvplan

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mink-project/mink/sdk/mink"
)

// Limits of what the metadata keep.
const (
	FilesMax  = 1 << 14 // of one snapshot
	RetainMax = 10      // snapshots of one bucket
)

// ContentID is a digest of a file's bytes; package kvsnap says which.
type ContentID [16]byte

// File is one immutable object of a bucket's snapshots. Epoch and Number identify
// it within the bucket, for ever; the rest are facts about it.
type File struct {
	Epoch   mink.LeaderEpoch // that uploaded it, >= 1
	Number  uint64           // of the upload within Epoch, >= 1
	Nonce   uint64           // of the uploading node's registration: tells timelines of a restored database apart; not 0
	Content ContentID
	Size    int64 // bytes
}

func (f File) String() string {
	return fmt.Sprintf("file %d of leader epoch %d (%d bytes, content %x, nonce %016x)", f.Number, f.Epoch, f.Size, f.Content[:], f.Nonce)
}

// Compare orders files by what identifies them.
func (f File) Compare(g File) int {
	return cmp.Or(cmp.Compare(f.Epoch, g.Epoch), cmp.Compare(f.Number, g.Number))
}

// Same reports whether both name the same object.
func (f File) Same(g File) bool { return f.Epoch == g.Epoch && f.Number == g.Number }

// Snapshot is one committed snapshot of a bucket: the store with every change
// below Offset and none from it on.
type Snapshot struct {
	ID          int64            // of the bucket's commits, 1, 2, ...; never reused
	Epoch       mink.LeaderEpoch // that committed it
	Offset      mink.Offset
	Rows        int64 // -1: not known
	CommittedMs int64 // by the metadata clock
	Files       []File
}

// Bytes is the size of all its files.
func (s Snapshot) Bytes() int64 {
	var n int64
	for _, f := range s.Files {
		n += f.Size
	}
	return n
}

// Head is the file that describes the snapshot; no two snapshots have the same.
func (s Snapshot) Head() File { return s.Files[0] }

// Bucket is what the metadata know of a bucket's snapshots. It is immutable.
type Bucket struct {
	Epoch     mink.LeaderEpoch // of the last commit
	Number    uint64           // the highest that Epoch has named
	LastID    int64
	Snapshots []Snapshot // retained, oldest first; none only before the first commit
}

// Newest is the last snapshot committed.
func (b *Bucket) Newest() (Snapshot, bool) {
	if b == nil || len(b.Snapshots) == 0 {
		return Snapshot{}, false
	}
	return b.Snapshots[len(b.Snapshots)-1], true
}

// TrimBound is how far the log may be trimmed: recovery may have to begin at the
// oldest retained snapshot. false: there is none, nothing may be trimmed.
func (b *Bucket) TrimBound() (mink.Offset, bool) {
	if b == nil || len(b.Snapshots) == 0 {
		return 0, false
	}
	return b.Snapshots[0].Offset, true
}

// Committed finds the retained snapshot with the head: the answer to its commit
// was lost.
func (b *Bucket) Committed(head File) (Snapshot, bool) {
	if b != nil {
		for _, s := range b.Snapshots {
			if s.Head() == head {
				return s, true
			}
		}
	}
	return Snapshot{}, false
}

// find answers the file as a retained snapshot names it.
func (b *Bucket) find(f File) (File, bool) {
	if b == nil {
		return File{}, false
	}
	for _, s := range b.Snapshots {
		for _, have := range s.Files {
			if have.Same(f) {
				return have, true
			}
		}
	}
	return File{}, false
}

// Names reports whether a retained snapshot names the file.
func (b *Bucket) Names(f File) bool {
	_, named := b.find(f)
	return named
}

// Check refuses, with mink.ErrInvalid, a snapshot that cannot be one: its files,
// its row count.
func (s Snapshot) Check() error {
	switch n := len(s.Files); {
	case n == 0 || n > FilesMax:
		return fmt.Errorf("%d files, 1 to %d are allowed: %w", n, FilesMax, mink.ErrInvalid)
	case s.Rows < -1 || s.Offset < 0:
		return fmt.Errorf("%d rows at offset %d: %w", s.Rows, s.Offset, mink.ErrInvalid)
	}
	for _, f := range s.Files {
		if f.Epoch < 1 || f.Number < 1 || f.Nonce == 0 || f.Size < 0 {
			return fmt.Errorf("%s: epochs and numbers start at 1, the nonce is not 0: %w", f, mink.ErrInvalid)
		}
	}
	sorted := slices.SortedFunc(slices.Values(s.Files), File.Compare)
	for i := 1; i < len(sorted); i++ {
		if sorted[i].Same(sorted[i-1]) {
			return fmt.Errorf("file %d of leader epoch %d twice: %w", sorted[i].Number, sorted[i].Epoch, mink.ErrInvalid)
		}
	}
	return nil
}

// CheckFiles refuses a snapshot of leadership s.Epoch that names a file which may
// be gone: mink.ErrConflict. A file that is retained under other facts is
// mink.ErrInvalid. The head must be new.
func (b *Bucket) CheckFiles(s Snapshot) error {
	known := map[File]bool{}
	var last uint64
	if b != nil {
		for _, old := range b.Snapshots {
			for _, f := range old.Files {
				known[f] = true
			}
		}
		if b.Epoch == s.Epoch {
			last = b.Number
		}
	}
	for i, f := range s.Files {
		switch {
		case known[f] && i > 0:
		case f.Epoch == s.Epoch && f.Number > last:
		case known[f]:
			return fmt.Errorf("file %d of leader epoch %d describes another snapshot: %w", f.Number, f.Epoch, mink.ErrInvalid)
		default:
			if have, named := b.find(f); named {
				return fmt.Errorf("it names %s, a retained snapshot knows it as %s: %w", f, have, mink.ErrInvalid)
			}
			return fmt.Errorf("file %d of leader epoch %d is in no retained snapshot and may be deleted, upload it anew: %w", f.Number, f.Epoch, mink.ErrConflict)
		}
	}
	return nil
}

// Add is the bucket with one more snapshot, its id given, of which the newest
// retain are kept, and the files that no kept one names any more.
func (b *Bucket) Add(s Snapshot, retain int) (next *Bucket, dropped []File) {
	next = &Bucket{Epoch: s.Epoch, LastID: 1}
	if b != nil {
		next.LastID = b.LastID + 1
		next.Snapshots = slices.Clone(b.Snapshots)
		if b.Epoch == s.Epoch {
			next.Number = b.Number
		}
	}
	s.ID = next.LastID
	for _, f := range s.Files {
		if f.Epoch == s.Epoch {
			next.Number = max(next.Number, f.Number)
		}
	}
	next.Snapshots = append(next.Snapshots, s)
	cut := max(len(next.Snapshots)-retain, 0)
	gone := next.Snapshots[:cut]
	next.Snapshots = slices.Clone(next.Snapshots[cut:])
	return next, FilesOf(gone, next.Snapshots)
}

// FilesOf are the files of the snapshots that none of the others names, each once,
// in their order.
func FilesOf(snapshots, others []Snapshot) []File {
	type id struct {
		epoch  mink.LeaderEpoch
		number uint64
	}
	seen := map[id]bool{}
	for _, s := range others {
		for _, f := range s.Files {
			seen[id{f.Epoch, f.Number}] = true
		}
	}
	var out []File
	for _, s := range snapshots {
		for _, f := range s.Files {
			if k := (id{f.Epoch, f.Number}); !seen[k] {
				seen[k] = true
				out = append(out, f)
			}
		}
	}
	slices.SortFunc(out, File.Compare)
	return out
}

// Validate verifies what must hold of a bucket by itself.
func (b *Bucket) Validate() error {
	if len(b.Snapshots) == 0 || b.Epoch < 1 {
		return fmt.Errorf("%d snapshots, last committed by leader epoch %d", len(b.Snapshots), b.Epoch)
	}
	named := map[mink.LeaderEpoch]map[uint64]File{}
	for i, s := range b.Snapshots {
		if err := s.Check(); err != nil {
			return fmt.Errorf("snapshot %d: %w", s.ID, err)
		}
		if s.ID < 1 || s.ID > b.LastID || s.Epoch < 1 || s.Epoch > b.Epoch {
			return fmt.Errorf("snapshot %d of leader epoch %d; the last one is %d of leader epoch %d", s.ID, s.Epoch, b.LastID, b.Epoch)
		}
		if i > 0 {
			if p := b.Snapshots[i-1]; p.ID >= s.ID || p.Offset > s.Offset || p.Epoch > s.Epoch || p.CommittedMs > s.CommittedMs || p.Head().Same(s.Head()) {
				return fmt.Errorf("snapshot %d at offset %d behind snapshot %d at offset %d", s.ID, s.Offset, p.ID, p.Offset)
			}
		}
		for _, f := range s.Files {
			if f.Epoch > s.Epoch || f.Epoch == b.Epoch && f.Number > b.Number {
				return fmt.Errorf("snapshot %d of leader epoch %d names file %d of leader epoch %d, the highest is %d of %d", s.ID, s.Epoch, f.Number, f.Epoch, b.Number, b.Epoch)
			}
			if named[f.Epoch] == nil {
				named[f.Epoch] = map[uint64]File{}
			}
			if have, again := named[f.Epoch][f.Number]; again && have != f {
				return fmt.Errorf("%s is also %s", have, f)
			}
			named[f.Epoch][f.Number] = f
		}
	}
	return nil
}

// BucketFile is a file and the bucket that it is of.
type BucketFile struct {
	Bucket mink.BucketRef
	File
}

// Compare orders files by bucket first.
func (f BucketFile) Compare(g BucketFile) int {
	return cmp.Or(cmp.Compare(f.Bucket.Table, g.Bucket.Table), cmp.Compare(f.Bucket.Partition, g.Bucket.Partition),
		cmp.Compare(f.Bucket.Index, g.Bucket.Index), f.File.Compare(g.File))
}

// Destroyed is a file that no retained snapshot names and none ever will.
type Destroyed struct {
	BucketFile
	DestroyedMs int64  // by the metadata clock
	Index       uint64 // of the metadata log
}

// Prefix is the start of the keys of all files of all buckets.
const Prefix = "kv/"

// Key is the file's key below the store's prefix:
//
//	kv/<table>/<partition>/<bucket>/<leader epoch>/<content id, 32 hex digits>-<nonce, 16 hex digits>-<number>
func (f BucketFile) Key() string {
	return fmt.Sprintf("%s%d/%x-%016x-%d", BucketPrefix(f.Bucket), f.Epoch, f.Content[:], f.Nonce, f.Number)
}

// BucketPrefix is what the keys of a bucket's files, and no others, begin with.
func BucketPrefix(b mink.BucketRef) string {
	return fmt.Sprintf("%s%d/%d/%d/", Prefix, b.Table, b.Partition, b.Index)
}

// ParseKey reads what Key writes; the size is not in it. false for anything else.
func ParseKey(key string) (f BucketFile, ok bool) {
	rest, ok := strings.CutPrefix(key, Prefix)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 5 {
		return BucketFile{}, false
	}
	name := strings.Split(parts[4], "-")
	if len(name) != 3 {
		return BucketFile{}, false
	}
	table, e1 := strconv.ParseInt(parts[0], 10, 64)
	partition, e2 := strconv.ParseInt(parts[1], 10, 64)
	index, e3 := strconv.ParseInt(parts[2], 10, 32)
	epoch, e4 := strconv.ParseInt(parts[3], 10, 32)
	content, e5 := hex.DecodeString(name[0])
	nonce, e6 := strconv.ParseUint(name[1], 16, 64)
	number, e7 := strconv.ParseUint(name[2], 10, 64)
	if len(content) != len(f.Content) || cmp.Or(e1, e2, e3, e4, e5, e6, e7) != nil {
		return BucketFile{}, false
	}
	f.Bucket = mink.BucketRef{Table: mink.TableID(table), Partition: mink.PartitionID(partition), Index: int32(index)}
	f.File = File{Epoch: mink.LeaderEpoch(epoch), Number: number, Nonce: nonce, Content: ContentID(content)}
	return f, f.Key() == key
}
