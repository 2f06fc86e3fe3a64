package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/internal/invariant"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// uploadWidth is how many objects one upload writes at a time.
const uploadWidth = 4

// putTries is how often one object is put before the whole job fails and is
// made anew, under a new object id.
const putTries = 4

// uploadState belongs to the holder of turn: one upload runs at a time, so that
// no two commits are planned on the same view.
type uploadState struct {
	turn      chan struct{}
	commitSeq uint64         // last accepted
	pending   *pendingCommit // sent, outcome unknown
	slotsGone uint64         // own slots below are deleted, in slotsLeft, or left to CleanNow
	slotsLeft []string       // keys of own slots that could not be deleted
	trims     []seenTrim     // of the own log, oldest first; their slots are not deleted yet
	objectSeq atomic.Uint64  // last object id given out; shared with compaction
}

// seenTrim is the own log's trim as the view at index showed it.
type seenTrim struct{ index, trim uint64 }

// trimsMax bounds the trims that wait for the log to be remembered: more are
// merged into the last one, whose slots then stay a little longer.
const trimsMax = 64

// pendingCommit is a command and the bulks that it covers.
type pendingCommit struct {
	command plan.CommitObjects
	bulks   int
}

// UploadNow turns every bulk that is acknowledged when it begins into stream
// objects, commits them, trims the WAL, and carries out held trims. With nothing
// to do it makes no request. A failed step changes nothing and is made anew by
// the next call.
func (e *Engine) UploadNow(ctx context.Context) error {
	select {
	case e.uploads.turn <- struct{}{}:
		defer func() { <-e.uploads.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	last := e.lastAcked() // under load there is always a newer one
	for more := true; more; {
		if err := e.failure(); err != nil && !errors.Is(err, errStopped) {
			return err
		}
		if e.uploads.pending == nil {
			p, err := e.prepareUpload(ctx)
			if err != nil {
				return fmt.Errorf("upload: %w", err)
			}
			e.uploads.pending = p
		}
		if e.uploads.pending == nil {
			break
		}
		if err := e.commitUpload(ctx); err != nil {
			return err
		}
		e.queue.Lock()
		more = len(e.queue.acked) > 0 && e.queue.acked[0].seq <= last
		e.queue.Unlock()
	}
	return errors.Join(e.flushTrims(ctx), e.deleteSlots(ctx))
}

func (e *Engine) lastAcked() (seq uint64) {
	e.queue.Lock()
	defer e.queue.Unlock()
	if n := len(e.queue.acked); n > 0 {
		seq = e.queue.acked[n-1].seq
	}
	return seq
}

// part is what one upload holds of one stream.
type part struct {
	stream *Stream
	view   plan.Stream
	runs   []segment
	bytes  int64
}

// prepareUpload builds and writes the objects of the oldest acknowledged bulks;
// nil when there is nothing to commit.
func (e *Engine) prepareUpload(ctx context.Context) (*pendingCommit, error) {
	bulks := e.takeAcked()
	view := e.deps.Meta.View()
	parts := e.partition(view, bulks)
	check := e.heldForCheckpoint(view, parts)
	if len(bulks) == 0 && len(check) == 0 {
		return nil, nil
	}
	p := &pendingCommit{bulks: len(bulks)}
	p.command = plan.CommitObjects{WAL: e.deps.WAL, Seq: e.uploads.commitSeq + 1}
	if w, ok := view.WAL(e.deps.WAL.Epoch); ok {
		p.command.WALTrim = w.Trim
	}
	if n := len(bulks); n > 0 {
		// Every record below is in a named object or its stream is not ours to keep.
		p.command.WALTrim = bulks[n-1].seq + 1
	}
	var jobs []*uploadJob
	shared := &uploadJob{kind: plan.KindStreamSet}
	for _, pt := range append(parts, check...) {
		if pt.bytes >= e.cfg.StreamObjectBytes {
			jobs = append(jobs, &uploadJob{kind: plan.KindStream, parts: []part{pt}})
		} else {
			shared.parts = append(shared.parts, pt)
		}
	}
	if len(shared.parts) > 0 {
		slices.SortFunc(shared.parts, func(a, b part) int { return cmp.Compare(a.view.ID, b.view.ID) })
		jobs = append(jobs, shared)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(uploadWidth)
	for _, j := range jobs {
		g.Go(func() error { return e.writeUpload(gctx, j) })
	}
	if err := g.Wait(); err != nil {
		for _, j := range jobs { // written or not, under ids that are never used again
			if !j.object.ID.IsZero() {
				e.abandon([]plan.Object{j.object})
			}
		}
		return nil, err
	}
	for _, j := range jobs {
		if !j.object.ID.IsZero() {
			p.command.Objects = append(p.command.Objects, j.object)
			p.command.Items = append(p.command.Items, j.items...)
		}
	}
	if len(bulks) == 0 && len(p.command.Objects) == 0 {
		return nil, nil
	}
	return p, nil
}

// takeAcked answers the oldest acknowledged bulks, about UploadBytes of them.
// They stay in the queue until their commit is applied.
func (e *Engine) takeAcked() []*bulk {
	e.queue.Lock()
	defer e.queue.Unlock()
	size := int64(0)
	for i, b := range e.queue.acked {
		if size += b.payload; size >= e.cfg.UploadBytes {
			return slices.Clone(e.queue.acked[:i+1])
		}
	}
	return slices.Clone(e.queue.acked)
}

// partition gathers each stream's runs that metadata does not have yet. Streams
// that are gone or that another leadership owns are left out: whoever took a
// stream over took its records over too.
func (e *Engine) partition(view View, bulks []*bulk) []part {
	pos := map[*Stream]int{}
	var parts []part
	for _, b := range bulks {
		for i := range b.runs {
			r := &b.runs[i]
			k, seen := pos[r.stream]
			if !seen {
				v, ok := view.Stream(r.id)
				me := plan.Owner{Node: e.deps.WAL.Node, NodeEpoch: e.deps.WAL.Epoch, LeaderEpoch: r.epoch}
				if k = len(parts); !ok || v.Owner != me {
					k = -1
				} else {
					parts = append(parts, part{stream: r.stream, view: v})
				}
				pos[r.stream] = k
			}
			if k < 0 || r.end <= parts[k].view.End {
				continue
			}
			parts[k].runs = append(parts[k].runs, segment{bulk: b, run: i})
			parts[k].bytes += r.frameBytes
		}
	}
	return slices.DeleteFunc(parts, func(p part) bool { return len(p.runs) == 0 })
}

// heldForCheckpoint answers the streams whose trim or rewrite waits for a checkpoint
// that no record of this upload brings about.
func (e *Engine) heldForCheckpoint(view View, parts []part) []part {
	if e.deps.Folder == nil {
		return nil
	}
	busy := map[*Stream]bool{}
	for _, p := range parts {
		busy[p.stream] = true
	}
	var out []part
	for _, s := range e.openStreams() {
		want := mink.Offset(max(s.trimTo.Load(), s.checkTo.Load()))
		if want <= s.Start() || busy[s] {
			continue
		}
		v, ok := view.Stream(s.id)
		if ok && v.Owner.LeaderEpoch == s.epoch && v.Owner.NodeEpoch == e.deps.WAL.Epoch && min(want, v.End) > e.trimLimit(v) {
			out = append(out, part{stream: s, view: v})
		}
	}
	return out
}

func (e *Engine) openStreams() []*Stream {
	e.app.Lock()
	defer e.app.Unlock()
	out := make([]*Stream, 0, len(e.app.streams))
	for _, s := range e.app.streams {
		out = append(out, s)
	}
	return out
}

// uploadJob is one object.
type uploadJob struct {
	kind   plan.ObjectKind
	parts  []part // by stream id
	object plan.Object
	items  []plan.Item
}

func (e *Engine) writeUpload(ctx context.Context, j *uploadJob) error {
	b := object.NewBuilder(len(j.parts))
	var alone []plan.Item // checkpoints without records
	for i := range j.parts {
		p := &j.parts[i]
		end := p.view.End
		for _, g := range p.runs {
			r := g.r()
			for k := r.first; k < r.first+r.n; k++ {
				f := g.bulk.frame(k, r.epoch)
				if f.Start < p.view.End {
					continue
				}
				if err := b.AddFrame(p.view.ID, &f); err != nil {
					return err
				}
				end = f.End()
			}
		}
		ok, err := e.addCheckpoint(ctx, b, p, end)
		if err != nil {
			return err
		}
		if ok && len(p.runs) == 0 {
			alone = append(alone, plan.Item{Stream: p.view.ID, LeaderEpoch: p.stream.epoch, Start: end, End: end, Checkpoint: true})
		}
	}
	if b.Len() == 0 && len(alone) == 0 {
		return nil // a checkpoint that could not be made now
	}
	seq := e.uploads.objectSeq.Add(1)
	chunks, sum, err := b.Finish(e.header(j.kind, seq))
	if err != nil {
		return err
	}
	// Small frames were copied: as much again as tiny records take.
	own := sum.Size - b.Referred()
	e.account(own)
	defer e.account(-own)
	j.object, j.items = sum.Object(0), sum.Items()
	for _, it := range alone {
		it.Object = j.object.ID
		j.items = append(j.items, it)
	}
	return e.putObject(ctx, j.object, chunks, sum.CRC)
}

// addCheckpoint folds the stream's log up to end. A stream that is closed, or
// whose fold fails, is uploaded without: its next checkpoint comes later.
func (e *Engine) addCheckpoint(ctx context.Context, b *object.Builder, p *part, end mink.Offset) (bool, error) {
	if e.deps.Folder == nil {
		return false, nil
	}
	data, ok, err := p.stream.foldTo(ctx, end)
	if err != nil {
		if ctx.Err() != nil {
			return false, err
		}
		if !errors.Is(err, mink.ErrClosed) {
			e.log.Warn("no checkpoint in this upload", "stream", p.view.ID, "err", err)
		}
		return false, nil
	}
	if !ok {
		return false, nil
	}
	return true, b.AddCheckpoint(p.view.ID, end, data)
}

// putObject writes one stream object; its id belongs to these bytes alone, so
// that a late attempt writes what is there already.
func (e *Engine) putObject(ctx context.Context, o plan.Object, chunks [][]byte, crc uint32) error {
	req := objstore.PutRequest{Key: o.Key(), Chunks: chunks, CRC32C: crc, HasCRC32C: true}
	err := e.retryWrite(ctx, func() error {
		_, err := e.deps.Objects.Put(ctx, req)
		return err
	})
	if err != nil {
		return fmt.Errorf("put object %s, %d bytes: %w", o.Key(), o.Size, classify(err))
	}
	e.stats.puts.Add(1)
	e.stats.putBytes.Add(o.Size)
	return nil
}

// retryWrite makes putTries attempts at a write that may be repeated.
func (e *Engine) retryWrite(ctx context.Context, write func() error) error {
	pause := e.cfg.RetryMin
	for try := 1; ; try++ {
		err := write()
		if err == nil || ctx.Err() != nil || try == putTries || errors.Is(err, objstore.ErrInvalid) || errors.Is(err, objstore.ErrNotExist) {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, e.cfg.RetryMax)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refused reports that apply, not the way to it, said no.
func refused(err error) bool {
	for _, class := range []error{mink.ErrConflict, mink.ErrInvalid, mink.ErrNotExist, mink.ErrExists, mink.ErrUnsupported, mink.ErrTooLarge} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

// commitUpload proposes the pending command until its fate is known. Ownership
// never refuses it (apply skips such items): any refusal means that this node's
// idea of its log is wrong, and the epoch is given up.
func (e *Engine) commitUpload(ctx context.Context) error {
	p := e.uploads.pending
	err := e.deps.Meta.CommitObjects(ctx, p.command)
	switch {
	case err == nil:
	case errors.Is(err, mink.ErrFenced):
		e.fail(fmt.Errorf("commit %d of wal %s: %w", p.command.Seq, e.deps.WAL, err))
		return err
	case refused(err):
		e.fail(fmt.Errorf("commit %d of wal %s was refused, the epoch is given up: %w", p.command.Seq, e.deps.WAL, err))
		return err
	default:
		// It may have been applied: the same command is proposed again, before
		// anything else.
		return fmt.Errorf("commit %d of wal %s: %w", p.command.Seq, e.deps.WAL, err)
	}
	e.uploads.pending = nil
	e.uploads.commitSeq = p.command.Seq
	e.uploaded(p.bulks)
	return nil
}

// uploaded lets go of the n oldest acknowledged bulks: they stay cached until
// room is needed.
func (e *Engine) uploaded(n int) {
	e.queue.Lock()
	invariant.Check(n <= len(e.queue.acked), "%d bulks uploaded of %d", n, len(e.queue.acked))
	done := slices.Clone(e.queue.acked[:n])
	e.queue.acked = slices.Delete(e.queue.acked, 0, n)
	e.queue.evictable = append(e.queue.evictable, done...)
	e.queue.Unlock()
	e.app.Lock()
	for _, b := range done {
		e.app.pinned -= b.mem
		for i := range b.runs {
			s := b.runs[i].stream
			if s.app.pinned -= b.runs[i].bytes; s.app.pinned == 0 && e.app.closing[s.id] == s {
				delete(e.app.closing, s.id)
			}
		}
	}
	e.app.Unlock()
	e.evict()
}

// deleteSlots removes own WAL slots below the committed trim that no range
// names or has named: those are destroyed by metadata, now or later, and deleted
// by CleanNow when their grace is over. A trim counts once the log is remembered up
// to it.
func (e *Engine) deleteSlots(ctx context.Context) error {
	view := e.deps.Meta.View()
	w, ok := view.WAL(e.deps.WAL.Epoch)
	if !ok {
		return nil
	}
	below, err := e.rememberedTrim(ctx, view.Index(), w.Trim)
	if err != nil || below <= e.uploads.slotsGone && len(e.uploads.slotsLeft) == 0 {
		return err
	}
	destroyed := map[plan.ObjectID]bool{}
	for d := range view.Destroyed() {
		if id := d.Object.ID; id.Kind == plan.KindWAL && id.Epoch == w.ID.Epoch {
			destroyed[id] = true
		}
	}
	keys := e.uploads.slotsLeft
	for seq := e.uploads.slotsGone; seq < below; seq++ {
		id := plan.ObjectID{Epoch: w.ID.Epoch, Kind: plan.KindWAL, Seq: seq}
		_, named := view.Object(id)
		if plan.SlotDeletable(w, seq, named) && !destroyed[id] {
			keys = append(keys, plan.Key(w.ID, plan.KindWAL, seq))
		}
	}
	e.uploads.slotsGone = max(e.uploads.slotsGone, below)
	left, err := deleteEach(ctx, e.deps.WALStore, keys)
	e.stats.slotsDeleted.Add(int64(len(keys) - len(left)))
	if e.uploads.slotsLeft = left; err != nil {
		return fmt.Errorf("delete slots of wal %s below %d: %w", w.ID, w.Trim, err)
	}
	return nil
}

// rememberedTrim notes the trim of a view and answers the newest one that the log
// cannot lose unnoticed.
func (e *Engine) rememberedTrim(ctx context.Context, index, trim uint64) (uint64, error) {
	u := &e.uploads
	newest := u.slotsGone
	if n := len(u.trims); n > 0 {
		newest = u.trims[n-1].trim
	}
	if trim > newest {
		if len(u.trims) == trimsMax {
			u.trims = u.trims[:trimsMax-1]
		}
		u.trims = append(u.trims, seenTrim{index, trim})
	}
	if len(u.trims) == 0 {
		return u.slotsGone, nil
	}
	remembered, err := e.deps.Meta.Remembered(ctx)
	if err != nil {
		return 0, fmt.Errorf("delete slots of wal %s: %w", e.deps.WAL, err)
	}
	below := u.slotsGone
	for len(u.trims) > 0 && u.trims[0].index <= remembered {
		below, u.trims = u.trims[0].trim, u.trims[1:]
	}
	return below, nil
}

// deleteEach deletes all that it can and answers which keys may still be there,
// and why: one that the store does not delete must not keep the others.
func deleteEach(ctx context.Context, store objstore.Store, keys []string) (left []string, err error) {
	var errs []error
	for len(keys) > 0 {
		n := min(len(keys), objstore.DeleteMax)
		resp, err := store.DeleteBatch(ctx, keys[:n])
		if err != nil { // nor will the next ones
			return append(left, keys...), errors.Join(append(errs, err)...)
		}
		for i, err := range resp.Errors {
			if err != nil {
				left = append(left, keys[i])
				if len(errs) < errorsMax {
					errs = append(errs, fmt.Errorf("delete %s: %w", keys[i], err))
				}
			}
		}
		keys = keys[n:]
	}
	return left, errors.Join(errs...)
}

// errorsMax bounds how many keys that were not deleted one message names.
const errorsMax = 10
