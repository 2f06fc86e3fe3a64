package lake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
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
	o.update(table.NewSetSnapshotRefUpdate(name, id, kind, -1, -1, -1))
}

// update changes the table as another engine does.
func (o *one) update(u table.Update) {
	o.t.Helper()
	_, err := o.w.Commit(o.t.Context(), identifier(o.spec), nil, []table.Update{u})
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

// put makes objects of one byte in the table's directory.
func (o *one) put(names ...string) {
	o.t.Helper()
	for _, n := range names {
		_, err := o.w.store.Put(o.t.Context(), objstore.PutRequest{Key: tableDir(o.spec) + n, Chunks: [][]byte{[]byte("x")}})
		o.must(err)
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
	o.update(table.NewSetStatisticsUpdate(table.StatisticsFile{SnapshotID: o.outside().CurrentSnapshot().SnapshotID, StatisticsPath: o.w.Location(tableDir(o.spec) + "metadata/of-a-snapshot.stats")}))
	orphans := []string{
		"data/gone/1-0-0.parquet", "data/k=1/00000-0.parquet", "metadata/dead-m0.avro", "metadata/snap-1-0-dead.avro", "metadata/00007-dead.metadata.json", "metadata/_mink-offsets-gone-00.json",
		"data/k=1/x.puffin",
	}
	stay := []string{"data/held/1-0-0.parquet", "data/_theirs/x.parquet", "data/readme.txt", "metadata/version-hint.text", "other/x.parquet", "metadata/.hidden.avro", "metadata/of-a-snapshot.stats"}
	o.put(append(append([]string{}, orphans...), stay...)...)
	lt := o.table.(*lakeTable) // a round of a later lease, of unknown outcome
	o.must(lt.putJSON(t.Context(), lt.stagedKey("held", "open"), openRound{Fence: 9}))
	o.must(lt.putJSON(t.Context(), lt.stagedKey("held", "decision"), decision{Commit: true}))
	time.Sleep(2 * time.Millisecond)
	held := o.keys("")
	if d := o.expire(sink.ExpireRequest{OrphanAge: 1}); d.Files != 0 {
		t.Fatalf("files newer than the current snapshot went: %+v", d)
	}
	o.outsideAppend(`{"k":100}`)
	if d := o.expire(sink.ExpireRequest{OrphanAge: time.Hour}); d.Files != 0 {
		t.Fatalf("young files went: %+v", d)
	}
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
	o.update(table.NewRemoveSnapshotRefUpdate("audit"))
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

// TestExpirable: which snapshots of what history go, 100 seconds after they were superseded.
func TestExpirable(t *testing.T) {
	const now, age = 1_000_000, 100 // seconds
	type snapshot struct {
		id, parent, at int64
		round          bool
	}
	var old, idle, alien []snapshot // main's, the newest with id 15
	for id := int64(1); id <= 15; id++ {
		old = append(old, snapshot{id, id - 1, id, true})
		alien = append(alien, snapshot{id, id - 1, id, id == 3})
		s := snapshot{id, id - 1, id, true}
		if id >= 5 { // the fourth was current until a second ago
			s.at = now - 1
		}
		idle = append(idle, s)
	}
	for name, c := range map[string]struct {
		snapshots []snapshot
		refs      map[string]int64 // branches; tags begin with v
		keep      []int64
		gone      []int64
	}{
		"the newest ten stay":                      {snapshots: old, gone: []int64{1, 2, 3, 4, 5}},
		"one that was superseded just now":         {snapshots: idle, gone: []int64{1, 2, 3}},
		"the last of Mink's":                       {snapshots: alien, gone: []int64{1, 2}},
		"what readers have in use":                 {snapshots: old, keep: []int64{2, 99}, gone: []int64{1, 3, 4, 5}},
		"a tag":                                    {snapshots: old, refs: map[string]int64{"v1": 4}, gone: []int64{1, 2, 3, 5}},
		"a branch on main":                         {snapshots: old, refs: map[string]int64{"b": 4}, gone: []int64{1, 2, 3, 5}},
		"a branch, with what is its own":           {snapshots: append([]snapshot{{30, 2, 2, false}, {31, 30, 3, false}}, old...), refs: map[string]int64{"b": 31}, gone: []int64{1, 2, 3, 4, 5}},
		"what main was rolled back from, when old": {snapshots: append([]snapshot{{30, 5, 6, true}, {31, 30, now - 1, true}}, old...), gone: []int64{30, 1, 2, 3, 4, 5}},
	} {
		var snapshots []string
		refs := []string{`"main":{"snapshot-id":15,"type":"branch"}`}
		for i, s := range c.snapshots {
			parent, summary := "", `{"operation":"append"}`
			if s.parent > 0 {
				parent = fmt.Sprintf(`"parent-snapshot-id":%d,`, s.parent)
			}
			if s.round {
				summary = fmt.Sprintf(`{"operation":"append",%q:"r%d"}`, keyRound, s.id)
			}
			snapshots = append(snapshots, fmt.Sprintf(`{"snapshot-id":%d,%s"sequence-number":%d,"timestamp-ms":%d,"manifest-list":"m","summary":%s,"schema-id":0}`, s.id, parent, i+1, s.at*1000, summary))
		}
		for name, id := range c.refs {
			kind := table.BranchRef
			if name[0] == 'v' {
				kind = table.TagRef
			}
			refs = append(refs, fmt.Sprintf(`%q:{"snapshot-id":%d,"type":%q}`, name, id, kind))
		}
		meta, err := table.ParseMetadataString(fmt.Sprintf(`{"format-version":2,"table-uuid":"9c12d441-03fe-4693-9a96-a0705ddf69c1","location":"file:///t","last-sequence-number":%d,"last-updated-ms":%d,"last-column-id":1,
			"current-schema-id":0,"schemas":[{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"k","required":false,"type":"int"}]}],
			"default-spec-id":0,"partition-specs":[{"spec-id":0,"fields":[]}],"last-partition-id":999,"default-sort-order-id":0,"sort-orders":[{"order-id":0,"fields":[]}],
			"properties":{},"current-snapshot-id":15,"snapshots":[%s],"refs":{%s}}`, len(c.snapshots), now*1000, strings.Join(snapshots, ","), strings.Join(refs, ",")))
		if err != nil {
			t.Fatal(name, err)
		}
		keep := map[int64]bool{}
		for _, id := range c.keep {
			keep[id] = true
		}
		got := expirable(meta, keep, time.Unix(now, 0), age*time.Second)
		if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(c.gone))) {
			t.Errorf("%s: %v go, want %v", name, got, c.gone)
		}
	}
}

// TestSharedFilesAreLeft: gc.enabled=false says that the files are of other tables too.
func TestSharedFilesAreLeft(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
	o.open()
	o.update(table.NewSetPropertiesUpdate(iceberg.Properties{"gc.enabled": "false"}))
	for i := range keepNewest + 2 {
		o.round(row{"", fmt.Sprintf(`{"k":%d}`, i)})
		if i == 0 {
			o.put("data/gone/1-0-0.parquet")
		}
		time.Sleep(2 * time.Millisecond)
	}
	all := sink.ExpireRequest{StateAge: 1, OrphanAge: 1}
	if d := o.expire(all); d.States != 0 || d.Files != 0 {
		t.Fatalf("%+v", d)
	}
	o.update(table.NewSetPropertiesUpdate(iceberg.Properties{"gc.enabled": "True"}))
	if d := o.expire(all); d.States == 0 || d.Files == 0 {
		t.Fatalf("it was of no matter: %+v", d)
	}
}

// TestAFileThatIsCommittedDuringTheSweepStays: another engine was as long at it as a file may
// be unnamed, and commits while files are listed.
func TestAFileThatIsCommittedDuringTheSweepStays(t *testing.T) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
	o.open()
	o.round(row{"", `{"k":1}`})
	made := o.dataFiles()[0]
	key := strings.TrimPrefix(made.FilePath(), o.w.Location(""))
	got, err := o.w.store.GetRange(t.Context(), objstore.GetRangeRequest{Key: key, Length: made.FileSizeBytes()})
	o.must(err)
	theirs := tableDir(o.spec) + "data/theirs.parquet"
	_, err = o.w.store.Put(t.Context(), objstore.PutRequest{Key: theirs, Chunks: [][]byte{got.Data}})
	o.must(err)
	time.Sleep(2 * time.Millisecond)
	o.round(row{"", `{"k":2}`})
	o.w.store = &listStore{Store: o.w.store, before: func() {
		tx := o.outside().NewTransaction()
		o.must(tx.AddFiles(t.Context(), []string{o.w.Location(theirs)}, nil, false))
		_, err := tx.Commit(t.Context())
		o.must(err)
	}}
	o.s = newSink(o.w, SinkConfig{})
	o.open()
	o.expire(sink.ExpireRequest{OrphanAge: 1})
	o.want(`{"k":1}`, `{"k":1}`, `{"k":2}`)
}

// listStore calls before ahead of the first list of data files, or of all.
type listStore struct {
	objstore.Store
	before func()
}

func (s *listStore) List(ctx context.Context, req objstore.ListRequest) (objstore.ListResponse, error) {
	if before := s.before; before != nil && !strings.Contains(req.Prefix, stagedDir) {
		s.before = nil
		before()
	}
	return s.Store.List(ctx, req)
}
