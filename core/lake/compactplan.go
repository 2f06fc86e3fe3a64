package lake

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// When a table is worn. Every round adds a small file for each bucket that had rows, and
// a file of deletes that readers apply to the files before it.
const (
	smallFilesMin = 3        // small files of one bucket, of about one size
	smallShare    = 75       // percent of the target size, below which a file is small
	sameSize      = 2        // a file joins smaller ones that have half of its size together
	deleteFileMax = 10       // of one kind that apply to one file
	deletedShare  = 10       // percent of a file's rows
	deadMin       = 10       // delete files that apply to nothing: worth a commit of their own
	positionsMax  = 4 << 20  // position deletes that are merged at once: in memory
	tinyBytes     = 64 << 10 // files up to this size are about one size
)

// compaction is a plan: what of one snapshot is replaced.
//
//	rewrite  data files, read with their deletes and written anew without the rows that are gone
//	merge    data files that stay, whose many position delete files become one
//	dead     delete files of which nothing is left to apply to
//
// A delete file goes when every data file that it applies to is rewritten or has its deletes
// merged. What is written gets the sequence number of the commit: no older delete applies
// to it, every later one does. So no delete may be committed between plan and commit, and
// the commit asserts that.
type compaction struct {
	groups   []*compactGroup
	dead     []iceberg.DataFile
	replaced []iceberg.DataFile // position delete files that are merged
	more     bool
}

// compactGroup has files whose rows may stand in one file: those of one bucket, or of
// other engines with the same partition values.
type compactGroup struct {
	ref     mink.BucketRef
	own     bool // of the bucket ref; otherwise of no known one
	values  map[int]any
	tasks   []table.FileScanTask
	rewrite []table.FileScanTask
	merge   []table.FileScanTask
	place   int // of the first file, to keep the order
}

func (c *compaction) summary() sink.Compaction {
	s := sink.Compaction{DeleteFiles: len(c.dead) + len(c.replaced), More: c.more}
	for _, f := range slices.Concat(c.dead, c.replaced) {
		s.Bytes += f.FileSizeBytes()
	}
	for _, g := range c.groups {
		s.DataFiles += len(g.rewrite)
		s.Bytes += sizeOf(g.rewrite)
	}
	return s
}

func sizeOf(tasks []table.FileScanTask) (n int64) {
	for _, t := range tasks {
		n += t.File.FileSizeBytes()
	}
	return n
}

// planCompaction looks at the manifests of the current snapshot.
func (t *lakeTable) planCompaction(ctx context.Context, tbl *table.Table, req sink.CompactRequest) (*compaction, error) {
	c := &compaction{}
	if tbl.CurrentSnapshot() == nil {
		return c, nil
	}
	tasks, err := tbl.Scan(table.WithScanPlanningMode(table.ScanPlanningLocal)).PlanFiles(ctx)
	if err != nil {
		return nil, fmt.Errorf("files of snapshot %d: %w", tbl.CurrentSnapshot().SnapshotID, err)
	}
	deletes, err := deleteFiles(ctx, tbl)
	if err != nil {
		return nil, err
	}
	users := map[string][]string{} // of a delete file: the data files
	for i := range tasks {
		tasks[i].Residual = nil // of no filter
		for _, d := range slices.Concat(tasks[i].DeleteFiles, tasks[i].EqualityDeleteFiles, tasks[i].DeletionVectorFiles) {
			users[d.FilePath()] = append(users[d.FilePath()], tasks[i].File.FilePath())
		}
	}
	left := req.BytesMax
	if left <= 0 {
		left = 1 << 62
	}
	gone, merged := map[string]bool{}, map[string]bool{}
	for _, g := range t.compactGroups(tasks) {
		if left <= 0 {
			c.more = true
			break
		}
		if cut := g.choose(t.sink.cfg.FileBytes, left, req.All, users); cut {
			c.more = true
		}
		if len(g.rewrite)+len(g.merge) == 0 {
			continue
		}
		left -= sizeOf(g.rewrite)
		for _, task := range g.rewrite {
			gone[task.File.FilePath()] = true
		}
		for _, task := range g.merge {
			merged[task.File.FilePath()] = true
		}
		c.groups = append(c.groups, g)
	}
	for _, d := range deletes {
		position := d.ContentType() == iceberg.EntryContentPosDeletes
		stays, merges := false, false
		for _, user := range users[d.FilePath()] {
			switch {
			case gone[user]:
			case position && merged[user]:
				merges = true
			default:
				stays = true
			}
		}
		switch {
		case stays:
		case merges:
			c.replaced = append(c.replaced, d)
		default:
			c.dead = append(c.dead, d)
		}
	}
	if len(c.groups) == 0 && len(c.dead) < deadMin && !req.All {
		c.dead = nil
	}
	return c, nil
}

// deleteFiles are the delete files of the current snapshot. Deletion vectors are left to
// whoever writes them.
func deleteFiles(ctx context.Context, tbl *table.Table) ([]iceberg.DataFile, error) {
	var files []iceberg.DataFile
	for e, err := range liveEntries(ctx, tbl, tbl.CurrentSnapshot(), iceberg.ManifestContentDeletes) {
		if err != nil {
			return nil, err
		}
		if f := e.DataFile(); !table.IsDeletionVector(f) {
			files = append(files, f)
		}
	}
	return files, nil
}

// compactGroups sorts files into groups, in the order in which they were written.
func (t *lakeTable) compactGroups(tasks []table.FileScanTask) []*compactGroup {
	slices.SortStableFunc(tasks, func(a, b table.FileScanTask) int { return cmp.Compare(sequenceOf(a), sequenceOf(b)) })
	groups := map[string]*compactGroup{}
	for i, task := range tasks {
		f := task.File
		if f.SpecID() != int32(t.partitioning.ID()) || f.FileFormat() != iceberg.ParquetFile || len(task.DeletionVectorFiles) > 0 {
			continue
		}
		ref, own := BucketOf(f.FilePath())
		if own = own && ref.Table == t.spec.ID; !own {
			ref = mink.BucketRef{}
		}
		key := fmt.Sprint(own, ref)
		for _, field := range t.partitioning.Fields() {
			key += fmt.Sprintf("|%v", f.Partition()[field.FieldID])
		}
		g := groups[key]
		if g == nil {
			g = &compactGroup{ref: ref, own: own, values: f.Partition(), place: i}
			groups[key] = g
		}
		g.tasks = append(g.tasks, task)
	}
	out := make([]*compactGroup, 0, len(groups))
	for _, g := range groups {
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b *compactGroup) int { return cmp.Compare(a.place, b.place) })
	return out
}

func sequenceOf(t table.FileScanTask) int64 {
	if t.DataSequenceNumber == nil {
		return 0
	}
	return *t.DataSequenceNumber
}

// wear is what readers pay for a file.
type wear struct {
	positions, equalities int   // delete files
	rows                  int64 // that may be deleted, at most
}

func wearOf(t table.FileScanTask, users map[string][]string) wear {
	w := wear{positions: len(t.DeleteFiles), equalities: len(t.EqualityDeleteFiles)}
	for _, d := range t.DeleteFiles {
		// Of a file that names rows of several files, each has about its share.
		w.rows += d.Count() / int64(max(1, len(users[d.FilePath()])))
	}
	for _, d := range t.EqualityDeleteFiles {
		w.rows += d.Count()
	}
	return w
}

// choose says which files of a group are replaced, of about bytes at most. cut: there are
// more.
func (g *compactGroup) choose(target, bytes int64, all bool, users map[string][]string) (cut bool) {
	var worn, small []table.FileScanTask
	many := false // position delete files on a file that is not worn otherwise
	for _, t := range g.tasks {
		w := wearOf(t, users)
		switch {
		case w.equalities > deleteFileMax, w.rows*100 > t.File.Count()*deletedShare, all && w.positions+w.equalities > 0:
			worn = append(worn, t)
			continue
		case w.positions > deleteFileMax:
			many = true
		}
		if t.File.FileSizeBytes()*100 < target*smallShare {
			small = append(small, t)
		}
	}
	small = alike(small, all && len(small)+len(worn) > 1)
	chosen := slices.Concat(worn, small)
	for i, t := range chosen {
		// A single small file that is not worn gains nothing.
		if sizeOf(chosen[:i])+t.File.FileSizeBytes() > bytes && i > 0 && i != len(worn)+1 {
			chosen, cut = chosen[:i], true
			break
		}
	}
	if many && !g.chooseMerge(chosen, users) { // their deletes cannot be merged: the files are rewritten
		for _, t := range g.tasks {
			if len(t.DeleteFiles) > deleteFileMax && !holds(chosen, t) {
				chosen = append(chosen, t)
			}
		}
	}
	g.rewrite = chosen
	slices.SortStableFunc(g.rewrite, func(a, b table.FileScanTask) int { return cmp.Compare(sequenceOf(a), sequenceOf(b)) })
	return cut
}

func holds(tasks []table.FileScanTask, t table.FileScanTask) bool {
	return slices.ContainsFunc(tasks, func(o table.FileScanTask) bool { return o.File.FilePath() == t.File.FilePath() })
}

// alike are the smallest files that are worth a merge: enough of them of about one size, so
// that a row is written again a few times and not at each merge. They come in the order of
// their sizes. all: all of them.
func alike(small []table.FileScanTask, all bool) []table.FileScanTask {
	slices.SortStableFunc(small, func(a, b table.FileScanTask) int {
		return cmp.Compare(a.File.FileSizeBytes(), b.File.FileSizeBytes())
	})
	if all {
		return small
	}
	for from := 0; from+smallFilesMin <= len(small); from++ {
		to, sum := from, int64(0)
		for ; to < len(small); to++ {
			if n := small[to].File.FileSizeBytes(); to > from && n > max(sameSize*sum, tinyBytes) {
				break
			}
			sum += small[to].File.FileSizeBytes()
		}
		if to-from >= smallFilesMin {
			return small[from:to]
		}
	}
	return nil
}

// chooseMerge takes all files of the group that have position deletes and are not
// rewritten, if the delete files apply to nothing else and were written by Mink: those of
// others may spell locations in ways of their own.
func (g *compactGroup) chooseMerge(rewritten []table.FileScanTask, users map[string][]string) bool {
	mine := map[string]bool{}
	var merge []table.FileScanTask
	for _, t := range g.tasks {
		mine[t.File.FilePath()] = true
		if len(t.DeleteFiles) > 0 && !holds(rewritten, t) {
			merge = append(merge, t)
		}
	}
	var rows int64
	seen := map[string]bool{}
	for _, t := range merge {
		for _, d := range t.DeleteFiles {
			if seen[d.FilePath()] {
				continue
			}
			seen[d.FilePath()] = true
			rows += d.Count()
			_, own := BucketOf(d.FilePath())
			if !own || rows > positionsMax || slices.ContainsFunc(users[d.FilePath()], func(user string) bool { return !mine[user] }) {
				return false
			}
		}
	}
	g.merge = merge
	return true
}
