package lake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/sink"
)

// compact is what a worker does; an empty answer is a round that was given up.
func (o *one) compact(req sink.CompactRequest) sink.Compaction {
	o.t.Helper()
	done, commit := o.prepareCompaction(req)
	if done.Empty() {
		_, err := o.table.Abort(o.t.Context(), sink.AbortRequest{Round: commit.Round, Staged: commit.Staged})
		o.must(err)
		return done
	}
	o.commit(commit)
	return done
}

func (o *one) prepareCompaction(req sink.CompactRequest) (sink.Compaction, sink.CommitRequest) {
	o.t.Helper()
	o.rounds++
	commit := sink.CommitRequest{Round: sink.RoundID(fmt.Sprintf("c-%d", o.rounds)), Base: o.last.Round, Fence: 1}
	_, err := o.table.BeginRound(o.t.Context(), sink.BeginRoundRequest{Round: commit.Round, Base: commit.Base, Fence: commit.Fence})
	o.must(err)
	m, ok := sink.MaintainerOf(o.table)
	if !ok {
		o.t.Fatal("no maintenance")
	}
	plan, err := m.PlanCompaction(o.t.Context(), req)
	o.must(err)
	done, err := m.Compact(o.t.Context(), req)
	o.must(err)
	if plan.DataFiles != done.DataFiles || plan.DeleteFiles != done.DeleteFiles || plan.Bytes != done.Bytes || plan.More != done.More {
		o.t.Fatalf("planned %+v, did %+v", plan, done)
	}
	resp, err := o.table.Prepare(o.t.Context(), sink.PrepareRequest{})
	o.must(err)
	commit.Staged = resp.Staged
	return done, commit
}

func (o *one) expire(req sink.ExpireRequest) sink.ExpireResponse {
	o.t.Helper()
	req.Fence = max(req.Fence, 1)
	m, _ := sink.MaintainerOf(o.table)
	done, err := m.Expire(o.t.Context(), req)
	o.must(err)
	return done
}

// shape counts the current snapshot's data and delete files.
func (o *one) shape() (data, deletes int) {
	o.t.Helper()
	tbl := o.outside()
	fs, err := tbl.FS(o.t.Context())
	o.must(err)
	manifests, err := tbl.CurrentSnapshot().Manifests(fs)
	o.must(err)
	for _, m := range manifests {
		for e, err := range m.Entries(fs, true) {
			o.must(err)
			if e.DataFile().ContentType() == iceberg.EntryContentData {
				data++
			} else {
				deletes++
			}
		}
	}
	return data, deletes
}

// rowsAt are the rows of a snapshot, as rows has them.
func (o *one) rowsAt(snapshot string) []string {
	o.t.Helper()
	id, err := strconv.ParseInt(snapshot, 10, 64)
	o.must(err)
	_, batches, err := o.outside().Scan(table.WithSnapshotID(id)).ToArrowRecords(context.Background())
	o.must(err)
	var out []string
	for batch, err := range batches {
		o.must(err)
		text, err := batch.MarshalJSON()
		o.must(err)
		var list []map[string]any
		o.must(json.Unmarshal(text, &list))
		for _, r := range list {
			maps.DeleteFunc(r, func(_ string, v any) bool { return v == nil })
			one, _ := json.Marshal(r)
			out = append(out, string(one))
		}
		batch.Release()
	}
	slices.Sort(out)
	return out
}

func TestCompactionOfALogTable(t *testing.T) {
	o := newOne(t, sink.TableSpec{BucketCount: 2}, SinkConfig{}, "k", "INT", "x", "SMALLINT", "at", "TIME(0)", "tags", "ARRAY<STRING>")
	o.open()
	if d := o.compact(sink.CompactRequest{}); !d.Empty() {
		t.Fatalf("of an empty table: %+v", d)
	}
	other := bucket0
	other.Index = 1
	for i := range 4 {
		o.round(row{"", fmt.Sprintf(`{"k":%d,"x":%d,"at":"00:00:0%d","tags":["a","%d"]}`, i, i, i, i)})
		if i < 2 {
			o.commit(o.prepare(other, nil, row{"", fmt.Sprintf(`{"k":%d}`, 10+i)}))
		}
	}
	before, last := o.rows(), o.last
	if d := o.compact(sink.CompactRequest{}); d.DataFiles != 4 || d.NewFiles != 1 || d.DeleteFiles != 0 || d.More {
		t.Fatalf("compacted %+v: the bucket with four files, and not the one with two", d)
	}
	o.want(before...)
	if data, _ := o.shape(); data != 3 {
		t.Fatalf("%d data files", data)
	}
	if !maps.Equal(o.last.Ends, last.Ends) || o.last.Round == last.Round {
		t.Fatalf("the compaction's round: %+v after %+v", o.last, last)
	}
	recovered := o.last
	o.open()
	if o.last.Round != recovered.Round || o.last.Snapshot != recovered.Snapshot || !maps.Equal(o.last.Ends, recovered.Ends) {
		t.Fatalf("recovered %+v, want %+v", o.last, recovered)
	}
	if got := o.rowsAt(last.Snapshot); !slices.Equal(got, before) {
		t.Fatalf("the snapshot before: %v", got)
	}
	if d := o.compact(sink.CompactRequest{}); !d.Empty() {
		t.Fatalf("again: %+v", d)
	}
	if d := o.compact(sink.CompactRequest{All: true}); d.DataFiles != 2 || d.NewFiles != 1 { // the other bucket
		t.Fatalf("all: %+v", d)
	}
	for _, f := range o.dataFiles() {
		if _, ok := BucketOf(f.FilePath()); !ok {
			t.Errorf("%s is of no bucket", f.FilePath())
		}
	}
	if left := o.keys(stagedDir); len(left) > 0 {
		t.Fatalf("left behind: %v", left)
	}
	if p, there := o.outside().Properties()[table.DefaultNameMappingKey]; there {
		t.Errorf("the library's name mapping stays: %s", p)
	}
	o.round(row{"", `{"k":99}`})
	o.want(append(before, `{"k":99}`)...)
}

func (o *one) dataFiles() (files []iceberg.DataFile) {
	o.t.Helper()
	tasks, err := o.outside().Scan().PlanFiles(o.t.Context())
	o.must(err)
	for _, task := range tasks {
		files = append(files, task.File)
	}
	return files
}

// TestCompactionByBytes goes on where it was cut, and ends.
func TestCompactionByBytes(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
	o.open()
	for i := range 7 {
		o.round(row{"", fmt.Sprintf(`{"k":%d}`, i)})
	}
	before := o.rows()
	for runs := 1; ; runs++ {
		d := o.compact(sink.CompactRequest{All: true, BytesMax: 1})
		o.want(before...)
		if d.DataFiles != 2 || runs > 7 {
			t.Fatalf("run %d: %+v", runs, d)
		}
		if !d.More {
			break
		}
	}
	if data, _ := o.shape(); data != 1 {
		t.Fatalf("%d files", data)
	}
}

func TestCompactionOfAPrimaryKeyTable(t *testing.T) {
	for _, deletes := range []string{deletesEquality, deletesPosition} {
		t.Run(deletes, func(t *testing.T) {
			o := newOne(t, sink.TableSpec{PrimaryKey: []string{"p", "k"}, PartitionKeys: []string{"p"}, Options: map[string]string{optionDeletes: deletes}}, SinkConfig{SortBytes: 1 << 10, ScratchDir: t.TempDir()},
				"p", "STRING NOT NULL", "k", "SMALLINT NOT NULL", "x", "STRING")
			o.open()
			var first []row
			for i := range 200 {
				first = append(first, row{"+I", fmt.Sprintf(`{"p":"x","k":%d,"x":"a"}`, i)})
			}
			o.round(first...)
			for i := range 4 {
				o.round(row{"+U", fmt.Sprintf(`{"p":"x","k":%d,"x":"b%d"}`, i, i)}, row{"-D", fmt.Sprintf(`{"p":"x","k":%d}`, 100+i)}, row{"+I", fmt.Sprintf(`{"p":"x","k":%d,"x":"c"}`, 500-i)})
			}
			before := o.rows()
			d := o.compact(sink.CompactRequest{All: true})
			o.want(before...)
			if data, left := o.shape(); data != 1 || left != 0 || d.DataFiles != 5 || d.DeleteFiles != 4 {
				t.Fatalf("%d data and %d delete files after %+v", data, left, d)
			}
			for i := range 3 { // the rows that were written anew can be changed
				o.round(row{"+U", fmt.Sprintf(`{"p":"x","k":%d,"x":"d"}`, i)}, row{"-D", fmt.Sprintf(`{"p":"x","k":%d}`, 500-i)})
			}
			rows := slices.DeleteFunc(slices.Clone(before), func(r string) bool {
				return slices.ContainsFunc([]int{0, 1, 2, 500, 499, 498}, func(k int) bool { return strings.HasPrefix(r, fmt.Sprintf(`{"k":%d,`, k)) })
			})
			for i := range 3 {
				rows = append(rows, fmt.Sprintf(`{"k":%d,"p":"x","x":"d"}`, i))
			}
			slices.Sort(rows)
			o.want(rows...)
		})
	}
}

// TestPositionDeletesAreMerged: a file that is large and hardly worn is not written anew.
func TestPositionDeletesAreMerged(t *testing.T) {
	o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}}, SinkConfig{FileBytes: 2 << 10}, "k", "INT", "x", "STRING")
	o.open()
	var first []row
	for i := range 2000 {
		first = append(first, row{"+I", fmt.Sprintf(`{"k":%d,"x":"%x"}`, i, rand.Uint64())})
	}
	o.round(first...)
	large, _ := o.shape()
	for i := range deleteFileMax + 1 {
		o.round(row{"-D", fmt.Sprintf(`{"k":%d}`, i)})
	}
	before := o.rows()
	d := o.compact(sink.CompactRequest{})
	if data, left := o.shape(); d.DataFiles != 0 || d.DeleteFiles != deleteFileMax+1 || data != large || left != 1 {
		t.Fatalf("%d data and %d delete files after %+v", data, left, d)
	}
	o.want(before...)
	o.round(row{"-D", `{"k":100}`}, row{"+U", `{"k":200,"x":"new"}`})
	o.compact(sink.CompactRequest{All: true})
	if _, left := o.shape(); left != 0 {
		t.Fatalf("%d delete files are left", left)
	}
	if rows := o.rows(); len(rows) != 2000-deleteFileMax-2 {
		t.Fatalf("%d rows", len(rows))
	}
}

// TestDeletesOfNothingGo: another engine's compaction leaves delete files behind.
func TestDeletesOfNothingGo(t *testing.T) {
	o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}, Options: map[string]string{optionDeletes: deletesEquality}}, SinkConfig{}, "k", "INT", "x", "STRING")
	o.open()
	o.round(row{"+I", `{"k":1,"x":"a"}`}, row{"+I", `{"k":2,"x":"a"}`})
	for i := range deadMin {
		o.round(row{"+U", fmt.Sprintf(`{"k":1,"x":"%d"}`, i)})
	}
	before := o.rows()
	o.outsideCompact()
	_, left := o.shape()
	d := o.compact(sink.CompactRequest{})
	if d.DataFiles != 0 || d.DeleteFiles != left || left < deadMin {
		t.Fatalf("%d delete files, %+v", left, d)
	}
	if data, left := o.shape(); left != 0 || data != 1 {
		t.Fatalf("%d data and %d delete files", data, left)
	}
	o.want(before...)
}

// TestCompactionOfOtherWritersFiles: their rows stay, duplicates and all, in files of no bucket.
func TestCompactionOfOtherWritersFiles(t *testing.T) {
	o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}}, SinkConfig{}, "k", "INT", "x", "STRING")
	o.open()
	o.round(row{"+I", `{"k":1,"x":"a"}`})
	for range 3 {
		o.outsideAppend(`{"k":9,"x":"theirs"}`)
	}
	before := o.rows()
	if d := o.compact(sink.CompactRequest{}); d.DataFiles != 3 || d.NewFiles != 1 {
		t.Fatalf("%+v", d)
	}
	o.want(before...)
	for _, f := range o.dataFiles() {
		if _, own := BucketOf(f.FilePath()); own != (f.Count() == 1) {
			t.Errorf("%s", f.FilePath())
		}
	}
	o.round(row{"-D", `{"k":9}`}) // of one of them, as before: the file's rows have the key thrice
}

// TestTwiceTheSameKeyIsNotCompacted: one of the rows would be lost without a word.
func TestTwiceTheSameKeyIsNotCompacted(t *testing.T) {
	o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}}, SinkConfig{}, "k", "INT", "x", "STRING")
	o.open()
	for range 3 {
		o.round(row{"+I", `{"k":1,"x":"a"}`}) // as inserts they look for no older row
	}
	before := o.rows()
	_, err := o.table.BeginRound(t.Context(), sink.BeginRoundRequest{Round: "c", Base: o.last.Round, Fence: 1})
	o.must(err)
	if _, err := o.table.(sink.Maintainer).Compact(t.Context(), sink.CompactRequest{}); !errors.Is(err, sink.ErrCorrupt) {
		t.Fatal(err)
	}
	o.want(before...)
	o.open()
	o.round(row{"+I", `{"k":2,"x":"b"}`})
}

// TestCompactionKeepsColumnsOfOthers, and follows Mink's.
func TestCompactionKeepsColumnsOfOthers(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT", "x", "INT")
	o.open()
	o.round(row{"", `{"k":1,"x":5}`})
	next := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT", "x", "BIGINT", "y", "STRING").spec.Schema
	next.ID = 2
	_, err := o.table.SchemaChange(t.Context(), sink.SchemaChangeRequest{Schema: next})
	o.must(err)
	o.spec.Schema = next
	tx := o.outside().NewTransaction()
	o.must(tx.UpdateSchema(true, false).AddColumn([]string{"theirs"}, iceberg.PrimitiveTypes.String, "", false, nil).Commit())
	_, err = tx.Commit(t.Context())
	o.must(err)
	o.outsideAppend(`{"k":2,"x":6,"y":"b","theirs":"c"}`)
	o.outsideAppend(`{"k":3,"x":7,"theirs":"d"}`)
	o.round(row{"", `{"k":4,"x":50000000000,"y":"e"}`})
	before := o.rows()
	if d := o.compact(sink.CompactRequest{All: true}); d.DataFiles != 4 || d.NewFiles != 2 {
		t.Fatalf("%+v", d)
	}
	o.want(before...)
}

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

// TestOutsideCommitDuringACompaction: it is planned again on what is there by then.
func TestOutsideCommitDuringACompaction(t *testing.T) {
	for _, when := range []string{"before the commit", "in the commit"} {
		t.Run(when, func(t *testing.T) {
			o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}}, SinkConfig{}, "k", "INT", "x", "STRING")
			o.open()
			for i := range 3 {
				o.round(row{"+I", fmt.Sprintf(`{"k":%d,"x":"a"}`, i)})
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
			o.want(`{"k":0,"x":"a"}`, `{"k":2,"x":"a"}`)
			o.compact(sink.CompactRequest{All: true})
			o.want(`{"k":0,"x":"a"}`, `{"k":2,"x":"a"}`)
		})
	}
}

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

// noOrphans: all that is there is named by the metadata.
func (o *one) noOrphans() {
	o.t.Helper()
	lt := o.table.(*lakeTable)
	named, err := lt.namedFiles(o.t.Context(), o.outside(), func() {})
	o.must(err)
	for _, key := range o.keys("") {
		if !named.has(key) {
			o.t.Fatalf("%s is an orphan", key)
		}
	}
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

// TestEveryInterleavingOfCompactionAndRounds stops a compaction before each of its requests and
// lets an heir, or another engine, do something meanwhile.
func TestEveryInterleavingOfCompactionAndRounds(t *testing.T) {
	for _, second := range []string{"round", "compaction", "outside", "expire"} {
		t.Run(second, func(t *testing.T) {
			outcomes := map[string]int{}
			for stop := 1; ; stop++ {
				outcome, reached := interleaveCompaction(t, second, stop)
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

func interleaveCompaction(t *testing.T, second string, stop int) (outcome string, reached bool) {
	o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}}, SinkConfig{}, "k", "INT", "x", "STRING")
	steps := &dyingStore{Store: o.w.store}
	o.w.store = steps
	o.s = newSink(o.w, SinkConfig{})
	o.open()
	for i := range 3 {
		o.round(row{"+I", fmt.Sprintf(`{"k":%d,"x":"a"}`, i)}, row{"-D", `{"k":3}`})
	}
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
		t.Fatalf("stopped before request %d: an error that no rival explains: %v", stop, err)
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

func TestCompactionIsARoundOfItsOwn(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
	o.open()
	m := o.table.(sink.Maintainer)
	if _, err := m.Compact(t.Context(), sink.CompactRequest{}); !errors.Is(err, sink.ErrInvalid) {
		t.Fatal(err)
	}
	_, err := o.table.BeginRound(t.Context(), sink.BeginRoundRequest{Round: "a", Fence: 1})
	o.must(err)
	batch := o.batch([]row{{"", `{"k":1}`}})
	defer batch.Release()
	_, err = o.table.Write(t.Context(), sink.WriteRequest{Bucket: bucket0, Start: 0, End: 1, Batch: batch})
	o.must(err)
	if _, err := m.Compact(t.Context(), sink.CompactRequest{}); !errors.Is(err, sink.ErrInvalid) {
		t.Fatal(err)
	}
	if _, err := m.Expire(t.Context(), sink.ExpireRequest{Fence: 1}); !errors.Is(err, sink.ErrInvalid) {
		t.Fatal(err)
	}
}

func TestAlike(t *testing.T) {
	for name, c := range map[string]struct {
		sizes []int64
		want  int
	}{
		"too few":           {[]int64{1 << 20, 1 << 20}, 0},
		"of one size":       {[]int64{1 << 20, 1 << 20, 1 << 20}, 3},
		"and a large one":   {[]int64{1 << 20, 1 << 20, 1 << 20, 20 << 20}, 3},
		"growing":           {[]int64{1 << 20, 2 << 20, 5 << 20}, 3},
		"a small one apart": {[]int64{1 << 20, 5 << 20, 6 << 20, 7 << 20}, 3},
		"nothing alike":     {[]int64{1 << 20, 9 << 20, 50 << 20}, 0},
		"all tiny":          {[]int64{1, 1000, 60000}, 3},
	} {
		var tasks []table.FileScanTask
		for _, n := range c.sizes {
			b, err := iceberg.NewDataFileBuilder(*iceberg.UnpartitionedSpec, iceberg.EntryContentData, "x", iceberg.ParquetFile, nil, nil, nil, 1, n)
			if err != nil {
				t.Fatal(err)
			}
			tasks = append(tasks, table.FileScanTask{File: b.Build()})
		}
		if got := alike(tasks, false); len(got) != c.want {
			t.Errorf("%s: %d files, want %d", name, len(got), c.want)
		}
	}
}
