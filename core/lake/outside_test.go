package lake

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// outside is the table as another engine has it: the same library.
func (o *one) outside() *table.Table {
	o.t.Helper()
	tbl, err := o.w.Load(context.Background(), identifier(o.spec))
	o.must(err)
	return tbl
}

func (o *one) outsideAppend(rows ...string) {
	o.t.Helper()
	tbl := o.outside()
	as, err := table.SchemaToArrowSchema(tbl.Schema(), nil, true, false)
	o.must(err)
	b := array.NewRecordBuilder(memory.DefaultAllocator, as)
	for _, r := range rows {
		o.must(b.UnmarshalJSON([]byte(r)))
	}
	rec := b.NewRecordBatch()
	rdr, err := array.NewRecordReader(as, []arrow.RecordBatch{rec})
	o.must(err)
	_, err = tbl.Append(context.Background(), rdr, nil)
	o.must(err)
}

// outsideCompact rewrites all data files into one, as engines do.
func (o *one) outsideCompact() {
	o.t.Helper()
	tbl := o.outside()
	tasks, err := tbl.Scan().PlanFiles(context.Background())
	o.must(err)
	var group table.CompactionTaskGroup
	for _, task := range tasks {
		group.Tasks = append(group.Tasks, task)
		group.TotalSizeBytes += task.File.FileSizeBytes()
	}
	tx := tbl.NewTransaction()
	_, err = tx.RewriteDataFiles(context.Background(), []table.CompactionTaskGroup{group}, table.RewriteDataFilesOptions{})
	o.must(err)
	_, err = tx.Commit(context.Background())
	o.must(err)
}

func TestOutsideCommitsBetweenRoundsAreCarriedAlong(t *testing.T) {
	for _, deletes := range []string{deletesEquality, deletesPosition} {
		t.Run(deletes, func(t *testing.T) {
			o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}, Options: map[string]string{optionDeletes: deletes}}, SinkConfig{}, "k", "INT", "x", "STRING")
			o.open()
			o.round(row{"+I", `{"k":1,"x":"a"}`}, row{"+I", `{"k":2,"x":"a"}`})
			o.round(row{"+U", `{"k":1,"x":"b"}`})
			o.outsideAppend(`{"k":9,"x":"outside"}`)
			before := o.last
			o.open() // its snapshot is older than the current one
			if o.last.Round != before.Round || o.last.Snapshot != before.Snapshot || o.last.Ends[bucket0] != before.Ends[bucket0] {
				t.Fatalf("recovered %+v, want %+v", o.last, before)
			}
			o.round(row{"+U", `{"k":1,"x":"c"}`})
			o.want(`{"k":1,"x":"c"}`, `{"k":2,"x":"a"}`, `{"k":9,"x":"outside"}`)
			o.outsideCompact()
			o.open()
			o.round(row{"+U", `{"k":1,"x":"d"}`}, row{"-D", `{"k":2,"x":"a"}`}, row{"-D", `{"k":9,"x":"outside"}`})
			o.want(`{"k":1,"x":"d"}`)
		})
	}
}

// TestOutsideCommitWhileARoundIsPrepared: equality deletes are of whatever is older, positions
// are looked up again: in files that another engine compacted, and in those that it added.
func TestOutsideCommitWhileARoundIsPrepared(t *testing.T) {
	for _, deletes := range []string{deletesEquality, deletesPosition} {
		for _, during := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/duringCommit=%t", deletes, during), func(t *testing.T) {
				o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}, Options: map[string]string{optionDeletes: deletes}}, SinkConfig{}, "k", "INT", "x", "STRING")
				o.open()
				o.round(row{"+I", `{"k":1,"x":"a"}`}, row{"+I", `{"k":2,"x":"a"}`}, row{"+I", `{"k":3,"x":"a"}`})
				o.round(row{"+I", `{"k":4,"x":"a"}`})
				req := o.prepare(bucket0, nil, row{"+U", `{"k":1,"x":"b"}`}, row{"-D", `{"k":3,"x":"a"}`}, row{"+U", `{"k":4,"x":"b"}`})
				acts := []func(){func() { o.outsideAppend(`{"k":9,"x":"outside"}`) }, o.outsideCompact, func() { o.outsideAppend(`{"k":1,"x":"again"}`) }}
				next := func() {
					o.w.before = nil
					acts[0]()
					acts = acts[1:]
				}
				var hook func([]table.Requirement, []table.Update) error
				hook = func([]table.Requirement, []table.Update) error { // each try meets another one
					if len(acts) > 0 {
						next()
						o.w.before = hook
					}
					return nil
				}
				for !during && len(acts) > 0 {
					next()
				}
				if during {
					o.w.before = hook
				}
				resp, err := o.table.Commit(t.Context(), req)
				o.must(err)
				o.last = o.last.After(req, resp.Snapshot)
				o.want(`{"k":1,"x":"b"}`, `{"k":2,"x":"a"}`, `{"k":4,"x":"b"}`, `{"k":9,"x":"outside"}`)
				o.round(row{"+U", `{"k":1,"x":"c"}`}, row{"-D", `{"k":9,"x":"outside"}`})
				o.want(`{"k":1,"x":"c"}`, `{"k":2,"x":"a"}`, `{"k":4,"x":"b"}`)
				o.onlyNamedFiles()
			})
		}
	}
}

// onlyNamedFiles: no data file is left that no snapshot names.
func (o *one) onlyNamedFiles() {
	o.t.Helper()
	tbl := o.outside()
	named := map[string]bool{}
	fs, err := tbl.FS(context.Background())
	o.must(err)
	for _, s := range tbl.Metadata().Snapshots() {
		manifests, err := s.Manifests(fs)
		o.must(err)
		for _, m := range manifests {
			for e, err := range m.Entries(fs, false) {
				o.must(err)
				named[e.DataFile().FilePath()] = true
			}
		}
	}
	for _, key := range o.keys(dataDir + "r-") {
		if !named[o.w.Location(tableDir(o.spec)+key)] {
			o.t.Errorf("file %s is of no snapshot", key)
		}
	}
}

// A round that is refused before it is tried leaves nothing: its decision would keep its files
// until another round is committed.
func TestARefusedRoundLeavesNothing(t *testing.T) {
	o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}}, SinkConfig{}, "k", "INT", "x", "STRING")
	o.open()
	o.round(row{"+I", `{"k":1,"x":"a"}`})
	req := o.prepare(bucket0, nil, row{"+U", `{"k":1,"x":"b"}`})
	meta := o.outside().Metadata()
	spec, err := iceberg.NewPartitionSpecOpts(iceberg.AddPartitionFieldByName("k", "k_by_4", iceberg.BucketTransform{NumBuckets: 4}, meta.CurrentSchema(), nil))
	o.must(err)
	_, err = o.w.Commit(t.Context(), identifier(o.spec), []table.Requirement{table.AssertTableUUID(meta.TableUUID())},
		[]table.Update{table.NewAddPartitionSpecUpdate(&spec, false), table.NewSetDefaultSpecUpdate(-1)})
	o.must(err)
	if _, err = o.table.Commit(t.Context(), req); !errors.Is(err, sink.ErrCorrupt) {
		t.Fatalf("deletes of a partition spec that is not the table's: %v", err)
	}
	_, err = o.table.Abort(t.Context(), sink.AbortRequest{Round: req.Round, Staged: req.Staged})
	o.must(err)
	if left := append(o.keys(stagedDir), o.keys(roundDir(req.Round))...); len(left) > 0 {
		t.Fatalf("the refused round left %v", left)
	}
}

// Keys of a partition that is dropped and made again replace the rows that stayed.
func TestAPartitionThatIsMadeAgain(t *testing.T) {
	for _, deletes := range []string{deletesEquality, deletesPosition} {
		t.Run(deletes, func(t *testing.T) {
			gone := map[mink.PartitionID]bool{}
			o := newOne(t, sink.TableSpec{PrimaryKey: []string{"p", "k"}, PartitionKeys: []string{"p"}, Options: map[string]string{optionDeletes: deletes}},
				SinkConfig{Gone: func(id mink.PartitionID) bool { return gone[id] }}, "p", "STRING", "k", "INT", "x", "STRING")
			o.open()
			first, other, again := bucket0, bucket0, bucket0
			other.Partition, again.Partition = 2, 3
			o.commit(o.prepare(first, []string{"a"}, row{"+I", `{"p":"a","k":1,"x":"old"}`}, row{"+I", `{"p":"a","k":2,"x":"old"}`}))
			o.commit(o.prepare(other, []string{"b"}, row{"+I", `{"p":"b","k":1,"x":"other"}`}))
			gone[first.Partition] = true
			o.commit(o.prepare(again, []string{"a"}, row{"+U", `{"p":"a","k":1,"x":"new"}`}))
			o.want(`{"k":1,"p":"a","x":"new"}`, `{"k":1,"p":"b","x":"other"}`, `{"k":2,"p":"a","x":"old"}`)
			o.open()
			if _, there := o.last.Ends[first]; there || len(o.last.Ends) != 2 {
				t.Errorf("ends of a dropped partition are kept: %v", o.last.Ends)
			}
		})
	}
}

func TestExpiredByAnotherEngineIsAnErrorAndNeverZero(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
	o.open()
	o.round(row{"", `{"k":1}`})
	o.outsideAppend(`{"k":9}`)
	tbl := o.outside()
	tx := tbl.NewTransaction()
	o.must(tx.ExpireSnapshots(table.WithRetainLast(1), table.WithOlderThan(0)))
	_, err := tx.Commit(t.Context())
	o.must(err)
	_, err = o.table.Recover(t.Context(), sink.RecoverRequest{Fence: 2})
	if !errors.Is(err, sink.ErrCorrupt) || !strings.Contains(err.Error(), "r-1") {
		t.Fatalf("recover: %v", err)
	}
	_, err = o.table.BeginRound(t.Context(), sink.BeginRoundRequest{Round: "next", Fence: 2})
	if !errors.Is(err, sink.ErrCorrupt) {
		t.Fatalf("begin: %v", err)
	}
	if _, err := SnapshotOffsets(t.Context(), o.outside(), 12345); !errors.Is(err, sink.ErrNotExist) {
		t.Fatal(err)
	}
}

// TestCatalogThatCommitsAndSaysOtherwise: after an unknown outcome no file is
// touched, and Recover has the round.
func TestCatalogThatCommitsAndSaysOtherwise(t *testing.T) {
	for name, answer := range map[string]error{"unknown": sink.ErrUnknownOutcome, "500": errors.New("500 internal server error"), "timeout": context.DeadlineExceeded} {
		t.Run(name, func(t *testing.T) {
			o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
			o.open()
			o.round(row{"", `{"k":1}`})
			req := o.prepare(bucket0, nil, row{"", `{"k":2}`})
			o.w.after = func([]table.Requirement, []table.Update) error { return answer }
			if _, err := o.table.Commit(t.Context(), req); !errors.Is(err, sink.ErrUnknownOutcome) {
				t.Fatal(err)
			}
			o.w.after = nil
			o.want(`{"k":1}`, `{"k":2}`)
			_, err := o.table.Abort(t.Context(), sink.AbortRequest{Round: req.Round, Staged: req.Staged}) // of a committed round
			o.must(err)
			o.open()
			if o.last.Round != req.Round || o.last.Ends[bucket0] != 2 {
				t.Fatalf("recovered %+v", o.last)
			}
			resp, err := o.table.Commit(t.Context(), req) // again
			o.must(err)
			if resp.Snapshot != o.last.Snapshot {
				t.Fatal(resp.Snapshot)
			}
			o.round(row{"", `{"k":3}`})
			o.want(`{"k":1}`, `{"k":2}`, `{"k":3}`)
			if left := o.keys(stagedDir); len(left) > 0 {
				t.Fatalf("left behind: %v", left)
			}
		})
	}
}

// TestCatalogThatIsDown: nothing was changed, and the staged round is committed later.
func TestCatalogThatIsDown(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
	o.open()
	req := o.prepare(bucket0, nil, row{"", `{"k":1}`})
	o.w.before = func([]table.Requirement, []table.Update) error { return sink.ErrUnavailable }
	if _, err := o.table.Commit(t.Context(), req); !errors.Is(err, sink.ErrUnavailable) || errors.Is(err, sink.ErrUnknownOutcome) {
		t.Fatal(err)
	}
	o.w.before = nil
	o.open()
	o.commit(req)
	o.want(`{"k":1}`)
}

// TestLateCommitAfterATakeover: a commit is on its way to the catalog while the
// next worker begins. If it lands after all, its files must be there; if the next
// worker's round lands first, it cannot.
func TestLateCommitAfterATakeover(t *testing.T) {
	for _, heirFirst := range []bool{false, true} {
		t.Run(fmt.Sprintf("heirFirst=%t", heirFirst), func(t *testing.T) {
			o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
			o.open()
			o.round(row{"", `{"k":1}`})
			heir := *o
			req := o.prepare(bucket0, nil, row{"", `{"k":2}`})
			o.w.before = func([]table.Requirement, []table.Update) error {
				o.w.before = nil
				heir.rounds += 100
				heir.open()
				staged := heir.prepare(bucket0, nil, row{"", `{"k":3}`}) // begins, and gives the other up
				if heirFirst {
					heir.commit(staged)
				}
				return nil
			}
			_, err := o.table.Commit(t.Context(), req)
			if heirFirst {
				if !errors.Is(err, sink.ErrConflict) {
					t.Fatal(err)
				}
				o.want(`{"k":1}`, `{"k":3}`)
			} else {
				o.must(err)
				o.want(`{"k":1}`, `{"k":2}`)
			}
		})
	}
}

// TestWorkerThatSleepsThroughATakeover: it prepared, and asks for its commit after
// the next worker removed its files.
func TestWorkerThatSleepsThroughATakeover(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
	o.open()
	o.round(row{"", `{"k":1}`})
	req := o.prepare(bucket0, nil, row{"", `{"k":2}`})
	heir := *o
	heir.rounds += 100
	heir.open()
	staged := heir.prepare(bucket0, nil, row{"", `{"k":3}`})
	if files := o.keys(roundDir(req.Round)); len(files) > 0 {
		t.Fatalf("the files of a round that was given up and never tried are there: %v", files)
	}
	if _, err := o.table.Commit(t.Context(), req); !errors.Is(err, sink.ErrNotExist) {
		t.Fatalf("commit of files that are gone: %v", err)
	}
	o.want(`{"k":1}`)
	heir.commit(staged)
	o.want(`{"k":1}`, `{"k":3}`)
}

func TestPlacesThatAreNotOurs(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
	o.open()
	o.round(row{"", `{"k":1}`})
	other := o.spec
	other.ID = 8
	if _, err := o.s.Open(t.Context(), sink.OpenRequest{Table: other}); !errors.Is(err, sink.ErrAlreadyExists) {
		t.Fatal(err)
	}
	tbl := o.outside()
	tx := tbl.NewTransaction()
	o.must(tx.RemoveProperties([]string{keyTableID}))
	_, err := tx.Commit(t.Context())
	o.must(err)
	if _, err := o.s.Open(t.Context(), sink.OpenRequest{Table: o.spec}); !errors.Is(err, sink.ErrAlreadyExists) {
		t.Fatal(err)
	}
}

// TestColumnsOfAnotherEngineAreNotTaken: its field id is one that Mink would give out.
func TestColumnsOfAnotherEngineAreNotTaken(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
	o.open()
	tx := o.outside().NewTransaction()
	o.must(tx.UpdateSchema(true, false).AddColumn([]string{"theirs"}, iceberg.PrimitiveTypes.String, "", false, nil).Commit())
	_, err := tx.Commit(t.Context())
	o.must(err)
	o.round(row{"", `{"k":1}`}) // is written on
	next := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT", "ours", "STRING").spec.Schema
	next.ID = 2
	_, err = o.table.SchemaChange(t.Context(), sink.SchemaChangeRequest{Schema: next})
	if !errors.Is(err, sink.ErrUnimplemented) || !strings.Contains(err.Error(), `"theirs"`) {
		t.Fatal(err)
	}
}

// TestKeyColumnsCannotChange: what was deleted under the old type would come back.
func TestKeyColumnsCannotChange(t *testing.T) {
	o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}}, SinkConfig{}, "k", "INT", "x", "INT")
	o.open()
	for name, pairs := range map[string][]string{"widened": {"k", "BIGINT", "x", "INT"}, "dropped": {"x", "INT", "y", "INT"}} {
		next := newOne(t, sink.TableSpec{}, SinkConfig{}, pairs...).spec.Schema
		next.ID = 2
		if name == "dropped" {
			fields := next.Arrow.Fields()
			fields[0].Metadata = arrow.NewMetadata([]string{mink.MetaFieldID}, []string{"2"})
			fields[1].Metadata = arrow.NewMetadata([]string{mink.MetaFieldID}, []string{"3"})
			next.Arrow = arrow.NewSchema(fields, nil)
		}
		if _, err := o.table.SchemaChange(t.Context(), sink.SchemaChangeRequest{Schema: next}); !errors.Is(err, sink.ErrUnimplemented) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOffsetsOfManyBuckets stand in a file of their own.
func TestOffsetsOfManyBuckets(t *testing.T) {
	o := newOne(t, sink.TableSpec{BucketCount: 4096}, SinkConfig{}, "k", "INT")
	o.open()
	req := o.prepare(bucket0, nil, row{"", `{"k":1}`})
	for i := int32(1); i < 1000; i++ {
		ref := bucket0
		ref.Index = i
		req.Ranges = append(req.Ranges, sink.Range{Bucket: ref, Start: 0, End: mink.Offset(i)})
	}
	o.commit(req)
	before := o.last
	props := o.outside().CurrentSnapshot().Summary.Properties
	if props[keyOffsets] != "" || props[keyOffsetsFile] == "" {
		t.Fatal(props)
	}
	o.open()
	if len(o.last.Ends) != 1000 || o.last.Round != before.Round || o.last.Ends[mink.BucketRef{Table: 7, Partition: 1, Index: 999}] != 999 {
		t.Fatalf("recovered %d buckets of round %s", len(o.last.Ends), o.last.Round)
	}
	key := strings.TrimPrefix(props[keyOffsetsFile], memoryRoot+"/")
	o.must((&lakeTable{store: o.w.store, dir: key}).delete(t.Context(), key))
	if _, err := o.table.Recover(t.Context(), sink.RecoverRequest{}); err == nil {
		t.Fatal("offsets that are gone are taken for zero")
	}
}

// TestDropOfATableThatCannotBeOpened: its name must become free, whatever is wrong.
func TestDropOfATableThatCannotBeOpened(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
	o.open()
	o.round(row{"", `{"k":1}`})
	tx := o.outside().NewTransaction()
	o.must(tx.SetProperties(iceberg.Properties{keySchemaID: "nonsense"}))
	_, err := tx.Commit(t.Context())
	o.must(err)
	if _, err := o.s.Open(t.Context(), sink.OpenRequest{Table: o.spec}); !errors.Is(err, sink.ErrCorrupt) {
		t.Fatal(err)
	}
	for range 2 { // the second time nothing is there
		table, err := o.s.Open(t.Context(), sink.OpenRequest{Table: o.spec, Drop: true})
		o.must(err)
		if _, err := table.BeginRound(t.Context(), sink.BeginRoundRequest{Round: "r", Fence: 1}); !errors.Is(err, sink.ErrInvalid) {
			t.Fatal(err)
		}
		_, err = table.Drop(t.Context(), sink.DropRequest{})
		o.must(err)
		o.must(table.Close())
	}
	if keys := o.keys(""); len(keys) > 0 {
		t.Fatalf("left behind: %v", keys)
	}
	o.spec.ID = 8 // the next table of the name
	o.open()
	other, err := o.s.Open(t.Context(), sink.OpenRequest{Table: o.spec, Drop: true})
	o.must(err)
	o.must(other.Close())
	old := o.spec
	old.ID = 7
	late, err := o.s.Open(t.Context(), sink.OpenRequest{Table: old, Drop: true})
	o.must(err)
	_, err = late.Drop(t.Context(), sink.DropRequest{}) // takes nothing of the new table
	o.must(err)
	o.open()
}

func TestMoreBucketsThanCanBeReadAreNotCommitted(t *testing.T) {
	c := sink.Committed{Round: "a", Fence: 1, Ends: map[mink.BucketRef]mink.Offset{}}
	for i := range int32(sink.RangesMax) {
		c.Ends[mink.BucketRef{Table: 7, Partition: 1, Index: i}] = 1
	}
	req := sink.CommitRequest{Round: "b", Base: "a", Fence: 1, Ranges: []sink.Range{{Bucket: mink.BucketRef{Table: 7, Partition: 1}, Start: 1, End: 2}}}
	if _, err := c.Check(req); err != nil {
		t.Fatal(err)
	}
	req.Ranges = append(req.Ranges, sink.Range{Bucket: mink.BucketRef{Table: 7, Partition: 2}})
	if _, err := c.Check(req); !errors.Is(err, sink.ErrInvalid) {
		t.Fatal(err)
	}
}
