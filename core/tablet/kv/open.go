package kv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/row"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// Open opens the store of a bucket over its log, which is a changelog: from what an
// earlier tablet of this leadership left in cfg.Dir, else from the newest snapshot,
// else empty; then it reads the log from there to its end. It answers when the store
// has all that the log has, which may take as long as reading it does; ctx bounds it.
// One tablet may be open over a log at a time.
//
// Errors: mink.ErrCorrupt (the snapshot, the log, or the two do not fit), what the log
// answers, mink.ErrUnavailable (a schema version is not known here yet).
func Open(ctx context.Context, log *tablet.Log, cfg Config) (*Tablet, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("open store of bucket %s: %w", log.Bucket(), err)
	}
	t := &Tablet{
		log: log, cfg: cfg, bucket: log.Bucket(), turn: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		stop: make(chan struct{}), flusher: make(chan struct{}), checkpoints: make(chan checkpointCall),
	}
	if err := t.Reconfigure(cfg.Table); err != nil {
		return nil, err
	}
	opening := &opening{of: t.cfg.Shared.opens}
	defer opening.end()
	if err := opening.begin(ctx); err != nil {
		return nil, fmt.Errorf("open store of bucket %s: too many open at once: %w", t.bucket, err)
	}
	var m meta
	var restored bool
	var err, refused error
	for {
		if m, restored, err = t.openStore(ctx, refused); err != nil {
			return nil, fmt.Errorf("open store of bucket %s: %w", t.bucket, err)
		}
		r := replay{t: t, opening: opening, set: t.settings.Load(), m: m}
		if err = r.run(ctx); err == nil {
			m = r.m
			break
		}
		if !restored || !errors.Is(t.store.failed.get(), mink.ErrCorrupt) {
			return nil, errors.Join(fmt.Errorf("open store of bucket %s: %w", t.bucket, err), t.store.close())
		}
		if refused, err = err, t.discard(); err != nil {
			return nil, fmt.Errorf("open store of bucket %s: %w", t.bucket, err)
		}
	}
	if t.changes, err = log.Changelog(); err != nil {
		return nil, errors.Join(fmt.Errorf("open store of bucket %s: %w", t.bucket, err), t.store.close())
	}
	t.meta.Store(&m)
	t.Touch()
	go t.run()
	return t, nil
}

// openStore opens what is there, or restores, or begins anew. refused is why the store
// that was restored last is of no use.
func (t *Tablet) openStore(ctx context.Context, refused error) (m meta, restored bool, err error) {
	there, err := dirExists(t.cfg.Dir)
	if err != nil {
		return meta{}, false, err
	}
	if there {
		t.store, m, err = t.cfg.Shared.openStore(t.cfg.Dir, t.bucket, t.fail)
		if err == nil {
			err = t.within(m.flushed)
		}
		if err == nil {
			return m, false, nil
		}
		t.cfg.Logger.Error("the store that was kept of a bucket is of no use and is built anew", "bucket", t.bucket.String(), "error", err)
		if err := t.discard(); err != nil {
			return meta{}, false, err
		}
	}
	for t.cfg.Restore != nil {
		if refused != nil {
			t.cfg.Logger.Error("the store of a restored KV snapshot is of no use; trying the one before", "bucket", t.bucket.String(), "error", refused)
		}
		at, ok, err := t.cfg.Restore(ctx, t.cfg.Dir, refused)
		if err != nil {
			return meta{}, false, errors.Join(err, t.discard())
		}
		if !ok {
			break
		}
		if m, err = t.openRestored(at); err == nil {
			return m, true, nil
		}
		if e := t.discard(); e != nil || !errors.Is(err, mink.ErrCorrupt) {
			return meta{}, false, errors.Join(err, e)
		}
		refused = err
	}
	if err := t.within(0); err != nil {
		return meta{}, false, err
	}
	t.store, m, err = t.cfg.Shared.openStore(t.cfg.Dir, t.bucket, t.fail)
	return m, false, err
}

// openRestored opens the store of the snapshot of an offset. mink.ErrCorrupt: another
// snapshot may do.
func (t *Tablet) openRestored(at mink.Offset) (m meta, err error) {
	if t.store, m, err = t.cfg.Shared.openStore(t.cfg.Dir, t.bucket, t.fail); err != nil {
		if !diskTrouble(err) && !errors.Is(err, mink.ErrCorrupt) {
			err = fmt.Errorf("%w: %w", mink.ErrCorrupt, err)
		}
		return meta{}, err
	}
	if m.flushed != at {
		return meta{}, fmt.Errorf("the snapshot of offset %d is as of %d: %w", at, m.flushed, mink.ErrCorrupt)
	}
	return m, t.within(m.flushed)
}

// diskTrouble tells a failure of this machine from one of the files: a file that a
// manifest names and that is not there is the files'.
func diskTrouble(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && errno != syscall.ENOENT || errors.Is(err, mink.ErrUnavailable)
}

// discard removes the store and its directory.
func (t *Tablet) discard() error {
	if t.store != nil {
		if err := t.store.close(); err != nil {
			t.cfg.Logger.Warn("a store that is given up did not close in order", "bucket", t.bucket.String(), "error", err)
		}
		t.store = nil
	}
	t.mu.Lock()
	if t.mu.failed != nil { // of that store
		t.mu.failed, t.stop = nil, make(chan struct{})
	}
	t.mu.Unlock()
	return os.RemoveAll(t.cfg.Dir)
}

// within says whether the log can bring a store of the offset to its end.
func (t *Tablet) within(at mink.Offset) error {
	switch start, end := t.log.LogStart(), t.log.LogEnd(); {
	case at < start:
		return fmt.Errorf("the store is as of offset %d and the log begins at %d, the changes between are gone: a newer snapshot is needed: %w", at, start, mink.ErrCorrupt)
	case at > end:
		return fmt.Errorf("the store is as of offset %d and the log ends at %d, a part of it was lost: an older snapshot is needed: %w", at, end, mink.ErrCorrupt)
	}
	return nil
}

// replay brings a store to the end of the log.
type replay struct {
	t       *Tablet
	opening *opening
	set     *settings
	m       meta
	readers map[mink.SchemaID]*reader
	key     []byte
	value   []byte
	gap     bool // an accepted loss was met
}

// reader encodes rows of one schema version.
type reader struct{ *encoders }

// run reads from the store's offset to the log's end, also what is on its way there.
func (r *replay) run(ctx context.Context) error {
	log := r.t.log
	r.readers = map[mink.SchemaID]*reader{}
	if r.set.blind {
		r.m.rows = -1
	}
	for {
		changed := log.Changed()
		if err := r.step(ctx); err != nil {
			return err
		}
		if r.m.flushed >= log.LogEnd() {
			break
		}
		if r.m.flushed < log.HighWatermark() {
			continue
		}
		// Appends of the tablet before are not durable yet, and may not be for long: other
		// stores open meanwhile.
		r.opening.end()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := r.opening.begin(ctx); err != nil {
			return err
		}
	}
	if !r.gap || r.m.rows < 0 {
		return nil
	}
	n, err := rowCount(r.t.store.db, ctx.Err)
	if err != nil {
		return err
	}
	r.m.rows = n
	return r.t.store.commit(r.t.store.newBatch(0), r.m)
}

// step reads one piece of the log into one batch of the store.
func (r *replay) step(ctx context.Context) error {
	res, err := r.t.log.Read(ctx, tablet.ReadRequest{From: r.m.flushed, MaxBytes: r.t.cfg.ReplayBytes})
	if err != nil || res.Next <= r.m.flushed {
		return err
	}
	b := r.t.store.newBatch(r.t.cfg.ReplayBytes)
	m := r.m
	for _, batch := range res.Batches {
		if batch.BaseOffset() < m.flushed {
			return fmt.Errorf("offset %d lies within a batch that begins at %d: %w", m.flushed, batch.BaseOffset(), mink.ErrCorrupt)
		}
		r.gap = r.gap || batch.BaseOffset() > m.flushed
		if err := r.batch(b, batch, &m); err != nil {
			return fmt.Errorf("changelog at offset %d: %w", batch.BaseOffset(), err)
		}
		m.flushed = batch.NextOffset()
		if b.bytes() > replayBatchBytes {
			if err := r.t.store.commit(b, m); err != nil {
				return err
			}
			b, r.m = r.t.store.newBatch(r.t.cfg.ReplayBytes), m
		}
	}
	r.gap = r.gap || res.Next > m.flushed
	m.flushed = res.Next
	if err := r.t.store.commit(b, m); err != nil {
		return err
	}
	r.m = m
	return nil
}

// replayBatchBytes bounds a batch of the store: the rows of compressed batches of the
// log may be many times their size.
const replayBatchBytes = 8 << 20

// batch adds the changes of one batch of the log.
func (r *replay) batch(b batch, from record.Batch, m *meta) error {
	if from.Count() == 0 {
		return nil
	}
	kinds := from.Changes()
	if kinds == nil {
		return fmt.Errorf("a batch without kinds of change: %w", mink.ErrCorrupt)
	}
	rd, err := r.reader(from.SchemaID())
	if err != nil {
		return err
	}
	rows, _, err := r.t.log.Rows(from, nil)
	var bad *tablet.QuarantineError
	if errors.As(err, &bad) {
		return fmt.Errorf("%w: %w", mink.ErrCorrupt, err)
	}
	if err != nil {
		return err
	}
	defer rows.Release()
	if err := rd.bind(rows, len(kinds)); err != nil {
		return err
	}
	counted, n := m.rows >= 0, m.rows
	for i, kind := range kinds {
		switch record.Change(kind) {
		case record.ChangeUpdateBefore:
		case record.ChangeInsert, record.ChangeUpdateAfter:
			if record.Change(kind) == record.ChangeInsert {
				n++
			}
			r.key = rd.key.Append(append(r.key[:0], rowPrefix), i)
			r.value = rd.row.Append(r.value[:0], i)
			err = b.set(r.key, r.value)
		case record.ChangeDelete:
			n--
			r.key = rd.key.Append(append(r.key[:0], rowPrefix), i)
			err = b.delete(r.key)
		default:
			err = fmt.Errorf("record %d has the kind %d: %w", i, kind, mink.ErrCorrupt)
		}
		if err != nil {
			return storeError(err)
		}
	}
	if !counted {
		return nil
	}
	if n < 0 && !r.gap {
		return fmt.Errorf("more rows are deleted than there are: %w", mink.ErrCorrupt)
	}
	m.rows = max(n, 0) // behind a gap they are counted at the end
	return nil
}

func (r *replay) reader(id mink.SchemaID) (*reader, error) {
	if rd := r.readers[id]; rd != nil {
		return rd, nil
	}
	schemas := r.set.table.Schemas
	if id < 1 || int(id) > len(schemas) {
		return nil, fmt.Errorf("schema %d is not known here yet: %w", id, mink.ErrUnavailable)
	}
	codec, err := row.NewCodec(schemas[id-1])
	if err != nil {
		return nil, err
	}
	key, err := keyColumns(r.set.table.Descriptor, schemas[id-1])
	if err != nil {
		return nil, err
	}
	e, err := newEncoders(codec, key)
	if err != nil {
		return nil, err
	}
	r.readers[id] = &reader{e}
	return r.readers[id], nil
}

func (rd *reader) bind(rows arrow.RecordBatch, want int) error {
	if rows.NumRows() != int64(want) {
		return fmt.Errorf("%d rows with %d kinds: %w", rows.NumRows(), want, mink.ErrCorrupt)
	}
	columns := rows.Columns()
	if err := rd.row.Bind(columns); err != nil {
		return err
	}
	return rd.key.Bind(rows)
}
