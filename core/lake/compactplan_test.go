package lake

import (
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
