package lake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
)

// keepNewest is how many snapshots of main stay whatever their age.
const keepNewest = 10

// Lists of files are merged when there are so many small ones: each costs readers a
// request when they plan.
const (
	manifestsMin  = 32
	manifestBytes = 1 << 20
)

// Expire merges small manifests, takes old snapshots out of the metadata, and removes files
// that nothing names any more. Each step is whole or not done; the next call goes on.
func (t *lakeTable) Expire(ctx context.Context, req sink.ExpireRequest) (sink.ExpireResponse, error) {
	if req.Progress == nil {
		req.Progress = func() {}
	}
	done, err := t.expire(ctx, req)
	if err != nil {
		return done, t.fail("expire snapshots of", "", err)
	}
	return done, nil
}

func (t *lakeTable) expire(ctx context.Context, req sink.ExpireRequest) (done sink.ExpireResponse, err error) {
	if t.round != nil {
		return done, fmt.Errorf("%w: a round is open", sink.ErrInvalid)
	}
	keep := map[int64]bool{}
	for _, text := range req.Keep {
		if text == "" {
			continue
		}
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return done, fmt.Errorf("%w: snapshot %.40q that is to stay is not the id of an Iceberg snapshot", sink.ErrInvalid, text)
		}
		keep[id] = true
	}
	tbl, err := t.load(ctx)
	if err != nil {
		return done, err
	}
	last, err := currentOffsets(ctx, tbl)
	if err != nil {
		return done, err
	}
	if req.Fence < last.Fence {
		return done, fmt.Errorf("fence %d, but round %s was committed with fence %d: %w", req.Fence, last.Round, last.Fence, sink.ErrFenced)
	}
	if done.Manifests, tbl, err = t.mergeManifests(ctx, tbl); err != nil {
		return done, err
	}
	req.Progress()
	if gc, ok := tbl.Properties()["gc.enabled"]; ok && !strings.EqualFold(gc, "true") {
		return done, nil // somebody shares its files
	}
	if req.StateAge > 0 {
		if done.States, err = t.expireSnapshots(ctx, tbl, keep, max(req.StateAge, t.sink.cfg.KeepSnapshots)); err != nil {
			return done, err
		}
	}
	req.Progress()
	if req.OrphanAge > 0 {
		err = t.removeOrphans(ctx, req, &done)
	}
	return done, err
}

// mergeManifests makes few of many small manifests, in a snapshot of the same rows. That
// snapshot has no round of its own: the one before it says how far Mink has written.
func (t *lakeTable) mergeManifests(ctx context.Context, tbl *table.Table) (int, *table.Table, error) {
	s := tbl.CurrentSnapshot()
	if s == nil {
		return 0, tbl, nil
	}
	fs, err := tbl.FS(ctx)
	if err != nil {
		return 0, nil, err
	}
	manifests, err := s.Manifests(fs)
	if err != nil {
		return 0, nil, fmt.Errorf("files of snapshot %d: %w", s.SnapshotID, err)
	}
	small := func(m iceberg.ManifestFile) bool {
		return m.ManifestContent() == iceberg.ManifestContentData && m.Length() < manifestBytes
	}
	if n := len(slices.DeleteFunc(slices.Clone(manifests), func(m iceberg.ManifestFile) bool { return !small(m) })); n < manifestsMin {
		return 0, tbl, nil
	}
	attempt := &once{t: t}
	tx := table.New(tbl.Identifier(), tbl.Metadata(), tbl.MetadataLocation(), tbl.FS, attempt).NewTransaction()
	if err := tx.AssertRefSnapshotID(table.MainBranch); err != nil {
		return 0, nil, err
	}
	result, err := tx.RewriteManifests(ctx, table.WithRewriteManifestPredicate(small))
	if err != nil || result.IsNoOp() {
		return 0, tbl, err
	}
	made, err := tx.Commit(ctx)
	switch {
	case attempt.err != nil:
		return 0, nil, fmt.Errorf("merge manifests: %w", commitError(attempt.err))
	case err != nil:
		return 0, nil, fmt.Errorf("merge manifests: %w", err)
	}
	return len(result.RewrittenManifests), made, nil
}

// expirable are the snapshots that nobody needs any more:
//
//	main     the newest ones stay, down to the one that says how far Mink has written, and all
//	         that were superseded less than age ago
//	others   what a tag or a branch names, and of a branch all that main has not
//	keep     what readers of Mink may have in use
//	no ref   goes when it is older than age: main was rolled back
func expirable(meta table.Metadata, keep map[int64]bool, now time.Time, age time.Duration) []int64 {
	stays := maps.Clone(keep)
	main := map[int64]bool{}
	before := now.Add(-age).UnixMilli()
	superseded := int64(1) << 62 // when: by the next snapshot
	told := false                // a snapshot of a round was met
	for i, s := range chain(meta, meta.CurrentSnapshot()) {
		main[s.SnapshotID] = true
		if i < keepNewest || !told || superseded >= before {
			stays[s.SnapshotID] = true
		}
		told = told || s.Summary != nil && s.Summary.Properties[keyRound] != ""
		superseded = s.TimestampMs
	}
	for name, ref := range meta.Refs() {
		stays[ref.SnapshotID] = true
		if name == table.MainBranch || ref.SnapshotRefType != table.BranchRef {
			continue
		}
		for _, s := range chain(meta, meta.SnapshotByID(ref.SnapshotID)) {
			if !main[s.SnapshotID] {
				stays[s.SnapshotID] = true
			}
		}
	}
	var gone []int64
	for _, s := range meta.Snapshots() {
		if !stays[s.SnapshotID] && (main[s.SnapshotID] || s.TimestampMs < before) {
			gone = append(gone, s.SnapshotID)
		}
	}
	return gone
}

// chain is a snapshot and those before it, as far as they are there.
func chain(meta table.Metadata, s *table.Snapshot) (list []*table.Snapshot) {
	for steps := len(meta.Snapshots()); s != nil && steps > 0; steps-- {
		list = append(list, s)
		if s.ParentSnapshotID == nil {
			break
		}
		s = meta.SnapshotByID(*s.ParentSnapshotID)
	}
	return list
}

// expireSnapshots commits what expirable says, asserting that no branch or tag changed.
func (t *lakeTable) expireSnapshots(ctx context.Context, tbl *table.Table, keep map[int64]bool, age time.Duration) (int, error) {
	meta := tbl.Metadata()
	gone := expirable(meta, keep, time.Now(), age)
	if len(gone) == 0 {
		return 0, nil
	}
	reqs := []table.Requirement{table.AssertTableUUID(meta.TableUUID())}
	refs := sameRefs{}
	for name, ref := range meta.Refs() {
		refs[name] = ref.SnapshotID
		reqs = append(reqs, table.AssertRefSnapshotID(name, &ref.SnapshotID))
	}
	if w, ok := t.sink.w.(*Warehouse); !ok || w.swapper != nil { // the requirements are looked at here
		reqs = append(reqs, refs)
	}
	if _, err := t.sink.w.Commit(ctx, t.id, reqs, []table.Update{table.NewRemoveSnapshotsUpdate(gone, false)}); err != nil {
		return 0, fmt.Errorf("expire %d snapshots: %w", len(gone), commitError(err))
	}
	return len(gone), nil
}

// sameRefs asserts that there are no other branches and tags than these: one that was made
// meanwhile may be on a snapshot that was to go. Only catalogs that keep a pointer can check it.
type sameRefs map[string]int64

// GetType is no requirement's of the REST protocol.
func (r sameRefs) GetType() string { return "mink-same-refs" }

// Validate compares names and snapshots.
func (r sameRefs) Validate(meta table.Metadata) error {
	if meta == nil {
		return errors.New("requirement failed: the table is gone")
	}
	for name, ref := range meta.Refs() {
		if id, ok := r[name]; !ok || id != ref.SnapshotID {
			return fmt.Errorf("requirement failed: branch or tag %q was set meanwhile", name)
		}
	}
	return nil
}

// removeOrphans deletes files of the table's directory that nothing names:
//
//	list the directory     what is written from here on is not looked at
//	load the table         what was committed before the list is named here
//	delete what is old     and not named by any snapshot, metadata file or statistics, nor
//	                       staged for a round
//
// Old is older than the age, and than the current snapshot of main: what a worker that
// stands still wrote later may still be committed on that one, and cannot be on any older.
// The files of other engines have the age alone.
func (t *lakeTable) removeOrphans(ctx context.Context, req sink.ExpireRequest, done *sink.ExpireResponse) error {
	before := time.Now().Add(-req.OrphanAge)
	staged := map[string]bool{} // directories of rounds
	var old []objstore.ObjectInfo
	err := t.eachObject(ctx, t.dir, func(o objstore.ObjectInfo) error {
		name := strings.TrimPrefix(o.Key, t.dir)
		if round, ok := strings.CutPrefix(name, stagedDir); ok {
			round, _, _ = strings.Cut(round, ".")
			staged[round] = true
		} else if o.Modified.Before(before) && removable(name) {
			old = append(old, o)
		}
		return nil
	})
	if err != nil {
		return err
	}
	req.Progress()
	tbl, err := t.load(ctx)
	if err != nil {
		return err
	}
	current := tbl.CurrentSnapshot()
	if current == nil {
		return nil
	}
	named, err := t.namedFiles(ctx, tbl, req.Progress)
	if err != nil {
		return fmt.Errorf("files that are needed: %w", err)
	}
	var gone []string
	metadata := tbl.Properties().GetBool(table.MetadataDeleteAfterCommitEnabledKey, table.MetadataDeleteAfterCommitEnabledDefault)
	if w, ok := t.sink.w.(*Warehouse); ok && w.swapper == nil {
		metadata = false // they are the catalog's
	}
	for _, o := range old {
		name := strings.TrimPrefix(o.Key, t.dir)
		switch {
		case !o.Modified.Before(time.UnixMilli(current.TimestampMs)), named.has(name):
		case strings.HasSuffix(name, ".metadata.json") && !metadata:
		case strings.HasPrefix(name, dataDir) && staged[roundOf(name)]:
		default:
			gone = append(gone, o.Key)
			done.Files++
			done.Bytes += o.Size
		}
	}
	return t.delete(ctx, gone...)
}

// roundOf is the directory below data/.
func roundOf(name string) string {
	round, _, _ := strings.Cut(strings.TrimPrefix(name, dataDir), "/")
	return round
}

// removable: kinds of files that Iceberg's metadata would name. Others are of somebody who
// knows why.
func removable(name string) bool {
	dir, _, _ := strings.Cut(name, "/")
	base := path.Base(name)
	if dir+"/" == metadataDir {
		return strings.HasPrefix(base, "_mink-offsets-") ||
			!strings.HasPrefix(base, "_") && !strings.HasPrefix(base, ".") && slices.ContainsFunc([]string{".avro", ".metadata.json", ".stats", ".puffin"}, func(s string) bool { return strings.HasSuffix(base, s) })
	}
	if dir+"/" != dataDir {
		return false
	}
	for part := range strings.SplitSeq(name, "/") { // engines keep what is theirs below such names
		if strings.HasPrefix(part, "_") || strings.HasPrefix(part, ".") {
			return false
		}
	}
	return slices.Contains([]string{".parquet", ".orc", ".avro", ".puffin"}, path.Ext(base))
}

// namedFiles are the files that a table's metadata name, relative to its directory.
type namedFiles struct {
	dir    string
	names  map[string]bool
	others map[string]bool // last parts of names that Mink did not give: a store may spell them in ways of its own
}

func (n *namedFiles) add(location string) {
	if location == "" {
		return
	}
	// However the rest of the location is spelled: the directory is this table's alone.
	if i := strings.LastIndex(location, "/"+n.dir); i >= 0 {
		n.names[location[i+1+len(n.dir):]] = true
	}
	if _, own := BucketOf(location); !own {
		n.others[strings.ToLower(path.Base(location))] = true
	}
}

func (n *namedFiles) has(name string) bool {
	return n.names[name] || n.others[strings.ToLower(path.Base(name))]
}

// namedFiles reads the manifests of all snapshots.
func (t *lakeTable) namedFiles(ctx context.Context, tbl *table.Table, progress func()) (*namedFiles, error) {
	n := &namedFiles{dir: t.dir, names: map[string]bool{}, others: map[string]bool{}}
	meta := tbl.Metadata()
	n.add(tbl.MetadataLocation())
	for f := range meta.PreviousFiles() {
		n.add(f.MetadataFile)
	}
	for f := range meta.Statistics() {
		n.add(f.StatisticsPath)
	}
	for f := range meta.PartitionStatistics() {
		n.add(f.StatisticsPath)
	}
	n.add(tbl.Properties()[keyOffsetsFile])
	fs, err := tbl.FS(ctx)
	if err != nil {
		return nil, err
	}
	read := map[string]bool{}
	for _, s := range meta.Snapshots() {
		n.add(s.ManifestList)
		if s.Summary != nil {
			n.add(s.Summary.Properties[keyOffsetsFile])
		}
		manifests, err := s.Manifests(fs)
		if err != nil {
			return nil, fmt.Errorf("snapshot %d: %w", s.SnapshotID, err)
		}
		for _, m := range manifests {
			if read[m.FilePath()] {
				continue
			}
			read[m.FilePath()] = true
			n.add(m.FilePath())
			for e, err := range m.Entries(fs, true) {
				if err != nil {
					return nil, fmt.Errorf("snapshot %d: %w", s.SnapshotID, err)
				}
				n.add(e.DataFile().FilePath())
			}
		}
		progress()
	}
	return n, nil
}
