package sinktest

import (
	"context"
	"errors"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

type ctxT = context.Context

// place is how far a worker is: the call that it makes next.
type place int

const (
	atStart place = iota
	atOpen
	atRecover
	atBegin
	atWrite
	atPrepare
	atCommit
	atEnd // everything is written, or the worker was fenced
)

// worker is one of Mink's: it makes one call of the contract at a time.
type worker struct {
	w     *world
	fence mink.LeaseEpoch
	next  place

	s      sink.Sink
	kill   func()
	table  sink.Table
	schema sink.Schema // of the handle

	committed sink.Committed // as the worker knows it
	round     sink.RoundID
	ranges    []sink.Range
	writes    []sink.Range // of the open round, still to do
	staged    []byte
	prepared  bool
	fenced    bool
}

// worker starts none: step does.
func (w *world) worker() *worker {
	w.fences++
	return &worker{w: w, fence: w.fences}
}

// step makes the next call.
func (k *worker) step() {
	k.w.t.Helper()
	if err := k.w.t.Context().Err(); err != nil {
		k.w.t.Fatalf("table %s: the check did not come to its end: %v", k.w.spec.FullName(), err)
	}
	var err error
	at := k.next
	switch at {
	case atStart:
		err = k.start()
	case atOpen:
		err = k.open()
	case atRecover:
		err = k.recover()
	case atBegin:
		err = k.begin()
	case atWrite:
		err = k.write()
	case atPrepare:
		err = k.prepare()
	case atCommit:
		err = k.commit()
	case atEnd:
	}
	if err != nil && !k.w.storm && !k.expected(at, err) {
		k.w.t.Fatalf("table %s, round %s: %v", k.w.spec.FullName(), k.round, err)
	}
	if err != nil && k.next != atEnd {
		k.reopen()
	}
}

// expected says whether a rival may have been the cause: it committed, or with a
// higher fence removed what this worker had.
func (k *worker) expected(at place, err error) bool {
	switch {
	case at < atRecover:
		return false
	case errors.Is(err, sink.ErrNotExist):
		return at == atCommit || at > atBegin && k.fence < k.w.fences
	}
	return errors.Is(err, sink.ErrFenced) || errors.Is(err, sink.ErrConflict)
}

// finish goes on to the end and checks the target.
func (k *worker) finish() {
	k.w.t.Helper()
	for calls := 0; k.next != atEnd; calls++ {
		if calls > 10_000 {
			k.w.t.Fatalf("table %s: a worker alone does not come to an end", k.w.spec.FullName())
		}
		k.step()
	}
	if k.fenced {
		k.w.t.Fatalf("table %s: the worker with fence %d, the highest, was fenced", k.w.spec.FullName(), k.fence)
	}
	if k.s == nil {
		k.must(k.start())
	}
	k.w.check(k.s)
}

// must ends the check at an error.
func (k *worker) must(err error) {
	k.w.t.Helper()
	if err != nil {
		k.w.t.Fatalf("table %s, round %s: %v", k.w.spec.FullName(), k.round, err)
	}
}

func (k *worker) start() error {
	s, kill, err := k.w.target.Start(k.w.t.Context())
	if err != nil {
		return err
	}
	k.s, k.kill, k.next = s, kill, atOpen
	k.w.desc = s.Describe()
	return nil
}

// stop ends the sink in good order.
func (k *worker) stop() {
	k.w.t.Helper()
	if k.table != nil {
		k.must(k.table.Close())
	}
	if k.s != nil {
		k.must(k.s.Close())
		k.kill()
	}
	k.lose()
}

// killed ends the sink without a word. The worker itself lives.
func (k *worker) killed() {
	if k.kill != nil {
		k.kill()
	}
	k.lose()
}

// lose forgets the sink, but not the round: what is prepared may be committed by
// the next one.
func (k *worker) lose() {
	k.s, k.kill, k.table = nil, nil, nil
	if k.next != atEnd {
		k.next = atStart
	}
}

// reopen is what a worker does after any error. A sink that was killed is
// started again.
func (k *worker) reopen() {
	if k.w.storm {
		k.killed()
		return
	}
	if k.table != nil {
		_ = k.table.Close()
		k.table = nil
	}
	k.next = atOpen
}

func (k *worker) open() error {
	table, err := k.s.Open(k.w.t.Context(), sink.OpenRequest{Table: k.w.spec})
	if err != nil {
		return err
	}
	k.table, k.schema, k.next = table, k.w.spec.Schema, atRecover
	if k.prepared {
		k.next = atCommit
	}
	return nil
}

func (k *worker) recover() error {
	resp, err := k.table.Recover(k.w.t.Context(), sink.RecoverRequest{Fence: k.fence})
	if err != nil {
		return k.stopIfFenced(err)
	}
	k.w.recovered(resp.Committed)
	k.committed = resp.Committed
	if resp.Committed.Round == "" && k.w.desc.Delivery != sink.ExactlyOnce {
		k.committed = k.w.model.Clone() // as Mink's metadata have it
	}
	k.next = atBegin
	if len(k.plan()) == 0 {
		k.next = atEnd
	}
	return nil
}

func (k *worker) stopIfFenced(err error) error {
	if errors.Is(err, sink.ErrFenced) {
		if k.fence >= k.w.fences {
			k.w.t.Fatalf("table %s: %v; but no fence above %d was ever shown", k.w.spec.FullName(), err, k.fence)
		}
		k.fenced, k.next = true, atEnd
	}
	return err
}

// plan is the next round: a chunk of every bucket that is not at its goal.
func (k *worker) plan() []sink.Range {
	var ranges []sink.Range
	for _, l := range k.w.logs {
		start, ok := k.committed.Ends[l.ref]
		if !ok {
			start = l.base
		}
		if end := min(start+k.w.chunk, l.base+k.w.goal); end > start {
			ranges = append(ranges, sink.Range{Bucket: l.ref, Start: start, End: end})
		}
	}
	return ranges
}

func (k *worker) begin() error { return k.beginRanges(k.plan()) }

func (k *worker) beginRanges(ranges []sink.Range) error {
	k.ranges, k.writes, k.staged, k.prepared = ranges, nil, nil, false
	k.round = k.w.roundID(k.fence)
	_, err := k.table.BeginRound(k.w.t.Context(), sink.BeginRoundRequest{Round: k.round, Base: k.committed.Round, Fence: k.fence})
	if err != nil {
		return k.stopIfFenced(err)
	}
	for _, r := range ranges {
		k.writes = append(k.writes, k.pieces(r)...)
	}
	k.next = atWrite
	if len(k.writes) == 0 {
		k.next = atPrepare
	}
	return nil
}

// pieces cuts a range where its rows stop following one another, and in the middle.
func (k *worker) pieces(r sink.Range) []sink.Range {
	var pieces []sink.Range
	l, start := k.w.log(r.Bucket), r.Start
	for o := r.Start; o < r.End; o++ {
		if l.at(o).skip || o == r.Start+(r.End-r.Start)/2 || o == r.End-1 {
			pieces = append(pieces, sink.Range{Bucket: r.Bucket, Start: start, End: o + 1})
			start = o + 1
		}
	}
	return pieces
}

func (k *worker) write() error {
	if err := k.writeRange(k.writes[0]); err != nil {
		return err
	}
	if k.writes = k.writes[1:]; len(k.writes) == 0 {
		k.next = atPrepare
	}
	return nil
}

func (k *worker) writeRange(r sink.Range) error {
	l := k.w.log(r.Bucket)
	req := sink.WriteRequest{Bucket: r.Bucket, PartitionValues: l.values, Start: r.Start, End: r.End}
	var entries []entry
	for o := r.Start; o < r.End; o++ {
		if e := l.at(o); !e.skip {
			entries = append(entries, e)
		}
	}
	if l.changes {
		req.Changes = []mink.Change{}
		for _, e := range entries {
			req.Changes = append(req.Changes, e.change)
		}
	}
	batch, err := l.batch(k.w.mem, k.schema.Arrow, entries)
	if err != nil {
		k.w.t.Fatalf("%v", err)
	}
	defer batch.Release()
	req.Batch = batch
	k.w.sent = max(k.w.sent, r.End-l.base)
	k.w.schemas[k.schema.ID] = k.schema
	_, err = k.table.Write(k.w.t.Context(), req)
	return err
}

func (k *worker) prepare() error {
	resp, err := k.table.Prepare(k.w.t.Context(), sink.PrepareRequest{})
	if err != nil {
		return err
	}
	if len(resp.Staged) > sink.StagedBytesMax {
		k.w.t.Fatalf("table %s: %d bytes of staged state, at most %d", k.w.spec.FullName(), len(resp.Staged), sink.StagedBytesMax)
	}
	k.staged, k.prepared, k.next = resp.Staged, true, atCommit
	return nil
}

func (k *worker) request() sink.CommitRequest {
	return sink.CommitRequest{Staged: k.staged, Round: k.round, Base: k.committed.Round, Fence: k.fence, Ranges: k.ranges}
}

func (k *worker) commit() error {
	a := attempt{req: k.request(), schema: k.schema}
	resp, err := k.table.Commit(k.w.t.Context(), a.req)
	k.w.committed(a, resp, err)
	if err == nil {
		k.committed = k.committed.After(a.req, resp.Snapshot)
		k.prepared, k.next = false, atBegin
		if len(k.plan()) == 0 {
			k.next = atEnd
		}
		return nil
	}
	k.prepared = false
	if errors.Is(err, sink.ErrFenced) || errors.Is(err, sink.ErrConflict) {
		_, aborted := k.table.Abort(k.w.t.Context(), sink.AbortRequest{Round: k.round, Staged: k.staged})
		if aborted != nil && !k.w.storm {
			k.w.t.Fatalf("table %s: abort of round %s: %v", k.w.spec.FullName(), k.round, aborted)
		}
	}
	if errors.Is(err, sink.ErrNotExist) && k.w.desc.StagedSurvives && k.w.fences == k.fence {
		k.w.t.Fatalf("table %s: commit of round %s: %v; but the sink declares that staged state survives", k.w.spec.FullName(), k.round, err)
	}
	return k.stopIfFenced(err)
}
