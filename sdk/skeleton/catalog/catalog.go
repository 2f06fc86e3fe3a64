package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync/atomic"

	"github.com/mink-project/mink/sdk/catalog"
)

// pageMax is the most names of one page.
const pageMax = 1000

// dirCatalog implements catalog.Catalog and catalog.Swapper: Mink writes the metadata
// files, the catalog keeps the location of each table's newest one. A service that
// computes metadata itself would be a catalog.Committer instead.
type dirCatalog struct {
	store
	closed atomic.Bool
}

var (
	_ catalog.Catalog = (*dirCatalog)(nil)
	_ catalog.Swapper = (*dirCatalog)(nil)
)

func open(dir string) (catalog.Catalog, error) {
	if dir == "" {
		return nil, fmt.Errorf("%w: the option dir is not set", catalog.ErrInvalid)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
	}
	return &dirCatalog{store: store{dir}}, nil
}

func (c *dirCatalog) Describe() catalog.Description {
	return catalog.Description{Name: "skeleton", Version: version, Commit: catalog.SwapsMetadata, Renames: true}
}

func (c *dirCatalog) Close() error {
	c.closed.Store(true)
	return nil
}

func key(levels []string) string {
	k, _ := json.Marshal(levels) // strings always can
	return string(k)
}

// in runs a change in a namespace that must be there.
func (c *dirCatalog) in(ctx context.Context, levels []string, change func(state, *namespace) (bool, error)) error {
	if err := catalog.CheckNamespace(levels); err != nil {
		return err
	}
	return c.all(ctx, func(s state) (bool, error) {
		n, ok := s[key(levels)]
		if !ok {
			return false, fmt.Errorf("%w: namespace %q", catalog.ErrNotExist, levels)
		}
		return change(s, n)
	})
}

func (c *dirCatalog) all(ctx context.Context, change func(state) (bool, error)) error {
	if c.closed.Load() {
		return fmt.Errorf("%w: the catalog is closed", catalog.ErrUnavailable)
	}
	return c.transact(ctx, change)
}

func (c *dirCatalog) CreateNamespace(ctx context.Context, req catalog.CreateNamespaceRequest) (resp catalog.CreateNamespaceResponse, err error) {
	if err := catalog.CheckNamespace(req.Namespace); err != nil {
		return resp, err
	}
	err = c.all(ctx, func(s state) (bool, error) {
		if _, resp.Existed = s[key(req.Namespace)]; resp.Existed {
			return false, nil
		}
		for i := range req.Namespace { // those above it too
			levels := req.Namespace[:i+1]
			if _, ok := s[key(levels)]; !ok {
				s[key(levels)] = &namespace{Levels: levels, Properties: map[string]string{}, Tables: map[string]string{}}
			}
		}
		maps.Copy(s[key(req.Namespace)].Properties, req.Properties)
		return true, nil
	})
	return resp, err
}

func (c *dirCatalog) LoadNamespace(ctx context.Context, req catalog.LoadNamespaceRequest) (resp catalog.LoadNamespaceResponse, err error) {
	err = c.in(ctx, req.Namespace, func(_ state, n *namespace) (bool, error) {
		resp.Properties = n.Properties
		return false, nil
	})
	return resp, err
}

func (c *dirCatalog) UpdateNamespace(ctx context.Context, req catalog.UpdateNamespaceRequest) (resp catalog.UpdateNamespaceResponse, err error) {
	for _, k := range req.Remove {
		if _, both := req.Set[k]; both {
			return resp, fmt.Errorf("%w: property %q is to be both set and removed", catalog.ErrInvalid, k)
		}
	}
	err = c.in(ctx, req.Namespace, func(_ state, n *namespace) (bool, error) {
		maps.Copy(n.Properties, req.Set)
		for _, k := range slices.Compact(slices.Sorted(slices.Values(req.Remove))) {
			if _, ok := n.Properties[k]; ok {
				delete(n.Properties, k)
				resp.Removed = append(resp.Removed, k)
			}
		}
		return true, nil
	})
	return resp, err
}

// below are the names of the namespaces one level below another.
func (s state) below(parent []string) (names []string) {
	for _, n := range s {
		if len(n.Levels) == len(parent)+1 && slices.Equal(n.Levels[:len(parent)], parent) {
			names = append(names, n.Levels[len(parent)])
		}
	}
	return names
}

func (c *dirCatalog) DropNamespace(ctx context.Context, req catalog.DropNamespaceRequest) (resp catalog.DropNamespaceResponse, err error) {
	return resp, c.in(ctx, req.Namespace, func(s state, n *namespace) (bool, error) {
		if len(n.Tables) > 0 || len(s.below(n.Levels)) > 0 {
			return false, fmt.Errorf("%w: %q", catalog.ErrNotEmpty, n.Levels)
		}
		delete(s, key(n.Levels))
		return true, nil
	})
}

func (c *dirCatalog) ListNamespaces(ctx context.Context, req catalog.ListNamespacesRequest) (resp catalog.ListNamespacesResponse, err error) {
	list := func(s state) (bool, error) {
		names, more := catalog.Page(s.below(req.Parent), req.StartAfter, req.Limit, pageMax)
		for _, n := range names {
			resp.Namespaces = append(resp.Namespaces, append(slices.Clone(req.Parent), n))
		}
		resp.More = more
		return false, nil
	}
	if len(req.Parent) == 0 {
		return resp, c.all(ctx, list)
	}
	err = c.in(ctx, req.Parent, func(s state, _ *namespace) (bool, error) { return list(s) })
	return resp, err
}

func (c *dirCatalog) ListTables(ctx context.Context, req catalog.ListTablesRequest) (resp catalog.ListTablesResponse, err error) {
	err = c.in(ctx, req.Namespace, func(_ state, n *namespace) (bool, error) {
		resp.Names, resp.More = catalog.Page(slices.Collect(maps.Keys(n.Tables)), req.StartAfter, req.Limit, pageMax)
		return false, nil
	})
	return resp, err
}

// inTable runs a change of a table that must be there.
func (c *dirCatalog) inTable(ctx context.Context, id catalog.Identifier, change func(s state, n *namespace, at string) (bool, error)) error {
	if err := id.Validate(); err != nil {
		return err
	}
	return c.in(ctx, id.Namespace, func(s state, n *namespace) (bool, error) {
		at, ok := n.Tables[id.Name]
		if !ok {
			return false, fmt.Errorf("%w: table %s", catalog.ErrNotExist, id)
		}
		return change(s, n, at)
	})
}

func (c *dirCatalog) LoadTable(ctx context.Context, req catalog.LoadTableRequest) (resp catalog.LoadTableResponse, err error) {
	err = c.inTable(ctx, req.Table, func(_ state, _ *namespace, at string) (bool, error) {
		resp.MetadataLocation = at
		return false, nil
	})
	return resp, err
}

func (c *dirCatalog) CreateTable(ctx context.Context, req catalog.CreateTableRequest) (resp catalog.LoadTableResponse, err error) {
	if err := req.Table.Validate(); err != nil {
		return resp, err
	}
	err = c.in(ctx, req.Table.Namespace, func(_ state, n *namespace) (bool, error) {
		if _, taken := n.Tables[req.Table.Name]; taken {
			return false, fmt.Errorf("%w: table %s", catalog.ErrAlreadyExists, req.Table)
		}
		n.Tables[req.Table.Name] = req.MetadataLocation
		return true, nil
	})
	if err != nil {
		return resp, err
	}
	return catalog.LoadTableResponse{MetadataLocation: req.MetadataLocation}, nil
}

// SwapMetadata is the commit: the comparison and the change are one step.
func (c *dirCatalog) SwapMetadata(ctx context.Context, req catalog.SwapMetadataRequest) (resp catalog.SwapMetadataResponse, err error) {
	return resp, c.inTable(ctx, req.Table, func(_ state, n *namespace, at string) (bool, error) {
		if at != req.ExpectedLocation {
			return false, fmt.Errorf("%w: the metadata of %s is %s, not %s", catalog.ErrConflict, req.Table, at, req.ExpectedLocation)
		}
		n.Tables[req.Table.Name] = req.NewLocation
		return true, nil
	})
}

func (c *dirCatalog) DropTable(ctx context.Context, req catalog.DropTableRequest) (resp catalog.DropTableResponse, err error) {
	return resp, c.inTable(ctx, req.Table, func(_ state, n *namespace, at string) (bool, error) {
		if req.ExpectedLocation != "" && at != req.ExpectedLocation {
			return false, fmt.Errorf("%w: the metadata of %s is %s, not %s", catalog.ErrConflict, req.Table, at, req.ExpectedLocation)
		}
		delete(n.Tables, req.Table.Name)
		return true, nil
	})
}

func (c *dirCatalog) RenameTable(ctx context.Context, req catalog.RenameTableRequest) (resp catalog.RenameTableResponse, err error) {
	if err := req.To.Validate(); err != nil {
		return resp, err
	}
	return resp, c.inTable(ctx, req.From, func(s state, n *namespace, at string) (bool, error) {
		to, ok := s[key(req.To.Namespace)]
		if !ok {
			return false, fmt.Errorf("%w: namespace %q", catalog.ErrNotExist, req.To.Namespace)
		}
		if _, taken := to.Tables[req.To.Name]; taken {
			return false, fmt.Errorf("%w: table %s", catalog.ErrAlreadyExists, req.To)
		}
		delete(n.Tables, req.From.Name)
		to.Tables[req.To.Name] = at
		return true, nil
	})
}
