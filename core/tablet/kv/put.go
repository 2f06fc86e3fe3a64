package kv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/record/merge"
	"github.com/mink-project/mink/core/record/row"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// Put is one batch of upserts and deletes. Metadata and Body are the two halves of
// one Arrow IPC record-batch message and are not kept. Count 0 with empty halves only
// advances the writer.
type Put struct {
	SchemaID mink.SchemaID
	// Columns are the target columns' field ids: the message's columns, in its order;
	// nil: all of SchemaID, in its order.
	Columns        []mink.FieldID
	Metadata, Body []byte
	Count          int32 // rows, must be the message's
	// Changes says what each row is: a delete (mink.ChangeDelete) or an upsert
	// (ChangeAppend, ChangeInsert, ChangeUpdateAfter). nil: upserts.
	Changes     []byte
	WriterID    mink.WriterID // mink.NoWriter: none
	WriterEpoch int16
	Sequence    int32 // of this batch; counts batches from 0
}

func (p *Put) sender() tablet.Sender {
	return tablet.Sender{ID: p.WriterID, Epoch: p.WriterEpoch, Sequence: p.Sequence}
}

// Put merges a batch with the rows that are there and appends what changed to the
// changelog; the answer comes with Pending. Batches of one caller apply in the order
// of its calls. ctx bounds the wait for room to unpack it and for the turn. An error means that nothing of the
// batch was applied:
//
//	mink.ErrInvalid      the batch, or one of its rows, which it names (*record.BatchError of the message)
//	mink.ErrTooLarge     more than max.message.bytes, or its rows or changes are more than a frame of the log
//	mink.ErrThrottled    too much waits for the log, or is being unpacked: again after a pause
//	mink.ErrOutOfOrder, mink.ErrFenced   what the writer's window says
//	mink.ErrUnavailable  the schema version is not known here yet
//	mink.ErrCorrupt, mink.ErrFenced, mink.ErrClosed   the tablet has ended
func (t *Tablet) Put(ctx context.Context, p Put) (*Pending, error) {
	r, err := t.prepare(ctx, p)
	if err != nil {
		return nil, err
	}
	return r.put(ctx)
}

// prepared is a put with all done that needs no turn: it was checked and encoded, and
// the rows that the store had of its keys were read. Put or drop it soon: what is
// flushed meanwhile stays in memory, as heldBytesMax says. Not for concurrent use.
type prepared struct {
	t   *Tablet
	set *settings
	p   Put
	in  *incoming
}

func (t *Tablet) prepare(ctx context.Context, p Put) (*prepared, error) {
	t.Touch()
	r := &prepared{t: t, p: p}
	if err := r.prepare(ctx); err != nil {
		return nil, r.refused(err)
	}
	return r, nil
}

func (r *prepared) prepare(ctx context.Context) (err error) {
	r.set = r.t.settings.Load()
	if r.in, err = r.t.encoded(ctx, r.set, &r.p); err == nil {
		if err = r.t.prefetch(r.set, r.in); err != nil {
			r.drop()
		}
	}
	return err
}

func (r *prepared) refused(err error) error {
	r.t.counts.refused.Add(1)
	return fmt.Errorf("put to bucket %s: %w", r.t.bucket, err)
}

// put waits for the turn and has it; what was prepared is used up.
func (r *prepared) put(ctx context.Context) (*Pending, error) {
	for {
		pending, again, err := r.t.turnOf(ctx, r.set, &r.p, r.in)
		r.drop()
		if err == nil && again { // the table was altered meanwhile
			if err = r.prepare(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, r.refused(err)
		}
		return pending, nil
	}
}

// drop gives up what was prepared; after put it does nothing.
func (r *prepared) drop() {
	in := r.in
	if r.in = nil; in == nil {
		return
	}
	if in.reads { // it had no turn
		r.t.settle(in)
		r.t.tidy()
	}
	in.free()
}

// incoming is a put's rows in the current version's form.
type incoming struct {
	form    *form
	rows    []incomingRow
	keys    []byte // becomes the flight's
	values  []byte
	upserts int

	old   rowsRead    // of the store, by row; read before the turn (prefetch.go)
	mark  mink.Offset // every change below it was in the store before old was read
	reads bool        // in Tablet.mu.reads
}

type incomingRow struct {
	key, value int32 // ends
	gone       bool
}

var incomingPool = sync.Pool{New: func() any { return new(incoming) }}

// keepBytes is the largest scratch memory that is kept for the next put.
const keepBytes = 1 << 20

func (in *incoming) free() {
	if in == nil || cap(in.values) > keepBytes || cap(in.rows) > keepBytes/16 {
		return
	}
	in.old.shrink()
	*in = incoming{rows: in.rows[:0], values: in.values[:0], old: in.old}
	incomingPool.Put(in)
}

// encoded checks a put and encodes its rows; no lock is held.
func (t *Tablet) encoded(ctx context.Context, set *settings, p *Put) (*incoming, error) {
	switch {
	case p.WriterID < mink.NoWriter || p.WriterID >= 0 && (p.WriterEpoch < 0 || p.Sequence < 0):
		return nil, fmt.Errorf("%w: writer %d with epoch %d and sequence %d", mink.ErrInvalid, p.WriterID, p.WriterEpoch, p.Sequence)
	case p.Count < 0 || p.Count == 0 && (p.WriterID < 0 || len(p.Metadata)+len(p.Body) > 0):
		return nil, fmt.Errorf("%w: %d rows, and no writer to advance", mink.ErrInvalid, p.Count)
	case len(p.Changes) != 0 && len(p.Changes) != int(p.Count):
		return nil, fmt.Errorf("%w: %d changes for %d rows", mink.ErrInvalid, len(p.Changes), p.Count)
	}
	f, err := set.form(p.SchemaID, p.Columns)
	if err != nil {
		return nil, err
	}
	in := incomingPool.Get().(*incoming)
	in.form = f
	if p.Count == 0 {
		return in, nil
	}
	if n, most := len(p.Metadata)+len(p.Body)+len(p.Changes)+record.HeaderSize, set.options.MaxMessageBytes; n > most {
		in.free()
		return nil, record.Errorf(record.KindTooLarge, "%d bytes, the limit is %d (max.message.bytes)", n, most)
	}
	if err := t.decode(ctx, set, p, in); err != nil {
		in.free()
		return nil, err
	}
	return in, nil
}

// decode checks the message and encodes its rows and keys, which are bounded
// themselves: room to unpack it is not held longer.
func (t *Tablet) decode(ctx context.Context, set *settings, p *Put, in *incoming) error {
	give, err := t.cfg.Shared.inflate.Take(ctx, p.Metadata, p.Body)
	if err != nil {
		return err
	}
	defer give()
	codecs := &t.cfg.Shared.codecs
	checker := codecs.checker()
	info, err := checker.Check(in.form.layout, p.Metadata, p.Body)
	codecs.check.Put(checker)
	if err != nil {
		return err
	}
	if info.Rows != int64(p.Count) {
		return record.Errorf(record.KindInvalidRecord, "%d rows in a message that was announced with %d", info.Rows, p.Count)
	}
	for i, c := range p.Changes {
		switch mink.Change(c) {
		case mink.ChangeAppend, mink.ChangeInsert, mink.ChangeUpdateAfter, mink.ChangeDelete:
		default:
			return record.RecordErrorf(record.KindInvalidRecord, i, "%s in a put, which takes upserts and deletes", mink.Change(c))
		}
	}
	decoder := codecs.decoder()
	defer codecs.arrow.Put(decoder)
	rows, err := decoder.Decode(in.form.layout, p.Metadata, p.Body, nil)
	if err != nil {
		return err
	}
	defer rows.Release()
	if in.form.plan != nil {
		remapped, err := in.form.plan.Remap(allocator, rows)
		if err != nil {
			return err
		}
		defer remapped.Release()
		rows = remapped
	}
	return t.encode(set, p, in, rows)
}

func (t *Tablet) encode(set *settings, p *Put, in *incoming, rows arrow.RecordBatch) error {
	e, err := set.takeEncoders()
	if err != nil {
		return err
	}
	defer set.encoder.Put(e)
	columns := make([]arrow.Array, len(set.current.Columns))
	for i, at := range in.form.place {
		columns[at] = rows.Column(i)
	}
	if err := e.row.Bind(columns); err != nil {
		return err
	}
	if err := e.key.Bind(rows); err != nil {
		return err
	}
	in.keys = make([]byte, 0, min(16*int(p.Count), keepBytes))
	for i := range int(p.Count) {
		in.keys = e.key.Append(append(in.keys, rowPrefix), i)
		in.values = e.row.Append(in.values, i)
		if n := len(in.keys) + len(in.values); n > t.cfg.PutBytesMax {
			return record.RecordErrorf(record.KindTooLarge, i, "up to here the rows take more than %d bytes: send fewer at a time", t.cfg.PutBytesMax)
		}
		gone := len(p.Changes) > 0 && mink.Change(p.Changes[i]) == mink.ChangeDelete
		if !gone {
			in.upserts++
		}
		in.rows = append(in.rows, incomingRow{int32(len(in.keys)), int32(len(in.values)), gone})
	}
	return nil
}

// turnOf waits for the turn and has it. again says that the put must be prepared
// anew: the table was altered meanwhile.
func (t *Tablet) turnOf(ctx context.Context, set *settings, p *Put, in *incoming) (pending *Pending, again bool, err error) {
	for {
		select {
		case t.turn <- struct{}{}:
		case <-t.stop:
			return nil, false, t.usable()
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
		want := int64(0)
		if set.engine.AutoIncrement() >= 0 {
			want = int64(in.upserts)
		}
		if lack := t.ids.lack(want); lack > 0 {
			t.leaveTurn()
			if err := t.ids.lease(ctx, lack, &t.cfg); err != nil {
				return nil, false, err
			}
			continue
		}
		defer t.leaveTurn()
		if err := t.usable(); err != nil {
			return nil, false, err
		}
		if t.settings.Load() != set {
			return nil, true, nil
		}
		t.sweep(heldBytesMax)
		if in.mark < t.before.dropped {
			in.old.forget() // what is newer was dropped already
		}
		pending, err = t.merge(set, p, in)
		t.settle(in)
		return pending, false, err
	}
}

// leaveTurn gives the turn back. A flush that found it taken left work behind.
func (t *Tablet) leaveTurn() {
	<-t.turn
	t.tidy()
}

// tidy sweeps until there is nothing to sweep, or somebody else has the turn: who gives
// it back looks again.
func (t *Tablet) tidy() {
	for t.sweepable() {
		select {
		case t.turn <- struct{}{}:
			t.sweep(heldBytesMax)
			<-t.turn
		default:
			return
		}
	}
}

func (t *Tablet) sweepable() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sweepableLocked(heldBytesMax) > 0
}

// merge needs the turn.
func (t *Tablet) merge(set *settings, p *Put, in *incoming) (*Pending, error) {
	duplicate, after, err := t.changes.Judge(p.sender())
	if err != nil {
		return nil, err
	}
	if duplicate != nil {
		t.counts.duplicates.Add(1)
		return &Pending{t, t.waitFor(after), *duplicate}, nil
	}
	room := int64(len(in.keys)+len(in.values)) + opBytes*int64(len(in.rows))
	if err := t.reserve(room); err != nil {
		return nil, err
	}
	f := &flight{done: make(chan struct{}), bytes: room, blind: set.blind}
	f.rows.keys = in.keys
	b, err := t.work.merge(t, set, p, in, f)
	var pending *Pending
	if err == nil {
		pending, err = t.append(set, p, b, f)
	}
	t.work.reset(set)
	if err != nil || f.ticket == nil {
		t.before.back()
		t.ids.undo()
		t.release(f)
		return pending, err
	}
	t.ids.commit()
	t.before.done()
	t.adjust(f)
	t.counts.puts.Add(1)
	t.counts.rows.Add(int64(p.Count))
	t.enqueue(f)
	return pending, nil
}

// append hands the changes to the log, or nothing when there are none.
func (t *Tablet) append(set *settings, p *Put, b tablet.ChangelogBatch, f *flight) (*Pending, error) {
	end := t.log.LogEnd()
	if len(b.Changes) == 0 && p.WriterID < 0 {
		res := tablet.AppendResult{First: end, Last: end - 1, CommitTimestamp: t.cfg.Now().UnixMilli()}
		t.counts.puts.Add(1)
		t.counts.rows.Add(int64(p.Count))
		return &Pending{t, t.waitFor(end), res}, nil
	}
	b.SchemaID, b.Sender = set.current.ID, p.sender()
	ticket, err := t.changes.Append(&b)
	if errors.Is(err, mink.ErrTooLarge) {
		err = fmt.Errorf("%w: the changelog of its %d rows is more than a frame of the log holds: send fewer at a time", err, p.Count)
	}
	if err != nil {
		return nil, err
	}
	f.ticket, f.end = ticket, ticket.Placed().Last+1
	t.counts.changes.Add(int64(len(b.Changes)))
	t.counts.changelogBytes.Add(int64(len(b.Metadata) + len(b.Body) + len(b.Changes) + record.HeaderSize))
	return &Pending{t, f, ticket.Placed()}, nil
}

// reserve takes room for a put in the budgets.
func (t *Tablet) reserve(n int64) error {
	if now := t.pending.Load(); now > 0 && now+n > t.cfg.PendingBytesMax {
		return fmt.Errorf("%d bytes of earlier puts wait for the log: %w", now, mink.ErrThrottled)
	}
	if !t.cfg.Shared.pending.take(n) {
		return fmt.Errorf("%d bytes of puts to this node wait for the log: %w", t.cfg.Shared.pending.taken(), mink.ErrThrottled)
	}
	t.pending.Add(n)
	return nil
}

// adjust replaces what was reserved by what it took.
func (t *Tablet) adjust(f *flight) {
	n := f.rows.bytes()
	t.pending.Add(n - f.bytes)
	t.cfg.Shared.pending.give(f.bytes - n)
	f.bytes = n
}

// turnWork is the memory of merges.
type turnWork struct {
	builder *row.Builder
	changes []byte
	old     []byte // an old row in the current version
	keyRow  []byte
	// sent is how many rows there are while the changelog is the put as it was sent:
	// then builder is empty. -1: it is not.
	sent int
}

func (w *turnWork) reset(set *settings) {
	if w.builder != nil {
		set.giveBuilder(nil, w.builder)
	}
	*w = turnWork{changes: w.changes[:0], old: w.old[:0], keyRow: w.keyRow[:0]}
	if cap(w.changes) > keepBytes {
		w.changes = nil
	}
	if cap(w.old) > keepBytes {
		w.old, w.keyRow = nil, nil
	}
}

// merge merges the rows in order, each with what the ones before it left, into f, and
// answers the changelog.
func (w *turnWork) merge(t *Tablet, set *settings, p *Put, in *incoming, f *flight) (b tablet.ChangelogBatch, err error) {
	if len(in.rows) == 0 {
		return b, nil
	}
	w.sent = -1
	if in.form.whole {
		w.sent = 0
	}
	f.rows.values = make([]byte, 0, len(in.values))
	f.rows.ops = make([]op, 0, len(in.rows))
	needsOld := set.engine.NeedsOld(in.form.targets.All())
	var key, value int32
	for i := range in.rows {
		r := &in.rows[i]
		err := w.one(t, set, f, &oneRow{
			at: i, from: &in.old, key: in.keys[key:r.key], value: in.values[value:r.value], keyFrom: key, keyTo: r.key,
			targets: in.form.targets, gone: r.gone, needsOld: needsOld,
		})
		if err != nil {
			return b, rowError(i, err)
		}
		if w.builder != nil && w.builder.Bytes() > t.cfg.PutBytesMax {
			return b, rowError(i, fmt.Errorf("%w: up to here the changelog takes more than %d bytes: send fewer rows at a time", mink.ErrTooLarge, t.cfg.PutBytesMax))
		}
		key, value = r.key, r.value
	}
	b.Changes = w.changes
	switch {
	case len(w.changes) == 0:
	case w.sent == len(in.rows):
		b.Metadata, b.Body = p.Metadata, p.Body
		t.counts.kept.Add(int64(len(p.Metadata) + len(p.Body)))
	default:
		if err := w.unsent(set, f); err != nil {
			return b, err
		}
		rows := w.builder.NewBatch()
		defer rows.Release()
		if b.Metadata, b.Body, err = arrowipc.Encode(rows); err != nil {
			return b, err
		}
	}
	return b, nil
}

func rowError(i int, err error) error { return fmt.Errorf("row %d: %w", i, err) }

// oneRow is one write.
type oneRow struct {
	at             int // in the put
	from           *rowsRead
	key, value     []byte
	keyFrom, keyTo int32 // in the flight's keys
	targets        *merge.Targets
	gone           bool
	needsOld       bool
}

func (w *turnWork) one(t *Tablet, set *settings, f *flight, r *oneRow) error {
	var old []byte
	if r.needsOld {
		var held io.Closer
		var err error
		if old, held, err = t.oldRow(set, w, r); err != nil {
			return err
		}
		if held != nil {
			defer func() { _ = held.Close() }() // frees a block
		}
	}
	from := len(f.rows.values)
	values, outcome, err := set.engine.Apply(f.rows.values, old, r.value, r.targets, r.gone)
	if err != nil {
		return t.broken(err)
	}
	if outcome == merge.Keep {
		return w.unsent(set, f)
	}
	o := op{keyFrom: r.keyFrom, keyTo: r.keyTo, valueTo: int32(len(values)), gone: outcome == merge.Delete}
	if len(values) > maxValues {
		return fmt.Errorf("%w: up to here the rows take more than %d bytes: send fewer at a time", mink.ErrTooLarge, maxValues)
	}
	value := values[from:]
	if outcome == merge.Put && old == nil && r.needsOld && set.engine.AutoIncrement() >= 0 {
		if err := set.engine.Assign(value, t.ids.next()); err != nil {
			return err
		}
	}
	if err := w.record(set, f, r, old, value, outcome); err != nil {
		return err
	}
	f.rows.values, f.rows.ops = values, append(f.rows.ops, o)
	t.before.add(f)
	switch {
	case outcome == merge.Put && old == nil:
		f.delta++
	case outcome == merge.Delete && old != nil:
		f.delta--
	}
	return nil
}

// maxValues bounds the rows of one put after its merge: values are told apart by 32
// bits.
const maxValues = 1 << 30

// record adds one row's changes to the changelog, before the row is in f.
func (w *turnWork) record(set *settings, f *flight, r *oneRow, old, value []byte, outcome merge.Outcome) error {
	kind := record.ChangeUpdateAfter
	switch {
	case outcome == merge.Delete:
		kind = record.ChangeDelete
	case r.needsOld && old == nil:
		kind = record.ChangeInsert
	}
	before := kind == record.ChangeUpdateAfter && !set.options.WALImage
	if w.sent >= 0 && outcome == merge.Put && !before && slices.Equal(value, r.value) {
		w.sent++
		w.changes = append(w.changes, byte(kind))
		return nil
	}
	if err := w.unsent(set, f); err != nil {
		return err
	}
	if before {
		if err := w.change(record.ChangeUpdateBefore, old); err != nil {
			return err
		}
	}
	if outcome == merge.Put {
		return w.change(kind, value)
	}
	if !set.options.WALImage {
		return w.change(kind, old)
	}
	whose := old
	if whose == nil {
		whose = r.value
	}
	var err error
	if w.keyRow, err = set.engine.KeyRow(w.keyRow[:0], whose); err != nil {
		return err
	}
	return w.change(kind, w.keyRow)
}

func (w *turnWork) change(kind record.Change, value []byte) error {
	if err := w.builder.Append(value); err != nil {
		return err
	}
	w.changes = append(w.changes, byte(kind))
	return nil
}

// unsent says that the changelog is not what was sent, and brings the rows so far into
// the builder.
func (w *turnWork) unsent(set *settings, f *flight) error {
	if w.builder != nil {
		return nil
	}
	var err error
	if w.builder, err = set.takeBuilder(nil); err != nil {
		return err
	}
	for i := range w.sent { // not at all when it is -1
		if err := w.builder.Append(f.rows.value(i)); err != nil {
			return err
		}
	}
	w.sent = -1
	return nil
}

// oldRow is the row that a put finds: of a put on its way, or of the store. nil: there
// is none. held, when not nil, keeps it.
func (t *Tablet) oldRow(set *settings, w *turnWork, r *oneRow) (old []byte, held io.Closer, err error) {
	old, ok := t.before.get(r.key)
	if !ok {
		old, ok = r.from.get(r.at)
	}
	if !ok {
		if old, held, err = get(t.store.db, r.key); err != nil {
			return nil, nil, t.broken(err)
		}
	}
	if old == nil {
		return nil, nil, nil
	}
	up, scratch, err := set.upgrade(w.old[:0], old)
	w.old = scratch
	if err != nil {
		if held != nil {
			err = errors.Join(err, held.Close())
		}
		return nil, nil, t.broken(err)
	}
	return up, held, nil
}
