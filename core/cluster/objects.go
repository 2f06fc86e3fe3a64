package cluster

import (
	"math"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// checkProposer refuses an engine's command that names another WAL than its
// proposer's: each node speaks for itself only.
func (t *txn) checkProposer(what string, wal plan.WALID) *clusterpb.Result {
	w, found := t.s.wals.get(t.epoch)
	if !found || w.ID != wal {
		return fenced("%s: wal %s is not the proposer's, epoch %d", what, wal, t.epoch)
	}
	return nil
}

// checkFresh refuses uploads under a number that the epoch used before, even if
// the object is long forgotten. One counter numbers all kinds.
func (t *txn) checkFresh(objects []plan.Object) (counters, *clusterpb.Result) {
	w, _ := t.s.wals.get(t.epoch)
	used := w.used
	for i := range objects {
		id := objects[i].ID
		switch {
		case id.Kind != plan.KindStreamSet && id.Kind != plan.KindStream || id.Seq == 0 || id.Seq == math.MaxUint64:
			return nil, invalid("object %+v is not one that is uploaded", id)
		case used.has(id.Seq):
			return nil, conflict("object %+v: number %d was used before by this epoch, take the next one", id, id.Seq)
		}
		used = used.with(id.Seq)
	}
	return used, nil
}

func (t *txn) commitObjects(c *clusterpb.CommitObjects) *clusterpb.Result {
	wal, objects, items, err := manifest(c.GetWal(), c.GetObjects(), c.GetItems())
	if r := t.checkProposer("commit objects", wal); r != nil {
		return r
	}
	w, _ := t.s.wals.get(wal.Epoch)
	if c.GetSeq() != 0 && c.GetSeq() <= w.CommitSeq { // before any validation
		return okNote("commit %d of wal %s was accepted before", c.GetSeq(), wal)
	}
	if err != nil {
		return refuseErr(err)
	}
	used, r := t.checkFresh(objects)
	if r != nil {
		return r
	}
	d, err := plan.ApplyCommitObjects(t.s, plan.CommitObjects{WAL: wal, Seq: c.GetSeq(), Objects: objects, Items: items, WALTrim: c.GetWalTrim()})
	if err != nil {
		return refuseErr(err)
	}
	t.setWAL(wal.Epoch, func(w *walEntry) { w.used = used })
	t.apply(d)
	return ok()
}

func (t *txn) replaceObjects(c *clusterpb.ReplaceObjects) *clusterpb.Result {
	wal, objects, items, err := manifest(c.GetWal(), c.GetObjects(), c.GetItems())
	if r := t.checkProposer("replace objects", wal); r != nil {
		return r
	}
	if err != nil {
		return refuseErr(err)
	}
	sources, err := objectIDs(c.GetSources())
	if err != nil {
		return refuseErr(err)
	}
	switch {
	case len(sources) == 0:
		return invalid("replace objects: no sources")
	case c.GetBasedOn() >= t.s.index:
		return invalid("replace objects: planned on index %d, which is not before this entry, %d", c.GetBasedOn(), t.s.index)
	}
	used, r := t.checkFresh(objects)
	if r != nil {
		return r
	}
	d, err := plan.ApplyReplaceObjects(t.s, plan.ReplaceObjects{WAL: wal, BasedOn: c.GetBasedOn(), Sources: sources, Objects: objects, Items: items})
	if err != nil {
		return refuseErr(err)
	}
	t.setWAL(wal.Epoch, func(w *walEntry) { w.used = used })
	t.apply(d)
	return ok()
}

// rewriteStream replaces what its leader has rewritten of one stream.
func (t *txn) rewriteStream(c *clusterpb.RewriteStream) *clusterpb.Result {
	wal, objects, items, err := manifest(c.GetWal(), c.GetObjects(), c.GetItems())
	if r := t.checkProposer("rewrite stream", wal); r != nil {
		return r
	}
	if err != nil {
		return refuseErr(err)
	}
	sources, err := rangesOf(c.GetSources())
	if err != nil {
		return refuseErr(err)
	}
	used, r := t.checkFresh(objects)
	if r != nil {
		return r
	}
	rewrite := plan.RewriteStream{
		WAL: wal, Stream: mink.StreamID(c.GetStream()), LeaderEpoch: mink.LeaderEpoch(c.GetLeaderEpoch()),
		Start: mink.Offset(c.GetStart()), Upper: mink.Offset(c.GetUpper()), Sources: sources, Objects: objects, Items: items,
		Cleaned: plan.Cleaned{Bytes: c.GetCleanedBytes(), DueMs: c.GetCleanedDueMs()},
	}
	if st, found := t.s.streams.get(rewrite.Stream); found && t.s.faults.noLeadFence {
		rewrite.LeaderEpoch = st.Owner.LeaderEpoch
	} else if found && t.s.faults.noSources {
		rewrite.Sources = st.Below(rewrite.Upper)
	}
	d, err := plan.ApplyRewriteStream(t.s, rewrite)
	if err != nil {
		return refuseErr(err)
	}
	t.setWAL(wal.Epoch, func(w *walEntry) { w.used = used })
	t.apply(d)
	return ok()
}

// trimBound is how far a stream may be trimmed. A primary-key bucket is rebuilt
// from a snapshot and the log behind it. Each retained one must do, in case a newer
// one is damaged; without any it takes the whole log. What a retaining sink does not have
// yet stays, and what readers of its older snapshots need, but for sinks that giveUpMs gives up.
func (t *txn) trimBound(st *plan.Stream, giveUpMs int64) mink.Offset {
	limit := st.TrimLimit()
	table, found := t.s.tables.get(st.Bucket.Table)
	keyed := found && len(table.Descriptor.PrimaryKey) > 0
	if keyed {
		giveUpMs = 0 // a sink that misses changes of a key never gets right again
	}
	if bound, _, tiered := t.s.tierBound(st, giveUpMs); tiered && !t.s.faults.noTierBound {
		limit = min(limit, bound)
	}
	if !keyed || t.s.faults.noKVBound {
		return limit
	}
	b, _ := t.s.kv.get(st.ID)
	oldest, found := b.TrimBound()
	if !found {
		return st.Start
	}
	return min(limit, oldest)
}

// trimStreams raises starts, each clamped to what may be trimmed. Streams that
// are gone or that the proposer does not lead are skipped; ids has the starts
// that are in force now, in the order of the trims, -1 for a skipped one.
func (t *txn) trimStreams(c *clusterpb.TrimStreams) *clusterpb.Result {
	starts := make([]int64, len(c.GetTrims()))
	skipped := 0
	for i, trim := range c.GetTrims() {
		st, found := t.s.streams.get(mink.StreamID(trim.GetStream()))
		if !found || st.Owner.NodeEpoch != t.epoch {
			starts[i] = -1
			skipped++
			continue
		}
		to := min(mink.Offset(trim.GetStart()), t.trimBound(st, trim.GetGiveUpMs()))
		if to > st.Start {
			t.allowGaps(st, to)
			t.putStream(st.Trim(to))
		}
		starts[i] = int64(max(to, st.Start))
	}
	t.settle()
	r := okID(0, starts...)
	if skipped > 0 {
		r.Message = okNote("%d of %d streams are gone or not led by node epoch %d: skipped", skipped, len(starts), t.epoch).GetMessage()
	}
	return r
}

// forgetObjects drops destroyed objects whose bytes are deleted. Unknown ids are
// skipped: the answer to an earlier one was lost.
func (t *txn) forgetObjects(c *clusterpb.ForgetObjects) *clusterpb.Result {
	ids, err := objectIDs(c.GetObjects())
	if err != nil {
		return refuseErr(err)
	}
	for _, id := range ids {
		key := &plan.Object{ID: id}
		if _, found := t.s.objects.get(key); found {
			return invalid("forget object %+v: the state still names it", id)
		}
		if _, found := t.s.parked.get(key); found {
			return invalid("forget object %+v: its wal may still need it for recovery", id)
		}
	}
	for _, id := range ids {
		t.s.destroyed.del(&plan.Destroyed{Object: plan.Object{ID: id}})
	}
	return ok()
}
