package lake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/sink"
)

// TestCompactionKilledAtEveryRequest: the next worker finds one table or the other, and
// nothing is left that nobody removes.
func TestCompactionKilledAtEveryRequest(t *testing.T) {
	outcomes := map[string]int{}
	for _, lost := range []bool{false, true} { // the request fails, or its answer is lost
		for stop := 1; ; stop++ {
			outcome, reached := killed(t, stop, lost)
			outcomes[outcome]++
			if !reached {
				break
			}
		}
	}
	t.Logf("outcomes: %v", outcomes)
	if outcomes["before"] == 0 || outcomes["after"] == 0 {
		t.Errorf("the time of death never mattered: %v", outcomes)
	}
}

func killed(t *testing.T, stop int, lost bool) (outcome string, reached bool) {
	o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}}, SinkConfig{}, "k", "INT", "x", "STRING")
	dying := &dyingStore{Store: o.w.store, lost: lost}
	o.w.store = dying
	o.s = newSink(o.w, SinkConfig{})
	o.open()
	for i := range 3 {
		o.round(row{"+I", fmt.Sprintf(`{"k":%d,"x":"a"}`, i)}, row{"+U", `{"k":0,"x":"b"}`})
	}
	before, last := o.rows(), o.last
	dying.arm(stop)
	o.w.before = func([]table.Requirement, []table.Update) error {
		if !lost && dying.step() {
			return sink.ErrUnavailable
		}
		return nil
	}
	o.w.after = func([]table.Requirement, []table.Update) error {
		if lost && dying.step() {
			return sink.ErrUnknownOutcome
		}
		return nil
	}
	_ = o.compactUntilDeath()
	reached = dying.dead()
	dying.arm(0)
	o.w.before, o.w.after = nil, nil
	if got := o.rows(); !slices.Equal(got, before) {
		t.Fatalf("killed at request %d: rows %v", stop, got)
	}
	o.open() // the next worker
	outcome = "before"
	if o.last.Round != last.Round {
		outcome = "after"
	}
	if !maps.Equal(o.last.Ends, last.Ends) {
		t.Fatalf("killed at request %d: recovered %+v", stop, o.last)
	}
	o.rounds += 100
	o.round(row{"+U", `{"k":0,"x":"c"}`}) // no wedge
	o.compact(sink.CompactRequest{All: true})
	if data, deletes := o.shape(); data != 1 || deletes != 0 {
		t.Fatalf("killed at request %d: %d data and %d delete files", stop, data, deletes)
	}
	o.round(row{"+I", `{"k":77,"x":"last"}`})
	time.Sleep(2 * time.Millisecond) // orphans are older than the current snapshot
	o.round(row{"+I", `{"k":78,"x":"last"}`})
	o.expire(sink.ExpireRequest{StateAge: 1, OrphanAge: 1, Fence: 2})
	o.noOrphans()
	return outcome, reached
}

// compactUntilDeath goes on until an error, as a process does that is killed there.
func (o *one) compactUntilDeath() error {
	ctx := context.Background()
	m := o.table.(sink.Maintainer)
	if _, err := m.PlanCompaction(ctx, sink.CompactRequest{}); err != nil {
		return err
	}
	if _, err := o.table.BeginRound(ctx, sink.BeginRoundRequest{Round: "c", Base: o.last.Round, Fence: 1}); err != nil {
		return err
	}
	if _, err := m.Compact(ctx, sink.CompactRequest{}); err != nil {
		return err
	}
	resp, err := o.table.Prepare(ctx, sink.PrepareRequest{})
	if err != nil {
		return err
	}
	_, err = o.table.Commit(ctx, sink.CommitRequest{Staged: resp.Staged, Round: "c", Base: o.last.Round, Fence: 1})
	return err
}
