package lake

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

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

// TestWhatIsWorn: which files of one bucket a compaction takes.
func TestWhatIsWorn(t *testing.T) {
	const target, rows = 1 << 20, 1000
	made := 0
	file := func(content iceberg.ManifestEntryContent, name string, count, bytes int64) iceberg.DataFile {
		var fields []int
		if content == iceberg.EntryContentEqDeletes {
			fields = []int{1}
		}
		b, err := iceberg.NewDataFileBuilder(*iceberg.UnpartitionedSpec, content, name, iceberg.ParquetFile, nil, nil, nil, count, bytes)
		if err != nil {
			t.Fatal(err)
		}
		return b.EqualityFieldIDs(fields).Build()
	}
	ours := func(suffix string) string {
		made++
		return "lake/db/t-7/" + fileName("r", bucket0, made, suffix)
	}
	deletes := func(content iceberg.ManifestEntryContent, n int, own bool, count int64) (files []iceberg.DataFile) {
		for range n {
			name := ours(deletesSuffix)
			if !own {
				name = fmt.Sprintf("lake/db/t-7/data/%d.parquet", made)
			}
			files = append(files, file(content, name, count, 100))
		}
		return files
	}
	const position, equality = iceberg.EntryContentPosDeletes, iceberg.EntryContentEqDeletes
	for name, c := range map[string]struct {
		positions, equalities []iceberg.DataFile
		all                   bool
		shared                int   // the other data files that the deletes apply to
		rows                  int64 // 0: 1000
		rewrite, merge        int
	}{
		"no deletes":                    {},
		"ten delete files of each kind": {positions: deletes(position, deleteFileMax, true, 1), equalities: deletes(equality, deleteFileMax, true, 1)},
		"one more of equality":          {equalities: deletes(equality, deleteFileMax+1, true, 1), rewrite: 1},
		"one more of positions":         {positions: deletes(position, deleteFileMax+1, true, 1), merge: 1},
		"of positions by others":        {positions: deletes(position, deleteFileMax+1, false, 1), rewrite: 1},
		"of positions of others' files": {positions: deletes(position, deleteFileMax+1, true, 1), shared: 1, rewrite: 1},
		"too many positions":            {positions: deletes(position, deleteFileMax+1, true, positionsMax/deleteFileMax), rows: 1 << 40, rewrite: 1},
		"a tenth of the rows":           {positions: deletes(position, 1, true, rows/10)},
		"more than a tenth":             {positions: deletes(position, 1, true, rows/10+1), rewrite: 1},
		"by both kinds together":        {positions: deletes(position, 1, true, rows/20), equalities: deletes(equality, 1, true, rows/20+1), rewrite: 1},
		"a tenth of two files":          {positions: deletes(position, 1, true, rows/5), shared: 1},
		"one delete, and all is asked":  {positions: deletes(position, 1, true, 1), all: true, rewrite: 1},
		"none, and all is asked":        {all: true},
	} {
		data := file(iceberg.EntryContentData, ours(dataSuffix), cmp.Or(c.rows, rows), target)
		users := map[string][]string{}
		for _, d := range slices.Concat(c.positions, c.equalities) {
			users[d.FilePath()] = []string{data.FilePath()}
			for i := range c.shared {
				users[d.FilePath()] = append(users[d.FilePath()], fmt.Sprint("another-", i))
			}
		}
		g := &compactGroup{own: true, ref: bucket0, tasks: []table.FileScanTask{{File: data, DeleteFiles: c.positions, EqualityDeleteFiles: c.equalities}}}
		if cut := g.choose(target, 1<<40, c.all, users); cut || len(g.rewrite) != c.rewrite || len(g.merge) != c.merge {
			t.Errorf("%s: %d files are rewritten, the deletes of %d merged, cut: %t; want %d and %d", name, len(g.rewrite), len(g.merge), cut, c.rewrite, c.merge)
		}
	}
}
