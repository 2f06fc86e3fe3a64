package sqlcatalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/mink-project/mink/sdk/catalog"
)

// LoadTable implements catalog.Catalog.
func (c *Catalog) LoadTable(ctx context.Context, req catalog.LoadTableRequest) (resp catalog.LoadTableResponse, err error) {
	op := fmt.Sprintf("load table %s", req.Table)
	namespace, err := checkTable(req.Table)
	if err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	var location sql.NullString
	err = c.db.QueryRowContext(ctx, `SELECT metadata_location FROM iceberg_tables
		WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3 AND `+isTable, c.cfg.Name, namespace, req.Table.Name).Scan(&location)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return resp, fmt.Errorf("%s: %w", op, catalog.ErrNotExist)
	case err != nil:
		return resp, fmt.Errorf("%s: %w", op, c.db.class(err, false))
	case location.String == "":
		return resp, fmt.Errorf("%s: its row has no metadata_location: %w", op, catalog.ErrCorrupt)
	}
	return catalog.LoadTableResponse{MetadataLocation: location.String}, nil
}

// CreateTable implements catalog.Catalog.
func (c *Catalog) CreateTable(ctx context.Context, req catalog.CreateTableRequest) (resp catalog.LoadTableResponse, err error) {
	op := fmt.Sprintf("create table %s", req.Table)
	namespace, err := checkTable(req.Table)
	if err == nil {
		err = checkText("the metadata location", req.MetadataLocation, valueMax)
	}
	if err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	n, err := c.db.change(ctx, `INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, previous_metadata_location, iceberg_type)
		SELECT CAST($1 AS TEXT), CAST($2 AS TEXT), CAST($4 AS TEXT), CAST($5 AS TEXT), NULL, 'TABLE' WHERE `+existsSQL, c.cfg.Name, namespace, pattern(namespace), req.Table.Name, req.MetadataLocation)
	switch {
	case err != nil:
		return resp, fmt.Errorf("%s: %w", op, err)
	case n == 0:
		return resp, fmt.Errorf("%s: namespace %q: %w", op, namespace, catalog.ErrNotExist)
	}
	return catalog.LoadTableResponse{MetadataLocation: req.MetadataLocation}, nil
}

// SwapMetadata implements catalog.Swapper.
func (c *Catalog) SwapMetadata(ctx context.Context, req catalog.SwapMetadataRequest) (resp catalog.SwapMetadataResponse, err error) {
	op := fmt.Sprintf("commit table %s", req.Table)
	namespace, err := checkTable(req.Table)
	if err == nil {
		err = checkText("the metadata location", req.NewLocation, valueMax)
	}
	if err == nil && req.ExpectedLocation == "" {
		err = fmt.Errorf("no expected metadata location is given: %w", catalog.ErrInvalid)
	}
	if err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	n, err := c.db.change(ctx, `UPDATE iceberg_tables SET metadata_location = CAST($5 AS TEXT), previous_metadata_location = CAST($4 AS TEXT)
		WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3 AND metadata_location = $4 AND `+isTable,
		c.cfg.Name, namespace, req.Table.Name, req.ExpectedLocation, req.NewLocation)
	switch {
	case err != nil:
		return resp, fmt.Errorf("%s: %w", op, err)
	case n > 0:
		return resp, nil
	}
	return resp, c.moved(ctx, op, req.Table, req.ExpectedLocation)
}

// moved says why nothing was changed of a table that was expected at a location.
func (c *Catalog) moved(ctx context.Context, op string, table catalog.Identifier, expected string) error {
	now, err := c.LoadTable(ctx, catalog.LoadTableRequest{Table: table})
	switch {
	case errors.Is(err, catalog.ErrNotExist):
		return fmt.Errorf("%s: %w", op, catalog.ErrNotExist)
	case err != nil:
		return fmt.Errorf("%s: the pointer has moved: %w", op, catalog.ErrConflict)
	}
	return fmt.Errorf("%s: its metadata is %s, not %s as expected: %w", op, now.MetadataLocation, expected, catalog.ErrConflict)
}

// DropTable implements catalog.Catalog. Files stay: the catalog has no store.
func (c *Catalog) DropTable(ctx context.Context, req catalog.DropTableRequest) (resp catalog.DropTableResponse, err error) {
	op := fmt.Sprintf("drop table %s", req.Table)
	namespace, err := checkTable(req.Table)
	if err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	where, args := "", []any{c.cfg.Name, namespace, req.Table.Name}
	if req.ExpectedLocation != "" {
		where, args = ` AND metadata_location = $4`, append(args, req.ExpectedLocation)
	}
	n, err := c.db.change(ctx, `DELETE FROM iceberg_tables WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3 AND `+isTable+where, args...)
	switch {
	case err != nil:
		return resp, fmt.Errorf("%s: %w", op, err)
	case n > 0:
		return resp, nil
	case req.ExpectedLocation == "":
		return resp, fmt.Errorf("%s: %w", op, catalog.ErrNotExist)
	}
	return resp, c.moved(ctx, op, req.Table, req.ExpectedLocation)
}

// RenameTable implements catalog.Catalog.
func (c *Catalog) RenameTable(ctx context.Context, req catalog.RenameTableRequest) (resp catalog.RenameTableResponse, err error) {
	op := fmt.Sprintf("rename table %s to %s", req.From, req.To)
	from, err := checkTable(req.From)
	var to string
	if err == nil {
		to, err = checkTable(req.To)
	}
	if err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	n, err := c.db.change(ctx, `UPDATE iceberg_tables SET table_namespace = CAST($2 AS TEXT), table_name = CAST($4 AS TEXT)
		WHERE catalog_name = $1 AND table_namespace = $5 AND table_name = $6 AND `+isTable+` AND `+existsSQL,
		c.cfg.Name, to, pattern(to), req.To.Name, from, req.From.Name)
	switch {
	case err != nil:
		return resp, fmt.Errorf("%s: %w", op, err)
	case n > 0:
		return resp, nil
	}
	if err := c.requireNamespace(ctx, c.db, op, to); err != nil {
		return resp, err
	}
	return resp, fmt.Errorf("%s: %w", op, catalog.ErrNotExist)
}
