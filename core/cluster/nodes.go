package cluster

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

const maxNodeText = 1024 // bytes of an address, rack or version

// LeaseTTLMax is the longest lease that a node may register.
const LeaseTTLMax = 24 * time.Hour

// CheckRegisterNode answers the refusal of a registration that is not in the
// state yet; nil: it would be admitted by the next entry.
func (s *State) CheckRegisterNode(c *clusterpb.RegisterNode) *clusterpb.Result {
	id := mink.NodeID(c.GetNode())
	switch {
	case id <= 0:
		return invalid("node id %d: ids start at 1", id)
	case c.GetNonce() == 0:
		return invalid("registration of node %d: the nonce is 0, which stands for none", id)
	case c.GetFeatureLevel() < s.featureLevel:
		return refuse(clusterpb.Code_UNSUPPORTED, "registration of node %d: version %q has feature level %d, the cluster is at %d: upgrade the node",
			id, c.GetVersion(), c.GetFeatureLevel(), s.featureLevel)
	}
	if ms := c.GetLeaseTtlMs(); ms < 0 || ms > LeaseTTLMax.Milliseconds() {
		return invalid("registration of node %d: lease_ttl of %d ms, want at most %s", id, ms, LeaseTTLMax)
	}
	for _, text := range []string{c.GetFlightAddress(), c.GetKafkaAddress(), c.GetHttpAddress(), c.GetRack(), c.GetVersion()} {
		if len(text) > maxNodeText {
			return invalid("registration of node %d: an address, rack or version is over %d bytes", id, maxNodeText)
		}
	}
	return nil
}

func (t *txn) registerNode(c *clusterpb.RegisterNode) *clusterpb.Result {
	if r := t.s.CheckRegisterNode(c); r != nil {
		return r
	}
	id := mink.NodeID(c.GetNode())
	if w, again := t.s.Registration(id, c.GetNonce()); again {
		epoch := w.ID.Epoch
		if w.Sealed {
			return fenced("registration of node %d with nonce %016x was admitted as epoch %d and is sealed by now (%s): register with a new nonce", id, c.GetNonce(), epoch, t.s.SealReason(epoch))
		}
		return okID(int64(epoch)) // the answer was lost
	}
	before := t.savepoint()
	epoch := mink.NodeEpoch(t.s.index)
	if old, found := t.s.nodes.get(id); found && !old.Sealed {
		t.seal(old.Epoch, "the node registered anew")
	}
	t.s.nodes.set(id, &Node{
		ID: id, Epoch: epoch, Nonce: c.GetNonce(), FlightAddress: c.GetFlightAddress(), KafkaAddress: c.GetKafkaAddress(),
		HTTPAddress: c.GetHttpAddress(), Rack: c.GetRack(), FeatureLevel: c.GetFeatureLevel(), Version: c.GetVersion(), RegisteredMs: t.s.timeMs,
		LeaseTTLMs: c.GetLeaseTtlMs(),
	})
	t.s.wals.set(epoch, &walEntry{WAL: plan.WAL{ID: plan.WALID{Node: id, Epoch: epoch, Nonce: c.GetNonce()}}})
	t.raiseLevel()
	t.moveGroups(&before)
	return okID(int64(epoch))
}

// raiseLevel moves the feature level to what every live node has. It may rise
// above this binary's own: all must hold the same, and who does not know a command
// of it stops there.
func (t *txn) raiseLevel() {
	lowest := uint32(0)
	for _, n := range t.s.nodes.all() {
		if !n.Sealed && (lowest == 0 || n.FeatureLevel < lowest) {
			lowest = n.FeatureLevel
		}
	}
	t.s.featureLevel = max(t.s.featureLevel, lowest)
}

// seal ends a node epoch: nothing that it proposes from here on is accepted.
func (t *txn) seal(epoch mink.NodeEpoch, reason string) {
	t.setWAL(epoch, func(w *walEntry) {
		w.Sealed, w.sealReason, w.used = true, reason, nil
		if n, found := t.s.nodes.get(w.ID.Node); found && n.Epoch == epoch {
			sealed := *n
			sealed.Sealed, sealed.SealedMs = true, t.s.timeMs
			t.s.nodes.set(n.ID, &sealed)
		}
	})
	t.s.dedup.del(epoch)
}

func (t *txn) sealNode(c *clusterpb.SealNode) *clusterpb.Result {
	epoch := mink.NodeEpoch(c.GetEpoch())
	w, found := t.s.wals.get(epoch)
	if !found {
		return notExist("seal node epoch %d: it was never registered", epoch)
	}
	if w.Sealed {
		return okNote("node epoch %d was sealed before (%s)", epoch, w.sealReason)
	}
	if c.GetLease() == 0 {
		if epoch != t.epoch {
			return invalid("seal node epoch %d without a lease: only the epoch itself may, the proposer is epoch %d", epoch, t.epoch)
		}
	} else if r := t.checkLease(c.GetLease()); r != nil {
		return r
	}
	reason := c.GetReason()
	if reason == "" {
		reason = "no reason given"
	}
	before := t.savepoint()
	t.seal(epoch, cutText(reason, maxNodeText))
	t.moveGroups(&before)
	return ok()
}

// checkLease refuses a coordinator's command whose proposer does not hold the
// lease any more.
func (t *txn) checkLease(lease int64) *clusterpb.Result {
	l := t.s.lease
	if lease <= 0 || mink.LeaseEpoch(lease) != l.Epoch {
		return conflict("lease %d is not the current one, %d of node %d: leave it to its holder", lease, l.Epoch, l.Node)
	}
	if t.epoch != l.NodeEpoch {
		return conflict("lease %d belongs to node %d, epoch %d; the proposer is epoch %d", lease, l.Node, l.NodeEpoch, t.epoch)
	}
	return nil
}

func (t *txn) leaseTaken(c *clusterpb.LeaseTaken) *clusterpb.Result {
	l := Lease{Node: mink.NodeID(c.GetNode()), NodeEpoch: mink.NodeEpoch(c.GetEpoch()), Epoch: mink.LeaseEpoch(c.GetLease())}
	if l == t.s.lease {
		return ok()
	}
	n, live := t.s.live(l.NodeEpoch)
	switch {
	case !live || n.Epoch != l.NodeEpoch:
		return fenced("lease %d for node %d, epoch %d: the epoch is sealed or was never registered", l.Epoch, l.Node, l.NodeEpoch)
	case n.ID != l.Node:
		return invalid("lease %d for node %d: epoch %d is node %d's", l.Epoch, l.Node, l.NodeEpoch, n.ID)
	case l.Epoch <= t.s.lease.Epoch:
		return conflict("lease %d is not newer than the current one, %d of node %d", l.Epoch, t.s.lease.Epoch, t.s.lease.Node)
	}
	t.s.lease = l
	return okID(int64(l.Epoch))
}

// CheckRemoveNode answers why the registration of a node has to stay for now; nil: it
// is sealed and nothing of it is left to do. epoch is that of the registration, 0: any.
func (s *State) CheckRemoveNode(id mink.NodeID, epoch mink.NodeEpoch) *clusterpb.Result {
	n, found := s.nodes.get(id)
	switch {
	case !found:
		return notExist("node %d is not registered: it was removed before, or never was", id)
	case epoch != 0 && n.Epoch != epoch:
		return conflict("node %d has registered anew, as epoch %d: what was asked for is epoch %d", id, n.Epoch, epoch)
	case s.faults.removeEarly:
		return nil
	case !n.Sealed:
		return conflict("node %d, epoch %d, is alive: stop it before it is removed", id, n.Epoch)
	}
	for epoch, w := range s.wals.all() {
		if w.ID.Node != id {
			continue
		}
		if !w.Recovered {
			return conflict("node %d, epoch %d, is not recovered yet: wait for the coordinator", id, epoch)
		}
		if st, found := first(s.StreamsLedBy(epoch)); found {
			return conflict("node %d, epoch %d, is still the last leader of stream %d: wait until the coordinator gave it a new one", id, epoch, st.ID)
		}
	}
	return nil
}

// removeNode forgets who had the id. The logs of its epochs stay: the sweep, and
// whoever tells late writes from lost ones, need them (decision 029).
func (t *txn) removeNode(c *clusterpb.RemoveNode) *clusterpb.Result {
	if r := t.checkLease(c.GetLease()); r != nil {
		return r
	}
	id := mink.NodeID(c.GetNode())
	if r := t.s.CheckRemoveNode(id, mink.NodeEpoch(c.GetEpoch())); r != nil {
		return r
	}
	t.s.nodes.del(id)
	return ok()
}

func (t *txn) setIncarnation(c *clusterpb.SetIncarnation) *clusterpb.Result {
	if c.GetIncarnation() == 0 {
		return invalid("the incarnation is 0, which stands for none")
	}
	if c.GetLost() {
		if r := t.beginTimeLine(c); r != nil {
			return r
		}
	}
	t.s.incarnation = c.GetIncarnation()
	return ok()
}

// recoverWAL ends a dead epoch's log and takes its slots over by reference.
func (t *txn) recoverWAL(c *clusterpb.RecoverWAL) *clusterpb.Result {
	wal, objects, items, err := manifest(c.GetWal(), c.GetObjects(), c.GetItems())
	if err != nil {
		return refuseErr(err)
	}
	w, found := t.s.wals.get(wal.Epoch)
	switch {
	case !found || w.ID != wal:
		return notExist("recover wal %s: there is no such registration", wal)
	case w.Recovered && !t.s.faults.recoverTwice:
		return okNote("wal %s was recovered before and ends at slot %d", wal, w.End)
	}
	if r := t.checkLease(c.GetLease()); r != nil {
		return r
	}
	for _, o := range objects {
		if r := t.checkSlot(w.WAL, o); r != nil {
			return r
		}
	}
	cmd := plan.RecoverWAL{WAL: wal, Lease: mink.LeaseEpoch(c.GetLease()), End: c.GetEnd(), Objects: objects, Items: items, Part: c.GetPart(), From: c.GetFrom()}
	if w.Recovered { // only with the fault
		t.setWAL(wal.Epoch, func(w *walEntry) { w.Recovered = false })
	}
	if len(w.lost) > 0 && c.GetPart() {
		return invalid("recover wal %s in parts: it has accepted losses, whose ranges only the whole log shows", wal)
	}
	if len(w.lost) > 0 {
		return t.recoverAcrossLoss(w, cmd)
	}
	d, err := plan.ApplyRecoverWAL(t.s, cmd)
	if err != nil {
		return refuseErr(err)
	}
	t.apply(d)
	return ok()
}

// checkSlot refuses an object that is no slot of the WAL's living part, or that
// the state knows with other facts.
func (t *txn) checkSlot(w plan.WAL, o plan.Object) *clusterpb.Result {
	if o.ID.Kind != plan.KindWAL {
		return invalid("object %+v is not a slot of wal %s", o.ID, w.ID)
	}
	if o.ID.Seq < w.Trim {
		return conflict("slot %d of wal %s is below its trim %d: what it held was committed meanwhile, look again", o.ID.Seq, w.ID, w.Trim)
	}
	known, found := t.s.objects.get(&o)
	if !found {
		known, found = t.s.parked.get(&o)
	}
	if found && (known.Size != o.Size || known.IndexPos != o.IndexPos || known.IndexLen != o.IndexLen || known.IndexCRC != o.IndexCRC) {
		return invalid("slot %d of wal %s: size, index and checksum differ from what is known of it", o.ID.Seq, w.ID)
	}
	return nil
}

// acceptLoss records what a slot held of each stream as allowed to be missing;
// the recovery to come goes on behind it.
func (t *txn) acceptLoss(c *clusterpb.AcceptLoss) *clusterpb.Result {
	wal := walID(c.GetWal())
	w, found := t.s.wals.get(wal.Epoch)
	switch {
	case !found || w.ID != wal:
		return notExist("accept the loss of slot %d of wal %s: there is no such registration", c.GetSlot(), wal)
	case !w.Sealed || w.Recovered:
		return conflict("accept the loss of slot %d of wal %s: the wal must be sealed and not recovered yet", c.GetSlot(), wal)
	case c.GetSlot() < w.Trim:
		return invalid("accept the loss of slot %d of wal %s: it is below the trim %d, nothing in it is needed", c.GetSlot(), wal, w.Trim)
	}
	lost := LostSlot{Slot: c.GetSlot()}
	for _, g := range c.GetGaps() {
		st, found := t.s.streams.get(mink.StreamID(g.GetStream()))
		switch {
		case !found || st.Owner.NodeEpoch != wal.Epoch:
			continue // dropped, or not this WAL's to lose
		case g.GetStart() < 0 || g.GetEnd() <= g.GetStart():
			return invalid("accept the loss of slot %d of wal %s: [%d, %d) of stream %d is not a range", c.GetSlot(), wal, g.GetStart(), g.GetEnd(), st.ID)
		case mink.Offset(g.GetEnd()) <= st.End:
			continue // committed elsewhere
		}
		lost.Gaps = append(lost.Gaps, LostRange{Stream: st.ID, Gap: plan.Gap{
			Start: max(mink.Offset(g.GetStart()), st.End), End: mink.Offset(g.GetEnd())}})
	}
	at, known := sort.Find(len(w.lost), func(i int) int { return cmp.Compare(lost.Slot, w.lost[i].Slot) })
	if known {
		if slices.Equal(w.lost[at].Gaps, lost.Gaps) {
			return okNote("the loss of slot %d of wal %s was accepted before", lost.Slot, wal)
		}
		return conflict("the loss of slot %d of wal %s was accepted with other ranges", lost.Slot, wal)
	}
	t.setWAL(wal.Epoch, func(w *walEntry) { w.lost = slices.Insert(slices.Clone(w.lost), at, lost) })
	return ok()
}
