package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// disk knows what a power loss would leave: contents that were synced, and names
// whose directory was synced since they were given.
type disk struct {
	t        *testing.T
	root     string
	contents map[string]bool
	names    map[string]bool
	from     string // of the rename under way
	commits  int
}

func (d *disk) step(step, path string) {
	switch step {
	case "sync":
		d.contents[path] = true
	case "sync directory":
		entries, err := os.ReadDir(path)
		if err != nil {
			d.t.Fatal(err)
		}
		for _, e := range entries {
			d.names[filepath.Join(path, e.Name())] = true
		}
	case "rename":
		d.from = path
		if filepath.Base(filepath.Dir(path)) == "staged" && d.isCommit(path) {
			d.commits++
			d.whole(path)
		}
	case "renamed to":
		d.contents[path] = d.contents[d.from]
	}
}

// isCommit tells a commit from a removal.
func (d *disk) isCommit(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, roundName))
	return err == nil
}

// whole checks a round that the next step makes visible, perhaps before any power
// loss and perhaps before all that was not synced.
func (d *disk) whole(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		d.t.Fatal(err)
	}
	var files []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		files = append(files, e.Name())
		if !d.contents[path] {
			d.t.Errorf("%s is committed before its content is synced", path)
		}
		if !d.names[path] {
			d.t.Errorf("%s is committed before its name is synced", path)
		}
	}
	if !slices.Equal(files, []string{roundName, rowsName, schemaName}) {
		d.t.Errorf("committed files: %q", files)
	}
	d.reachable(dir)
}

func (d *disk) reachable(path string) {
	for ; path != d.root; path = filepath.Dir(path) {
		if !d.names[path] {
			d.t.Errorf("a power loss takes %s away, and what is committed in it", path)
		}
	}
}

// TestCommittedRoundsSurviveAPowerLoss looks at every step on the disk.
func TestCommittedRoundsSurviveAPowerLoss(t *testing.T) {
	s, err := open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := &disk{t: t, root: s.dir, contents: map[string]bool{}, names: map[string]bool{}}
	s.trace = d.step
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)
	spec := sink.TableSpec{ID: 7, Database: "d", Name: "t", Schema: sink.Schema{ID: 1, Arrow: schema}, BucketCount: 1}
	tab, err := s.Open(t.Context(), sink.OpenRequest{Table: spec})
	if err != nil {
		t.Fatal(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	var base sink.RoundID
	bucket := mink.BucketRef{Table: 7, Partition: 1}
	for i, round := range []sink.RoundID{"a", "b", "c"} {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		batch := b.NewRecordBatch()
		start, end := mink.Offset(i), mink.Offset(i+1)
		_, err := tab.BeginRound(t.Context(), sink.BeginRoundRequest{Round: round, Base: base, Fence: 1})
		if err == nil {
			_, err = tab.Write(t.Context(), sink.WriteRequest{Bucket: bucket, Batch: batch, Start: start, End: end})
		}
		batch.Release()
		var p sink.PrepareResponse
		if err == nil {
			p, err = tab.Prepare(t.Context(), sink.PrepareRequest{})
		}
		if err == nil {
			_, err = tab.Commit(t.Context(), sink.CommitRequest{Staged: p.Staged, Round: round, Base: base, Fence: 1, Ranges: []sink.Range{{Bucket: bucket, Start: start, End: end}}})
		}
		if err != nil {
			t.Fatal(err)
		}
		d.reachable(filepath.Join(s.tableDir(spec), "rounds", number(i+1)))
		base = round
	}
	if d.commits != 3 {
		t.Errorf("%d commits were looked at, want 3", d.commits)
	}
}
