package scan

import (
	"errors"
	"fmt"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/mink"
)

func dataFile(t *testing.T, content iceberg.ManifestEntryContent, path string, rows int64) iceberg.DataFile {
	t.Helper()
	b, err := iceberg.NewDataFileBuilder(*iceberg.UnpartitionedSpec, content, path, iceberg.ParquetFile, nil, nil, nil, rows, 1)
	if err != nil {
		t.Fatal(err)
	}
	if content == iceberg.EntryContentEqDeletes {
		b.EqualityFieldIDs([]int{1})
	}
	return b.Build()
}

// What deletes of equality keys take in memory is bounded: files that share them are read
// together, others one group after the other, and one that needs too many is refused.
func TestEqualityDeletesAreBounded(t *testing.T) {
	var deletes []iceberg.DataFile
	for i := range 4 {
		deletes = append(deletes, dataFile(t, iceberg.EntryContentEqDeletes, fmt.Sprintf("d%d", i), 10))
	}
	const one = 10*deleteOverhead + 4
	task := func(name string, which ...int) table.FileScanTask {
		f := table.FileScanTask{File: dataFile(t, iceberg.EntryContentData, name, 5)}
		for _, i := range which {
			f.EqualityDeleteFiles = append(f.EqualityDeleteFiles, deletes[i])
		}
		return f
	}
	tasks := []table.FileScanTask{task("a", 0, 1), task("b", 1), task("c", 2), task("e"), task("f", 2, 3), task("g", 0)}
	for _, c := range []struct {
		limit int64
		want  string // "": refused
	}{
		{0, "[a b c e f g]"}, {4 * one, "[a b c e f g]"}, {3 * one, "[a b c e] [f g]"}, {2 * one, "[a b] [c e f] [g]"}, {2*one - 1, ""},
	} {
		got, err := groups(tasks, c.limit)
		text := ""
		for _, g := range got {
			var names []string
			for _, f := range g {
				names = append(names, f.File.FilePath())
			}
			if text != "" {
				text += " "
			}
			text += fmt.Sprint(names)
		}
		if text != c.want || errors.Is(err, mink.ErrTooLarge) != (c.want == "") {
			t.Errorf("limit %d: %s, %v; want %s", c.limit, text, err, c.want)
		}
	}
}
