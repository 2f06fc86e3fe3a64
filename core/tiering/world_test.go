package tiering

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// world is the metadata log, the logs of all buckets and the targets, in memory: what
// every process sees, and what survives them.
type world struct {
	mu     sync.Mutex
	index  uint64
	lease  mink.LeaseEpoch
	tables map[mink.TableID]*wTable // dropped ones too
	views  []*wView                 // by index, oldest first
	place  *place
	next   int64 // of ids
	upkeep bool  // tables want maintenance

	failures struct {
		sync.Mutex
		texts []string
	}
}

// wTable is a table's metadata and its logs.
type wTable struct {
	id        mink.TableID
	name      string
	keyed     bool
	parted    bool
	sink      string
	freshness time.Duration
	fields    []wField // of the newest schema
	schema    mink.SchemaID
	nextField mink.FieldID
	dropped   bool // from the metadata
	forgotten bool // and from its sink
	buckets   []*wBucket
	round     sink.RoundID
	snapshot  string
	fence     mink.LeaseEpoch
	committed time.Time
	rounds    map[sink.RoundID]bool
	schemas   map[mink.SchemaID][]wField
}

// wField is a column; it is null in records of schemas before since.
type wField struct {
	id    mink.FieldID
	name  string
	since mink.SchemaID
}

// wBucket is a bucket's log. records are never removed: start is.
type wBucket struct {
	ref       mink.BucketRef
	value     string // of the partition
	closed    bool
	gone      bool // its partition was dropped
	records   []wRecord
	end       mink.Offset // committed
	start     mink.Offset
	base      mink.Offset
	tiered    mink.Offset
	gaps      []Gap
	snapshots []mink.Offset
	remade    bool // of a keyed table, after another one of the same value
}

// wRecord is one offset.
type wRecord struct {
	skip     bool // no row
	change   mink.Change
	key      int64
	content  int64
	schema   mink.SchemaID
	optional bool // trimmed by hand before it was tiered
}

func newWorld() *world {
	w := &world{tables: map[mink.TableID]*wTable{}, place: newPlace()}
	w.place.world = w
	w.changed()
	return w
}

// changed makes the next view. mu is held, or nobody else knows the world yet.
func (w *world) changed() {
	w.index++
	v := &wView{index: w.index, jobs: map[Target]*wJob{}}
	for _, t := range w.tables {
		switch {
		case !t.dropped:
			v.jobs[t.target()] = t.job()
			if w.upkeep {
				v.jobs[t.target()].Upkeep = Upkeep{Compact: true, StateAge: time.Hour, Pinned: []string{t.snapshot}}
			}
		case !t.forgotten:
			v.dropped = append(v.dropped, Dropped{Target: t.target(), Spec: t.spec()})
		}
	}
	w.views = append(w.views, v)
}

func (w *world) failf(format string, args ...any) {
	w.failures.Lock()
	defer w.failures.Unlock()
	w.failures.texts = append(w.failures.texts, fmt.Sprintf(format, args...))
}

func (w *world) table(name, sinkName string, keyed, parted bool, buckets int, freshness time.Duration) *wTable {
	w.next++
	t := &wTable{
		id: mink.TableID(w.next), name: name, keyed: keyed, parted: parted, sink: sinkName, freshness: freshness, schema: 1, nextField: 10,
		fields: []wField{{1, "id", 1}, {2, "part", 1}, {3, "content", 1}}, rounds: map[sink.RoundID]bool{},
	}
	t.schemas = map[mink.SchemaID][]wField{1: t.fields}
	w.tables[t.id] = t
	w.partition(t, "p0", buckets)
	return t
}

func (w *world) partition(t *wTable, value string, buckets int) {
	w.next++
	remade := t.keyed && slices.ContainsFunc(t.buckets, func(b *wBucket) bool { return b.value == value })
	for i := range buckets {
		t.buckets = append(t.buckets, &wBucket{ref: mink.BucketRef{Table: t.id, Partition: mink.PartitionID(w.next), Index: int32(i)}, value: value, remade: remade})
	}
	w.changed()
}

func (t *wTable) target() Target { return Target{Table: t.id, Sink: t.sink} }

func (t *wTable) spec() sink.TableSpec {
	s := sink.TableSpec{ID: t.id, Database: "db", Name: t.name, Schema: t.sinkSchema(t.schema), BucketKeys: []string{"id"}, BucketCount: 4}
	if t.keyed {
		s.PrimaryKey = []string{"id"}
	}
	if t.parted {
		s.PartitionKeys = []string{"part"}
	}
	return s
}

func (t *wTable) sinkSchema(id mink.SchemaID) sink.Schema {
	var fields []arrow.Field
	for _, f := range t.schemas[id] {
		dt, text := arrow.DataType(arrow.BinaryTypes.String), "STRING"
		if f.id == 1 {
			dt, text = arrow.PrimitiveTypes.Int64, "BIGINT NOT NULL"
		}
		fields = append(fields, arrow.Field{Name: f.name, Type: dt, Nullable: f.id != 1, Metadata: arrow.NewMetadata(
			[]string{mink.MetaFieldID, mink.MetaType}, []string{strconv.Itoa(int(f.id)), text})})
	}
	return sink.Schema{ID: id, Arrow: arrow.NewSchema(fields, nil)}
}

// append adds records, committed at once. A key's changes follow one another as a leader would make them.
func (b *wBucket) append(t *wTable, kinds ...wRecord) {
	for _, r := range kinds {
		r.schema = t.schema
		r.content = int64(len(b.records))
		b.records = append(b.records, r)
	}
	b.end = mink.Offset(len(b.records))
}

// state is the rows of a primary-key bucket at an offset, by key.
func (b *wBucket) state(at mink.Offset) map[int64]wRecord {
	s := map[int64]wRecord{}
	for _, r := range b.records[:at] {
		switch {
		case r.skip, r.change == mink.ChangeUpdateBefore:
		case r.change == mink.ChangeDelete:
			delete(s, r.key)
		default:
			s[r.key] = r
		}
	}
	return s
}

// row is what a record shows in the columns of a schema; a column that the record's schema
// had not is null.
func (b *wBucket) row(r wRecord, f wField) any {
	switch {
	case f.id == 1:
		return r.key
	case f.id == 2:
		return b.value
	case r.schema < f.since:
		return nil
	}
	return fmt.Sprintf("%s #%d field %d", b.ref, r.content, f.id)
}

func (b *wBucket) batch(t *wTable, schema mink.SchemaID, records []wRecord) (arrow.RecordBatch, []mink.Change) {
	s := t.sinkSchema(schema)
	rb := array.NewRecordBuilder(memory.DefaultAllocator, s.Arrow)
	defer rb.Release()
	var changes []mink.Change
	if t.keyed {
		changes = []mink.Change{}
	}
	for _, r := range records {
		for i, f := range t.schemas[schema] {
			switch v := b.row(r, f).(type) {
			case nil:
				rb.Field(i).AppendNull()
			case int64:
				rb.Field(i).(*array.Int64Builder).Append(v)
			case string:
				rb.Field(i).(*array.StringBuilder).Append(v)
			}
		}
		if t.keyed {
			changes = append(changes, r.change)
		}
	}
	return rb.NewRecordBatch(), changes
}

func (t *wTable) job() *wJob {
	j := &wJob{Job: Job{Name: "db." + t.name, Schema: t.schema, Keyed: t.keyed, Freshness: t.freshness, Round: t.round, Snapshot: t.snapshot, Committed: t.committed}, spec: t.spec()}
	for _, b := range t.buckets {
		if b.gone {
			continue
		}
		x := Bucket{Ref: b.ref, Closed: b.closed, Remade: b.remade, Base: b.base, Tiered: b.tiered, Start: b.start, End: b.end, Gaps: slices.Clone(b.gaps), Bytes: int64(b.end-b.tiered) * 64}
		if t.parted {
			x.Partition = []string{b.value}
		}
		if n := len(b.snapshots); n > 0 {
			x.Snapshot = b.snapshots[n-1]
		}
		j.Buckets = append(j.Buckets, x)
	}
	return j
}

type wJob struct {
	Job
	spec sink.TableSpec
}

// wView is the metadata at an index.
type wView struct {
	index   uint64
	jobs    map[Target]*wJob
	dropped []Dropped
}

func (v *wView) SinkFence(lease mink.LeaseEpoch) mink.LeaseEpoch { return lease }
func (v *wView) Targets() iter.Seq[Target]                       { return maps.Keys(v.jobs) }
func (v *wView) Dropped() iter.Seq[Dropped]                      { return slices.Values(v.dropped) }

func (v *wView) Job(t Target) (Job, bool) {
	j, ok := v.jobs[t]
	if !ok {
		return Job{}, false
	}
	return j.Job, true
}

func (v *wView) Spec(t Target) (sink.TableSpec, error) {
	j, ok := v.jobs[t]
	if !ok {
		return sink.TableSpec{}, mink.ErrNotExist
	}
	return j.spec, nil
}

// commitRound is the metadata log's command.
func (w *world) commitRound(r Round) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.Lease != w.lease {
		return fmt.Errorf("lease %d, the holder's is %d: %w", r.Lease, w.lease, mink.ErrFenced)
	}
	t := w.tables[r.Target.Table]
	switch {
	case t == nil || t.dropped:
		return mink.ErrNotExist
	case t.round == r.Round:
		return nil
	case t.round != r.Base:
		return fmt.Errorf("base %s, recorded is %s: %w", r.Base, t.round, mink.ErrConflict)
	}
	for _, b := range t.buckets {
		if end, ok := r.Ends[b.ref]; ok && (end < b.tiered || end > b.end) {
			w.failf("round %s ends %s at %d: tiered %d, committed %d", r.Round, b.ref, end, b.tiered, b.end)
			return mink.ErrInvalid
		}
	}
	for _, b := range t.buckets {
		if end, ok := r.Ends[b.ref]; ok {
			b.tiered = end
		}
	}
	t.round, t.snapshot, t.fence, t.committed = r.Round, r.Snapshot, r.Lease, time.Now()
	w.changed()
	return nil
}

func (w *world) forgetDropped(target Target, lease mink.LeaseEpoch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if lease != w.lease {
		return mink.ErrFenced
	}
	if t := w.tables[target.Table]; t != nil && t.dropped {
		t.forgotten = true
		w.changed()
	}
	return nil
}

// trimLimit is what a trim by age may go to: rows that are not at the sink stay.
func (t *wTable) trimLimit(b *wBucket) mink.Offset {
	to := b.tiered
	if t.keyed {
		if len(b.snapshots) == 0 {
			return 0
		}
		to = min(to, b.snapshots[0])
	}
	return to
}

// trimByHand drops records that may not have been tiered.
func (b *wBucket) trimByHand(to mink.Offset) {
	for i := max(b.start, b.tiered); i < to; i++ {
		b.records[i].optional = true
	}
	b.gaps = append(b.gaps, Gap{b.start, to})
	b.start = to
}

// readLog is Source.ReadLog; rows of a view that is old may be trimmed by now.
func (w *world) readLog(v *wView, ref mink.BucketRef, from, to mink.Offset, n int) (rows Rows, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t, b := w.bucket(ref)
	if from < b.start {
		return Rows{}, &mink.OutOfRangeError{Asked: from, Start: b.start, End: b.end}
	}
	if to > b.end {
		w.failf("bucket %s is read up to %d: committed %d", ref, to, b.end)
	}
	to = min(to, from+mink.Offset(n))
	at := from
	for at < to && !b.records[at].skip {
		at++
	}
	records := b.records[from:at]
	for at < to && b.records[at].skip {
		at++
	}
	rows = Rows{Start: from, End: at}
	rows.Batch, rows.Changes = b.batch(t, v.jobs[t.target()].Schema, records)
	return rows, nil
}

func (w *world) bucket(ref mink.BucketRef) (*wTable, *wBucket) {
	t := w.tables[ref.Table]
	i := slices.IndexFunc(t.buckets, func(b *wBucket) bool { return b.ref == ref })
	return t, t.buckets[i]
}

func (w *world) readSnapshot(v *wView, ref mink.BucketRef) (at mink.Offset, batches []Rows) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t, b := w.bucket(ref)
	for _, x := range v.jobs[t.target()].Buckets {
		if x.Ref == ref {
			at = x.Snapshot
		}
	}
	state := b.state(at)
	for chunk := range slices.Chunk(slices.Sorted(maps.Keys(state)), 3) {
		var records []wRecord
		for _, k := range chunk {
			r := state[k]
			r.change = mink.ChangeInsert
			records = append(records, r)
		}
		var rows Rows
		rows.Batch, _ = b.batch(t, v.jobs[t.target()].Schema, records)
		batches = append(batches, rows)
	}
	return at, batches
}

// behind lists what is not at the sink, or not forgotten.
func (w *world) behind() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.tables {
		if t.dropped && !t.forgotten {
			out = append(out, fmt.Sprintf("dropped table %d is still at its sink", t.id))
		}
		for _, b := range t.buckets {
			if !t.dropped && !b.gone && b.tiered < b.end {
				out = append(out, fmt.Sprintf("bucket %s is tiered to %d of %d", b.ref, b.tiered, b.end))
			}
		}
	}
	return out
}

// check compares every table with what its sink shows.
func (w *world) check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	errs := make([]error, 0, 1)
	w.failures.Lock()
	defer w.failures.Unlock()
	for _, f := range w.failures.texts {
		errs = append(errs, errors.New(f))
	}
	for _, t := range w.tables {
		if t.dropped {
			if p := w.place.tables[t.name]; p != nil && p.id == t.id {
				errs = append(errs, fmt.Errorf("dropped table %d is at the sink", t.id))
			}
			continue
		}
		want, optional := t.want()
		have, err := w.place.rows(t)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for row, n := range want {
			if have[row] < n-optional[row] || have[row] > n {
				errs = append(errs, fmt.Errorf("table %d (%s): %d times %q, want %d, of which %d may be missing", t.id, t.name, have[row], row, n, optional[row]))
			}
		}
		for row, n := range have {
			if want[row] == 0 {
				errs = append(errs, fmt.Errorf("table %d (%s): %d times %q, which was never there", t.id, t.name, n, row))
			}
		}
	}
	if len(errs) > 12 {
		errs = append(errs[:12], fmt.Errorf("and %d more", len(errs)-12))
	}
	return errors.Join(errs...)
}

// want is the rows that a reader of the target must find, as text.
func (t *wTable) want() (rows, optional map[string]int) {
	rows, optional = map[string]int{}, map[string]int{}
	for i, b := range t.buckets {
		add := func(r wRecord) {
			var values []any
			for _, f := range t.fields {
				values = append(values, f.id, b.row(r, f))
			}
			rows[fmt.Sprint(values...)]++
			if r.optional {
				optional[fmt.Sprint(values...)]++
			}
		}
		if t.keyed {
			later := t.buckets[i+1:]
			for _, r := range b.state(b.end) {
				switch has, had := laterHas(later, b, r.key); {
				case has: // made again, and the key with it
				case had: // and deleted again: a round that began behind that did not see it
					r.optional = true
					add(r)
				default:
					add(r)
				}
			}
			continue
		}
		for _, r := range b.records[b.base:b.end] {
			if !r.skip {
				add(r)
			}
		}
	}
	return rows, optional
}

// laterHas says whether a partition of the same value that was made later has a key in the
// same bucket, or had it.
func laterHas(later []*wBucket, b *wBucket, key int64) (has, had bool) {
	for _, x := range later {
		if x.value != b.value || x.ref.Index != b.ref.Index {
			continue
		}
		for _, r := range x.records[:x.end] {
			had = had || !r.skip && r.key == key
		}
		_, now := x.state(x.end)[key]
		has = has || now
	}
	return has, had
}

// evolve adds a column or drops one that was added.
func (w *world) evolve(t *wTable) {
	t.schema++
	fields := slices.Clone(t.fields)
	if len(fields) > 4 {
		fields = slices.Delete(fields, 3, 4)
	} else {
		t.nextField++
		fields = append(fields, wField{t.nextField, fmt.Sprintf("c%d", t.nextField), t.schema})
	}
	t.fields, t.schemas[t.schema] = fields, fields
	w.changed()
}

func sortedTables(w *world) []*wTable {
	return slices.SortedFunc(maps.Values(w.tables), func(a, b *wTable) int { return cmp.Compare(a.id, b.id) })
}
