package tiering

import (
	"log/slog"
	"testing"
	"time"
)

// A table that begins anew is removed at its sink first; then rounds of it are due
// again, without what was remembered of the old one.
func TestATableBeginsAnew(t *testing.T) {
	target := Target{Table: 1, Sink: "lake"}
	tiering, err := New(Default(), Deps{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_700_000_000, 0)
	there := map[Target]*wJob{target: {}}
	tiering.meet(&wView{jobs: there, dropped: []Dropped{{Target: target}}}, now)
	e := tiering.mu.entries[target]
	if e == nil || e.dropped == nil {
		t.Fatalf("what is to be removed is not known: %+v", e)
	}
	e.removed = now
	tiering.meet(&wView{jobs: there, dropped: []Dropped{{Target: target}}}, now)
	if tiering.mu.entries[target] != e {
		t.Fatal("it began before the place was clear")
	}
	tiering.meet(&wView{jobs: there}, now)
	if e := tiering.mu.entries[target]; e == nil || e.dropped != nil || !e.removed.IsZero() {
		t.Fatalf("it does not begin: %+v", e)
	}
	tiering.meet(&wView{}, now)
	if len(tiering.mu.entries) != 0 {
		t.Fatal("a table that is gone is kept")
	}
}
