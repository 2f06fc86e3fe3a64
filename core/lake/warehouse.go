package lake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/iceberg-go"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// WarehouseConfig of a warehouse.
type WarehouseConfig struct {
	Store   objstore.Store
	Root    string          // the store's URI, as other engines reach it; see NewRoot
	Catalog catalog.Catalog // a Swapper or a Committer
	// CacheBytes bounds the memory for small files, which never change: metadata and
	// manifests. Default 64 MiB.
	CacheBytes int64
	Logger     *slog.Logger // nil: none
}

// Warehouse is the lake's tables: a catalog that knows their newest metadata, and the
// store that has their files. Safe for concurrent use, by several processes.
type Warehouse struct {
	files     *Files
	catalog   catalog.Catalog
	swapper   catalog.Swapper   // nil: committer
	committer catalog.Committer // nil: swapper
	parsed    *cache[table.Metadata]
	logger    *slog.Logger
}

// NewWarehouse does no I/O.
func NewWarehouse(cfg WarehouseConfig) (*Warehouse, error) {
	root, err := NewRoot(cfg.Root)
	if err != nil {
		return nil, err
	}
	if err := catalog.Check(cfg.Catalog); err != nil {
		return nil, err
	}
	for _, name := range []string{keyTableID, keyRound, keyOffsets} {
		if d := cfg.Catalog.Describe(); d.Forbids(name) {
			return nil, fmt.Errorf("%w: catalog %q refuses the table property %s, in which Mink keeps how far it has written; take it out of forbidden_properties, or use another catalog", catalog.ErrInvalid, d.Name, name)
		}
	}
	if cfg.CacheBytes <= 0 {
		cfg.CacheBytes = 64 << 20
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	w := &Warehouse{files: NewFiles(cfg.Store, root), catalog: cfg.Catalog, parsed: newCache[table.Metadata](cfg.CacheBytes / 2), logger: cfg.Logger}
	w.files.cached = newCache[[]byte](cfg.CacheBytes / 2)
	if cfg.Catalog.Describe().Commit == catalog.SwapsMetadata {
		w.swapper = cfg.Catalog.(catalog.Swapper)
	} else {
		w.committer = cfg.Catalog.(catalog.Committer)
	}
	return w, nil
}

// Store has the lake's files.
func (w *Warehouse) Store() objstore.Store { return w.files.store }

// Files is how the library reads and writes them.
func (w *Warehouse) Files() *Files { return w.files }

// Catalog knows the tables.
func (w *Warehouse) Catalog() catalog.Catalog { return w.catalog }

// Location is where other engines find the object with the key.
func (w *Warehouse) Location(key string) string { return w.files.root.Location(key) }

// Key is the object at a location; see Root.Key.
func (w *Warehouse) Key(location string) (string, error) { return w.files.root.Key(location) }

// Load answers a table as it is now, for one read of the catalog; metadata that was
// seen before is not read again. mink.ErrNotExist.
func (w *Warehouse) Load(ctx context.Context, id catalog.Identifier) (*table.Table, error) {
	got, meta, err := w.look(ctx, id)
	if errors.Is(err, catalog.ErrNotExist) {
		return nil, fmt.Errorf("lake table %s %w (%w)", id, mink.ErrNotExist, err)
	}
	if err != nil {
		return nil, fmt.Errorf("lake table %s: %w", id, err)
	}
	return w.bind(id, meta, got.MetadataLocation), nil
}

// look asks the catalog, and reads what it names. Commits may have removed the file in between,
// where old metadata is deleted: then the catalog names another one.
func (w *Warehouse) look(ctx context.Context, id catalog.Identifier) (got catalog.LoadTableResponse, meta table.Metadata, err error) {
	for before := ""; ; before = got.MetadataLocation {
		if got, err = w.catalog.LoadTable(ctx, catalog.LoadTableRequest{Table: id}); err != nil {
			return got, nil, err
		}
		meta, err = w.metadata(ctx, got)
		if !errors.Is(err, errMissing) || got.MetadataLocation == before {
			return got, meta, err
		}
	}
}

// metadata is what a catalog's answer says of the table: the document, or the file.
func (w *Warehouse) metadata(ctx context.Context, got catalog.LoadTableResponse) (table.Metadata, error) {
	if w.swapper == nil {
		meta, err := table.ParseMetadataBytes(got.Metadata)
		if err != nil {
			return nil, fmt.Errorf("the catalog's metadata: %w: %w", catalog.ErrCorrupt, err)
		}
		return meta, w.checkPlace(meta)
	}
	return w.readMetadata(ctx, got.MetadataLocation)
}

// checkPlace refuses a table that its catalog keeps at a place of its own choice.
func (w *Warehouse) checkPlace(meta table.Metadata) error {
	if _, err := w.Key(meta.Location()); err != nil {
		return fmt.Errorf("%w: the catalog keeps the table at %s, and Mink has lake files below %s alone, with the credentials of its store; those that a catalog vends are not used. "+
			"Let the catalog accept tables with a location there (an external location), and drop this table from it", catalog.ErrInvalid, meta.Location(), w.Location(KeyPrefix))
	}
	return nil
}

// bind makes the library's table, which reads by this warehouse's files and commits by
// Commit, once.
func (w *Warehouse) bind(id catalog.Identifier, meta table.Metadata, location string) *table.Table {
	return table.New(append(slices.Clone(id.Namespace), id.Name), meta, location, w.fs, bound{w, id})
}

func (w *Warehouse) fs(ctx context.Context) (iceio.IO, error) { return w.files.With(ctx), nil }

// bound is the library's catalog of one table. Its errors are the contract's, and never
// the one for which the library would try again.
type bound struct {
	w  warehouse
	id catalog.Identifier
}

func (b bound) LoadTable(ctx context.Context, _ table.Identifier) (*table.Table, error) {
	return b.w.Load(ctx, b.id)
}

func (b bound) CommitTable(ctx context.Context, _ table.Identifier, reqs []table.Requirement, updates []table.Update) (table.Metadata, string, error) {
	tbl, err := b.w.Commit(ctx, b.id, reqs, updates)
	if err != nil {
		return nil, "", err
	}
	return tbl.Metadata(), tbl.MetadataLocation(), nil
}

// CreateTable describes a table to make.
type CreateTable struct {
	ID     catalog.Identifier
	Schema *iceberg.Schema // its field ids are kept
	// FreshIDs gives the fields new ids instead, as catalogs do with tables of clients
	// that have not thought of any.
	FreshIDs   bool
	Spec       iceberg.PartitionSpec
	SortOrder  table.SortOrder
	Location   string // "": NewLocation
	Properties iceberg.Properties
}

// NewLocation is a place for a new table that no table has had.
func (w *Warehouse) NewLocation(id catalog.Identifier) string {
	return w.Location(TableDir(strings.Join(id.Namespace, "."), id.Name, strings.ReplaceAll(uuid.NewString(), "-", "")))
}

// TableDir is the key, without a slash at its end, below which a table's files are. The
// names are there for people, in letters that every store and file system keeps as they
// are; the id tells tables apart.
func TableDir(database, name, id string) string {
	return KeyPrefix + plainName(database) + "/" + plainName(name) + "-" + id
}

// plainNameMax keeps a segment with an id of 32 below 80 bytes, at which a directory
// store cuts names.
const plainNameMax = 40

func plainName(name string) string {
	plain := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '-':
			return r
		case 'A' <= r && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '_'
	}, name)
	return plain[:min(len(plain), plainNameMax)]
}

// Create makes a table. catalog.ErrAlreadyExists, catalog.ErrNotExist (its namespace),
// catalog.ErrUnknownOutcome.
func (w *Warehouse) Create(ctx context.Context, req CreateTable) (*table.Table, error) {
	meta, err := w.NewMetadata(req)
	if err != nil {
		return nil, fmt.Errorf("create lake table %s: %w", req.ID, err)
	}
	if w.swapper == nil {
		return w.commitToCommitter(ctx, req.ID, []table.Requirement{table.AssertCreate()}, creation(meta))
	}
	tbl, err := w.createFrom(ctx, req.ID, meta)
	if err != nil {
		return nil, fmt.Errorf("create lake table %s: %w", req.ID, err)
	}
	return tbl, nil
}

// NewMetadata is the metadata that Create would begin with. It does no I/O.
func (w *Warehouse) NewMetadata(req CreateTable) (meta table.Metadata, err error) {
	defer recovered(&err)
	if req.Location == "" {
		req.Location = w.NewLocation(req.ID)
	}
	req.Location = strings.TrimRight(req.Location, "/")
	if _, err := w.Key(req.Location); err != nil {
		return nil, err
	}
	if req.FreshIDs {
		meta, err = table.NewMetadata(req.Schema, &req.Spec, req.SortOrder, req.Location, req.Properties)
	} else {
		meta, err = metadataAsGiven(req)
	}
	if err != nil {
		return nil, invalid(err)
	}
	return meta, nil
}

// Stage is the metadata of a table that its first commit will make; it makes the
// table's directories where that is needed.
func (w *Warehouse) Stage(req CreateTable) (table.Metadata, error) {
	meta, err := w.NewMetadata(req)
	if err == nil {
		err = w.files.makeDirs(meta.Location())
	}
	if err != nil {
		return nil, fmt.Errorf("stage lake table %s: %w", req.ID, err)
	}
	return meta, nil
}

// metadataAsGiven keeps field ids: those of a Mink table are in its records.
func metadataAsGiven(req CreateTable) (table.Metadata, error) {
	properties := maps.Clone(req.Properties)
	version := table.DefaultFormatVersion
	if text, ok := properties[table.PropertyFormatVersion]; ok {
		var err error
		if version, err = strconv.Atoi(text); err != nil {
			return nil, fmt.Errorf("property %s is %q, must be a number", table.PropertyFormatVersion, text)
		}
		delete(properties, table.PropertyFormatVersion)
	}
	b, err := table.NewMetadataBuilder(version)
	if err != nil {
		return nil, err
	}
	spec, order := req.Spec, req.SortOrder
	for _, step := range []func() error{
		func() error { return b.SetUUID(uuid.New()) },
		func() error { return b.AddSchema(req.Schema) },
		func() error { return b.SetCurrentSchemaID(-1) },
		func() error { return b.AddPartitionSpec(&spec, true) },
		func() error { return b.SetDefaultSpecID(-1) },
		func() error { return b.AddSortOrder(&order) },
		func() error { return b.SetDefaultSortOrderID(-1) },
		func() error { return b.SetLoc(req.Location) },
		func() error { return b.SetProperties(properties) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return b.Build()
}

// creation is metadata without snapshots as the updates that make it of nothing.
func creation(meta table.Metadata) []table.Update {
	spec, order := meta.PartitionSpec(), meta.SortOrder()
	return []table.Update{
		table.NewAssignUUIDUpdate(meta.TableUUID()), table.NewUpgradeFormatVersionUpdate(meta.Version()),
		table.NewAddSchemaUpdate(meta.CurrentSchema()), table.NewSetCurrentSchemaUpdate(-1),
		table.NewAddPartitionSpecUpdate(&spec, true), table.NewSetDefaultSpecUpdate(-1),
		table.NewAddSortOrderUpdate(&order), table.NewSetDefaultSortOrderUpdate(-1),
		table.NewSetLocationUpdate(meta.Location()), table.NewSetPropertiesUpdate(meta.Properties()),
	}
}

// createFrom writes the first metadata file and puts the table into the catalog.
func (w *Warehouse) createFrom(ctx context.Context, id catalog.Identifier, meta table.Metadata) (*table.Table, error) {
	location, meta, err := w.writeMetadata(ctx, meta, 0)
	if err != nil {
		return nil, err
	}
	if _, err := w.catalog.CreateTable(ctx, catalog.CreateTableRequest{Table: id, MetadataLocation: location}); err != nil {
		return nil, w.settle(ctx, location, err)
	}
	return w.bind(id, meta, location), nil
}

// Register puts a table whose metadata file is there into the catalog.
func (w *Warehouse) Register(ctx context.Context, id catalog.Identifier, location string) (*table.Table, error) {
	return w.register(ctx, id, location, func(string) error { return nil })
}

// register asks check whether the table's location may be.
func (w *Warehouse) register(ctx context.Context, id catalog.Identifier, location string, check func(location string) error) (*table.Table, error) {
	fail := func(err error) (*table.Table, error) {
		return nil, fmt.Errorf("register lake table %s with %s: %w", id, location, err)
	}
	if w.swapper == nil {
		return fail(fmt.Errorf("%w: the catalog computes metadata itself; register the table there", catalog.ErrUnimplemented))
	}
	if _, err := w.Key(location); err != nil {
		return fail(err)
	}
	w.parsed.drop(location) // the file must be there now
	meta, err := w.readMetadata(ctx, location)
	if errors.Is(err, catalog.ErrCorrupt) {
		return fail(fmt.Errorf("%w: no such file, or not one of a table's metadata: %v", catalog.ErrInvalid, err)) //nolint:errorlint // the request is wrong, not the lake
	}
	if err == nil {
		err = w.checkLocations(nil, meta)
	}
	if err == nil {
		err = check(meta.Location())
	}
	if err != nil {
		return fail(err)
	}
	if id, ok := meta.Properties()[keyTableID]; ok {
		return fail(fmt.Errorf("%w: the metadata is of Mink's table %s, which Mink registers itself", catalog.ErrInvalid, id))
	}
	if _, err := w.catalog.CreateTable(ctx, catalog.CreateTableRequest{Table: id, MetadataLocation: location}); err != nil {
		return fail(known(err))
	}
	return w.bind(id, meta, location), nil
}

// Drop takes a table out of the catalog. With purge its files are deleted after that:
// all below its location, which must be one that NewLocation or the sink made.
func (w *Warehouse) Drop(ctx context.Context, id catalog.Identifier, purge bool) error {
	if !purge { // a table whose metadata is lost can be dropped too
		if _, err := w.catalog.DropTable(ctx, catalog.DropTableRequest{Table: id}); err != nil {
			return fmt.Errorf("drop lake table %s: %w", id, known(err))
		}
		return nil
	}
	tbl, err := w.Load(ctx, id)
	if err != nil {
		return fmt.Errorf("drop lake table %s: %w", id, err)
	}
	return w.DropLoaded(ctx, id, tbl, true)
}

// DropLoaded is Drop of the table as it was loaded: catalog.ErrConflict when it was
// changed since, or another has its name by now. A Committer cannot tell, and drops by
// name.
func (w *Warehouse) DropLoaded(ctx context.Context, id catalog.Identifier, tbl *table.Table, purge bool) error {
	prefix := ""
	if purge {
		var err error
		if prefix, err = w.ownPrefix(tbl.Location()); err != nil {
			return fmt.Errorf("drop lake table %s and its files: %w", id, err)
		}
	}
	req := catalog.DropTableRequest{Table: id}
	if w.swapper != nil {
		req.ExpectedLocation = tbl.MetadataLocation()
	}
	if _, err := w.catalog.DropTable(ctx, req); err != nil {
		return fmt.Errorf("drop lake table %s: %w", id, known(err))
	}
	if !purge {
		return nil
	}
	if err := w.files.deleteBelow(ctx, prefix); err != nil {
		return fmt.Errorf("lake table %s is dropped; delete its files below %s: %w", id, w.Location(prefix), err)
	}
	return nil
}

// ownPrefix is the prefix of the keys of one table and no other's:
// lake/<namespace>/<name>-<id>/.
func (w *Warehouse) ownPrefix(location string) (string, error) {
	key, err := w.Key(location)
	if err != nil {
		return "", err
	}
	parts := strings.Split(key, "/")
	if len(parts) == 3 {
		id := parts[2][strings.LastIndexByte(parts[2], '-')+1:]
		_, notNumber := strconv.ParseUint(id, 10, 64)
		_, notUUID := uuid.Parse(id)
		if id != parts[2] && (notNumber == nil || len(id) == 32 && notUUID == nil) {
			return key + "/", nil
		}
	}
	return "", fmt.Errorf("%w: its location %s was not chosen by this catalog, and other tables may have files there; drop it without its files, then remove those", catalog.ErrInvalid, location)
}

// Rename changes a table's name; its files stay where they are.
func (w *Warehouse) Rename(ctx context.Context, from, to catalog.Identifier) error {
	if _, err := w.catalog.RenameTable(ctx, catalog.RenameTableRequest{From: from, To: to}); err != nil {
		return fmt.Errorf("rename lake table %s to %s: %w", from, to, known(err))
	}
	return nil
}

// CreateNamespace makes a namespace; one that is there keeps its properties.
func (w *Warehouse) CreateNamespace(ctx context.Context, namespace []string, properties map[string]string) error {
	if _, err := w.catalog.CreateNamespace(ctx, catalog.CreateNamespaceRequest{Namespace: namespace, Properties: properties}); err != nil {
		return fmt.Errorf("create namespace %q: %w", namespace, known(err))
	}
	return nil
}

// DropNamespace takes an empty namespace away.
func (w *Warehouse) DropNamespace(ctx context.Context, namespace []string) error {
	if _, err := w.catalog.DropNamespace(ctx, catalog.DropNamespaceRequest{Namespace: namespace}); err != nil {
		return fmt.Errorf("drop namespace %q: %w", namespace, known(err))
	}
	return nil
}

// Namespaces are those one level below the parent.
func (w *Warehouse) Namespaces(ctx context.Context, parent []string) (all [][]string, err error) {
	for after := ""; ; {
		page, err := w.catalog.ListNamespaces(ctx, catalog.ListNamespacesRequest{Parent: parent, StartAfter: after})
		if err != nil {
			return nil, fmt.Errorf("list namespaces of the lake: %w", err)
		}
		all = append(all, page.Namespaces...)
		if !page.More || len(page.Namespaces) == 0 {
			return all, nil
		}
		last := page.Namespaces[len(page.Namespaces)-1]
		after = last[len(last)-1]
	}
}

// Tables are those of a namespace.
func (w *Warehouse) Tables(ctx context.Context, namespace []string) (all []catalog.Identifier, err error) {
	for after := ""; ; {
		page, err := w.catalog.ListTables(ctx, catalog.ListTablesRequest{Namespace: namespace, StartAfter: after})
		if err != nil {
			return nil, fmt.Errorf("list tables of the lake: %w", err)
		}
		for _, name := range page.Names {
			all = append(all, catalog.Identifier{Namespace: namespace, Name: name})
		}
		if !page.More || len(page.Names) == 0 {
			return all, nil
		}
		after = page.Names[len(page.Names)-1]
	}
}

// ParseUpdates reads requirements and updates as the REST specification has them.
// catalog.ErrInvalid names the one that is unknown or incomplete.
func ParseUpdates(requirements, updates json.RawMessage) (reqs table.Requirements, ups table.Updates, err error) {
	defer recovered(&err)
	if len(requirements) > 0 {
		if err := json.Unmarshal(requirements, &reqs); err != nil {
			return nil, nil, fmt.Errorf("requirements: %w", invalid(err))
		}
	}
	if len(updates) > 0 {
		if err := json.Unmarshal(updates, &ups); err != nil {
			return nil, nil, fmt.Errorf("updates: %w", invalid(err))
		}
	}
	return reqs, ups, nil
}

// invalid gives an error of the library, about a request, its class.
func invalid(err error) error {
	if errors.Is(err, catalog.ErrInvalid) {
		return err
	}
	return fmt.Errorf("%w: %w", catalog.ErrInvalid, err)
}

// recovered makes an error of a panic of the library over what a client sent.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: the library cannot work with it: %v", catalog.ErrInvalid, p)
	}
}
