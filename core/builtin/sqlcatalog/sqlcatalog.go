// Package sqlcatalog is the lake's catalog in a SQL database: SQLite for one node,
// Postgres for a cluster. The tables are those that pyiceberg's SqlCatalog, Iceberg's
// JdbcCatalog (schema version V1) and others read and write, so that they can share
// the catalog with Mink:
//
//	iceberg_tables               (catalog_name, table_namespace, table_name) -> metadata_location, previous_metadata_location, iceberg_type
//	iceberg_namespace_properties (catalog_name, namespace, property_key) -> property_value
//
// The levels of a namespace are joined by dots, so a level with a dot is two. A
// namespace is there when it has a property ("exists" if no other), or when a table or
// a namespace is below it. Views, which other writers may have put there, are not shown,
// but their names are taken.
//
// Every change of a table is one statement, its own transaction, that names what it
// expects: UPDATE ... WHERE metadata_location = the expected one.
package sqlcatalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mink-project/mink/sdk/catalog"
)

// Config of a catalog.
type Config struct {
	// Name is the catalog_name of its rows; other clients must give the same. Several
	// catalogs may share the tables. Default "mink".
	Name string
	// Connections bounds the open ones. Default 4.
	Connections int
}

// Default lacks nothing.
func Default() Config { return Config{Name: "mink", Connections: 4} }

// Validate names the first field that makes no sense.
func (c Config) Validate() error {
	if c.Connections < 1 || c.Connections > 1000 {
		return fmt.Errorf("sqlcatalog: Connections is %d, must be 1..1000: %w", c.Connections, catalog.ErrInvalid)
	}
	return checkText("the catalog's name", c.Name, nameMax)
}

// What the columns hold, in characters.
const (
	nameMax  = 255
	valueMax = 1000
)

// pageMax is the most names of one page of a list.
const pageMax = 1000

// Catalog implements catalog.Catalog and catalog.Swapper.
type Catalog struct {
	cfg Config
	db  *database
}

var (
	_ catalog.Catalog = (*Catalog)(nil)
	_ catalog.Swapper = (*Catalog)(nil)
)

// Open connects to the database that the URL names, and creates the tables where they
// are missing:
//
//	sqlite:./data/catalog.db         a file; its directory must exist
//	postgres://user@host/database    libpq's URL; tables go to the search_path's schema
//
// Several processes may have either open. Errors: catalog.ErrInvalid (URL, Postgres
// with synchronous_commit off), catalog.ErrUnavailable, catalog.ErrUnauthorized,
// catalog.ErrCorrupt.
func Open(ctx context.Context, url string, cfg Config) (*Catalog, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	db, err := openDatabase(ctx, url, cfg.Connections)
	if err != nil {
		return nil, err
	}
	if err := db.createTables(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open lake catalog %s: %w", db.where, err), db.close())
	}
	return &Catalog{cfg: cfg, db: db}, nil
}

// Describe implements catalog.Catalog.
func (c *Catalog) Describe() catalog.Description {
	return catalog.Description{Name: "sql", Version: "1", Commit: catalog.SwapsMetadata, Renames: true}
}

// Close implements catalog.Catalog.
func (c *Catalog) Close() error { return c.db.close() }

func checkText(what, text string, most int) error {
	switch n := len([]rune(text)); {
	case text == "":
		return fmt.Errorf("%s is empty: %w", what, catalog.ErrInvalid)
	case n > most:
		return fmt.Errorf("%s %.40q... has %d characters, the limit is %d: %w", what, text, n, most, catalog.ErrInvalid)
	case strings.ToValidUTF8(text, "") != text || strings.ContainsRune(text, 0):
		return fmt.Errorf("%s %q is not text that the database can hold: %w", what, text, catalog.ErrInvalid)
	}
	return nil
}

// path joins the levels of a namespace. A level with dots stands for several.
func path(namespace []string) (string, error) {
	if len(namespace) == 0 {
		return "", fmt.Errorf("no namespace is given: %w", catalog.ErrInvalid)
	}
	p := strings.Join(namespace, ".")
	for level := range strings.SplitSeq(p, ".") {
		if err := checkText("a level of namespace "+fmt.Sprintf("%.40q", p), level, nameMax); err != nil {
			return "", err
		}
	}
	return p, checkText("namespace", p, nameMax)
}

func checkTable(id catalog.Identifier) (namespace string, err error) {
	namespace, err = path(id.Namespace)
	if err != nil {
		return "", err
	}
	return namespace, checkText("the table's name", id.Name, nameMax)
}

// isTable: rows of views are another's business.
const isTable = `(iceberg_type = 'TABLE' OR iceberg_type IS NULL)`

// below is true of a namespace and those below it; the pattern escapes what LIKE
// would take for more.
func below(column string, first int) string {
	return fmt.Sprintf(`(%s = $%d OR %s LIKE $%d ESCAPE '!')`, column, first, column, first+1)
}

func pattern(namespace string) string {
	return strings.NewReplacer("!", "!!", "_", "!_", "%", "!%").Replace(namespace) + ".%"
}

// existsSQL has catalog, namespace and pattern as $1, $2, $3.
var existsSQL = `(EXISTS (SELECT 1 FROM iceberg_tables WHERE catalog_name = $1 AND ` + below("table_namespace", 2) + `)
	OR EXISTS (SELECT 1 FROM iceberg_namespace_properties WHERE catalog_name = $1 AND ` + below("namespace", 2) + `))`

func (c *Catalog) requireNamespace(ctx context.Context, q querier, op, namespace string) error {
	var exists bool
	if err := q.QueryRowContext(ctx, `SELECT `+existsSQL, c.cfg.Name, namespace, pattern(namespace)).Scan(&exists); err != nil {
		return fmt.Errorf("%s: %w", op, c.db.class(err, false))
	}
	if !exists {
		return fmt.Errorf("%s: namespace %q: %w", op, namespace, catalog.ErrNotExist)
	}
	return nil
}

// CreateNamespace implements catalog.Catalog. Properties of levels above are not made:
// they are there because one below them is.
func (c *Catalog) CreateNamespace(ctx context.Context, req catalog.CreateNamespaceRequest) (resp catalog.CreateNamespaceResponse, err error) {
	namespace, err := path(req.Namespace)
	if err != nil {
		return resp, fmt.Errorf("create namespace: %w", err)
	}
	op := fmt.Sprintf("create namespace %q", namespace)
	if err := checkProperties(req.Properties); err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	properties := req.Properties
	if len(properties) == 0 {
		properties = map[string]string{"exists": "true"} // as pyiceberg has it
	}
	err = c.db.write(ctx, func(q querier) error {
		err := c.requireNamespace(ctx, q, op, namespace)
		switch {
		case err == nil:
			resp.Existed = true
			return nil
		case !errors.Is(err, catalog.ErrNotExist):
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(properties)) {
			// Of two that make the namespace at once the second keeps the first one's properties.
			_, err := q.ExecContext(ctx, `INSERT INTO iceberg_namespace_properties (catalog_name, namespace, property_key, property_value)
				VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`, c.cfg.Name, namespace, key, properties[key])
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return catalog.CreateNamespaceResponse{}, fmt.Errorf("%s: %w", op, err)
	}
	return resp, nil
}

func checkProperties(properties map[string]string) error {
	for key, value := range properties {
		if err := checkText("the property's name", key, nameMax); err != nil {
			return err
		}
		if value == "" {
			continue
		}
		if err := checkText(fmt.Sprintf("property %q", key), value, valueMax); err != nil {
			return err
		}
	}
	return nil
}

// LoadNamespace implements catalog.Catalog.
func (c *Catalog) LoadNamespace(ctx context.Context, req catalog.LoadNamespaceRequest) (resp catalog.LoadNamespaceResponse, err error) {
	namespace, err := path(req.Namespace)
	if err != nil {
		return resp, fmt.Errorf("load namespace: %w", err)
	}
	op := fmt.Sprintf("load namespace %q", namespace)
	rows, err := c.db.QueryContext(ctx, `SELECT property_key, property_value FROM iceberg_namespace_properties WHERE catalog_name = $1 AND namespace = $2`, c.cfg.Name, namespace)
	if err != nil {
		return resp, fmt.Errorf("%s: %w", op, c.db.class(err, false))
	}
	properties := map[string]string{}
	err = each(rows, func() error {
		var key, value string
		if err := rows.Scan(&key, &value); err != nil {
			return err
		}
		properties[key] = value
		return nil
	})
	if err != nil {
		return resp, fmt.Errorf("%s: %w", op, c.db.class(err, false))
	}
	if len(properties) == 0 {
		if err := c.requireNamespace(ctx, c.db, op, namespace); err != nil {
			return resp, err
		}
	}
	return catalog.LoadNamespaceResponse{Properties: properties}, nil
}

// UpdateNamespace implements catalog.Catalog.
func (c *Catalog) UpdateNamespace(ctx context.Context, req catalog.UpdateNamespaceRequest) (resp catalog.UpdateNamespaceResponse, err error) {
	namespace, err := path(req.Namespace)
	if err != nil {
		return resp, fmt.Errorf("update namespace: %w", err)
	}
	op := fmt.Sprintf("update namespace %q", namespace)
	if err := checkProperties(req.Set); err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	for _, key := range req.Remove {
		if _, both := req.Set[key]; both {
			return resp, fmt.Errorf("%s: property %q is to be both set and removed: %w", op, key, catalog.ErrInvalid)
		}
	}
	err = c.db.write(ctx, func(q querier) error {
		if err := c.requireNamespace(ctx, q, op, namespace); err != nil {
			return err
		}
		// Sorted, so that two updates lock rows in one order.
		for _, key := range slices.Sorted(maps.Keys(req.Set)) {
			_, err := q.ExecContext(ctx, `INSERT INTO iceberg_namespace_properties (catalog_name, namespace, property_key, property_value)
				VALUES ($1, $2, $3, $4) ON CONFLICT (catalog_name, namespace, property_key) DO UPDATE SET property_value = excluded.property_value`,
				c.cfg.Name, namespace, key, req.Set[key])
			if err != nil {
				return err
			}
		}
		for _, key := range slices.Compact(slices.Sorted(slices.Values(req.Remove))) {
			n, err := affected(q.ExecContext(ctx, `DELETE FROM iceberg_namespace_properties WHERE catalog_name = $1 AND namespace = $2 AND property_key = $3`, c.cfg.Name, namespace, key))
			if err != nil {
				return err
			}
			if n > 0 {
				resp.Removed = append(resp.Removed, key)
			}
		}
		// A namespace without a property would be gone.
		_, err := q.ExecContext(ctx, `INSERT INTO iceberg_namespace_properties (catalog_name, namespace, property_key, property_value)
			SELECT CAST($1 AS TEXT), CAST($2 AS TEXT), 'exists', 'true' WHERE NOT EXISTS (SELECT 1 FROM iceberg_namespace_properties WHERE catalog_name = $1 AND namespace = $2)
			ON CONFLICT DO NOTHING`, c.cfg.Name, namespace)
		return err
	})
	if err != nil {
		return catalog.UpdateNamespaceResponse{}, fmt.Errorf("%s: %w", op, err)
	}
	return resp, nil
}

// DropNamespace implements catalog.Catalog.
func (c *Catalog) DropNamespace(ctx context.Context, req catalog.DropNamespaceRequest) (resp catalog.DropNamespaceResponse, err error) {
	namespace, err := path(req.Namespace)
	if err != nil {
		return resp, fmt.Errorf("drop namespace: %w", err)
	}
	op := fmt.Sprintf("drop namespace %q", namespace)
	err = c.db.write(ctx, func(q querier) error {
		var used bool
		err := q.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM iceberg_tables WHERE catalog_name = $1 AND `+below("table_namespace", 2)+`)
			OR EXISTS (SELECT 1 FROM iceberg_namespace_properties WHERE catalog_name = $1 AND namespace LIKE $3 ESCAPE '!')`,
			c.cfg.Name, namespace, pattern(namespace)).Scan(&used)
		if err != nil {
			return err
		}
		if used {
			return fmt.Errorf("it has tables or namespaces below it: %w", catalog.ErrNotEmpty)
		}
		n, err := affected(q.ExecContext(ctx, `DELETE FROM iceberg_namespace_properties WHERE catalog_name = $1 AND namespace = $2`, c.cfg.Name, namespace))
		if err == nil && n == 0 {
			err = catalog.ErrNotExist
		}
		return err
	})
	if err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	return resp, nil
}

// ListNamespaces implements catalog.Catalog.
func (c *Catalog) ListNamespaces(ctx context.Context, req catalog.ListNamespacesRequest) (resp catalog.ListNamespacesResponse, err error) {
	const op = "list namespaces"
	where, args := "", []any{c.cfg.Name}
	prefix := ""
	if len(req.Parent) > 0 {
		parent, err := path(req.Parent)
		if err != nil {
			return resp, fmt.Errorf("%s: %w", op, err)
		}
		if err := c.requireNamespace(ctx, c.db, op, parent); err != nil {
			return resp, err
		}
		prefix = parent + "."
		where, args = ` AND n LIKE $2 ESCAPE '!'`, append(args, pattern(parent))
	}
	// Sorted here: the database's collation need not be that of bytes. The names of all
	// namespaces fit memory a thousand times over.
	rows, err := c.db.QueryContext(ctx, `SELECT DISTINCT n FROM (
		SELECT table_namespace AS n FROM iceberg_tables WHERE catalog_name = $1
		UNION ALL SELECT namespace AS n FROM iceberg_namespace_properties WHERE catalog_name = $1) AS all_of_them WHERE 1 = 1`+where, args...)
	if err != nil {
		return resp, fmt.Errorf("%s: %w", op, c.db.class(err, false))
	}
	levels := map[string]bool{}
	err = each(rows, func() error {
		var n string
		if err := rows.Scan(&n); err != nil {
			return err
		}
		if rest, ok := strings.CutPrefix(n, prefix); ok { // SQLite's LIKE does not tell A from a
			level, _, _ := strings.Cut(rest, ".")
			levels[level] = true
		}
		return nil
	})
	if err != nil {
		return resp, fmt.Errorf("%s: %w", op, c.db.class(err, false))
	}
	page, more := pageOf(levels, req.StartAfter, req.Limit)
	for _, level := range page {
		resp.Namespaces = append(resp.Namespaces, append(slices.Clone(req.Parent), level))
	}
	resp.More = more
	return resp, nil
}

// ListTables implements catalog.Catalog.
func (c *Catalog) ListTables(ctx context.Context, req catalog.ListTablesRequest) (resp catalog.ListTablesResponse, err error) {
	namespace, err := path(req.Namespace)
	if err != nil {
		return resp, fmt.Errorf("list tables: %w", err)
	}
	op := fmt.Sprintf("list tables of %q", namespace)
	rows, err := c.db.QueryContext(ctx, `SELECT table_name FROM iceberg_tables WHERE catalog_name = $1 AND table_namespace = $2 AND `+isTable, c.cfg.Name, namespace)
	if err != nil {
		return resp, fmt.Errorf("%s: %w", op, c.db.class(err, false))
	}
	names := map[string]bool{}
	err = each(rows, func() error {
		var name string
		if err := rows.Scan(&name); err != nil {
			return err
		}
		names[name] = true
		return nil
	})
	if err != nil {
		return resp, fmt.Errorf("%s: %w", op, c.db.class(err, false))
	}
	if len(names) == 0 {
		if err := c.requireNamespace(ctx, c.db, op, namespace); err != nil {
			return resp, err
		}
	}
	resp.Names, resp.More = pageOf(names, req.StartAfter, req.Limit)
	return resp, nil
}

func pageOf(names map[string]bool, startAfter string, limit int) (page []string, more bool) {
	if limit <= 0 || limit > pageMax {
		limit = pageMax
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		switch {
		case name <= startAfter:
		case len(page) == limit:
			return page, true
		default:
			page = append(page, name)
		}
	}
	return page, false
}

func each(rows *sql.Rows, do func() error) error {
	defer func() { _ = rows.Close() }() // its error is Err's
	for rows.Next() {
		if err := do(); err != nil {
			return err
		}
	}
	return rows.Err()
}

func affected(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}
