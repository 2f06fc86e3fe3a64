package sinktest

import (
	"errors"

	"github.com/mink-project/mink/sdk/sink"
)

func placeChecks() []Check {
	return []Check{
		{Name: "TwoTables", Run: checkTwoTables},
		{Name: "TwoHandles", Run: checkTwoHandles},
		{Name: "RecreatedTable", Applies: exactlyOnce, Run: checkRecreated},
		{Name: "Drop", Run: checkDrop},
	}
}

// checkTwoTables writes two tables by turns, through one sink.
func checkTwoTables(t T, target Target) {
	a := newWorld(t, target, tableOptions{id: 31, name: "orders"})
	b := newWorld(t, target, tableOptions{id: 32, name: "orders.1", partitioned: true})
	ka, kb := a.worker(), b.worker()
	ka.must(ka.start())
	kb.s, kb.kill, kb.next, b.desc = ka.s, func() {}, atOpen, a.desc
	for ka.next != atEnd || kb.next != atEnd {
		ka.step()
		kb.step()
	}
	ka.finish()
	kb.finish()
	kb.must(kb.table.Close())
	ka.stop()
}

// checkTwoHandles opens a table a second time while a round is open and while one
// is prepared.
func checkTwoHandles(t T, target Target) {
	w := newWorld(t, target, tableOptions{})
	k := w.worker()
	for k.next != atEnd {
		if k.next == atPrepare || k.next == atCommit {
			other, err := k.s.Open(t.Context(), sink.OpenRequest{Table: w.spec})
			k.must(err)
			resp, err := other.Recover(t.Context(), sink.RecoverRequest{Fence: k.fence})
			k.must(err)
			w.recovered(resp.Committed)
			k.must(other.Close())
		}
		k.step()
	}
	k.finish()
	k.stop()
}

// checkRecreated opens a table that has the name of another one.
func checkRecreated(t T, target Target) {
	old := newWorld(t, target, tableOptions{id: 41, name: "again"})
	k := old.worker()
	k.finish()
	k.stop()
	w := newWorld(t, target, tableOptions{id: 42, name: "again"})
	heir := w.worker()
	heir.must(heir.start())
	if err := heir.open(); err != nil {
		wantIs(t, err, sink.ErrAlreadyExists, "open of a table whose name another table has")
	} else {
		heir.finish() // with its own rows and rounds
		old.check(heir.s)
	}
	heir.stop()
}

func checkDrop(t T, target Target) {
	w := newWorld(t, target, tableOptions{id: 51})
	beside := newWorld(t, target, tableOptions{id: 52})
	kb := beside.worker()
	kb.finish()
	k := prepareRound(w)
	k.step()
	for k.next != atPrepare { // and one that is open
		k.step()
	}
	staged := k.request()
	drop := func() {
		t.Helper()
		_, err := k.table.Drop(t.Context(), sink.DropRequest{})
		k.must(err)
		k.must(k.table.Close())
		k.table = nil
	}
	drop()
	if w.desc.Delivery == sink.ExactlyOnce {
		w.compare(w.read(k.s), map[string]int{})
	}
	w.model, w.accepted = sink.Committed{}, nil
	k.must(k.open())
	k.must(k.recover()) // no round
	if w.desc.Delivery == sink.ExactlyOnce {
		if _, err := k.table.Commit(t.Context(), staged); !errors.Is(err, sink.ErrConflict) && !errors.Is(err, sink.ErrNotExist) {
			t.Fatalf("commit of a round of the dropped table: %v, want %v or %v", err, sink.ErrConflict, sink.ErrNotExist)
		}
	}
	drop()
	k.stop()
	k.must(k.start())
	gone, err := k.s.Open(t.Context(), sink.OpenRequest{Table: w.spec, Drop: true}) // of what is gone already
	k.must(err)
	_, err = gone.Drop(t.Context(), sink.DropRequest{})
	k.must(err)
	k.must(gone.Close())
	k.must(k.open())
	k.next = atRecover
	k.finish()
	k.stop()
	beside.check(kb.s)
	kb.stop()
}
