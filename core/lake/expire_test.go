package lake

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
)

func (o *one) snapshots() (ids []int64) {
	for _, s := range o.outside().Metadata().Snapshots() {
		ids = append(ids, s.SnapshotID)
	}
	return ids
}

func (o *one) has(snapshot string) bool {
	id, err := strconv.ParseInt(snapshot, 10, 64)
	o.must(err)
	return slices.Contains(o.snapshots(), id)
}

func (o *one) ref(kind table.RefType, name, snapshot string) {
	o.t.Helper()
	id, err := strconv.ParseInt(snapshot, 10, 64)
	o.must(err)
	_, err = o.w.Commit(o.t.Context(), identifier(o.spec), nil, []table.Update{table.NewSetSnapshotRefUpdate(name, id, kind, -1, -1, -1)})
	o.must(err)
}

// TestOldSnapshotsAreExpired: every round makes one, and a table is to live for years.
func TestOldSnapshotsAreExpired(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
	o.open()
	var made []string
	for i := range 30 {
		o.round(row{"", fmt.Sprintf(`{"k":%d}`, i)})
		made = append(made, o.last.Snapshot)
	}
	if d := o.expire(sink.ExpireRequest{StateAge: time.Hour}); d.States != 0 {
		t.Fatalf("young ones went: %+v", d)
	}
	o.ref(table.TagRef, "audit", made[3])
	o.ref(table.BranchRef, "theirs", made[5])
	time.Sleep(2 * time.Millisecond)
	d := o.expire(sink.ExpireRequest{StateAge: 1, Keep: []string{made[7], ""}})
	want := append([]string{made[3], made[5], made[7]}, made[30-keepNewest:]...)
	if d.States != 30-len(want) || len(o.snapshots()) != len(want) {
		t.Fatalf("%+v, %d are left", d, len(o.snapshots()))
	}
	for i, s := range want {
		if !o.has(s) {
			t.Errorf("snapshot %d of those that were to stay is gone", i)
		}
	}
	before := o.last
	o.open()
	if o.last.Round != before.Round || len(o.rows()) != 30 {
		t.Fatalf("recovered %+v, %d rows", o.last, len(o.rows()))
	}
	o.round(row{"", `{"k":99}`})
}

// TestKeepSnapshotsIsAFloor: reads of Mink's come before what a table asks for.
func TestKeepSnapshotsIsAFloor(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{KeepSnapshots: time.Hour}, "k", "INT")
	o.open()
	for i := range 30 {
		o.round(row{"", fmt.Sprintf(`{"k":%d}`, i)})
	}
	if d := o.expire(sink.ExpireRequest{StateAge: 1}); d.States != 0 {
		t.Fatalf("%+v", d)
	}
}

// TestTheSnapshotWithTheOffsetsStays, however many others come after it.
func TestTheSnapshotWithTheOffsetsStays(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
	o.open()
	o.round(row{"", `{"k":1}`})
	mine := o.last
	for i := range keepNewest + 5 {
		o.outsideAppend(fmt.Sprintf(`{"k":%d}`, 10+i))
	}
	time.Sleep(2 * time.Millisecond)
	o.expire(sink.ExpireRequest{StateAge: 1})
	o.open()
	if o.last.Round != mine.Round || o.last.Snapshot != mine.Snapshot {
		t.Fatalf("recovered %+v, want %+v", o.last, mine)
	}
}

// TestATagThatIsMadeMeanwhileStays: its snapshot was to go.
func TestATagThatIsMadeMeanwhileStays(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
	o.open()
	for i := range 30 {
		o.round(row{"", fmt.Sprintf(`{"k":%d}`, i)})
	}
	old := strconv.FormatInt(o.snapshots()[0], 10)
	time.Sleep(2 * time.Millisecond)
	o.w.before = func([]table.Requirement, []table.Update) error {
		o.w.before = nil
		o.ref(table.TagRef, "audit", old)
		return nil
	}
	_, err := o.table.(sink.Maintainer).Expire(t.Context(), sink.ExpireRequest{Fence: 1, StateAge: 1})
	if !errors.Is(err, sink.ErrConflict) {
		t.Fatal(err)
	}
	o.expire(sink.ExpireRequest{StateAge: 1})
	if !o.has(old) {
		t.Fatal("the tag's snapshot is gone")
	}
}

func TestExpiryOfAWorkerThatLostItsLease(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
	o.open()
	o.round(row{"", `{"k":1}`})
	req := o.prepare(bucket0, nil, row{"", `{"k":2}`})
	req.Fence = 5
	o.commit(req)
	m := o.table.(sink.Maintainer)
	if _, err := m.Expire(t.Context(), sink.ExpireRequest{Fence: 4, StateAge: 1, OrphanAge: 1}); !errors.Is(err, sink.ErrFenced) {
		t.Fatal(err)
	}
	if _, err := m.Expire(t.Context(), sink.ExpireRequest{Fence: 5, Keep: []string{"nonsense"}}); !errors.Is(err, sink.ErrInvalid) {
		t.Fatal(err)
	}
}

// TestOrphans: what nothing names goes, what others may need stays.
func TestOrphans(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
	o.open()
	for i := range 4 {
		o.round(row{"", fmt.Sprintf(`{"k":%d}`, i)})
	}
	tagged, files := o.last.Snapshot, o.dataFiles()
	o.ref(table.TagRef, "audit", tagged)
	put := func(names ...string) {
		for _, n := range names {
			_, err := o.w.store.Put(t.Context(), objstore.PutRequest{Key: tableDir(o.spec) + n, Chunks: [][]byte{[]byte("x")}})
			o.must(err)
		}
	}
	orphans := []string{
		"data/gone/1-0-0.parquet", "data/k=1/00000-0.parquet", "metadata/dead-m0.avro", "metadata/snap-1-0-dead.avro", "metadata/00007-dead.metadata.json", "metadata/_mink-offsets-gone-00.json",
		"data/k=1/x.puffin",
	}
	stay := []string{"data/held/1-0-0.parquet", "data/_theirs/x.parquet", "data/readme.txt", "metadata/version-hint.text", "other/x.parquet", "metadata/.hidden.avro"}
	put(append(append([]string{}, orphans...), stay...)...)
	lt := o.table.(*lakeTable) // a round of a later lease, of unknown outcome
	o.must(lt.putJSON(t.Context(), lt.stagedKey("held", "open"), openRound{Fence: 9}))
	o.must(lt.putJSON(t.Context(), lt.stagedKey("held", "decision"), decision{Commit: true}))
	time.Sleep(2 * time.Millisecond)
	held := o.keys("")
	if d := o.expire(sink.ExpireRequest{OrphanAge: time.Hour}); d.Files != 0 {
		t.Fatalf("young files went: %+v", d)
	}
	if d := o.expire(sink.ExpireRequest{OrphanAge: 1}); d.Files != 0 {
		t.Fatalf("files newer than the current snapshot went: %+v", d)
	}
	o.outsideAppend(`{"k":100}`)
	d := o.expire(sink.ExpireRequest{OrphanAge: 1})
	if d.Files != len(orphans) || d.Bytes != int64(len(orphans)) {
		t.Errorf("%+v, want %d files", d, len(orphans))
	}
	left := o.keys("")
	for _, k := range held {
		if slices.Contains(orphans, k) == slices.Contains(left, k) {
			t.Errorf("%s: orphan %t, there %t", k, slices.Contains(orphans, k), slices.Contains(left, k))
		}
	}
	o.open()
	o.compact(sink.CompactRequest{All: true})
	for i := range keepNewest + 1 {
		time.Sleep(time.Millisecond)
		o.round(row{"", fmt.Sprintf(`{"k":%d}`, 200+i)})
	}
	time.Sleep(2 * time.Millisecond)
	o.round(row{"", `{"k":300}`})
	o.expire(sink.ExpireRequest{StateAge: 1, OrphanAge: 1})
	if got := o.rowsAt(tagged); len(got) != 4 { // an error when a file is gone
		t.Fatalf("the tag has %v", got)
	}
	_, err := o.w.Commit(t.Context(), identifier(o.spec), nil, []table.Update{table.NewRemoveSnapshotRefUpdate("audit")})
	o.must(err)
	o.expire(sink.ExpireRequest{StateAge: 1, OrphanAge: 1})
	for _, f := range files {
		name := f.FilePath()[strings.Index(f.FilePath(), "data/"):]
		if slices.Contains(o.keys(dataDir), name) {
			t.Errorf("%s was merged and nobody names it", name)
		}
	}
	if n := len(o.rows()); n != 4+1+keepNewest+1+1 {
		t.Fatalf("%d rows", n)
	}
}

// TestFilesThatOthersSpellInTheirWay are in use all the same.
func TestFilesThatOthersSpellInTheirWay(t *testing.T) {
	n := &namedFiles{dir: "lake/db/t-7/", names: map[string]bool{}, others: map[string]bool{}}
	for _, location := range []string{"s3a://bucket/lake/db/t-7/data/k=1/A.parquet", "s3://bucket/lake/db/t-7/data/round/1-0-0.parquet", "file:/x/lake/db/t-7/data/K%20/b.parquet", ""} {
		n.add(location)
	}
	for name, want := range map[string]bool{
		"data/k=1/A.parquet": true, "data/k=1/a.parquet": true, "data/round/1-0-0.parquet": true, "data/other/1-0-0.parquet": false, "data/K /b.parquet": true, "data/c.parquet": false,
	} {
		if n.has(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
}

// TestManifestsAreMerged: the deletes apply to the same files as before.
func TestManifestsAreMerged(t *testing.T) {
	for _, deletes := range []string{deletesEquality, deletesPosition} {
		t.Run(deletes, func(t *testing.T) {
			o := newOne(t, sink.TableSpec{PrimaryKey: []string{"k"}, Options: map[string]string{optionDeletes: deletes}}, SinkConfig{}, "k", "INT", "x", "STRING")
			o.open()
			for i := range manifestsMin {
				o.round(row{"+U", fmt.Sprintf(`{"k":%d,"x":"%d"}`, i%5, i)})
			}
			before, last := o.rows(), o.last
			if len(before) != 5 {
				t.Fatal(before)
			}
			if d := o.expire(sink.ExpireRequest{}); d.Manifests < manifestsMin {
				t.Fatalf("%+v", d)
			}
			o.want(before...)
			o.open()
			if o.last.Round != last.Round {
				t.Fatalf("recovered %+v", o.last)
			}
			o.round(row{"-D", `{"k":0}`})
			o.want(before[1:]...)
			o.compact(sink.CompactRequest{All: true})
			o.want(before[1:]...)
		})
	}
}
