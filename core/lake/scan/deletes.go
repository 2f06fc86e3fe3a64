package scan

import (
	"fmt"

	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/mink"
)

// deleteOverhead is about what a deleted key takes in the sets of the library besides its
// bytes, of which the file's compressed ones are a quarter.
const deleteOverhead = 96

// groups divides files so that the equality deletes of each group, which are in memory
// while it is read, take at most limit bytes; 0: they are not bounded. mink.ErrTooLarge, when
// those of one file alone do not fit.
func groups(tasks []table.FileScanTask, limit int64) ([][]table.FileScanTask, error) {
	if limit <= 0 || len(tasks) == 0 {
		return [][]table.FileScanTask{tasks}, nil
	}
	var out [][]table.FileScanTask
	held := map[string]bool{} // delete files of the newest group
	bytes := int64(0)
	for _, t := range tasks {
		var more, all int64
		for _, f := range t.EqualityDeleteFiles {
			n := f.Count()*deleteOverhead + 4*f.FileSizeBytes()
			if all += n; !held[f.FilePath()] {
				more += n
			}
		}
		if all > limit {
			return nil, fmt.Errorf("%w: the equality deletes of %s take about %d bytes in memory, of which %d are allowed (four times union_key_memory): compact the lake table, raise union_key_memory, or set lake_deletes = position before more are written",
				mink.ErrTooLarge, t.File.FilePath(), all, limit)
		}
		if len(out) == 0 || bytes+more > limit {
			out, held, bytes, more = append(out, nil), map[string]bool{}, 0, all
		}
		for _, f := range t.EqualityDeleteFiles {
			held[f.FilePath()] = true
		}
		bytes += more
		out[len(out)-1] = append(out[len(out)-1], t)
	}
	return out, nil
}
