package lake

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/sink"
)

// TestZombieCompactionFails: two workers compact; the later lease's has the table.
func TestZombieCompactionFails(t *testing.T) {
	for _, heirDoes := range []string{"begin", "round", "compaction"} {
		t.Run(heirDoes, func(t *testing.T) {
			o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}}, SinkConfig{}, "k", "INT", "x", "STRING")
			o.open()
			o.round(row{"+I", `{"k":1,"x":"a"}`})
			for i := range 3 {
				o.round(row{"+U", fmt.Sprintf(`{"k":1,"x":"%d"}`, i)})
			}
			_, late := o.prepareCompaction(sink.CompactRequest{})
			heir := *o
			heir.rounds += 100
			heir.open()
			want := `{"k":1,"x":"2"}`
			switch heirDoes {
			case "begin":
				_, err := heir.table.BeginRound(t.Context(), sink.BeginRoundRequest{Round: "heir", Base: heir.last.Round, Fence: 2})
				o.must(err)
			case "round":
				heir.round(row{"+U", `{"k":1,"x":"heir"}`})
				want = `{"k":1,"x":"heir"}`
			case "compaction":
				heir.compact(sink.CompactRequest{})
			}
			if _, err := o.table.Commit(t.Context(), late); !errors.Is(err, sink.ErrConflict) && !errors.Is(err, sink.ErrFenced) && !errors.Is(err, sink.ErrNotExist) {
				t.Fatalf("the late commit: %v", err)
			}
			o.want(want)
		})
	}
}

// TestOutsideCommitDuringACompaction: it is planned again on what is there by then, whether
// another engine wrote a file anew or added a delete, which applies to the old file alone.
func TestOutsideCommitDuringACompaction(t *testing.T) {
	for _, mode := range []string{table.WriteModeCopyOnWrite, table.WriteModeMergeOnRead} {
		for _, when := range []string{"before the commit", "in the commit"} {
			t.Run(mode+" "+when, func(t *testing.T) {
				o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}}, SinkConfig{}, "k", "INT", "x", "STRING")
				o.open()
				o.update(table.NewSetPropertiesUpdate(iceberg.Properties{table.WriteDeleteModeKey: mode}))
				for i := range 3 {
					o.round(row{"+I", fmt.Sprintf(`{"k":%d,"x":"a"}`, 2*i)}, row{"+I", fmt.Sprintf(`{"k":%d,"x":"a"}`, 2*i+1)})
				}
				outside := func() {
					tx := o.outside().NewTransaction()
					o.must(tx.Delete(t.Context(), iceberg.EqualTo(iceberg.Reference("k"), int32(1)), nil))
					_, err := tx.Commit(t.Context())
					o.must(err)
				}
				_, commit := o.prepareCompaction(sink.CompactRequest{})
				if when == "in the commit" {
					o.w.before = func([]table.Requirement, []table.Update) error { o.w.before = nil; outside(); return nil }
				} else {
					outside()
				}
				if _, err := o.table.Commit(t.Context(), commit); !errors.Is(err, sink.ErrConflict) {
					t.Fatal(err)
				}
				_, err := o.table.Abort(t.Context(), sink.AbortRequest{Round: commit.Round, Staged: commit.Staged})
				o.must(err)
				if _, deletes := o.shape(); (deletes > 0) != (mode == table.WriteModeMergeOnRead) {
					t.Fatalf("%d files of deletes", deletes)
				}
				want := []string{`{"k":0,"x":"a"}`, `{"k":2,"x":"a"}`, `{"k":3,"x":"a"}`, `{"k":4,"x":"a"}`, `{"k":5,"x":"a"}`}
				o.want(want...)
				o.compact(sink.CompactRequest{All: true})
				o.want(want...)
			})
		}
	}
}

// TestEveryInterleavingOfCompactionAndRounds stops a compaction before each of its requests and
// lets an heir, or another engine, do something meanwhile. A read of a file that is never
// written again and that nobody removes is no place to stop: it finds the same before and after.
func TestEveryInterleavingOfCompactionAndRounds(t *testing.T) {
	for _, second := range []string{"round", "compaction", "outside", "expire"} {
		t.Run(second, func(t *testing.T) {
			start := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}}, SinkConfig{}, "k", "INT", "x", "STRING")
			start.open()
			for i := range 3 {
				start.round(row{"+I", fmt.Sprintf(`{"k":%d,"x":"a"}`, i)}, row{"-D", `{"k":3}`})
			}
			outcomes := map[string]int{}
			for stop := 1; ; stop++ {
				outcome, reached := interleaveCompaction(start.copied(), second, stop)
				if !reached {
					break
				}
				outcomes[outcome]++
			}
			t.Logf("outcomes: %v", outcomes)
			if len(outcomes) < 2 && second != "expire" {
				t.Errorf("the order never mattered: %v", outcomes)
			}
		})
	}
}

// interleaveCompaction has the table that o begins with compacted, and lets second run before
// request stop.
func interleaveCompaction(o *one, second string, stop int) (outcome string, reached bool) {
	steps := &dyingStore{Store: o.w.store, read: map[string]bool{}, still: func(key string) bool {
		return !strings.Contains(key, "/"+stagedDir) && slices.Contains([]string{".parquet", ".avro"}, path.Ext(key))
	}}
	o.w.store = steps
	o.open()
	want := []string{`{"k":0,"x":"a"}`, `{"k":1,"x":"a"}`, `{"k":2,"x":"a"}`}
	heir := *o
	heir.rounds += 100
	heir.open()
	meanwhile := func() {
		steps.arm(0)
		o.w.before = nil
		switch second {
		case "round":
			heir.open()
			heir.round(row{"+U", `{"k":0,"x":"heir"}`})
			want[0] = `{"k":0,"x":"heir"}`
		case "compaction":
			heir.open()
			heir.compact(sink.CompactRequest{All: true})
		case "outside":
			o.outsideAppend(`{"k":9,"x":"theirs"}`)
			want = append(want, `{"k":9,"x":"theirs"}`)
		case "expire":
			heir.open()
			heir.expire(sink.ExpireRequest{StateAge: 1, OrphanAge: 1, Fence: 2})
		}
	}
	steps.then = meanwhile
	o.w.before = func([]table.Requirement, []table.Update) error { steps.step(); return nil }
	steps.arm(stop)
	err := o.compactUntilDeath()
	reached = steps.dead()
	steps.arm(0)
	o.w.before = nil
	if err != nil && !errors.Is(err, sink.ErrConflict) && !errors.Is(err, sink.ErrFenced) && !errors.Is(err, sink.ErrNotExist) {
		o.t.Fatalf("stopped before request %d: an error that no rival explains: %v", stop, err)
	}
	for key := range steps.read {
		if _, err := steps.Head(o.t.Context(), key); err != nil {
			o.t.Fatalf("stopped before request %d: a read of it is a place to stop: %v", stop, err)
		}
	}
	o.want(want...)
	o.open()
	o.rounds += 200
	o.round(row{"+U", `{"k":1,"x":"end"}`})
	o.compact(sink.CompactRequest{All: true})
	want[1] = `{"k":1,"x":"end"}`
	o.want(want...)
	time.Sleep(2 * time.Millisecond)
	o.round(row{"+U", `{"k":1,"x":"end"}`})
	o.expire(sink.ExpireRequest{StateAge: 1, OrphanAge: 1, Fence: 2})
	o.noOrphans()
	if err != nil {
		return "given up", reached
	}
	return "committed", reached
}
