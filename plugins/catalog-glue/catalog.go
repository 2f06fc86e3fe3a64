package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/glue"
	"github.com/aws/aws-sdk-go-v2/service/glue/types"

	"github.com/mink-project/mink/sdk/catalog"
)

const pageMax = 1000

// Properties that Glue has fields for.
const (
	propertyLocation = "location"
	propertyComment  = "comment"
)

func input(name string, properties map[string]string) *types.DatabaseInput {
	in := &types.DatabaseInput{Name: aws.String(name), Parameters: map[string]string{}}
	for k, v := range properties {
		switch k {
		case propertyLocation:
			in.LocationUri = aws.String(v)
		case propertyComment:
			in.Description = aws.String(v)
		default:
			in.Parameters[k] = v
		}
	}
	return in
}

func propertiesOf(db *types.Database) map[string]string {
	out := maps.Clone(db.Parameters)
	if out == nil {
		out = map[string]string{}
	}
	if v := aws.ToString(db.LocationUri); v != "" {
		out[propertyLocation] = v
	}
	if v := aws.ToString(db.Description); v != "" {
		out[propertyComment] = v
	}
	return out
}

// CreateNamespace implements catalog.Catalog.
func (c *glueCatalog) CreateNamespace(ctx context.Context, req catalog.CreateNamespaceRequest) (resp catalog.CreateNamespaceResponse, err error) {
	name, err := database(req.Namespace)
	if err != nil {
		return resp, fmt.Errorf("create database: %w", err)
	}
	_, err = do(ctx, c, "create database "+name, false, c.glue.CreateDatabase, &glue.CreateDatabaseInput{CatalogId: c.id(), DatabaseInput: input(name, req.Properties)})
	if errors.Is(err, catalog.ErrAlreadyExists) {
		return catalog.CreateNamespaceResponse{Existed: true}, nil
	}
	return resp, err
}

func (c *glueCatalog) database(ctx context.Context, name string) (*types.Database, error) {
	out, err := do(ctx, c, "load database "+name, false, c.glue.GetDatabase, &glue.GetDatabaseInput{CatalogId: c.id(), Name: aws.String(name)})
	if err != nil {
		return nil, err
	}
	if out.Database == nil {
		return nil, fmt.Errorf("load database %s: %w: the answer has none", name, catalog.ErrUnavailable)
	}
	return out.Database, nil
}

// LoadNamespace implements catalog.Catalog.
func (c *glueCatalog) LoadNamespace(ctx context.Context, req catalog.LoadNamespaceRequest) (resp catalog.LoadNamespaceResponse, err error) {
	name, err := database(req.Namespace)
	if err != nil {
		return resp, fmt.Errorf("load database: %w", err)
	}
	db, err := c.database(ctx, name)
	if err != nil {
		return resp, err
	}
	return catalog.LoadNamespaceResponse{Properties: propertiesOf(db)}, nil
}

// UpdateNamespace implements catalog.Catalog. Glue has no version of a database: of two
// updates at once the later may undo the other.
func (c *glueCatalog) UpdateNamespace(ctx context.Context, req catalog.UpdateNamespaceRequest) (resp catalog.UpdateNamespaceResponse, err error) {
	name, err := database(req.Namespace)
	if err != nil {
		return resp, fmt.Errorf("update database: %w", err)
	}
	for _, k := range req.Remove {
		if _, both := req.Set[k]; both {
			return resp, fmt.Errorf("update database %s: property %q is to be both set and removed: %w", name, k, catalog.ErrInvalid)
		}
	}
	db, err := c.database(ctx, name)
	if err != nil {
		return resp, err
	}
	properties := propertiesOf(db)
	maps.Copy(properties, req.Set)
	for _, k := range slices.Compact(slices.Sorted(slices.Values(req.Remove))) {
		if _, ok := properties[k]; ok {
			delete(properties, k)
			resp.Removed = append(resp.Removed, k)
		}
	}
	in := input(name, properties)
	in.CreateTableDefaultPermissions = db.CreateTableDefaultPermissions
	in.FederatedDatabase, in.TargetDatabase = db.FederatedDatabase, db.TargetDatabase
	_, err = do(ctx, c, "update database "+name, true, c.glue.UpdateDatabase, &glue.UpdateDatabaseInput{CatalogId: c.id(), Name: aws.String(name), DatabaseInput: in})
	if err != nil {
		return catalog.UpdateNamespaceResponse{}, err
	}
	return resp, nil
}

// DropNamespace implements catalog.Catalog. Glue drops a database with all tables in it,
// so that these are looked for, of other formats too.
func (c *glueCatalog) DropNamespace(ctx context.Context, req catalog.DropNamespaceRequest) (resp catalog.DropNamespaceResponse, err error) {
	name, err := database(req.Namespace)
	if err != nil {
		return resp, fmt.Errorf("drop database: %w", err)
	}
	page, err := do(ctx, c, "list tables of "+name, false, c.glue.GetTables, &glue.GetTablesInput{CatalogId: c.id(), DatabaseName: aws.String(name), MaxResults: aws.Int32(1)})
	if err != nil {
		return resp, err
	}
	if len(page.TableList) > 0 {
		return resp, fmt.Errorf("drop database %s: %w: it has the table %s", name, catalog.ErrNotEmpty, aws.ToString(page.TableList[0].Name))
	}
	_, err = do(ctx, c, "drop database "+name, true, c.glue.DeleteDatabase, &glue.DeleteDatabaseInput{CatalogId: c.id(), Name: aws.String(name)})
	return resp, err
}

// ListNamespaces implements catalog.Catalog.
func (c *glueCatalog) ListNamespaces(ctx context.Context, req catalog.ListNamespacesRequest) (resp catalog.ListNamespacesResponse, err error) {
	if len(req.Parent) > 0 {
		name, err := database(req.Parent)
		if err != nil {
			return resp, fmt.Errorf("list databases: %w", err)
		}
		_, err = c.database(ctx, name)
		return resp, err // there are none below it
	}
	var names []string
	for token := (*string)(nil); ; {
		page, err := do(ctx, c, "list databases", false, c.glue.GetDatabases, &glue.GetDatabasesInput{CatalogId: c.id(), NextToken: token})
		if err != nil {
			return resp, err
		}
		for _, db := range page.DatabaseList {
			if name := aws.ToString(db.Name); catalog.PlainName(name) {
				names = append(names, name)
			}
		}
		if token = page.NextToken; aws.ToString(token) == "" {
			break
		}
	}
	page, more := catalog.Page(names, req.StartAfter, req.Limit, pageMax)
	for _, n := range page {
		resp.Namespaces = append(resp.Namespaces, []string{n})
	}
	resp.More = more
	return resp, nil
}

// ListTables implements catalog.Catalog: those of Iceberg.
func (c *glueCatalog) ListTables(ctx context.Context, req catalog.ListTablesRequest) (resp catalog.ListTablesResponse, err error) {
	db, err := database(req.Namespace)
	if err != nil {
		return resp, fmt.Errorf("list tables: %w", err)
	}
	var names []string
	for token := (*string)(nil); ; {
		page, err := do(ctx, c, "list tables of "+db, false, c.glue.GetTables, &glue.GetTablesInput{CatalogId: c.id(), DatabaseName: aws.String(db), NextToken: token})
		if err != nil {
			return resp, err
		}
		for _, t := range page.TableList {
			if name := aws.ToString(t.Name); isIceberg(t) && catalog.PlainName(name) {
				names = append(names, name)
			}
		}
		if token = page.NextToken; aws.ToString(token) == "" {
			break
		}
	}
	resp.Names, resp.More = catalog.Page(names, req.StartAfter, req.Limit, pageMax)
	return resp, nil
}

// table reads an entry, which must be of Iceberg.
func (c *glueCatalog) table(ctx context.Context, op string, id catalog.Identifier) (*types.Table, error) {
	db, err := checkTable(id)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	out, err := do(ctx, c, op, false, c.glue.GetTable, &glue.GetTableInput{CatalogId: c.id(), DatabaseName: aws.String(db), Name: aws.String(id.Name)})
	switch {
	case err != nil:
		return nil, err
	case out.Table == nil:
		return nil, fmt.Errorf("%s: %w: the answer has no table", op, catalog.ErrUnavailable)
	case !isIceberg(*out.Table):
		return nil, fmt.Errorf("%s: %w: Glue has a table of that name that is not Iceberg's", op, catalog.ErrInvalid)
	case out.Table.Parameters[keyLocation] == "":
		return nil, fmt.Errorf("%s: %w: the table has no parameter %s", op, catalog.ErrCorrupt, keyLocation)
	}
	return out.Table, nil
}

// LoadTable implements catalog.Catalog.
func (c *glueCatalog) LoadTable(ctx context.Context, req catalog.LoadTableRequest) (resp catalog.LoadTableResponse, err error) {
	t, err := c.table(ctx, "load table "+req.Table.String(), req.Table)
	if err != nil {
		return resp, err
	}
	return catalog.LoadTableResponse{MetadataLocation: t.Parameters[keyLocation], Version: aws.ToString(t.VersionId)}, nil
}

// locationOf is the table's place when nobody says: metadata files are in metadata/ of it.
func locationOf(metadata string) string {
	scheme, rest, ok := strings.Cut(metadata, "://")
	if dir := path.Dir(rest); ok && path.Base(dir) == "metadata" {
		return scheme + "://" + path.Dir(dir)
	}
	return ""
}

// CreateTable implements catalog.Catalog.
func (c *glueCatalog) CreateTable(ctx context.Context, req catalog.CreateTableRequest) (resp catalog.LoadTableResponse, err error) {
	op := "create table " + req.Table.String()
	db, err := checkTable(req.Table)
	if err == nil && req.MetadataLocation == "" {
		err = fmt.Errorf("%w: no metadata location is given", catalog.ErrInvalid)
	}
	if err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	in := &types.TableInput{
		Name: aws.String(req.Table.Name), TableType: aws.String("EXTERNAL_TABLE"),
		Parameters: map[string]string{keyType: "ICEBERG", keyLocation: req.MetadataLocation},
	}
	if location := req.Location; location != "" || locationOf(req.MetadataLocation) != "" {
		if location == "" {
			location = locationOf(req.MetadataLocation)
		}
		in.StorageDescriptor = &types.StorageDescriptor{Location: aws.String(location)}
	}
	if _, err := do(ctx, c, op, true, c.glue.CreateTable, &glue.CreateTableInput{CatalogId: c.id(), DatabaseName: aws.String(db), TableInput: in}); err != nil {
		return resp, err
	}
	return catalog.LoadTableResponse{MetadataLocation: req.MetadataLocation}, nil
}

// SwapMetadata implements catalog.Swapper: the entry as it was read, with the new location,
// on condition that it has the version still.
func (c *glueCatalog) SwapMetadata(ctx context.Context, req catalog.SwapMetadataRequest) (resp catalog.SwapMetadataResponse, err error) {
	op := "commit to table " + req.Table.String()
	if req.ExpectedLocation == "" || req.NewLocation == "" {
		return resp, fmt.Errorf("%s: %w: the expected and the new metadata location must be given", op, catalog.ErrInvalid)
	}
	t, err := c.table(ctx, op, req.Table)
	if err != nil {
		return resp, err
	}
	version := aws.ToString(t.VersionId)
	switch at := t.Parameters[keyLocation]; {
	case at != req.ExpectedLocation:
		return resp, fmt.Errorf("%s: %w: its metadata is %s, not %s as expected", op, catalog.ErrConflict, at, req.ExpectedLocation)
	case req.ExpectedVersion != "" && version != req.ExpectedVersion:
		return resp, fmt.Errorf("%s: %w: its version is %s, not %s as expected", op, catalog.ErrConflict, version, req.ExpectedVersion)
	case version == "":
		return resp, fmt.Errorf("%s: %w: the service gives tables no version, without which a commit could undo another's", op, catalog.ErrUnimplemented)
	}
	in := asInput(t)
	in.Parameters = maps.Clone(t.Parameters)
	in.Parameters[keyPrevious], in.Parameters[keyLocation] = req.ExpectedLocation, req.NewLocation
	_, err = do(ctx, c, op, true, c.glue.UpdateTable, &glue.UpdateTableInput{
		CatalogId: c.id(), DatabaseName: aws.String(req.Table.Namespace[0]), TableInput: in, VersionId: t.VersionId, SkipArchive: aws.Bool(!c.cfg.archive),
	})
	return resp, err
}

// asInput keeps what others have written into the entry.
func asInput(t *types.Table) *types.TableInput {
	return &types.TableInput{
		Name: t.Name, Description: t.Description, LastAccessTime: t.LastAccessTime, LastAnalyzedTime: t.LastAnalyzedTime, Owner: t.Owner,
		PartitionKeys: t.PartitionKeys, Retention: t.Retention, StorageDescriptor: t.StorageDescriptor, TableType: t.TableType,
		TargetTable: t.TargetTable, ViewExpandedText: t.ViewExpandedText, ViewOriginalText: t.ViewOriginalText,
	}
}

// DropTable implements catalog.Catalog. Glue deletes by name: between the look at the entry
// and its deletion another client may have put a table there.
func (c *glueCatalog) DropTable(ctx context.Context, req catalog.DropTableRequest) (resp catalog.DropTableResponse, err error) {
	op := "drop table " + req.Table.String()
	t, err := c.table(ctx, op, req.Table)
	if err != nil && (req.ExpectedLocation != "" || !errors.Is(err, catalog.ErrCorrupt)) {
		return resp, err
	}
	if at := ""; req.ExpectedLocation != "" {
		if at = t.Parameters[keyLocation]; at != req.ExpectedLocation {
			return resp, fmt.Errorf("%s: %w: its metadata is %s, not %s as expected", op, catalog.ErrConflict, at, req.ExpectedLocation)
		}
	}
	_, err = do(ctx, c, op, true, c.glue.DeleteTable, &glue.DeleteTableInput{CatalogId: c.id(), DatabaseName: aws.String(req.Table.Namespace[0]), Name: aws.String(req.Table.Name)})
	return resp, err
}

// RenameTable implements catalog.Catalog.
func (c *glueCatalog) RenameTable(_ context.Context, req catalog.RenameTableRequest) (resp catalog.RenameTableResponse, err error) {
	return resp, fmt.Errorf("rename table %s: %w: Glue does not rename tables", req.From, catalog.ErrUnimplemented)
}
