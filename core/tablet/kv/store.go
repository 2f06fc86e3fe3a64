package kv

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"

	"github.com/mink-project/mink/sdk/mink"
)

// The keys of a store:
//
//	'm'        meta: what the rows are as of
//	'r' + key  a row's value (record/row); key is the memcomparable primary key
//	           without partition columns (schema/keyenc)
//
// The meta, all numbers big endian:
//
//	1 version = 1 | 8 flushed offset | 8 rows, -1: not counted
//	8 table id | 8 partition id | 4 bucket index
const (
	metaKey     = 'm'
	rowPrefix   = 'r'
	rowsEnd     = rowPrefix + 1
	metaVersion = 1
	metaSize    = 1 + 8 + 8 + 8 + 8 + 4
)

// tableBytesMax is about how large a table file gets, and one row more: an object store
// without multipart uploads takes it in one Put.
const tableBytesMax = 64 << 20

// storeFormat is the Pebble format of stores, and of the snapshots made of them.
const storeFormat = pebble.FormatTableFormatV6

// meta says what a store's rows are.
type meta struct {
	flushed mink.Offset // first offset whose change is not in it
	rows    int64       // -1: not counted
}

func (m meta) encode(dst []byte, of mink.BucketRef) []byte {
	be := binary.BigEndian
	dst = be.AppendUint64(append(dst, metaVersion), uint64(m.flushed))
	dst = be.AppendUint64(dst, uint64(m.rows))
	dst = be.AppendUint64(dst, uint64(of.Table))
	dst = be.AppendUint64(dst, uint64(of.Partition))
	return be.AppendUint32(dst, uint32(of.Index))
}

func decodeMeta(b []byte, of mink.BucketRef) (meta, error) {
	be := binary.BigEndian
	if len(b) != metaSize || b[0] != metaVersion {
		return meta{}, fmt.Errorf("meta of %d bytes, version %d: %w", len(b), slices.Concat(b, []byte{0})[0], mink.ErrCorrupt)
	}
	m := meta{flushed: mink.Offset(be.Uint64(b[1:])), rows: int64(be.Uint64(b[9:]))}
	is := mink.BucketRef{Table: mink.TableID(be.Uint64(b[17:])), Partition: mink.PartitionID(be.Uint64(b[25:])), Index: int32(be.Uint32(b[33:]))}
	switch {
	case is != of:
		return meta{}, fmt.Errorf("the store is bucket %s: %w", is, mink.ErrCorrupt)
	case m.flushed < 0 || m.rows < -1:
		return meta{}, fmt.Errorf("flushed offset %d, %d rows: %w", m.flushed, m.rows, mink.ErrCorrupt)
	}
	return m, nil
}

// store is one bucket's rows in a directory. Reads and one writer at a time are
// safe for concurrent use. Nothing of it is synced to the disk: it does not
// outlive the process.
type store struct {
	db     *pebble.DB
	dir    string
	bucket mink.BucketRef
	failed *failure
	buf    []byte // the writer's
}

// failure is the first error of a store's background work.
type failure struct {
	err    atomic.Pointer[error]
	notify func(error)
}

func (f *failure) set(err error) {
	if f.err.CompareAndSwap(nil, &err) && f.notify != nil {
		f.notify(err)
	}
}

func (f *failure) is() bool { return f.err.Load() != nil }

func (f *failure) get() error {
	if e := f.err.Load(); e != nil {
		return *e
	}
	return nil
}

// storeLogger keeps Pebble's lines out of the log but for its errors. What Pebble
// calls fatal ends the store, not the process.
type storeLogger struct {
	failed *failure
	shared *Shared
	bucket mink.BucketRef
}

func (l storeLogger) Infof(string, ...any) {}

func (l storeLogger) Errorf(format string, args ...any) {
	l.shared.cfg.Logger.Error("store of a primary-key bucket", "bucket", l.bucket.String(), "error", fmt.Sprintf(format, args...))
}

func (l storeLogger) Fatalf(format string, args ...any) {
	l.Errorf(format, args...)
	l.failed.set(fmt.Errorf("store of bucket %s: %w: %s", l.bucket, mink.ErrUnavailable, fmt.Sprintf(format, args...)))
}

// openStore opens the store in dir, or makes an empty one. It
// answers the meta of what was there. fail is told once when the store cannot go
// on by itself; it must not call the store.
func (s *Shared) openStore(dir string, bucket mink.BucketRef, fail func(error)) (*store, meta, error) {
	st := &store{dir: dir, bucket: bucket, failed: &failure{notify: fail}}
	there, err := dirExists(dir)
	if err != nil {
		return nil, meta{}, fmt.Errorf("store of bucket %s: %w", bucket, err)
	}
	st.db, err = pebble.Open(dir, s.options(st))
	failed := st.failed.get() // of which Pebble may know nothing, or only what came of it
	if err != nil {
		return nil, meta{}, fmt.Errorf("store of bucket %s: open %s: %w", bucket, dir, errors.Join(failed, storeError(err)))
	}
	if failed != nil {
		return nil, meta{}, errors.Join(fmt.Errorf("store of bucket %s: open %s: %w", bucket, dir, failed), st.close())
	}
	m := meta{}
	if there {
		m, err = st.readMeta(st.db)
	} else {
		b := st.newBatch(0)
		err = st.commit(b, m)
	}
	if err != nil {
		return nil, meta{}, errors.Join(fmt.Errorf("store of bucket %s in %s: %w", bucket, dir, err), st.close())
	}
	return st, m, nil
}

// l0Threshold is twice the number of written memtables that are gathered before they
// are merged into the rows. Random keys lie in all blocks, so that each such merge
// writes the whole store anew and leaves its blocks to be read from files again by
// puts: upserts take half of the processor time that they take with 2. A lookup
// passes over files whose filter lacks its key, 0.2 us each.
const l0Threshold = 8

func (s *Shared) options(st *store) *pebble.Options {
	log := storeLogger{failed: st.failed, shared: s, bucket: st.bucket}
	o := &pebble.Options{
		FS:                          workFS{s.fs, st.failed},
		Cache:                       s.cache,
		FileCache:                   s.files,
		DisableWAL:                  true, // the changelog is the log
		FormatMajorVersion:          storeFormat,
		MemTableSize:                uint64(s.cfg.MemtableBytes),
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       l0Threshold,
		L0StopWritesThreshold:       24,
		LBaseMaxBytes:               64 << 20,
		MaxManifestFileSize:         1 << 20,
		Logger:                      log,
		CompactionConcurrencyRange:  func() (int, int) { return 1, s.cfg.CompactionsMax },
	}
	o.Experimental.CompactionScheduler = &seat{c: s.compact}
	for i := range o.Levels {
		o.TargetFileSizes[i] = min(int64(4<<20)<<i, tableBytesMax)
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		o.Levels[i].BlockSize = 8 << 10
		o.Levels[i].IndexBlockSize = 64 << 10
	}
	o.EventListener = &pebble.EventListener{
		BackgroundError: func(err error) { // it would be tried again without a pause
			if st.failed.get() == nil {
				log.Errorf("background work: %v", err)
			}
			st.failed.set(fmt.Errorf("background work: %w", storeError(err)))
		},
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			st.failed.set(fmt.Errorf("store of bucket %s: %w: %s", st.bucket, mink.ErrCorrupt, i.String()))
		},
	}
	return o
}

// storeError puts Pebble's errors into Mink's classes.
func storeError(err error) error {
	switch {
	case err == nil:
		return nil
	case pebble.IsCorruptionError(err):
		return fmt.Errorf("%w: %w", mink.ErrCorrupt, err)
	case errors.Is(err, pebble.ErrClosed):
		return fmt.Errorf("%w: %w", mink.ErrClosed, err)
	default:
		return err
	}
}

func (s *store) readMeta(r pebble.Reader) (meta, error) {
	v, c, err := r.Get([]byte{metaKey})
	if errors.Is(err, pebble.ErrNotFound) {
		return meta{}, fmt.Errorf("it has no meta: %w", mink.ErrCorrupt)
	}
	if err != nil {
		return meta{}, storeError(err)
	}
	defer func() { _ = c.Close() }() // frees the block
	return decodeMeta(v, s.bucket)
}

// get answers a row; nil: there is none. held keeps it, when there is one.
func get(r pebble.Reader, key []byte) (value []byte, held io.Closer, err error) {
	value, held, err = r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil, nil
	}
	return value, held, storeError(err)
}

// batch gathers changes of rows; keys have the row prefix.
type batch struct{ b *pebble.Batch }

// newBatch makes a batch of about size bytes.
func (s *store) newBatch(size int) batch {
	return batch{s.db.NewBatchWithSize(size + 256)}
}

func (b batch) set(key, value []byte) error { return b.b.Set(key, value, nil) }

func (b batch) delete(key []byte) error { return b.b.Delete(key, nil) }

func (b batch) bytes() int { return b.b.Len() }

// commit applies a batch together with the new meta. The batch is used up.
func (s *store) commit(b batch, m meta) error {
	s.buf = m.encode(s.buf[:0], s.bucket)
	err := b.b.Set([]byte{metaKey}, s.buf, nil)
	if err == nil {
		err = s.failed.get()
	}
	if err == nil {
		err = b.b.Commit(pebble.NoSync)
	}
	if err == nil {
		err = s.failed.get()
	}
	return errors.Join(storeError(err), b.b.Close())
}

// CheckpointFile is a file of a checkpoint. Table files (.sst) never change: one of
// the same name in another checkpoint of the same store is the same file.
type CheckpointFile struct {
	Name string
	Size int64
}

// Checkpoint is a copy of a store as of an offset.
type Checkpoint struct {
	Offset mink.Offset // first offset whose change is not in it
	Rows   int64       // -1: not counted
	Files  []CheckpointFile
}

// checkpoint makes a copy in dir, which must not exist, with hard links to the
// table files. No commit may run meanwhile.
func (s *store) checkpoint(dir string) (Checkpoint, error) {
	if err := s.db.Flush(); err != nil {
		return Checkpoint{}, storeError(err)
	}
	m, err := s.readMeta(s.db)
	if err != nil {
		return Checkpoint{}, err
	}
	if err := s.db.Checkpoint(dir); err != nil {
		return Checkpoint{}, storeError(err)
	}
	if err := s.failed.get(); err != nil { // the files may be empty
		return Checkpoint{}, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return Checkpoint{}, err
	}
	cp := Checkpoint{Offset: m.flushed, Rows: m.rows}
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(dir, e.Name()))
		if err != nil {
			return Checkpoint{}, err
		}
		cp.Files = append(cp.Files, CheckpointFile{Name: e.Name(), Size: info.Size()})
	}
	return cp, nil
}

// rowCount counts by reading all keys.
func rowCount(r pebble.Reader, stop func() error) (int64, error) {
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: []byte{rowPrefix}, UpperBound: []byte{rowsEnd}})
	if err != nil {
		return 0, storeError(err)
	}
	n := int64(0)
	for ok := it.First(); ok; ok = it.Next() {
		if n++; n%4096 == 0 {
			if err := stop(); err != nil {
				return 0, errors.Join(err, it.Close())
			}
		}
	}
	return n, storeError(errors.Join(it.Error(), it.Close()))
}

// close waits for the store's background work. The directory stays; after an error it
// is of no use.
func (s *store) close() error {
	var err error
	if s.failed.get() == nil { // what is in memory would be lost
		if err = s.db.Flush(); err == nil {
			err = s.failed.get()
		}
	}
	return errors.Join(storeError(err), storeError(s.db.Close()))
}

// rowKey is a key with the row prefix.
func rowKey(dst, key []byte) []byte { return append(append(dst, rowPrefix), key...) }

// keyRange is the row keys from lo up to hi; nil: no bound.
func keyRange(lo, hi []byte) (from, to []byte) {
	from, to = rowKey(nil, lo), []byte{rowsEnd}
	if hi != nil {
		to = rowKey(nil, hi)
	}
	if bytes.Compare(from, to) > 0 {
		to = from
	}
	return from, to
}
