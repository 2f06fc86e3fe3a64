package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/plugin"
)

// FindCatalog is FindNamed of a catalog plugin.
func (h *Host) FindCatalog(name string, options map[string]string) (Installed, error) {
	return h.FindNamed(plugin.KindCatalog, name, options)
}

// OpenCatalog opens a catalog in the plugin with the name, starting the plugin's process
// when it does not run; it is to a catalog what OpenStore is to a store. What it answers
// has the companion that the catalog declares. It calls nothing again: after
// ErrUnknownOutcome who asked looks at the table.
func (h *Host) OpenCatalog(ctx context.Context, name string, options map[string]string) (catalog.Catalog, error) {
	in, err := h.FindCatalog(name, options)
	if err != nil {
		return nil, err
	}
	sup, err := h.acquire(ctx, in)
	if err != nil {
		return nil, err
	}
	c := &lakeCatalog{opened: &opened[catalog.Catalog]{
		sup: sup, what: "catalog", released: func() error { return h.release(sup) },
		open: func(ctx context.Context, p *host.Process) (catalog.Catalog, error) {
			return p.OpenCatalog(ctx, options)
		},
	}}
	inner, err := c.first(ctx)
	if err != nil {
		return nil, errors.Join(err, h.release(sup))
	}
	c.d = inner.Describe()
	c.fits = c.same
	if c.d.Commit == catalog.CommitsUpdates {
		return committer{c}, nil
	}
	return swapper{c}, nil
}

// lakeCatalog is a catalog in whatever process of its plugin serves now.
type lakeCatalog struct {
	*opened[catalog.Catalog]
	d catalog.Description // of the first process
}

type (
	committer struct{ *lakeCatalog }
	swapper   struct{ *lakeCatalog }
)

var (
	_ catalog.Committer = committer{}
	_ catalog.Swapper   = swapper{}
)

// same refuses a catalog that commits in another way, or refuses more: the lake was made
// for the first one.
func (c *lakeCatalog) same(again catalog.Catalog) error {
	d := again.Describe()
	more := slices.ContainsFunc(d.ForbiddenProperties, func(p string) bool { return !slices.Contains(c.d.ForbiddenProperties, p) })
	if d.Commit != c.d.Commit || d.PlainNames && !c.d.PlainNames || more {
		return fmt.Errorf("its new process has a catalog that can do less, or other things (%+v, was %+v)", d, c.d)
	}
	return nil
}

// callCatalog runs one call and counts it.
func callCatalog[Resp any](ctx context.Context, c *lakeCatalog, op operation, f func(catalog.Catalog) (Resp, error)) (Resp, error) {
	var none Resp
	if err := objstore.ContextError(ctx, string(op), ""); err != nil {
		return none, err
	}
	done := c.sup.meter.begin(op)
	inner, err := c.begin(ctx)
	if err != nil {
		done(0, 0, err)
		return none, err
	}
	defer c.end()
	resp, err := f(inner)
	done(0, 0, err)
	return resp, err
}

// Describe implements catalog.Catalog.
func (c *lakeCatalog) Describe() catalog.Description { return c.d }

// CreateNamespace implements catalog.Catalog.
func (c *lakeCatalog) CreateNamespace(ctx context.Context, req catalog.CreateNamespaceRequest) (catalog.CreateNamespaceResponse, error) {
	return callCatalog(ctx, c, opCatalogWrite, func(in catalog.Catalog) (catalog.CreateNamespaceResponse, error) { return in.CreateNamespace(ctx, req) })
}

// LoadNamespace implements catalog.Catalog.
func (c *lakeCatalog) LoadNamespace(ctx context.Context, req catalog.LoadNamespaceRequest) (catalog.LoadNamespaceResponse, error) {
	return callCatalog(ctx, c, opCatalogRead, func(in catalog.Catalog) (catalog.LoadNamespaceResponse, error) { return in.LoadNamespace(ctx, req) })
}

// UpdateNamespace implements catalog.Catalog.
func (c *lakeCatalog) UpdateNamespace(ctx context.Context, req catalog.UpdateNamespaceRequest) (catalog.UpdateNamespaceResponse, error) {
	return callCatalog(ctx, c, opCatalogWrite, func(in catalog.Catalog) (catalog.UpdateNamespaceResponse, error) { return in.UpdateNamespace(ctx, req) })
}

// DropNamespace implements catalog.Catalog.
func (c *lakeCatalog) DropNamespace(ctx context.Context, req catalog.DropNamespaceRequest) (catalog.DropNamespaceResponse, error) {
	return callCatalog(ctx, c, opCatalogWrite, func(in catalog.Catalog) (catalog.DropNamespaceResponse, error) { return in.DropNamespace(ctx, req) })
}

// ListNamespaces implements catalog.Catalog.
func (c *lakeCatalog) ListNamespaces(ctx context.Context, req catalog.ListNamespacesRequest) (catalog.ListNamespacesResponse, error) {
	return callCatalog(ctx, c, opCatalogRead, func(in catalog.Catalog) (catalog.ListNamespacesResponse, error) { return in.ListNamespaces(ctx, req) })
}

// ListTables implements catalog.Catalog.
func (c *lakeCatalog) ListTables(ctx context.Context, req catalog.ListTablesRequest) (catalog.ListTablesResponse, error) {
	return callCatalog(ctx, c, opCatalogRead, func(in catalog.Catalog) (catalog.ListTablesResponse, error) { return in.ListTables(ctx, req) })
}

// LoadTable implements catalog.Catalog.
func (c *lakeCatalog) LoadTable(ctx context.Context, req catalog.LoadTableRequest) (catalog.LoadTableResponse, error) {
	return callCatalog(ctx, c, opCatalogRead, func(in catalog.Catalog) (catalog.LoadTableResponse, error) { return in.LoadTable(ctx, req) })
}

// CreateTable implements catalog.Catalog.
func (c *lakeCatalog) CreateTable(ctx context.Context, req catalog.CreateTableRequest) (catalog.LoadTableResponse, error) {
	return callCatalog(ctx, c, opCatalogWrite, func(in catalog.Catalog) (catalog.LoadTableResponse, error) { return in.CreateTable(ctx, req) })
}

// DropTable implements catalog.Catalog.
func (c *lakeCatalog) DropTable(ctx context.Context, req catalog.DropTableRequest) (catalog.DropTableResponse, error) {
	return callCatalog(ctx, c, opCatalogWrite, func(in catalog.Catalog) (catalog.DropTableResponse, error) { return in.DropTable(ctx, req) })
}

// RenameTable implements catalog.Catalog.
func (c *lakeCatalog) RenameTable(ctx context.Context, req catalog.RenameTableRequest) (catalog.RenameTableResponse, error) {
	return callCatalog(ctx, c, opCatalogWrite, func(in catalog.Catalog) (catalog.RenameTableResponse, error) { return in.RenameTable(ctx, req) })
}

// CommitTable implements catalog.Committer.
func (c committer) CommitTable(ctx context.Context, req catalog.CommitTableRequest) (catalog.LoadTableResponse, error) {
	return callCatalog(ctx, c.lakeCatalog, opCatalogWrite, func(in catalog.Catalog) (catalog.LoadTableResponse, error) {
		return in.(catalog.Committer).CommitTable(ctx, req) // same and the host hold it to that
	})
}

// SwapMetadata implements catalog.Swapper.
func (c swapper) SwapMetadata(ctx context.Context, req catalog.SwapMetadataRequest) (catalog.SwapMetadataResponse, error) {
	return callCatalog(ctx, c.lakeCatalog, opCatalogWrite, func(in catalog.Catalog) (catalog.SwapMetadataResponse, error) {
		return in.(catalog.Swapper).SwapMetadata(ctx, req) // as above
	})
}
