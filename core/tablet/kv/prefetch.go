package kv

import (
	"math"
	"slices"

	"github.com/mink-project/mink/sdk/mink"
)

// Old rows are read before a put waits for its turn, so that the store is read by as
// many puts at a time as there are, and the turn is short. What a put has read is what
// the store had at its mark or later. Changes that were appended since lie over it in
// the prewrite buffer, where the turn looks first: the prewrite buffer therefore keeps
// what was flushed behind the mark of a put that has read and not merged yet. When
// that is too much, or a put takes too long, it is dropped all the same, and the put
// finds that rows were dropped behind its mark: it reads again, in its turn.

// heldBytesMax bounds what the prewrite buffer of a tablet keeps of flushed rows for
// puts that have read already.
const heldBytesMax = 4 << 20

// prefetch reads the old rows of a put. settle must follow.
func (t *Tablet) prefetch(set *settings, in *incoming) error {
	if len(in.rows) == 0 || !set.engine.NeedsOld(in.form.targets.All()) {
		return nil
	}
	if err := t.gate.enter(); err != nil {
		return t.usable()
	}
	defer t.gate.leave()
	in.old.begin(len(in.rows))
	from := int32(0)
	for i := range in.rows {
		to := in.rows[i].key
		in.old.add(in.keys[from:to:to])
		from = to
	}
	t.mu.Lock()
	in.mark, in.reads = t.meta.Load().flushed, true // before the read, under mu: what sweep drops is below it
	t.mu.reads = append(t.mu.reads, in)
	t.mu.Unlock()
	return t.broken(in.old.read(t.store.db))
}

// settle says that a put has merged, or never will.
func (t *Tablet) settle(in *incoming) {
	if !in.reads {
		return
	}
	in.reads = false
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.mu.reads, in)
	t.mu.reads = slices.Delete(t.mu.reads, i, i+1)
}

// sweep takes what was flushed out of the prewrite buffer, but for at most keep bytes
// that lie over rows which a put has read. It needs the turn.
func (t *Tablet) sweep(keep int64) {
	t.mu.Lock()
	n := t.sweepableLocked(keep)
	landed := t.mu.landed[:n:n]
	t.mu.landed = t.mu.landed[n:]
	if len(t.mu.landed) == 0 {
		t.mu.landed = nil
	}
	t.mu.Unlock()
	for _, f := range landed {
		t.before.drop(f)
	}
}

// sweepableLocked is how many flights of landed, from its start, a sweep takes.
func (t *Tablet) sweepableLocked(keep int64) (n int) {
	oldest := mink.Offset(math.MaxInt64)
	if len(t.mu.reads) > 0 {
		oldest = t.mu.reads[0].mark // marks only grow
	}
	held := int64(0)
	for _, f := range t.mu.landed {
		held += f.bytes
	}
	for ; n < len(t.mu.landed); n++ {
		f := t.mu.landed[n]
		if f.end > oldest && held <= keep {
			break
		}
		held -= f.bytes
	}
	return n
}
