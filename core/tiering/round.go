package tiering

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// ErrLeaseLost ends what was begun under a lease that is another node's now: no
// failure of the table.
var ErrLeaseLost = errors.New("the coordinator lease was lost")

// errSilent is the cause of the end of a round that showed no progress.
var errSilent = errors.New("no progress")

// unresolved is a commit whose outcome is not known, or that is to be tried again:
// nothing of it may be removed, and no other round be begun, until the sink says.
type unresolved struct{ req sink.CommitRequest }

// attempt is one worker's hold on one target, from Open to Close. It makes at most one round.
type attempt struct {
	t      *Tiering
	target Target
	lease  mink.LeaseEpoch
	sink   sink.Sink
	now    time.Time // when it began

	requested bool
	full      time.Time // see Job.due
	last      time.Time
	after     mink.BucketRef // see Job.plan
	held      *unresolved    // of an earlier attempt; what is left of it goes back to the entry

	table     sink.Table
	view      View
	job       Job
	schema    sink.Schema
	committed sink.Committed // as of recover
	out       outcome

	// progress is what others look at while the attempt runs.
	progress struct {
		sync.Mutex
		at    time.Time
		round sink.RoundID
		step  string
		rows  int64
	}
}

// outcome is what an attempt did.
type outcome struct {
	round sink.RoundID // "": none was committed
	gone  bool         // the target is no more
	all   bool         // every bucket had its turn
	cut   bool         // there is more, for the next round at once
	after mink.BucketRef
	rows  int64
	bytes int64

	kept     UpkeepDone
	noUpkeep bool // the sink has none
}

// step says where the attempt is, and shows that it lives.
func (a *attempt) step(name string) {
	a.progress.Lock()
	defer a.progress.Unlock()
	a.progress.at, a.progress.step = time.Now(), name
}

// lives shows that a call of the sink goes on.
func (a *attempt) lives() {
	a.progress.Lock()
	defer a.progress.Unlock()
	a.progress.at = time.Now()
}

// fence is what the sink tells two workers apart by.
func (a *attempt) fence() mink.LeaseEpoch { return a.view.SinkFence(a.lease) }

// holds checks that the lease of the attempt is this node's still.
func (a *attempt) holds(ctx context.Context) error {
	if a.t.faults.noLeaseCheck {
		return nil
	}
	if epoch, held := a.t.deps.Meta.Lease(); !held || epoch != a.lease {
		return ErrLeaseLost
	}
	return ctx.Err()
}

// run makes a round, if there is something to do.
func (a *attempt) run(ctx context.Context) error {
	ctx = sink.WithProgress(ctx, a.lives)
	if err := a.look(); err != nil || a.out.gone {
		return err
	}
	if due, _ := a.job.due(a.now, a.full, a.last, a.requested, a.t.cfg.DueBytes); !due && a.held == nil {
		return nil
	}
	if err := a.open(ctx); err != nil {
		return err
	}
	defer a.close()
	starts, base, err := a.recover(ctx)
	if err != nil || a.out.gone {
		return err
	}
	_, all := a.job.due(a.now, a.full, a.last, a.requested, a.t.cfg.DueBytes)
	splits, err := a.job.plan(starts, func(b Bucket) bool { return all || hurries(b, a.t.cfg.DueBytes) }, a.after)
	if err != nil {
		return err
	}
	a.out.all = all
	if len(splits) == 0 {
		return nil
	}
	return a.round(ctx, base, splits)
}

// look takes the newest view.
func (a *attempt) look() error {
	a.view = a.t.deps.Meta.View()
	job, ok := a.view.Job(a.target)
	if !ok {
		a.out.gone = true
		return nil
	}
	for d := range a.view.Dropped() {
		if d.Target.Sink == a.target.Sink && d.Spec.FullName() == job.Name && d.Target.Table != a.target.Table && !a.t.removed(d.Target) {
			return fmt.Errorf("table %s: a dropped table of this name (id %d) is still at the sink: %w", job.Name, d.Target.Table, mink.ErrUnavailable)
		}
	}
	if job.Stopped != "" {
		return fmt.Errorf("table %s: %s: %w", job.Name, job.Stopped, ErrStopped)
	}
	a.job = job
	return nil
}

func (a *attempt) open(ctx context.Context) error {
	spec, err := a.view.Spec(a.target)
	if err != nil {
		return err
	}
	if err := a.holds(ctx); err != nil {
		return err
	}
	a.step("open")
	a.schema = spec.Schema
	if a.table, err = a.sink.Open(ctx, sink.OpenRequest{Table: spec}); err != nil {
		return fmt.Errorf("open %s: %w", a.job.Name, err)
	}
	return nil
}

func (a *attempt) close() {
	if err := a.table.Close(); err != nil {
		a.t.logger.Warn("a sink's handle was not closed", "table", a.job.Name, "sink", a.target.Sink, "error", err)
	}
}

// recover finds out what the sink has, settles what an earlier attempt left open, and records
// what is not recorded. It answers where each bucket goes on and the base of the next round.
func (a *attempt) recover(ctx context.Context) (map[mink.BucketRef]mink.Offset, sink.RoundID, error) {
	if a.sink.Describe().Delivery != sink.ExactlyOnce {
		return a.recorded(ctx)
	}
	committed, err := a.ask(ctx)
	if err != nil {
		return nil, "", err
	}
	if a.held != nil {
		if committed, err = a.settle(ctx, committed); err != nil {
			return nil, "", err
		}
	}
	for recorded := false; ; recorded = true {
		// The view is taken after the sink has answered: it is not older than what the
		// node knew when the last round was committed here.
		if err := a.look(); err != nil || a.out.gone {
			return nil, "", err
		}
		starts, propose, err := a.job.reconcile(committed, a.t.faults)
		switch {
		case err != nil:
			return nil, "", err
		case !propose:
			a.committed = committed
			return starts, committed.Round, a.follow(ctx)
		case recorded:
			return nil, "", fmt.Errorf("table %s: round %s was recorded, and this node's view has round %s: %w", a.job.Name, committed.Round, a.job.Round, mink.ErrUnavailable)
		}
		// All ends: the view may be older than the round's, and lack partitions that it names.
		if err := a.record(ctx, committed.Round, committed.Snapshot, committed.Ends); err != nil || a.out.gone {
			return nil, "", err
		}
	}
}

// recorded is recover for a sink that keeps no round: the metadata have the only offsets.
func (a *attempt) recorded(ctx context.Context) (map[mink.BucketRef]mink.Offset, sink.RoundID, error) {
	if _, err := a.ask(ctx); err != nil {
		return nil, "", err
	}
	if err := a.look(); err != nil || a.out.gone {
		return nil, "", err
	}
	a.held = nil
	starts := make(map[mink.BucketRef]mink.Offset, len(a.job.Buckets))
	for _, b := range a.job.Buckets {
		starts[b.Ref] = b.Tiered
	}
	return starts, a.job.Round, a.follow(ctx)
}

func (a *attempt) ask(ctx context.Context) (sink.Committed, error) {
	a.step("recover")
	resp, err := a.table.Recover(ctx, sink.RecoverRequest{Fence: a.fence()})
	if err != nil {
		return sink.Committed{}, fmt.Errorf("recover %s: %w", a.job.Name, err)
	}
	if err := resp.Committed.Validate(); err != nil {
		return sink.Committed{}, fmt.Errorf("recover %s: %w: %w", a.job.Name, sink.ErrCorrupt, err)
	}
	return resp.Committed, nil
}

// settle ends the uncertainty about a commit:
//
//	last round of the sink   then
//	the commit's             it happened
//	the commit's base        it may happen yet: it is asked for again
//	another                  it can never happen: what is staged goes
func (a *attempt) settle(ctx context.Context, committed sink.Committed) (sink.Committed, error) {
	req := a.held.req
	switch committed.Round {
	case req.Round:
		a.held = nil
		a.out.round = req.Round
		return committed, nil
	case req.Base:
		resp, err := a.commit(ctx, req)
		if err != nil {
			return committed, err
		}
		a.out.round = req.Round
		return committed.After(req, resp.Snapshot), nil
	}
	return committed, a.abort(ctx, req)
}

// follow gives the handle the newest schema: the splits' rows have it.
func (a *attempt) follow(ctx context.Context) error {
	if a.job.Schema == a.schema.ID {
		return nil
	}
	spec, err := a.view.Spec(a.target)
	if err != nil {
		return err
	}
	a.step("schema change")
	if _, err := a.table.SchemaChange(ctx, sink.SchemaChangeRequest{Schema: spec.Schema}); err != nil {
		return fmt.Errorf("schema %d of %s: %w", spec.Schema.ID, a.job.Name, err)
	}
	a.schema = spec.Schema
	return nil
}

// record proposes a round that the sink has.
func (a *attempt) record(ctx context.Context, round sink.RoundID, snapshot string, ends map[mink.BucketRef]mink.Offset) error {
	if err := a.holds(ctx); err != nil {
		return err
	}
	a.step("record")
	err := a.t.deps.Meta.CommitRound(ctx, Round{Target: a.target, Lease: a.lease, Round: round, Base: a.job.Round, Snapshot: snapshot, Ends: ends})
	if errors.Is(err, mink.ErrNotExist) {
		a.out.gone = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("record round %s of %s: %w", round, a.job.Name, err)
	}
	a.out.round = round
	return nil
}

// round writes the splits, commits and records them.
func (a *attempt) round(ctx context.Context, base sink.RoundID, splits []split) error {
	if err := a.holds(ctx); err != nil {
		return err
	}
	round := newRoundID(a.lease)
	a.progress.Lock()
	a.progress.round = round
	a.progress.Unlock()
	a.step("begin")
	if _, err := a.table.BeginRound(ctx, sink.BeginRoundRequest{Round: round, Base: base, Fence: a.fence()}); err != nil {
		return fmt.Errorf("begin round %s of %s: %w", round, a.job.Name, err)
	}
	req := sink.CommitRequest{Round: round, Base: base, Fence: a.fence()}
	for i, s := range splits {
		end, err := a.write(ctx, s)
		if err != nil {
			return fmt.Errorf("round %s of %s, bucket %s from offset %d: %w", round, a.job.Name, s.bucket.Ref, s.from, err)
		}
		if a.t.faults.cutToEnd {
			end = s.to
		}
		if end == s.from {
			a.out.cut = true
			continue
		}
		req.Ranges = append(req.Ranges, sink.Range{Bucket: s.bucket.Ref, Start: s.from, End: end})
		full := a.isFull()
		if end < s.to || full && i+1 < len(splits) {
			a.out.cut, a.out.after = true, s.bucket.Ref
		}
		if full {
			break
		}
	}
	if len(req.Ranges) == 0 {
		return fmt.Errorf("round %s of %s: what was to be written is trimmed, or its KV snapshots are newer than this view of the metadata: %w", round, a.job.Name, mink.ErrUnavailable)
	}
	a.step("prepare")
	resp, err := a.table.Prepare(ctx, sink.PrepareRequest{})
	if err != nil {
		return fmt.Errorf("prepare round %s of %s: %w", round, a.job.Name, err)
	}
	req.Staged = resp.Staged
	if err := a.holds(ctx); err != nil {
		a.giveUp(ctx, req)
		return err
	}
	ends := make(map[mink.BucketRef]mink.Offset, len(req.Ranges))
	for _, r := range req.Ranges {
		ends[r.Bucket] = r.End
	}
	if a.t.faults.recordFirst {
		if err := a.record(ctx, round, "", ends); err != nil {
			return err
		}
	}
	done, err := a.commit(ctx, req)
	if err != nil {
		return err
	}
	a.out.round = round
	return a.record(ctx, round, done.Snapshot, ends)
}

// commit asks for a commit and sorts what came of it: afterwards held says whether it may
// have happened.
func (a *attempt) commit(ctx context.Context, req sink.CommitRequest) (sink.CommitResponse, error) {
	if err := a.holds(ctx); err != nil {
		return sink.CommitResponse{}, err
	}
	a.step("commit")
	a.held = &unresolved{req}
	resp, err := a.table.Commit(ctx, req)
	if err == nil {
		a.held = nil
		return resp, nil
	}
	err = fmt.Errorf("commit round %s of %s: %w", req.Round, a.job.Name, err)
	switch {
	case errors.Is(err, sink.ErrUnknownOutcome):
		if a.t.faults.abortUnknown {
			return resp, errors.Join(err, a.abort(ctx, req))
		}
	case errors.Is(err, sink.ErrNotExist):
		a.held = nil // nothing was committed, and nothing is left to commit
	case errors.Is(err, sink.ErrConflict), errors.Is(err, sink.ErrFenced), errors.Is(err, sink.ErrInvalid):
		return resp, errors.Join(err, a.abort(ctx, req))
	}
	return resp, err
}

// abort removes what is staged of a round that can never be committed.
func (a *attempt) abort(ctx context.Context, req sink.CommitRequest) error {
	a.held = nil
	a.step("abort")
	if _, err := a.table.Abort(ctx, sink.AbortRequest{Round: req.Round, Staged: req.Staged}); err != nil {
		return fmt.Errorf("abort round %s of %s: %w", req.Round, a.job.Name, err)
	}
	return nil
}

// giveUpTimeout bounds what a worker does after its lease is lost.
const giveUpTimeout = 5 * time.Second

// giveUp aborts a round that was never asked to be committed. That it cannot is the next
// holder's business, who finds nothing committed.
func (a *attempt) giveUp(ctx context.Context, req sink.CommitRequest) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpTimeout)
	defer cancel()
	if err := a.abort(ctx, req); err != nil {
		a.t.logger.Debug("staged state of a round that was given up is left to the sink", "error", err)
	}
}

// isFull: the round is to be cut.
func (a *attempt) isFull() bool {
	return a.out.bytes >= a.t.cfg.RoundBytes || time.Since(a.now) >= max(2*a.job.Freshness, roundTimeMin)
}

// roundTimeMin keeps a round of a table with a short freshness worth its commit.
const roundTimeMin = 10 * time.Second

// write writes one split and answers how far it came.
func (a *attempt) write(ctx context.Context, s split) (mink.Offset, error) {
	if s.snapshot {
		return a.writeSnapshot(ctx, s)
	}
	at := s.from
	if s.trimmed > at && !a.t.faults.noGap {
		if err := a.writeRows(ctx, s, Rows{Start: at, End: s.trimmed}, false); err != nil {
			return 0, err
		}
	}
	at = s.trimmed
	for rows, err := range a.t.deps.Source.ReadLog(ctx, a.view, s.bucket.Ref, at, s.to) {
		if gone := (*mink.OutOfRangeError)(nil); errors.As(err, &gone) && gone.Start > at {
			return at, nil // trimmed meanwhile: the round has what came before, the next one looks at the gaps
		}
		if err != nil {
			return 0, err
		}
		if rows.Start != at || rows.End < rows.Start || rows.End > s.to {
			return 0, fmt.Errorf("the log answers offsets [%d, %d) of [%d, %d): %w", rows.Start, rows.End, at, s.to, mink.ErrCorrupt)
		}
		if err := a.writeRows(ctx, s, rows, false); err != nil {
			return 0, err
		}
		if at = rows.End; a.isFull() {
			return at, nil
		}
	}
	if a.t.faults.skipTail {
		return s.to, nil
	}
	if at != s.to {
		return 0, fmt.Errorf("the log answers no offsets from %d to its end, %d: %w", at, s.to, mink.ErrUnavailable)
	}
	return at, nil
}

// stepRestore: a KV snapshot is brought from the store before its first row can be read.
const stepRestore = "restore"

// writeSnapshot writes what a primary-key bucket held. The first batch has the offsets,
// the others [at, at): the ranges of a bucket follow one another.
func (a *attempt) writeSnapshot(ctx context.Context, s split) (mink.Offset, error) {
	a.step(stepRestore)
	at, seq, err := a.t.deps.Source.ReadKVSnapshot(ctx, a.view, s.bucket.Ref)
	if err != nil {
		return 0, err
	}
	from := s.from
	for rows, err := range seq {
		if err != nil {
			return 0, err
		}
		if at <= s.from || at > s.to {
			break // before a row is written; the rows are to be ranged over
		}
		rows.Start, rows.End = from, at
		if s.bucket.Remade { // written as changes, at any of the offsets: a snapshot has inserts only
			if rows.End = from + mink.Offset(rows.Batch.NumRows()); rows.End > at {
				return 0, fmt.Errorf("a KV snapshot at offset %d has more rows than changes: %w", at, mink.ErrCorrupt)
			}
		}
		if rows.Changes == nil {
			rows.Changes = inserts(int(rows.Batch.NumRows()))
		}
		if err := a.writeRows(ctx, s, rows, !s.bucket.Remade); err != nil {
			return 0, err
		}
		from = rows.End
	}
	switch {
	case at <= s.from:
		return 0, fmt.Errorf("a KV snapshot at offset %d of a log that is to be tiered from %d: %w", at, s.from, mink.ErrCorrupt)
	case at > s.to:
		return s.from, nil // newer than the view: the bucket is the next round's
	}
	if from != at { // it held nothing, or fewer rows than offsets
		if err := a.writeRows(ctx, s, Rows{Changes: []mink.Change{}, Start: from, End: at}, !s.bucket.Remade); err != nil {
			return 0, err
		}
	}
	return at, nil
}

func inserts(n int) []mink.Change {
	c := make([]mink.Change, n)
	for i := range c {
		c[i] = mink.ChangeInsert
	}
	return c
}

// asUpdates makes updates of inserts: the sink then looks for an older row of the key.
func asUpdates(changes []mink.Change) []mink.Change {
	out := slices.Clone(changes)
	for i, c := range out {
		if c == mink.ChangeInsert {
			out[i] = mink.ChangeUpdateAfter
		}
	}
	return out
}

// writeRows hands rows over, in batches that the contract allows; without a batch, only
// offsets.
func (a *attempt) writeRows(ctx context.Context, s split, rows Rows, snapshot bool) error {
	if rows.Batch == nil {
		empty := emptyBatch(a.schema.Arrow)
		defer empty.Release()
		rows.Batch = empty
	}
	if a.job.Keyed && rows.Changes == nil {
		rows.Changes = inserts(int(rows.Batch.NumRows()))
	}
	if s.bucket.Remade && !a.t.faults.insertRemade {
		rows.Changes = asUpdates(rows.Changes)
	}
	n := rows.Batch.NumRows()
	size := bytesOf(rows.Batch)
	a.out.rows += n
	a.out.bytes += size
	pieces := max(1, (n+sink.BatchRowsMax-1)/sink.BatchRowsMax, (size+batchBytes-1)/batchBytes)
	per := max(1, (n+pieces-1)/pieces)
	for i := int64(0); i == 0 || i < n; i += per {
		to := min(i+per, n)
		req := sink.WriteRequest{Bucket: s.bucket.Ref, PartitionValues: s.bucket.Partition, Start: rows.Start, End: rows.End, Snapshot: snapshot}
		if rows.Changes != nil {
			req.Changes = rows.Changes[i:to]
		}
		switch {
		case snapshot && i > 0:
			req.Start = rows.End
		case !snapshot:
			req.Start = rows.Start + mink.Offset(i)
			if to < n {
				req.End = rows.Start + mink.Offset(to)
			}
		}
		if err := a.writeBatch(ctx, req, rows.Batch, i, to); err != nil {
			return err
		}
	}
	return nil
}

// batchBytes keeps a batch well below sink.BatchBytesMax, as its rows differ in size.
const batchBytes = sink.BatchBytesMax / 4

func (a *attempt) writeBatch(ctx context.Context, req sink.WriteRequest, batch arrow.RecordBatch, from, to int64) error {
	if from > 0 || to < batch.NumRows() {
		batch = batch.NewSlice(from, to)
		defer batch.Release()
	}
	req.Batch = batch
	a.step("write")
	if _, err := a.table.Write(ctx, req); err != nil {
		return err
	}
	a.progress.Lock()
	a.progress.rows += to - from
	a.progress.Unlock()
	return nil
}

func emptyBatch(s *arrow.Schema) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	return b.NewRecordBatch()
}

// newRoundID is never used again: it is 128 bits at random behind the fence, for people.
func newRoundID(lease mink.LeaseEpoch) sink.RoundID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand
	return sink.RoundID(fmt.Sprintf("%d-%x", lease, b))
}
