package node_test

import (
	"context"
	"flag"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/schema"
)

// randomTable is a primary-key table of any kind, in one or several buckets.
func randomTable(rt *rapid.T) *schema.Descriptor {
	d := mergetest.Table(rt)
	if rapid.IntRange(0, 2).Draw(rt, "partitioned") == 0 {
		d = mergetest.Partition(rt, d)
	}
	d = d.Clone()
	d.BucketCount = int32(rapid.IntRange(1, 2).Draw(rt, "buckets"))
	return d
}

// randomLife does one thing after the other to the table.
func randomLife(rt *rapid.T, r *kvRun) {
	t := func(f func()) func(*rapid.T) {
		return func(rt *rapid.T) {
			r.t = rt
			f()
		}
	}
	put := func(rt *rapid.T) {
		r.t = rt
		for range rapid.IntRange(1, 3).Draw(rt, "puts") {
			writes := mergetest.Writes(rt, r.d, mergetest.Columns(rt, r.d))
			r.put(&r.d.Schema, writes, writes, rapid.Bool().Draw(rt, "writer"))
		}
	}
	rt.Repeat(map[string]func(*rapid.T){
		"put":      put,
		"put more": put,
		"put on":   put,
		"puts":     put,
		"older": func(rt *rapid.T) {
			r.t = rt
			version := rapid.SampledFrom(r.schemas).Draw(rt, "version")
			if sent, writes := mergetest.OlderWrites(rt, r.d, version); sent != nil {
				if version != r.schemas[len(r.schemas)-1] {
					r.olders++
				}
				r.put(version, sent, writes, rapid.Bool().Draw(rt, "writer"))
			}
		},
		"again": func(rt *rapid.T) {
			r.t = rt
			r.settle()
			for _, b := range r.buckets {
				if w := b.h.ByWriter(); len(w) > 0 {
					r.resent++
					r.duplicate(b, w[rapid.IntRange(0, len(w)-1).Draw(rt, "which")])
				}
			}
		},
		"alter": func(rt *rapid.T) {
			r.t = rt
			if len(r.schemas) < 6 {
				r.alter(mergetest.Alterations(rt, r.d))
			}
		},
		"crash":    t(r.crash),
		"restart":  t(r.restart),
		"idle":     t(r.idle),
		"snapshot": t(r.snapshot),
		"trim":     t(r.trim),
		"drop partition": func(rt *rapid.T) {
			r.t = rt
			if rapid.IntRange(0, 3).Draw(rt, "drop") == 0 {
				r.dropPartition(rapid.IntRange(0, 9).Draw(rt, "which"))
			}
		},
		"crash soon": func(rt *rapid.T) {
			kinds := rapid.SampledFrom([]callKind{0, storeCalls, proposals}).Draw(rt, "at")
			r.point.arm(rapid.Int64Range(1, 40).Draw(rt, "calls"), rapid.Bool().Draw(rt, "after"), kinds)
		},
		"lose answers": func(rt *rapid.T) {
			do := rapid.SampledFrom([]fault.Action{fault.LoseResponse(), fault.LoseRequest(), fault.OwnConflict(), fault.Throttle(time.Second)}).Draw(rt, "fault")
			r.p.Faults.Inject(fault.Rule{Ops: fault.Writes, Times: rapid.IntRange(1, 3).Draw(rt, "times"), Do: do})
			r.point.loseAnswers(rapid.IntRange(0, 2).Draw(rt, "proposals"))
		},
		"check": t(r.check),
	})
	r.t = rt
	r.point.disarm()
	r.p.Faults.ClearRules()
	r.check()
	r.crash()
	r.check()
	if report, err := r.p.Node().Check(context.Background(), true); err != nil || !report.Clean {
		rt.Fatalf("fsck: %v %+v", err, report.Problems)
	}
}

// TestRandomTables: a primary-key table of any kind on a node, put to, altered, and
// crashed at any call with its answers lost, is what a map is: by lookups, scans, counts
// and the changelog, which a reader follows meanwhile. More: -rapid.checks=1000.
func TestRandomTables(t *testing.T) {
	fewChecks(t, 25)
	var all kvCounts
	rapid.Check(t, func(rt *rapid.T) {
		d := randomTable(rt)
		point := &crashPoint{}
		seed := rapid.Uint64Range(1, 1<<30).Draw(rt, "seed")
		all.add(inKVRun(t, kvWorld(seed, point), point, rt, d, func(r *kvRun) { randomLife(rt, r) }))
	})
	t.Logf("%+v", all)
	did := []int{all.puts, all.lost, all.crashes, all.alters, all.idled}
	if all.puts > 1000 { // then also what is rare
		did = append(did, all.refused, all.resent, all.olders, all.snapshots, all.trims, all.drops, all.committed, all.sourced)
	}
	if slices.Contains(did, 0) {
		t.Error("the histories hardly do anything")
	}
	if all.skipped > all.puts/5 {
		t.Errorf("%d puts were not taken for reasons of the node's, %d were", all.skipped, all.puts)
	}
}

// fewChecks is the default of -rapid.checks for this test.
func fewChecks(t *testing.T, n int) {
	t.Helper()
	const name = "rapid.checks"
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if given {
		return
	}
	was := flag.Lookup(name).Value.String()
	if err := flag.Set(name, strconv.Itoa(n)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flag.Set(name, was) }) // it was valid before
}
