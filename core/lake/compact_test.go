package lake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/sink"
)

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
			o := newOne(t, sink.TableSpec{PrimaryKey: []string{"p", "k"}, PartitionKeys: []string{"p"}, BucketCount: 2, Options: map[string]string{optionDeletes: deletes}}, SinkConfig{SortBytes: 1 << 10, ScratchDir: t.TempDir()},
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
			before, partitions := o.rows(), o.partitions()
			d := o.compact(sink.CompactRequest{All: true})
			o.want(before...)
			if got := o.partitions(); !slices.Equal(got, partitions) {
				t.Fatalf("the files are of %v, were of %v", got, partitions)
			}
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
	o.spec.Options = map[string]string{optionDeletes: deletesEquality} // from now on; these are not merged
	o.open()
	o.round(row{"-D", `{"k":1000}`})
	o.spec.Options = nil
	o.open()
	before := o.rows()
	d := o.compact(sink.CompactRequest{})
	if data, left := o.shape(); d.DataFiles != 0 || d.DeleteFiles != deleteFileMax+1 || data != large || left != 2 {
		t.Fatalf("%d data and %d delete files after %+v", data, left, d)
	}
	o.want(before...)
	o.round(row{"-D", `{"k":100}`}, row{"+U", `{"k":200,"x":"new"}`})
	o.compact(sink.CompactRequest{All: true})
	if _, left := o.shape(); left != 0 {
		t.Fatalf("%d delete files are left", left)
	}
	if rows := o.rows(); len(rows) != 2000-deleteFileMax-3 {
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

// TestPartitionsOfOthersStayApart: files of other writers are merged within their partition, and
// those of another partition spec are left.
func TestPartitionsOfOthersStayApart(t *testing.T) {
	o := newOne(t, sink.TableSpec{PartitionKeys: []string{"p"}}, SinkConfig{}, "p", "STRING NOT NULL", "k", "INT")
	o.open()
	o.round(row{"", `{"p":"x","k":0}`})
	for i := range 3 {
		o.outsideAppend(fmt.Sprintf(`{"p":"x","k":%d}`, 10+i), fmt.Sprintf(`{"p":"y","k":%d}`, 20+i))
	}
	spec := o.outside().Spec()
	tx := o.outside().NewTransaction()
	change := tx.UpdateSpec(true)
	for _, f := range spec.Fields() {
		change = change.RemoveField(f.Name)
	}
	o.must(change.Commit())
	_, err := tx.Commit(t.Context())
	o.must(err)
	for i := range 3 {
		o.outsideAppend(fmt.Sprintf(`{"p":"x","k":%d}`, 30+i))
	}
	before := o.rows()
	if d := o.compact(sink.CompactRequest{}); d.DataFiles != 6 || d.NewFiles != 2 {
		t.Fatalf("%+v", d)
	}
	o.want(before...)
	for value, want := range map[string]int{"x": 7, "y": 3} { // engines look in the files of a partition alone
		_, batches, err := o.outside().Scan(table.WithRowFilter(iceberg.EqualTo(iceberg.Reference("p"), value))).ToArrowRecords(context.Background())
		o.must(err)
		n := 0
		for batch, err := range batches {
			o.must(err)
			n += int(batch.NumRows())
			batch.Release()
		}
		if n != want {
			t.Errorf("%d rows have %s, want %d", n, value, want)
		}
	}
}

// TestDeletionVectorsAreLeft, with the files that they are of: Mink does not write any.
func TestDeletionVectorsAreLeft(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT", "at", "TIMESTAMP(9)")
	o.open()
	for i := range 4 {
		o.round(row{"", fmt.Sprintf(`{"k":%d}`, 10*i)}, row{"", fmt.Sprintf(`{"k":%d}`, 10*i+1)})
	}
	tx := o.outside().NewTransaction()
	o.must(tx.SetProperties(iceberg.Properties{table.WriteDeleteModeKey: table.WriteModeMergeOnRead}))
	_, err := tx.Commit(t.Context())
	o.must(err)
	tx = o.outside().NewTransaction()
	o.must(tx.Delete(t.Context(), iceberg.EqualTo(iceberg.Reference("k"), int32(11)), nil))
	_, err = tx.Commit(t.Context())
	o.must(err)
	if data, deletes := o.shape(); data != 4 || deletes != 1 {
		t.Fatalf("%d data files and %d of deletes", data, deletes)
	}
	before := o.rows()
	if d := o.compact(sink.CompactRequest{All: true}); d.DataFiles != 3 || d.NewFiles != 1 || d.DeleteFiles != 0 {
		t.Fatalf("%+v", d)
	}
	o.want(before...)
	if data, deletes := o.shape(); data != 2 || deletes != 1 {
		t.Fatalf("%d data files and %d of deletes", data, deletes)
	}
}
