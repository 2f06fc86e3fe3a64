package lake

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mink-project/mink/sdk/sink"
)

// TestReadsStayRight lets rounds, compactions and expiries alternate at random, and compares
// all snapshots that readers may have with what was written.
func TestReadsStayRight(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { readsStayRight(t, seed, 30) })
	}
}

func readsStayRight(t *testing.T, seed uint64, steps int) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	spec := sink.TableSpec{BucketCount: 2}
	keyed := seed%3 > 0
	if keyed {
		spec.PrimaryKey, spec.Options = []string{"k"}, map[string]string{optionDeletes: []string{deletesEquality, deletesPosition}[seed%2]}
	}
	o := newOne(t, spec, SinkConfig{FileBytes: int64(1<<10) << rnd.IntN(8), SortBytes: 1 << 10, ScratchDir: t.TempDir()}, "k", "INT", "x", "STRING")
	o.open()
	now := map[int]string{} // by key, the row
	truth := map[string][]string{}
	var order []string
	next := 0
	for step := range steps {
		switch what := rnd.IntN(10); {
		case what < 6:
			var rows []row
			bucket := rnd.IntN(2)
			for range 1 + rnd.IntN(20) {
				k := next
				if keyed && rnd.IntN(2) == 0 {
					k = rnd.IntN(max(next, 1))
				}
				if k%2 != bucket {
					k++
				}
				next = max(next, k+1)
				_, there := now[k]
				switch {
				case there && !keyed:
					continue
				case there && rnd.IntN(3) == 0:
					rows = append(rows, row{"-D", fmt.Sprintf(`{"k":%d}`, k)})
					delete(now, k)
					continue
				}
				now[k] = fmt.Sprintf(`{"k":%d,"x":"%d"}`, k, step)
				kind := ""
				if keyed {
					kind = "+I"
					if there {
						kind = "+U"
					}
				}
				rows = append(rows, row{kind, now[k]})
			}
			if len(rows) == 0 {
				continue
			}
			ref := bucket0
			ref.Index = int32(bucket)
			o.commit(o.prepare(ref, nil, rows...))
		case what < 8:
			o.compact(sink.CompactRequest{All: rnd.IntN(3) == 0, BytesMax: int64(rnd.IntN(4)) << 11})
		default:
			keep := order[len(order)-rnd.IntN(min(len(order), 12)+1):]
			o.expire(sink.ExpireRequest{Keep: keep, StateAge: 1, OrphanAge: 1})
			order = slices.DeleteFunc(order, func(s string) bool {
				id, _ := strconv.ParseInt(s, 10, 64)
				there := o.outside().SnapshotByID(id) != nil
				if !there && slices.Contains(keep, s) {
					t.Fatalf("step %d: snapshot %s was to stay", step, s)
				}
				return !there
			})
		}
		rows := slices.Sorted(maps.Values(now))
		if o.last.Snapshot != "" {
			if was, ok := truth[o.last.Snapshot]; ok && !slices.Equal(was, rows) {
				t.Fatalf("step %d: the model changed without a snapshot", step)
			}
			if _, ok := truth[o.last.Snapshot]; !ok {
				truth[o.last.Snapshot] = rows
				order = append(order, o.last.Snapshot)
			}
		}
		for i, s := range order {
			if i+3 < len(order) && rnd.IntN(8) > 0 { // the newest and a few others
				continue
			}
			if got := o.rowsAt(s); !slices.Equal(got, truth[s]) && len(got)+len(truth[s]) > 0 {
				t.Fatalf("step %d: snapshot %s has\n%s\nwant\n%s", step, s, strings.Join(got, "\n"), strings.Join(truth[s], "\n"))
			}
		}
		if last := o.last; step%5 == 0 {
			o.open()
			if o.last.Round != last.Round || !maps.Equal(o.last.Ends, last.Ends) {
				t.Fatalf("step %d: recovered %+v, want %+v", step, o.last, last)
			}
		}
	}
}
