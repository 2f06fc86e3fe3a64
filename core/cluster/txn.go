package cluster

import (
	"github.com/mink-project/mink/core/internal/invariant"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// txn is one batch being applied: s starts as a shallow copy of the state and
// is private until Apply returns it. Commands decide first and change
// afterwards, so that a refusal leaves no trace.
type txn struct {
	s     *State
	epoch mink.NodeEpoch  // of the proposer; 0: not registered
	loose []plan.ObjectID // lost a reference in this command
}

func (s *State) begin(index uint64, timeMs int64, epoch mink.NodeEpoch) *txn {
	next := *s
	next.index, next.timeMs = index, max(s.timeMs, timeMs)
	return &txn{s: &next, epoch: epoch}
}

// savepoint is the state as it is now, whatever the command goes on to do.
func (t *txn) savepoint() State {
	t.s.freeze()
	return *t.s
}

// rollback serves the one command that cannot decide first.
func (t *txn) rollback(to State) { *t.s, t.loose = to, nil }

// putStream stores a changed stream and moves what is derived from it.
func (t *txn) putStream(st plan.Stream) {
	old, found := t.s.streams.get(st.ID)
	if !found {
		old = &plan.Stream{}
	}
	if !found || old.Owner.NodeEpoch != st.Owner.NodeEpoch {
		if found {
			t.s.byOwner.del(owned{old.Owner.NodeEpoch, st.ID})
		}
		t.s.byOwner.set(owned{st.Owner.NodeEpoch, st.ID})
	}
	if found && st.End != old.End {
		t.setFinished(st.ID, false) // it was not: a time line may bring lost offsets back
	}
	t.moveRefs(st.ID, old, &st)
	t.s.streams.set(st.ID, &st)
}

func (t *txn) dropStream(id mink.StreamID) {
	old, found := t.s.streams.get(id)
	if !found {
		return
	}
	t.moveRefs(id, old, &plan.Stream{})
	t.dropKV(old)
	if !t.s.faults.keepTiered {
		t.dropTiered(id)
	}
	t.s.byOwner.del(owned{old.Owner.NodeEpoch, id})
	t.s.streams.del(id)
}

// moveRefs counts only what differs between the two range lists: most commands
// change one end of a list.
func (t *txn) moveRefs(id mink.StreamID, old, now *plan.Stream) {
	a, b := old.Ranges, now.Ranges
	for len(a) > 0 && len(b) > 0 && a[0].Object == b[0].Object {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1].Object == b[len(b)-1].Object {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	for _, r := range b {
		t.addRef(r.Object, id, 1)
	}
	for _, r := range a {
		t.addRef(r.Object, id, -1)
	}
	if old.Checkpoint != now.Checkpoint {
		if !now.Checkpoint.IsZero() {
			t.addRef(now.Checkpoint, id, 1)
		}
		if !old.Checkpoint.IsZero() {
			t.addRef(old.Checkpoint, id, -1)
		}
	}
}

func (t *txn) addRef(object plan.ObjectID, stream mink.StreamID, by int32) {
	r, _ := t.s.refs.get(ref{object: object, stream: stream})
	r = ref{object, stream, r.count + by}
	invariant.Check(r.count >= 0, "stream %d names object %+v %d times", stream, object, r.count)
	if r.count > 0 {
		t.s.refs.set(r)
		return
	}
	t.s.refs.del(r)
	t.loose = append(t.loose, object)
}

func (t *txn) named(id plan.ObjectID) bool {
	r, found := first(t.s.refs.from(ref{object: id}))
	return found && r.object == id
}

// nameObject records an object that a stream of this command names. A slot
// that was parked comes back.
func (t *txn) nameObject(o plan.Object) {
	t.s.parked.del(&o)
	t.s.objects.set(&o)
}

// settle ends a command that changed streams: objects that lost their last
// reference go to their owner.
func (t *txn) settle() {
	for _, id := range t.loose {
		o, found := t.s.objects.get(&plan.Object{ID: id})
		if !found || t.named(id) {
			continue
		}
		t.s.objects.del(o)
		t.discard(*o)
	}
	t.loose = t.loose[:0]
}

// discard gives an unnamed object to its owner: its WAL while that may still
// need the slot for recovery, else the object GC.
func (t *txn) discard(o plan.Object) {
	if t.s.walOwns(o.ID) && !t.s.faults.noParking {
		t.s.parked.set(&o)
		return
	}
	t.s.parked.del(&o)
	t.s.destroyed.set(&plan.Destroyed{Object: o, DestroyedAt: t.s.timeMs, Index: t.s.index})
}

// unpark hands parked slots to the object GC once their WAL needs them no more:
// below its trim, or all of them once it is recovered.
func (t *txn) unpark(epoch mink.NodeEpoch) {
	var free []plan.Object
	for o := range t.s.parked.from(&plan.Object{ID: plan.ObjectID{Epoch: epoch}}) {
		if o.ID.Epoch != epoch {
			break
		}
		if !t.s.walOwns(o.ID) {
			free = append(free, *o)
		}
	}
	for _, o := range free {
		t.discard(o)
	}
}

// walOwns reports whether the object is a slot that its WAL may still need.
func (s *State) walOwns(id plan.ObjectID) bool {
	if id.Kind != plan.KindWAL {
		return false
	}
	w, found := s.wals.get(id.Epoch)
	return found && !w.Recovered && id.Seq >= w.Trim
}

// setWAL changes a WAL's entry through a copy.
func (t *txn) setWAL(epoch mink.NodeEpoch, change func(*walEntry)) {
	old, found := t.s.wals.get(epoch)
	invariant.Check(found, "no wal of node epoch %d", epoch)
	w := *old
	change(&w)
	t.s.wals.set(epoch, &w)
}

// apply stores what an accepted object command changes.
func (t *txn) apply(d plan.Delta) {
	if d.WAL != nil {
		t.setWAL(d.WAL.ID.Epoch, func(w *walEntry) { w.WAL = *d.WAL })
	}
	for _, o := range d.Objects {
		t.nameObject(o)
	}
	for _, st := range d.Streams {
		t.putStream(st)
	}
	for _, o := range d.Destroyed {
		if _, found := t.s.objects.get(&o); !found { // an output that nobody names
			t.discard(o)
		}
	}
	t.settle()
	if d.WAL != nil {
		t.unpark(d.WAL.ID.Epoch)
	}
}
