package node_test

import (
	"context"
	"flag"
	"fmt"
	"testing"

	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/schema"
)

var everyCall = flag.Bool("every-call", false, "crash at every call, not at some of them")

// lifeTables are what kvLife can be done to.
func lifeTables() map[string]*schema.Descriptor {
	table := func(options map[string]string, more ...schema.Column) *schema.Descriptor {
		d := &schema.Descriptor{Database: "db", Table: "t", PrimaryKey: []string{"k"}, Options: options}
		d.Schema.Columns = []schema.Column{
			{Name: "k", Type: schema.MustParseType("INT")}, {Name: "v", Type: schema.MustParseType("STRING")}, {Name: "n", Type: schema.MustParseType("SMALLINT")},
		}
		d.Schema.Columns = append(d.Schema.Columns, more...)
		return d
	}
	sum := table(map[string]string{"merge_engine": "aggregation", "changelog_image": "full"},
		schema.Column{Name: "id", Type: schema.MustParseType("BIGINT"), AutoIncrement: true}, schema.Column{Name: "p", Type: schema.MustParseType("BOOLEAN")})
	sum.Schema.Columns[2].Aggregate = "sum"
	sum.PrimaryKey, sum.PartitionKeys = []string{"k", "p"}, []string{"p"}
	return map[string]*schema.Descriptor{
		"aggregation, full image, partitioned": sum,
		"last write, wal image":                table(map[string]string{"changelog_image": "wal"}),
	}
}

// rowOf makes a row of values by column names; the other columns are null.
func rowOf(s *schema.Schema, values map[string]any) mergetest.Row {
	row := make(mergetest.Row, len(s.Columns))
	for i, c := range s.Columns {
		row[i] = values[c.Name]
	}
	return row
}

// kvLife is a day of a table: puts of every kind, snapshots, alters, stores that close
// when idle, trims, a restart. It goes on whatever crashes.
func kvLife(r *kvRun) {
	put := func(writer, gone bool, columns []string, rows ...map[string]any) {
		var at []int
		for _, name := range columns {
			at = append(at, r.d.Schema.Index(name))
		}
		if at != nil && len(r.d.PartitionKeys) > 0 {
			at = append(at, r.d.Schema.Index("p"))
		}
		var writes []mergetest.Write
		for _, values := range rows {
			values["p"] = values["k"].(int32)%2 == 0
			writes = append(writes, mergetest.Write{Row: rowOf(&r.d.Schema, values), Columns: at, Delete: gone})
		}
		r.put(&r.d.Schema, writes, writes, writer)
	}
	type row = map[string]any
	put(true, false, nil, row{"k": int32(1), "v": "a", "n": int16(1)}, row{"k": int32(2), "v": "b", "n": int16(2)}, row{"k": int32(3), "v": "c"})
	put(false, false, nil, row{"k": int32(1), "v": "d", "n": int16(5)}, row{"k": int32(1), "v": "e", "n": int16(5)})
	r.snapshot()
	put(true, false, []string{"k", "n"}, row{"k": int32(1), "n": int16(7)}, row{"k": int32(4), "n": int16(8)})
	put(true, true, nil, row{"k": int32(2)}, row{"k": int32(9)})
	wide := schema.MustParseType("INT")
	r.alter([]schema.Change{
		{Op: schema.AddColumn, Column: &schema.Column{Name: "more", Type: schema.MustParseType("STRING")}},
		{Op: schema.RenameColumn, Name: "v", To: "w"}, {Op: schema.ModifyColumn, Name: "n", Type: &wide},
	})
	put(true, false, nil, row{"k": int32(5), "w": "f", "n": int32(1 << 20), "more": "x"}, row{"k": int32(1), "w": "g", "n": int32(3)})
	r.idle()
	put(false, false, []string{"k", "w"}, row{"k": int32(3), "w": "h"})
	put(true, true, []string{"k", "n"}, row{"k": int32(4)})
	r.snapshot()
	put(true, false, nil, row{"k": int32(6), "w": "i"}, row{"k": int32(2), "w": "j", "n": int32(4)})
	r.trim()
	r.restart()
	put(true, false, nil, row{"k": int32(7), "n": int32(9)})
	r.alter([]schema.Change{{Op: schema.DropColumn, Name: "w"}})
	put(false, false, nil, row{"k": int32(1), "n": int32(1), "more": "y"}, row{"k": int32(8)})
	r.snapshot()
	put(true, true, nil, row{"k": int32(5)})
}

// kvSettled requires that everything is as it should be, and is after one more crash.
func kvSettled(r *kvRun) {
	r.t.Helper()
	r.point.disarm()
	r.check()
	r.crash()
	r.check()
	if report, err := r.p.Node().Check(context.Background(), true); err != nil || !report.Clean {
		r.t.Fatalf("fsck: %v %+v", err, report.Problems)
	}
}

// found ends a run by what was found.
type found string

type finder struct{}

func (finder) Helper() {}
func (finder) Fatalf(format string, args ...any) {
	panic(found(fmt.Sprintf(format, args...)))
}

// finding is what f found to be wrong, "" for nothing.
func finding(f func(fataler)) (what string) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case found:
			what = string(p)
		default:
			panic(p)
		}
	}()
	f(finder{})
	return ""
}

// TestTablesCrashAtEveryCall crashes the node at every call that it makes to the store
// or to change the metadata log, before and after the call's effect, in the course of a
// table's life, which then goes on. Some of the calls by default, all with -every-call.
func TestTablesCrashAtEveryCall(t *testing.T) {
	for name, d := range lifeTables() {
		t.Run(name, func(t *testing.T) {
			run := func(at int64, after bool) (calls int64, counts kvCounts) {
				point := &crashPoint{}
				found := finding(func(fail fataler) {
					counts = inKVRun(t, kvWorld(1, point), point, fail, d, func(r *kvRun) {
						point.arm(at, after, 0)
						kvLife(r)
						calls = point.disarm()
						if at > 0 {
							kvSettled(r)
							return
						}
						r.check()
					})
				})
				if found != "" {
					t.Fatalf("crash at call %d (%s), after its effect: %t: %s", at, point.lastOp(), after, found)
				}
				return calls, counts
			}
			total, quiet := run(0, false)
			t.Logf("%d calls; %+v", total, quiet)
			if quiet.skipped > 0 || quiet.snapshots != 3 || quiet.idled == 0 || quiet.trims == 0 || quiet.crashes > 0 {
				t.Fatalf("a life without crashes does not do what it should: %+v", quiet)
			}
			step := total/10 + 1
			switch {
			case *everyCall:
				step = 1
			case testing.Short():
				step = total/4 + 1
			}
			crashes, lost := 0, 0
			for at := int64(1); at <= total && !t.Failed(); at += step {
				for _, after := range []bool{false, true} {
					_, counts := run(at, after)
					crashes, lost = crashes+counts.crashes, lost+counts.lost
				}
			}
			t.Logf("%d crashes, %d puts were lost", crashes, lost)
			if tries := 2 * (total / step); int64(crashes) < tries*3/2 { // one by the test, one at the call
				t.Errorf("%d crashes in %d tries", crashes, tries)
			}
		})
	}
}
