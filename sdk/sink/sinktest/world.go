package sinktest

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// attempt is a commit that was asked for.
type attempt struct {
	req    sink.CommitRequest
	schema sink.Schema // of its rows
	kept   func(entry) bool
}

// world is one table, what its log holds, and what the sink must show of it.
type world struct {
	t      T
	target Target
	mem    memory.Allocator
	desc   sink.Description
	spec   sink.TableSpec
	logs   []*bucketLog
	goal   mink.Offset // how many offsets of each bucket there are to write
	chunk  mink.Offset // how many of them a round takes, at most

	model    sink.Committed                // the last committed round, as far as known
	unknown  []attempt                     // commits that may have happened or may yet
	accepted []attempt                     // in order
	sent     mink.Offset                   // the furthest end of any bucket that was written, above base
	schemas  map[mink.SchemaID]sink.Schema // of all that was written
	fences   mink.LeaseEpoch
	rounds   int
	storm    bool // processes end at any time: any error is possible
}

// tables are numbered through a check's target.
type tableOptions struct {
	id                      mink.TableID
	name                    string
	partitioned, primaryKey bool
	buckets                 int32
}

func newWorld(t T, target Target, o tableOptions) *world {
	t.Helper()
	w := &world{t: t, target: target, mem: newScribbler(), goal: 24, chunk: 12, schemas: map[mink.SchemaID]sink.Schema{}}
	if o.id == 0 {
		o.id = 7
	}
	if o.name == "" {
		o.name = fmt.Sprintf("t%d", o.id)
	}
	o.buckets = max(o.buckets, 1)
	w.spec = sink.TableSpec{ID: o.id, Database: "Kit.db-1", Name: o.name, Schema: plainSchema(o.partitioned), BucketCount: o.buckets, BucketKeys: []string{"id"}}
	values := [][]string{nil}
	if o.partitioned {
		w.spec.PartitionKeys = []string{"region"}
		values = [][]string{{"no/rd"}, {"süd ' \""}}
	}
	if o.primaryKey {
		w.spec.PrimaryKey = []string{"id"}
		if o.partitioned {
			w.spec.PrimaryKey = []string{"id", "region"}
		}
	}
	for p, v := range values {
		for b := range o.buckets {
			ref := mink.BucketRef{Table: o.id, Partition: mink.PartitionID(int(o.id)*10 + p), Index: b}
			w.logs = append(w.logs, &bucketLog{ref: ref, values: v, base: mink.Offset(5 * len(w.logs)), changes: o.primaryKey})
		}
	}
	return w
}

func (w *world) log(ref mink.BucketRef) *bucketLog {
	return w.logs[slices.IndexFunc(w.logs, func(l *bucketLog) bool { return l.ref == ref })]
}

// roundID is a new one.
func (w *world) roundID(fence mink.LeaseEpoch) sink.RoundID {
	w.rounds++
	return sink.RoundID(fmt.Sprintf("%d-%d-%d", w.spec.ID, fence, w.rounds))
}

// recovered checks what Recover answered against what can be.
func (w *world) recovered(c sink.Committed) {
	w.t.Helper()
	if err := c.Validate(); err != nil {
		w.t.Fatalf("table %s: Recover answered what cannot be: %v", w.spec.FullName(), err)
	}
	if w.desc.Delivery != sink.ExactlyOnce && c.Round == "" || sameRound(c, w.model) {
		return
	}
	for _, a := range w.unknown {
		if _, err := w.model.Check(a.req); err == nil && sameRound(c, w.model.After(a.req, "")) {
			w.accept(a, c.Snapshot)
			return
		}
	}
	w.t.Fatalf("table %s: Recover answered round %q to %v, but the last committed round is %q to %v", w.spec.FullName(), c.Round, c.Ends, w.model.Round, w.model.Ends)
}

func sameRound(a, b sink.Committed) bool {
	return a.Round == b.Round && a.Fence == b.Fence && maps.Equal(a.Ends, b.Ends)
}

func (w *world) accept(a attempt, snapshot string) {
	w.model = w.model.After(a.req, snapshot)
	w.accepted = append(w.accepted, a)
}

// committed checks the outcome of a commit.
func (w *world) committed(a attempt, resp sink.CommitResponse, err error) {
	w.t.Helper()
	replay, want := w.model.Check(a.req)
	switch {
	case err == nil && w.desc.Delivery != sink.ExactlyOnce:
		if !replay {
			w.accept(a, resp.Snapshot)
		}
	case err == nil && want != nil:
		w.t.Fatalf("table %s: the sink took the commit of round %s (base %q, fence %d), but: %v", w.spec.FullName(), a.req.Round, a.req.Base, a.req.Fence, want)
	case err == nil && replay:
		if resp.Snapshot != w.model.Snapshot {
			w.t.Errorf("table %s: round %s committed again: snapshot %q, the first time %q", w.spec.FullName(), a.req.Round, resp.Snapshot, w.model.Snapshot)
		}
	case err == nil:
		w.accept(a, resp.Snapshot)
	case errors.Is(err, sink.ErrFenced):
		if a.req.Fence >= w.fences {
			w.t.Fatalf("table %s: commit of round %s: %v; but no fence above %d was ever shown", w.spec.FullName(), a.req.Round, err, a.req.Fence)
		}
	case errors.Is(err, sink.ErrConflict):
		if want == nil && len(w.unknown) == 0 {
			w.t.Fatalf("table %s: commit of round %s: %v; but its base %q is the last committed round", w.spec.FullName(), a.req.Round, err, a.req.Base)
		}
	case errors.Is(err, sink.ErrNotExist): // nothing was committed
	default:
		w.unknown = append(w.unknown, a)
	}
}

// expected are the rows that the target must show, by their text.
func (w *world) expected() map[string]int {
	rows := map[string]int{}
	latest := map[string]string{} // by key
	for _, a := range w.accepted {
		for _, r := range a.req.Ranges {
			w.expectRange(a, r, rows, latest)
		}
	}
	if len(w.spec.PrimaryKey) > 0 && w.desc.Changes == sink.ChangesApplied {
		rows = map[string]int{}
		for _, text := range latest {
			rows[text]++
		}
	}
	return rows
}

func (w *world) expectRange(a attempt, r sink.Range, rows map[string]int, latest map[string]string) {
	l := w.log(r.Bucket)
	var entries []entry
	for o := r.Start; o < r.End; o++ {
		if e := l.at(o); !e.skip && (a.kept == nil || a.kept(e)) {
			entries = append(entries, e)
		}
	}
	batch, err := l.batch(w.mem, a.schema.Arrow, entries)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	defer batch.Release()
	columns := columnsOf(batch.Schema(), w.spec.Schema.Arrow)
	for i, e := range entries {
		text := canonRow(batch, i, columns)
		key := fmt.Sprint(e.key)
		switch e.change {
		case mink.ChangeInsert, mink.ChangeUpdateAfter:
			latest[key] = text
		case mink.ChangeDelete:
			delete(latest, key)
		}
		if l.changes {
			text = e.change.String() + " " + text
		}
		rows[text]++
	}
}

// read answers the rows that a reader of the target sees. s is a living sink.
func (w *world) read(s sink.Sink) map[string]int {
	w.t.Helper()
	read := w.target.Read
	if read == nil {
		r, ok := sink.ReaderOf(s)
		if !ok {
			w.t.Fatalf("nothing reads rows back: the sink is no Reader and the target has no Read")
		}
		read = func(ctx ctxT, spec sink.TableSpec, yield Yield) error {
			return r.Read(ctx, sink.ReadRequest{Table: spec}, yield)
		}
	}
	kept := len(w.spec.PrimaryKey) > 0 && w.desc.Changes == sink.ChangesKept
	rows := map[string]int{}
	err := read(w.t.Context(), w.spec, func(batch arrow.RecordBatch, changes []mink.Change) bool {
		columns := columnsOf(batch.Schema(), w.spec.Schema.Arrow)
		for i := range int(batch.NumRows()) {
			text := canonRow(batch, i, columns)
			if kept {
				if i >= len(changes) {
					w.t.Fatalf("table %s: the reader has no kind for row %d of %d", w.spec.FullName(), i, batch.NumRows())
				}
				text = changes[i].String() + " " + text
			}
			rows[text]++
		}
		return true
	})
	if err != nil {
		w.t.Fatalf("read table %s back: %v", w.spec.FullName(), err)
	}
	return rows
}

// check compares the target with what was committed.
func (w *world) check(s sink.Sink) {
	w.t.Helper()
	w.compare(w.read(s), w.expected())
}

func (w *world) compare(got, want map[string]int) {
	w.t.Helper()
	applied := len(w.spec.PrimaryKey) > 0 && w.desc.Changes == sink.ChangesApplied
	var missing, doubled, foreign []string
	for text, n := range want {
		switch {
		case got[text] < n:
			missing = append(missing, text)
		case got[text] > n && (w.desc.Delivery == sink.ExactlyOnce || applied):
			doubled = append(doubled, text)
		}
	}
	for text := range got {
		if want[text] == 0 && (w.desc.Delivery == sink.ExactlyOnce || applied || !w.wasSent(text)) {
			foreign = append(foreign, text)
		}
	}
	if len(missing)+len(doubled)+len(foreign) > 0 {
		w.t.Fatalf("table %s: %d rows are missing, %d are there more than once, %d were never committed%s%s%s",
			w.spec.FullName(), len(missing), len(doubled), len(foreign), some("missing", missing), some("more than once", doubled), some("never committed", foreign))
	}
}

// wasSent says whether a row was ever written, committed or not.
func (w *world) wasSent(text string) bool {
	rows := map[string]int{}
	for _, l := range w.logs {
		for _, schema := range w.schemas {
			w.expectRange(attempt{schema: schema}, sink.Range{Bucket: l.ref, Start: l.base, End: l.base + w.sent}, rows, map[string]string{})
		}
	}
	return rows[text] > 0
}

func some(what string, rows []string) string {
	if len(rows) == 0 {
		return ""
	}
	slices.Sort(rows)
	return fmt.Sprintf("\n%s: %.300s", what, rows[0])
}
