package plan

// SlotDeletable reports whether slot seq of the WAL may be deleted from the
// store. named: the state names a range or a checkpoint in it. Once recovered,
// the slot at End holds the tombstone that closes the log against a paused
// writer: it is never deleted. Slots behind it are late garbage.
//
//	live:      [0 .. Trim) deletable | [Trim ..) needed for recovery
//	recovered: [0 .. End)  deletable | End: the tombstone | (End ..) garbage
func SlotDeletable(w WAL, seq uint64, named bool) bool {
	if named {
		return false
	}
	if w.Recovered {
		return seq != w.End
	}
	return seq < w.Trim
}

// ObjectDeletable reports whether a destroyed object may be deleted as far as
// the state decides; the grace is the caller's. A slot whose epoch still needs
// it for recovery waits.
func ObjectDeletable(v State, id ObjectID) bool {
	if _, named := v.Object(id); named {
		return false
	}
	if id.Kind != KindWAL {
		return true
	}
	w, ok := v.WAL(id.Epoch)
	if !ok {
		return true // the node was removed: only after its epochs were recovered
	}
	// A recovered epoch's garbage behind End is the sweep's, and never named.
	return SlotDeletable(w, id.Seq, false) && (!w.Recovered || id.Seq < w.End)
}
