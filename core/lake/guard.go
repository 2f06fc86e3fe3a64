package lake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/mink"
)

// propertyPrefix of table properties that are Mink's.
const propertyPrefix = "mink."

// Guard is the warehouse as others may use it: their tables are theirs; Mink's tables
// they may append to, delete from, compact and expire, but not change in ways after
// which Mink could not read them or write to them. What is refused is ErrGuarded.
type Guard struct {
	*Warehouse
	// Owned says whether Mink still writes to the lake table of its table with that id;
	// nil: always. A table that it gave up is anybody's. An error, when that is not known,
	// ends the call.
	Owned func(id mink.TableID) (bool, error)
	// Pinned are lake snapshots that readers may still be reading; nil: none.
	Pinned func(id mink.TableID) []int64
}

// ErrGuarded: the change would break a table of Mink's.
var ErrGuarded = errors.New("refused: the table is Mink's")

func guarded(format string, args ...any) error {
	return fmt.Errorf("%w: %w: %s", ErrGuarded, catalog.ErrInvalid, fmt.Sprintf(format, args...))
}

// owner is the id of Mink's table that the metadata is of.
func (g *Guard) owner(meta table.Metadata) (id mink.TableID, owned bool, err error) {
	n, err := strconv.ParseInt(meta.Properties()[keyTableID], 10, 64)
	if err != nil {
		return 0, false, nil //nolint:nilerr // it is no table of Mink's
	}
	id = mink.TableID(n)
	if g.Owned == nil {
		return id, true, nil
	}
	owned, err = g.Owned(id)
	return id, owned, err
}

// Create makes a table of others.
func (g *Guard) Create(ctx context.Context, req CreateTable) (*table.Table, error) {
	for name := range req.Properties {
		if strings.HasPrefix(name, propertyPrefix) {
			return nil, fmt.Errorf("create lake table %s: %w", req.ID, guarded("property %s can be set by Mink alone", name))
		}
	}
	if req.Location == "" {
		req.Location = g.NewLocation(req.ID)
	}
	if err := g.checkPlace(req.Location); err != nil {
		return nil, fmt.Errorf("create lake table %s: %w", req.ID, err)
	}
	if err := g.files.makeDirs(strings.TrimRight(req.Location, "/")); err != nil {
		return nil, fmt.Errorf("create lake table %s: %w", req.ID, err)
	}
	return g.Warehouse.Create(ctx, req)
}

// Stage is Warehouse.Stage.
func (g *Guard) Stage(req CreateTable) (table.Metadata, error) {
	if req.Location != "" {
		if err := g.checkPlace(req.Location); err != nil {
			return nil, fmt.Errorf("stage lake table %s: %w", req.ID, err)
		}
	}
	return g.Warehouse.Stage(req)
}

// checkPlace keeps tables of others out of the directories of Mink's, which have a number
// where theirs have a uuid: what is dropped with its files takes all that is below.
func (g *Guard) checkPlace(location string) error {
	key, err := g.Key(location)
	if err != nil {
		return err
	}
	parts := strings.Split(key, "/")
	if len(parts) < 3 {
		return guarded("location %s holds other tables", location)
	}
	if n, err := strconv.ParseUint(parts[2][strings.LastIndexByte(parts[2], '-')+1:], 10, 64); err == nil && strings.Contains(parts[2], "-") {
		return guarded("location %s is that of Mink's table %d", location, n)
	}
	return nil
}

// Register is Warehouse.Register.
func (g *Guard) Register(ctx context.Context, id catalog.Identifier, location string) (*table.Table, error) {
	return g.register(ctx, id, location, g.checkPlace)
}

// Commit is Warehouse.Commit.
func (g *Guard) Commit(ctx context.Context, id catalog.Identifier, reqs []table.Requirement, updates []table.Update) (*table.Table, error) {
	return g.commit(ctx, id, reqs, updates, g.check)
}

// Drop is Warehouse.Drop.
func (g *Guard) Drop(ctx context.Context, id catalog.Identifier, purge bool) error {
	tbl, err := g.checkWhole(ctx, id, "drop it in Mink, or switch its option lake off before")
	if err != nil {
		return fmt.Errorf("drop lake table %s: %w", id, err)
	}
	if tbl == nil {
		return g.Warehouse.Drop(ctx, id, purge)
	}
	return g.DropLoaded(ctx, id, tbl, purge)
}

// Rename is Warehouse.Rename.
func (g *Guard) Rename(ctx context.Context, from, to catalog.Identifier) error {
	if _, err := g.checkWhole(ctx, from, "Mink finds it by its name"); err != nil {
		return fmt.Errorf("rename lake table %s to %s: %w", from, to, err)
	}
	return g.Warehouse.Rename(ctx, from, to)
}

// checkWhole answers the table, or nil when its metadata is lost: it may go then.
func (g *Guard) checkWhole(ctx context.Context, id catalog.Identifier, advice string) (*table.Table, error) {
	tbl, err := g.Load(ctx, id)
	if errors.Is(err, catalog.ErrCorrupt) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	switch owner, owned, err := g.owner(tbl.Metadata()); {
	case err != nil:
		return nil, err
	case owned:
		return nil, guarded("it is the lake table of Mink's table %d; %s", owner, advice)
	}
	return tbl, nil
}

// check says what a commit of others would break.
func (g *Guard) check(base, next table.Metadata) error {
	if base == nil || base.Location() != next.Location() {
		if err := g.checkPlace(next.Location()); err != nil {
			return err
		}
	}
	if base == nil {
		return checkProperties(nil, next.Properties())
	}
	owner, owned, err := g.owner(base)
	if err != nil {
		return err
	}
	if !owned {
		if _, was := base.Properties()[keyTableID]; was {
			return nil // given up by Mink
		}
		return checkProperties(base.Properties(), next.Properties())
	}
	for _, check := range []func(base, next table.Metadata) error{
		func(base, next table.Metadata) error { return checkProperties(base.Properties(), next.Properties()) },
		func(base, next table.Metadata) error { return checkPaths(base.Properties(), next.Properties()) },
		checkShape, checkSchemas, checkHistory, checkRetention,
	} {
		if err := check(base, next); err != nil {
			return err
		}
	}
	if g.Pinned == nil {
		return nil
	}
	for _, id := range g.Pinned(owner) {
		if base.SnapshotByID(id) != nil && next.SnapshotByID(id) == nil {
			return guarded("snapshot %d may still be read by clients of Mink (read_grace); expire it later", id)
		}
	}
	return nil
}

// checkPaths keeps the places of a table's files, and how long its metadata files stay.
func checkPaths(base, next map[string]string) error {
	for _, name := range []string{"write.metadata.path", "write.data.path", "write.folder-storage.path", "write.object-storage.enabled", "write.object-storage.path",
		"write.metadata.delete-after-commit.enabled", "write.metadata.previous-versions-max"} {
		if base[name] != next[name] {
			return guarded("property %s of a table that Mink writes cannot be changed here: set iceberg.%s in Mink when the table is made", name, name)
		}
	}
	return nil
}

func checkProperties(base, next map[string]string) error {
	for name, value := range base {
		if now, ok := next[name]; strings.HasPrefix(name, propertyPrefix) && (!ok || now != value) {
			return guarded("property %s says how far Mink has written, and cannot be changed or removed by others", name)
		}
	}
	for name := range next {
		if _, ok := base[name]; strings.HasPrefix(name, propertyPrefix) && !ok {
			return guarded("property %s can be set by Mink alone", name)
		}
	}
	return nil
}

// checkShape keeps columns, partitioning, place and format as Mink writes them.
func checkShape(base, next table.Metadata) error {
	was, is := base.CurrentSchema(), next.CurrentSchema()
	switch {
	case base.TableUUID() != next.TableUUID():
		return guarded("its uuid cannot change")
	case was.ID != is.ID || !was.Equals(is):
		for _, f := range was.Fields() {
			if _, ok := is.FindFieldByID(f.ID); !ok {
				return guarded("column %q cannot be dropped here: alter the table in Mink, which carries the change to the lake", f.Name)
			}
		}
		return guarded("its columns cannot be changed here: alter the table in Mink, which carries the change to the lake")
	case next.LastColumnID() != base.LastColumnID():
		return guarded("a schema was added that takes field ids which Mink gives")
	case base.DefaultPartitionSpec() != next.DefaultPartitionSpec():
		return guarded("its partitioning follows Mink's buckets and cannot be changed")
	case base.Location() != next.Location():
		return guarded("its location cannot change: Mink writes at %s", base.Location())
	case base.Version() != next.Version():
		return guarded("its format version cannot change from %d: Mink writes that", base.Version())
	}
	return nil
}

// checkSchemas keeps older columns: files and readers of older snapshots have them.
func checkSchemas(base, next table.Metadata) error {
	for _, was := range base.Schemas() {
		if !slices.ContainsFunc(next.Schemas(), func(is *iceberg.Schema) bool { return is.ID == was.ID && is.Equals(was) }) {
			return guarded("schema %d cannot be removed: data files and readers of older snapshots have its columns", was.ID)
		}
	}
	return nil
}

// checkRetention keeps how long snapshots of main stay: Mink expires them itself, and its
// readers count on that.
func checkRetention(base, next table.Metadata) error {
	of := func(meta table.Metadata) string {
		for name, ref := range meta.Refs() {
			if name == table.MainBranch {
				text, _ := json.Marshal([]any{ref.MaxRefAgeMs, ref.MaxSnapshotAgeMs, ref.MinSnapshotsToKeep}) // numbers or null
				return string(text)
			}
		}
		return "[null,null,null]"
	}
	if of(base) != of(next) {
		return guarded("the retention of branch main cannot be changed: Mink expires its snapshots; use a branch or a tag of your own")
	}
	return nil
}

// checkHistory keeps Mink's rounds: main goes forward only, and the snapshot that says
// how far Mink has written stays.
func checkHistory(base, next table.Metadata) error {
	head := base.CurrentSnapshot()
	if head == nil {
		return nil
	}
	now := next.CurrentSnapshot()
	if now == nil || !slices.Contains(ancestry(next, now), head.SnapshotID) {
		return guarded("main must go on from snapshot %d: going back loses rows that Mink has let go of; use a branch or a tag", head.SnapshotID)
	}
	if round := newestRound(base, head); round != 0 && newestRound(next, now) != round {
		return guarded("snapshot %d says how far Mink has written and cannot be expired while it is the newest that does; Mink's next commit has a newer one", round)
	}
	return nil
}

// ancestry is a snapshot and those before it, as far as they are there. The id that the
// last one names as its parent is the last: it may be gone.
func ancestry(meta table.Metadata, s *table.Snapshot) (ids []int64) {
	for steps := len(meta.Snapshots()); s != nil && steps >= 0; steps-- {
		ids = append(ids, s.SnapshotID)
		if s.ParentSnapshotID == nil {
			break
		}
		parent := meta.SnapshotByID(*s.ParentSnapshotID)
		if parent == nil {
			ids = append(ids, *s.ParentSnapshotID)
		}
		s = parent
	}
	return ids
}

func newestRound(meta table.Metadata, from *table.Snapshot) int64 {
	for _, id := range ancestry(meta, from) {
		if s := meta.SnapshotByID(id); s != nil && s.Summary != nil && s.Summary.Properties[keyRound] != "" {
			return id
		}
	}
	return 0
}
