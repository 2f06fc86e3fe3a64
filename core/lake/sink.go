package lake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
)

// SinkConfig is how the sink writes.
type SinkConfig struct {
	// FileBytes is where a data file ends and the next begins, in bytes; 0: 128 MiB.
	FileBytes int64
	// SortBytes bounds the changes of a bucket of a primary-key table that are in
	// memory, in bytes of Arrow; what is more goes to ScratchDir. 0: 64 MiB. A worker
	// takes up to about five times as much.
	SortBytes int64
	// ScratchDir is where changes are spilled to; "": the system's directory for
	// temporary files.
	ScratchDir string
	// Allocator of Arrow memory; nil: Go's.
	Allocator memory.Allocator
	// KeepSnapshots is the least time that a superseded snapshot stays, whatever is asked
	// of Expire: longer than any read. 0: none.
	KeepSnapshots time.Duration
	// Gone says whether a partition was dropped and never comes back: its ends are not
	// kept any longer. nil: ends are kept for ever. Safe for concurrent use.
	Gone   func(mink.PartitionID) bool
	Logger *slog.Logger // nil: none
}

// Options of a table that the sink knows, in sink.TableSpec.Options; others are
// not looked at. Those with icebergPrefix become properties of the Iceberg table,
// without it, when the table is made.
const (
	optionDeletes = "lake_deletes"
	icebergPrefix = "iceberg."
)

// Properties of the Iceberg table that the sink sets when it makes it, unless the
// user sets them: files as Mink writes them, metadata files that do not pile up,
// and deletes that do not conflict with every append of others.
var tableProperties = iceberg.Properties{
	"write.format.default":                       "parquet",
	"write.parquet.compression-codec":            "zstd",
	"write.parquet.compression-level":            "1",
	"write.delete.isolation-level":               "snapshot",
	"write.update.isolation-level":               "snapshot",
	"write.merge.isolation-level":                "snapshot",
	"write.metadata.delete-after-commit.enabled": "true",
	"write.metadata.previous-versions-max":       "100",
}

// schemaTries is how often a change of schema is planned anew after another one won.
const schemaTries = 5

// warehouse is what the sink needs of Warehouse.
type warehouse interface {
	Load(ctx context.Context, id catalog.Identifier) (*table.Table, error)
	Create(ctx context.Context, req CreateTable) (*table.Table, error)
	Commit(ctx context.Context, id catalog.Identifier, reqs []table.Requirement, updates []table.Update) (*table.Table, error)
	DropLoaded(ctx context.Context, id catalog.Identifier, tbl *table.Table, purge bool) error
	CreateNamespace(ctx context.Context, namespace []string, properties map[string]string) error
	Store() objstore.Store
	Location(key string) string
}

// Sink writes tables to the lake. It implements sink.Sink and sink.Reader. Safe
// for concurrent use.
type Sink struct {
	w   warehouse
	cfg SinkConfig
}

var (
	_ sink.Sink   = (*Sink)(nil)
	_ sink.Reader = (*Sink)(nil)
)

// NewSink writes to a warehouse, which stays the caller's.
func NewSink(w *Warehouse, cfg SinkConfig) *Sink { return newSink(w, cfg) }

func newSink(w warehouse, cfg SinkConfig) *Sink {
	if cfg.FileBytes <= 0 {
		cfg.FileBytes = targetBytes
	}
	if cfg.SortBytes <= 0 {
		cfg.SortBytes = 64 << 20
	}
	if cfg.Allocator == nil {
		cfg.Allocator = memory.DefaultAllocator
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if _, ok := objstore.Multipart(w.Store()); !ok {
		cfg.FileBytes = min(cfg.FileBytes, 32<<20, w.Store().Capabilities().PutSizeMax/2) // a file is in memory until it is done
	}
	return &Sink{w: w, cfg: cfg}
}

// Describe says what the sink can do.
func (s *Sink) Describe() sink.Description {
	return sink.Description{Name: "iceberg", Version: "1", Delivery: sink.ExactlyOnce, Changes: sink.ChangesApplied, StagedSurvives: true, SchemaChanges: true, ReadBack: true}
}

// Close frees nothing: the warehouse is the caller's.
func (s *Sink) Close() error { return nil }

// sinkError makes errors of the contract's set out of Mink's and the library's.
func sinkError(err error) error {
	for _, pair := range [][2]error{
		{mink.ErrUnsupported, sink.ErrUnimplemented}, {mink.ErrInvalid, sink.ErrInvalid}, {mink.ErrCorrupt, sink.ErrCorrupt},
		{mink.ErrExists, sink.ErrAlreadyExists}, {mink.ErrNotExist, sink.ErrNotExist}, {mink.ErrConflict, sink.ErrConflict},
		{mink.ErrUnavailable, sink.ErrUnavailable}, {mink.ErrUnknownOutcome, sink.ErrUnknownOutcome},
	} {
		if errors.Is(err, pair[0]) && !errors.Is(err, pair[1]) {
			return fmt.Errorf("%w (%w)", err, pair[1])
		}
	}
	return err
}

// columns is one version of a table's columns, ready to be written.
type columns struct {
	id   mink.SchemaID
	mink *schema.Schema
	ice  *iceberg.Schema
	keys []int // field ids: primary key, partition keys, bucket key
}

func newColumns(spec sink.TableSpec) (*columns, error) {
	s, err := schema.FromArrow(spec.Schema.Arrow)
	if err != nil {
		return nil, err
	}
	s.ID = spec.Schema.ID
	d := &schema.Descriptor{Database: spec.Database, Table: spec.Name, Schema: *s, PrimaryKey: spec.PrimaryKey, PartitionKeys: spec.PartitionKeys, BucketKeys: spec.BucketKeys, Options: spec.Options}
	if err := d.CheckLake(); err != nil {
		return nil, err
	}
	ice, err := IcebergSchema(s, spec.PrimaryKey)
	if err != nil {
		return nil, err
	}
	c := &columns{id: s.ID, mink: s, ice: ice}
	for _, name := range slices.Concat(spec.PrimaryKey, spec.PartitionKeys, spec.BucketKeys) {
		col, ok := s.Column(name)
		if !ok {
			return nil, fmt.Errorf("%w: key %q is no column", sink.ErrInvalid, name)
		}
		if !slices.Contains(c.keys, int(col.ID)) {
			c.keys = append(c.keys, int(col.ID))
		}
	}
	return c, nil
}

// Open makes the Iceberg table when it is absent and lets it follow the schema.
func (s *Sink) Open(ctx context.Context, req sink.OpenRequest) (sink.Table, error) {
	open := s.open
	if req.Drop {
		open = s.openToDrop
	}
	t, err := open(ctx, req.Table)
	if err != nil {
		return nil, fmt.Errorf("open lake table %s: %w", req.Table.FullName(), sinkError(err))
	}
	return t, nil
}

func (s *Sink) open(ctx context.Context, spec sink.TableSpec) (*lakeTable, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	cols, err := newColumns(spec)
	if err != nil {
		return nil, err
	}
	t := &lakeTable{sink: s, store: s.w.Store(), spec: spec, cols: cols, dir: tableDir(spec), id: identifier(spec)}
	tbl, err := s.w.Load(ctx, t.id)
	if errors.Is(err, sink.ErrNotExist) || errors.Is(err, mink.ErrNotExist) {
		tbl, err = t.create(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := t.own(tbl); err != nil {
		return nil, err
	}
	if _, err = t.follow(ctx, tbl, cols); err != nil {
		return nil, err
	}
	return t, t.findSpec(tbl)
}

// openToDrop looks at nothing that a damaged or foreign table could fail.
func (s *Sink) openToDrop(ctx context.Context, spec sink.TableSpec) (*lakeTable, error) {
	if err := errors.Join(spec.Validate(), ctx.Err()); err != nil {
		return nil, err
	}
	return &lakeTable{sink: s, store: s.w.Store(), spec: spec, dir: tableDir(spec), id: identifier(spec)}, nil
}

func identifier(spec sink.TableSpec) catalog.Identifier {
	return catalog.Identifier{Namespace: []string{spec.Database}, Name: spec.Name}
}

// own says whether the Iceberg table is this table's.
func (t *lakeTable) own(tbl *table.Table) error {
	switch id := tbl.Properties()[keyTableID]; id {
	case t.tableID():
		return nil
	case "":
		return fmt.Errorf("%w: the lake has a table of this name that is not Mink's, at %s; drop or rename one of them", sink.ErrAlreadyExists, tbl.Location())
	default:
		return fmt.Errorf("%w: the lake's table of this name is of the table with id %s, this one's is %d", sink.ErrAlreadyExists, id, t.spec.ID)
	}
}

func (t *lakeTable) tableID() string { return strconv.FormatInt(int64(t.spec.ID), 10) }

func (t *lakeTable) create(ctx context.Context) (*table.Table, error) {
	spec, err := PartitionSpec(t.cols.mink, t.cols.ice, t.spec.PartitionKeys, t.spec.BucketKeys, t.spec.BucketCount)
	if err != nil {
		return nil, err
	}
	order, err := SortOrder(t.cols.mink, t.spec.PrimaryKey)
	if err != nil {
		return nil, err
	}
	props := iceberg.Properties{}
	for k, v := range tableProperties {
		props[k] = v
	}
	for k, v := range t.spec.Options {
		if name, ok := strings.CutPrefix(k, icebergPrefix); ok {
			props[name] = v
		}
	}
	props[table.PropertyFormatVersion] = "2"
	if t.cols.mink.LakeNeedsV3() {
		props[table.PropertyFormatVersion] = "3"
	}
	for k, v := range t.schemaProperties(t.cols, 0) {
		props[k] = v
	}
	props[keyTableID] = t.tableID()
	if err := t.sink.w.CreateNamespace(ctx, t.id.Namespace, nil); err != nil {
		return nil, err
	}
	tbl, err := t.sink.w.Create(ctx, CreateTable{ID: t.id, Schema: t.cols.ice, Spec: spec, SortOrder: order, Location: t.sink.w.Location(strings.TrimSuffix(t.dir, "/")), Properties: props})
	if errors.Is(err, sink.ErrAlreadyExists) || errors.Is(err, mink.ErrExists) || errors.Is(err, sink.ErrUnknownOutcome) {
		if tbl, loadErr := t.sink.w.Load(ctx, t.id); loadErr == nil {
			return tbl, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return tbl, sameIDs(t.cols.ice, tbl.Schema())
}

// sameIDs refuses a catalog that numbers fields as it likes: files are written
// with Mink's numbers.
func sameIDs(want, got *iceberg.Schema) error {
	fields, err := want.FlatFields()
	if err != nil {
		return err
	}
	for f := range fields {
		if g, ok := got.FindFieldByID(f.ID); !ok || g.Name != f.Name {
			return fmt.Errorf("%w: the catalog gave column %q another field id than %d; tables whose field ids the catalog chooses cannot be written", sink.ErrUnimplemented, f.Name, f.ID)
		}
	}
	return nil
}

// keyLastField is a property: the highest field id that Mink gave the table. A
// column with a higher one was added by another engine.
const keyLastField = "mink.last-field-id"

func (t *lakeTable) schemaProperties(c *columns, last int) iceberg.Properties {
	return iceberg.Properties{keySchemaID: strconv.FormatInt(int64(c.id), 10), keyLastField: strconv.Itoa(max(last, c.ice.HighestFieldID()))}
}

// follow lets the Iceberg table have the columns, if it does not yet.
func (t *lakeTable) follow(ctx context.Context, tbl *table.Table, c *columns) (*table.Table, error) {
	for range schemaTries {
		done, reqs, updates, err := t.planSchema(tbl, c)
		if err != nil || done {
			return tbl, err
		}
		next, err := t.sink.w.Commit(ctx, t.id, reqs, updates)
		if err == nil {
			return next, nil
		}
		if !errors.Is(err, sink.ErrConflict) {
			return nil, err
		}
		if tbl, err = t.load(ctx); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: the table changed %d times while its schema was to change", sink.ErrConflict, schemaTries)
}

func (t *lakeTable) planSchema(tbl *table.Table, c *columns) (done bool, _ []table.Requirement, _ []table.Update, _ error) {
	props := tbl.Properties()
	have, err := strconv.ParseInt(props[keySchemaID], 10, 32)
	if err != nil {
		return false, nil, nil, fmt.Errorf("%w: property %s is %q, want the version of Mink's schema", sink.ErrCorrupt, keySchemaID, props[keySchemaID])
	}
	switch {
	case mink.SchemaID(have) == c.id:
		return true, nil, nil, nil
	case mink.SchemaID(have) > c.id:
		return false, nil, nil, fmt.Errorf("%w: schema %d is older than the lake's, %d", sink.ErrConflict, c.id, have)
	}
	last, err := strconv.Atoi(props[keyLastField])
	if err != nil {
		return false, nil, nil, fmt.Errorf("%w: property %s is %q, want a field id", sink.ErrCorrupt, keyLastField, props[keyLastField])
	}
	current := tbl.Schema()
	for _, f := range current.Fields() {
		if f.ID > last {
			return false, nil, nil, fmt.Errorf("%w: column %q of the lake table was added by another engine; Mink changes the columns of its tables itself: drop it there", sink.ErrUnimplemented, f.Name)
		}
	}
	next, err := evolveSchema(current, c.ice, c.keys)
	if err != nil {
		return false, nil, nil, err
	}
	if err := partitionNames(tbl, next); err != nil {
		return false, nil, nil, err
	}
	var updates []table.Update
	if c.mink.LakeNeedsV3() && tbl.Metadata().Version() < 3 {
		updates = append(updates, table.NewUpgradeFormatVersionUpdate(3))
	}
	updates = append(updates, table.NewAddSchemaUpdate(next), table.NewSetCurrentSchemaUpdate(-1), table.NewSetPropertiesUpdate(t.schemaProperties(c, last)))
	return false, []table.Requirement{table.AssertTableUUID(tbl.Metadata().TableUUID()), table.AssertCurrentSchemaID(current.ID)}, updates, nil
}

// partitionNames refuses a column with the name of a partition field that is not its own: a
// key that was renamed left it its old name. Engines on Java load no such table.
func partitionNames(tbl *table.Table, next *iceberg.Schema) error {
	for _, spec := range tbl.Metadata().PartitionSpecs() {
		for _, f := range spec.Fields() {
			if c, ok := next.FindFieldByName(f.Name); ok && c.ID != f.SourceID() {
				return fmt.Errorf("%w: column %q has the name of a partition field of the lake table; rename the column", sink.ErrUnimplemented, c.Name)
			}
		}
	}
	return nil
}

// findSpec finds the partition spec that Mink made among the table's.
func (t *lakeTable) findSpec(tbl *table.Table) error {
	want, err := PartitionSpec(t.cols.mink, t.cols.ice, t.spec.PartitionKeys, t.spec.BucketKeys, t.spec.BucketCount)
	if err != nil {
		return err
	}
	for _, s := range tbl.Metadata().PartitionSpecs() {
		if sameSpec(want, s) {
			t.partitioning = s
			return nil
		}
	}
	return fmt.Errorf("%w: the lake table has no partition spec like %s", sink.ErrCorrupt, want.String())
}

// sameSpec compares sources and transforms; names and field ids may be older.
func sameSpec(a, b iceberg.PartitionSpec) bool {
	if a.NumFields() != b.NumFields() {
		return false
	}
	for i, f := range a.Fields() {
		if g := b.Field(i); f.SourceID() != g.SourceID() || !f.Transform.Equals(g.Transform) {
			return false
		}
	}
	return true
}
