package lake

import (
	"testing"

	"github.com/mink-project/mink/core/internal/codefault"
)

// TestMaintenanceNoticesFaultsOfCode: changes of compaction, expiry and the removal of orphans
// that lose rows, bring deleted ones back, take files from readers, or let a table wear out.
func TestMaintenanceNoticesFaultsOfCode(t *testing.T) {
	const plan, compact, expire = "core/lake/compactplan.go", "core/lake/compact.go", "core/lake/expire.go"
	codefault.MustNotice(t, "../..", []codefault.Fault{
		// What is replaced.
		{
			Name: "a delete file goes although a file that it applies to stays", File: plan, Tests: "^TestReadsStayRight$",
			Old: "\t\t\tdefault:\n\t\t\t\tstays = true\n", New: "\t\t\tdefault:\n\t\t\t\tstays = false\n",
		},
		{
			Name: "equality deletes are nobody's", File: plan, Tests: "^TestReadsStayRight$",
			Old: "slices.Concat(tasks[i].DeleteFiles, tasks[i].EqualityDeleteFiles, tasks[i].DeletionVectorFiles)",
			New: "slices.Concat(tasks[i].DeleteFiles, tasks[i].DeletionVectorFiles)",
		},
		{
			Name: "a file whose equality deletes are not applied counts as merged", File: plan, Tests: "^TestPositionDeletesAreMerged$",
			Old: "\t\t\tcase position && merged[user]:\n", New: "\t\t\tcase merged[user] && (position || !position):\n",
		},
		{
			Name: "deletes that apply to nothing stay", File: plan, Tests: "^TestDeletesOfNothingGo$",
			Old: "len(c.groups) == 0 && len(c.dead) < deadMin && !req.All", New: "len(c.groups) == 0 && !req.All",
		},
		{
			Name: "what is merged at once has no end", File: plan, Tests: "^TestCompactionByBytes$",
			Old: "if sizeOf(chosen[:i])+t.File.FileSizeBytes() > bytes && i > 0", New: "if sizeOf(chosen[:i])+t.File.FileSizeBytes() < 0 && i > 0",
		},
		{
			Name: "a compaction that was cut says that it is done", File: plan, Tests: "^TestCompactionByBytes$",
			Old: "\t\t\tchosen, cut = chosen[:i], true\n", New: "\t\t\tchosen = chosen[:i]\n",
		},
		{
			Name: "a row is written again at each merge", File: plan, Tests: "^TestAlike$",
			Old: "to > from && n > max(sameSize*sum, tinyBytes)", New: "to < from && n > max(sameSize*sum, tinyBytes)",
		},
		{
			Name: "equality deletes wear nothing", File: plan, Tests: "^TestWhatIsWorn$",
			Old: "case w.equalities > deleteFileMax, w.rows*100", New: "case w.rows*100",
		},
		{
			Name: "deleted rows wear nothing", File: plan, Tests: "^TestWhatIsWorn$",
			Old: "w.rows*100 > t.File.Count()*deletedShare, all && ", New: "all && ",
		},
		{
			Name: "a delete file of several files counts whole for each", File: plan, Tests: "^TestWhatIsWorn$",
			Old: "w.rows += d.Count() / int64(max(1, len(users[d.FilePath()])))", New: "w.rows += d.Count()",
		},
		{
			Name: "position deletes of other engines are merged", File: plan, Tests: "^TestWhatIsWorn$",
			Old: "if !own || rows > positionsMax", New: "if !own && own || rows > positionsMax",
		},
		{
			Name: "position deletes are merged in any amount of memory", File: plan, Tests: "^TestWhatIsWorn$",
			Old: "if !own || rows > positionsMax ||", New: "if !own ||",
		},
		{
			Name: "position deletes of files elsewhere are merged", File: plan, Tests: "^TestWhatIsWorn$",
			Old: "!own || rows > positionsMax || slices.ContainsFunc(users[d.FilePath()], func(user string) bool { return !mine[user] })", New: "!own || rows > positionsMax",
		},
		{
			Name: "buckets are mixed", File: plan, Tests: "^TestCompactionOfALogTable$",
			Old: "key := fmt.Sprint(own, ref)\n", New: "key := fmt.Sprint(own)\n",
		},
		{
			Name: "partitions of others are mixed", File: plan, Tests: "^TestPartitionsOfOthersStayApart$",
			Old: "key += fmt.Sprintf(\"|%v\", f.Partition()[field.FieldID])\n", New: "key += fmt.Sprintf(\"|%v\", field.FieldID)\n",
		},
		{
			Name: "files of other partition specs are merged", File: plan, Tests: "^TestPartitionsOfOthersStayApart$",
			Old: "if f.SpecID() != int32(t.partitioning.ID()) || ", New: "if ",
		},
		{
			Name: "files with deletion vectors are merged", File: plan, Tests: "^TestDeletionVectorsAreLeft$",
			Old: " || len(task.DeletionVectorFiles) > 0 {\n", New: " {\n",
		},
		// What is written in their place.
		{
			Name: "a compaction fits on every snapshot", File: "core/lake/handle.go", Tests: "^TestOutsideCommitDuringACompaction$",
			Old: "note.Replaced > 0 && current != nil && current.SnapshotID != note.Planned", New: "note.Replaced < 0 && current != nil && current.SnapshotID != note.Planned",
		},
		{
			Name: "a compaction joins a round with rows", File: compact, Tests: "^TestCompactionIsARoundOfItsOwn$",
			Old: "if t.round == nil || t.round.bucket != nil || len(t.round.done) > 0 {\n\t\treturn sink.Compaction{}", New: "if t.round == nil {\n\t\treturn sink.Compaction{}",
		},
		{
			Name: "one of two rows with a key is lost", File: compact, Tests: "^TestTwiceTheSameKeyIsNotCompacted$",
			Old: "\tif in != out {\n", New: "\tif in < out {\n",
		},
		{
			Name: "rows of others are merged by key", File: compact, Tests: "^TestCompactionOfOtherWritersFiles$",
			Old: "sorted := len(r.t.spec.PrimaryKey) > 0 && g.own\n", New: "sorted := len(r.t.spec.PrimaryKey) > 0\n",
		},
		{
			Name: "rows of others are a bucket's afterwards", File: compact, Tests: "^TestCompactionOfOtherWritersFiles$",
			Old: "\t\t\tif !g.own {\n", New: "\t\t\tif false {\n",
		},
		{
			Name: "columns of others are dropped", File: compact, Tests: "^TestCompactionKeepsColumnsOfOthers$",
			Old: "newFileKind(iceberg.EntryContentData, r.tbl.Schema())", New: "newFileKind(iceberg.EntryContentData, r.t.cols.ice)",
		},
		{
			Name: "files get no partition", File: compact, Tests: "^TestCompactionOfAPrimaryKeyTable$",
			Old: "\tkind.values = g.values\n\tsorted", New: "\tsorted",
		},
		{
			Name: "of merged position deletes the last one of a file stays", File: compact, Tests: "^TestPositionDeletesAreMerged$",
			Old: "found[paths.Value(i)] = append(list, places.Value(i))", New: "found[paths.Value(i)] = append(list[:0], places.Value(i))",
		},
		{
			Name: "deletes that were applied stay", File: compact, Tests: "^TestCompactionOfAPrimaryKeyTable$",
			Old: "table.CompactionGroupResult{SafePosDeletes: dead}", New: "table.CompactionGroupResult{SafePosDeletes: dead[:0]}",
		},
		{
			Name: "the library's name mapping stays", File: compact, Tests: "^TestCompactionOfALogTable$",
			Old: "if _, had := tbl.Properties()[table.DefaultNameMappingKey]; had {", New: "if true {",
		},
		{
			Name: "a compaction is no round", File: compact, Tests: "^TestCompactionOfALogTable$",
			Old: "\tsummary := maps.Clone(props)\n", New: "\tsummary := iceberg.Properties{}\n\tdelete(props, keyRound)\n",
		},
		// Snapshots.
		{
			Name: "a worker that lost its lease expires", File: expire, Tests: "^TestExpiryOfAWorkerThatLostItsLease$",
			Old: "if req.Fence < last.Fence {", New: "if req.Fence < 0 {",
		},
		{
			Name: "the newest snapshots go", File: expire, Tests: "^TestExpirable$",
			Old: "if i < keepNewest || !told", New: "if i < 0 || !told",
		},
		{
			Name: "the snapshot with the offsets goes", File: expire, Tests: "^TestExpirable$",
			Old: "if i < keepNewest || !told || superseded", New: "if i < keepNewest || superseded",
		},
		{
			Name: "a snapshot's age counts from when it was made", File: expire, Tests: "^TestExpirable$",
			Old: "!told || superseded >= before", New: "!told || min(superseded, s.TimestampMs) >= before",
		},
		{
			Name: "what readers have in use goes", File: expire, Tests: "^TestExpirable$",
			Old: "stays := maps.Clone(keep)\n", New: "stays := map[int64]bool{}\n",
		},
		{
			Name: "what a tag names goes", File: expire, Tests: "^TestExpirable$",
			Old: "\t\tstays[ref.SnapshotID] = true\n", New: "",
		},
		{
			Name: "what a branch of others has goes", File: expire, Tests: "^TestExpirable$",
			Old: "\t\t\tif !main[s.SnapshotID] {\n", New: "\t\t\tif false {\n",
		},
		{
			Name: "a young snapshot that nothing leads to goes", File: expire, Tests: "^TestExpirable$",
			Old: "(main[s.SnapshotID] || s.TimestampMs < before)", New: "(main[s.SnapshotID] || s.TimestampMs > 0)",
		},
		{
			Name: "readers of Mink get less time than read_grace", File: expire, Tests: "^TestKeepSnapshotsIsAFloor$",
			Old: "max(req.StateAge, t.sink.cfg.KeepSnapshots)", New: "req.StateAge",
		},
		{
			Name: "a tag that is made meanwhile is not noticed", File: expire, Tests: "^TestATagThatIsMadeMeanwhileStays$",
			Old: "\t\treqs = append(reqs, refs)\n", New: "",
		},
		{
			Name: "files of a table that shares them go", File: expire, Tests: "^TestSharedFilesAreLeft$",
			Old: "ok && !strings.EqualFold(gc, \"true\")", New: "ok && gc == \"\"",
		},
		// Files.
		{
			Name: "young files go", File: expire, Tests: "^TestOrphans$",
			Old: "} else if o.Modified.Before(before) && removable(name) {", New: "} else if (o.Modified.Before(before) || true) && removable(name) {",
		},
		{
			Name: "files that may yet be committed go", File: expire, Tests: "^TestOrphans$",
			Old: "case !o.Modified.Before(time.UnixMilli(current.TimestampMs)), named.has(name):", New: "case named.has(name):",
		},
		{
			Name: "files of staged rounds go", File: expire, Tests: "^TestOrphans$",
			Old: "\t\tcase strings.HasPrefix(name, dataDir) && staged[roundOf(name)]:\n", New: "",
		},
		{
			Name: "files of older snapshots go", File: expire, Tests: "^TestOrphans$",
			Old: "\tfor _, s := range meta.Snapshots() {\n\t\tn.add(s.ManifestList)", New: "\tfor _, s := range []table.Snapshot{*meta.CurrentSnapshot()} {\n\t\tn.add(s.ManifestList)",
		},
		{
			Name: "statistics go", File: expire, Tests: "^TestOrphans$",
			Old: "\tfor f := range meta.Statistics() {\n\t\tn.add(f.StatisticsPath)\n", New: "\tfor range meta.Statistics() {\n",
		},
		{
			Name: "files of kinds that nobody names go", File: expire, Tests: "^TestOrphans$",
			Old: "return slices.Contains([]string{\".parquet\", \".orc\", \".avro\", \".puffin\"}, path.Ext(base))", New: "return true",
		},
		{
			Name: "what another engine keeps for itself goes", File: expire, Tests: "^TestOrphans$",
			Old: "\t\tif strings.HasPrefix(part, \"_\") || strings.HasPrefix(part, \".\") {\n\t\t\treturn false", New: "\t\tif part == \"\" {\n\t\t\treturn false",
		},
		{
			Name: "files that others spell in their way go", File: expire, Tests: "^TestFilesThatOthersSpellInTheirWay$",
			Old: "return n.names[name] || n.others[strings.ToLower(path.Base(name))]", New: "return n.names[name]",
		},
		{
			Name: "the table is looked at before the files", File: expire, Tests: "^TestAFileThatIsCommittedDuringTheSweepStays$",
			Old: "\terr := t.eachObject(ctx, t.dir, func(o objstore.ObjectInfo) error {\n\t\tname := strings.TrimPrefix(o.Key, t.dir)\n\t\tif round, ok := strings.CutPrefix(name, stagedDir); ok {\n\t\t\tround, _, _ = strings.Cut(round, \".\")\n\t\t\tstaged[round] = true\n\t\t} else if o.Modified.Before(before) && removable(name) {\n\t\t\told = append(old, o)\n\t\t}\n\t\treturn nil\n\t})\n\tif err != nil {\n\t\treturn err\n\t}\n\treq.Progress()\n\ttbl, err := t.load(ctx)\n\tif err != nil {\n\t\treturn err\n\t}\n",
			New: "\ttbl, err := t.load(ctx)\n\tif err != nil {\n\t\treturn err\n\t}\n\terr = t.eachObject(ctx, t.dir, func(o objstore.ObjectInfo) error {\n\t\tname := strings.TrimPrefix(o.Key, t.dir)\n\t\tif round, ok := strings.CutPrefix(name, stagedDir); ok {\n\t\t\tround, _, _ = strings.Cut(round, \".\")\n\t\t\tstaged[round] = true\n\t\t} else if o.Modified.Before(before) && removable(name) {\n\t\t\told = append(old, o)\n\t\t}\n\t\treturn nil\n\t})\n\tif err != nil {\n\t\treturn err\n\t}\n\treq.Progress()\n",
		},
	}, "^TestReadsStayRight$")
}
