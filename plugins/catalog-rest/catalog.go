package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/catalog"
)

// Limits of lists: pages are asked for until the catalog has no more.
const (
	pageMax  = 1000
	namesMax = 1_000_000
)

// restCatalog implements catalog.Catalog and catalog.Committer.
type restCatalog struct{ *client }

var (
	_ catalog.Catalog   = (*restCatalog)(nil)
	_ catalog.Committer = (*restCatalog)(nil)
)

// Describe implements catalog.Catalog.
func (c *restCatalog) Describe() catalog.Description {
	return catalog.Description{
		Name: "rest", Version: cloudstore.Version, Commit: catalog.CommitsUpdates, VendsCredentials: true, Renames: true,
		ForbiddenProperties: c.cfg.forbidden,
	}
}

func at(namespace []string, more ...string) func(*settled) []string {
	return func(s *settled) []string { return append([]string{"namespaces", s.namespace(namespace)}, more...) }
}

func tableAt(id catalog.Identifier) func(*settled) []string {
	return at(id.Namespace, "tables", url.PathEscape(id.Name))
}

type identifier struct {
	Namespace []string `json:"namespace"`
	Name      string   `json:"name"`
}

func of(id catalog.Identifier) identifier { return identifier{id.Namespace, id.Name} }

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// CreateNamespace implements catalog.Catalog. Those above are made first: the
// specification does not say that they are.
func (c *restCatalog) CreateNamespace(ctx context.Context, req catalog.CreateNamespaceRequest) (resp catalog.CreateNamespaceResponse, err error) {
	if err := catalog.CheckNamespace(req.Namespace); err != nil {
		return resp, fmt.Errorf("create namespace: %w", err)
	}
	for n := 1; n <= len(req.Namespace); n++ {
		properties := map[string]string{}
		if n == len(req.Namespace) {
			properties = orEmpty(req.Properties)
		}
		err = c.ask(ctx, fmt.Sprintf("create namespace %q", req.Namespace[:n]), call{
			method: http.MethodPost, in: map[string]any{"namespace": req.Namespace[:n], "properties": properties},
		}, func(*settled) []string { return []string{"namespaces"} })
		if resp.Existed = errors.Is(err, catalog.ErrAlreadyExists); err != nil && !resp.Existed {
			return catalog.CreateNamespaceResponse{}, err
		}
	}
	return resp, nil
}

// LoadNamespace implements catalog.Catalog.
func (c *restCatalog) LoadNamespace(ctx context.Context, req catalog.LoadNamespaceRequest) (resp catalog.LoadNamespaceResponse, err error) {
	if err := catalog.CheckNamespace(req.Namespace); err != nil {
		return resp, fmt.Errorf("load namespace: %w", err)
	}
	var got struct{ Properties map[string]string }
	err = c.ask(ctx, fmt.Sprintf("load namespace %q", req.Namespace), call{method: http.MethodGet, out: &got}, at(req.Namespace))
	return catalog.LoadNamespaceResponse{Properties: got.Properties}, err
}

// UpdateNamespace implements catalog.Catalog.
func (c *restCatalog) UpdateNamespace(ctx context.Context, req catalog.UpdateNamespaceRequest) (resp catalog.UpdateNamespaceResponse, err error) {
	op := fmt.Sprintf("update namespace %q", req.Namespace)
	if err := catalog.CheckNamespace(req.Namespace); err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	for _, name := range req.Remove {
		if _, both := req.Set[name]; both {
			return resp, fmt.Errorf("%s: property %q is to be both set and removed: %w", op, name, catalog.ErrInvalid)
		}
	}
	var got struct{ Removed []string }
	err = c.ask(ctx, op, call{
		method: http.MethodPost, in: map[string]any{"removals": append([]string{}, req.Remove...), "updates": orEmpty(req.Set)}, out: &got, writes: true,
	}, at(req.Namespace, "properties"))
	slices.Sort(got.Removed)
	return catalog.UpdateNamespaceResponse{Removed: got.Removed}, err
}

// DropNamespace implements catalog.Catalog. Some catalogs drop a namespace while others
// are below it, so that these are looked for.
func (c *restCatalog) DropNamespace(ctx context.Context, req catalog.DropNamespaceRequest) (resp catalog.DropNamespaceResponse, err error) {
	op := fmt.Sprintf("drop namespace %q", req.Namespace)
	if err := catalog.CheckNamespace(req.Namespace); err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	below, err := c.below(ctx, req.Namespace)
	switch {
	case err == nil && len(below) > 0:
		return resp, fmt.Errorf("%s: %w: there is %q below it", op, catalog.ErrNotEmpty, below[0])
	case err != nil && !errors.Is(err, catalog.ErrInvalid) && !errors.Is(err, catalog.ErrUnimplemented): // of catalogs with one level
		return resp, err
	}
	return resp, c.ask(ctx, op, call{method: http.MethodDelete, writes: true}, at(req.Namespace))
}

// each asks for the pages of a list; take answers the token of the next, "" for none.
func (c *restCatalog) each(ctx context.Context, op, query string, part func(*settled) []string, take func(page json.RawMessage) (string, error)) error {
	for token, pages := "", 0; ; pages++ {
		q := url.Values{"pageToken": {token}, "pageSize": {strconv.Itoa(pageMax)}}
		var page json.RawMessage
		if err := c.ask(ctx, op, call{method: http.MethodGet, query: "?" + q.Encode() + query, out: &page}, part); err != nil {
			return err
		}
		next, err := take(page)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w: the catalog's answer is not what the specification says: %w", op, catalog.ErrUnavailable, err)
		case next == "":
			return nil
		case next == token || pages > namesMax/pageMax:
			return fmt.Errorf("%s: %w: the catalog's pages have no end", op, catalog.ErrUnavailable)
		}
		token = next
	}
}

// below are the names of the namespaces below a parent.
func (c *restCatalog) below(ctx context.Context, parent []string) (names []string, err error) {
	var query func(*settled) string
	if len(parent) > 0 {
		query = func(s *settled) string { return "&parent=" + s.namespace(parent) }
	}
	ready, err := c.settle(ctx)
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	q := ""
	if query != nil {
		q = query(ready)
	}
	err = c.each(ctx, "list namespaces", q, func(*settled) []string { return []string{"namespaces"} }, func(page json.RawMessage) (string, error) {
		var got struct {
			Namespaces [][]string
			Next       string `json:"next-page-token"`
		}
		if err := json.Unmarshal(page, &got); err != nil {
			return "", err
		}
		for _, n := range got.Namespaces {
			if len(n) == len(parent)+1 && slices.Equal(n[:len(parent)], parent) {
				names = append(names, n[len(parent)])
			}
		}
		return got.Next, nil
	})
	return names, err
}

// ListNamespaces implements catalog.Catalog.
func (c *restCatalog) ListNamespaces(ctx context.Context, req catalog.ListNamespacesRequest) (resp catalog.ListNamespacesResponse, err error) {
	if c.closed.Load() {
		return resp, fmt.Errorf("list namespaces: %w: the catalog is closed", catalog.ErrUnavailable)
	}
	if len(req.Parent) > 0 {
		if err := catalog.CheckNamespace(req.Parent); err != nil {
			return resp, fmt.Errorf("list namespaces: %w", err)
		}
	}
	names, err := c.below(ctx, req.Parent)
	if err != nil {
		return resp, err
	}
	page, more := catalog.Page(names, req.StartAfter, req.Limit, pageMax)
	for _, n := range page {
		resp.Namespaces = append(resp.Namespaces, append(slices.Clone(req.Parent), n))
	}
	resp.More = more
	return resp, nil
}

// ListTables implements catalog.Catalog.
func (c *restCatalog) ListTables(ctx context.Context, req catalog.ListTablesRequest) (resp catalog.ListTablesResponse, err error) {
	op := fmt.Sprintf("list tables of %q", req.Namespace)
	if err := catalog.CheckNamespace(req.Namespace); err != nil {
		return resp, fmt.Errorf("%s: %w", op, err)
	}
	var names []string
	err = c.each(ctx, op, "", at(req.Namespace, "tables"), func(page json.RawMessage) (string, error) {
		var got struct {
			Identifiers []identifier
			Next        string `json:"next-page-token"`
		}
		if err := json.Unmarshal(page, &got); err != nil {
			return "", err
		}
		for _, id := range got.Identifiers {
			names = append(names, id.Name)
		}
		return got.Next, nil
	})
	if err != nil {
		return resp, err
	}
	resp.Names, resp.More = catalog.Page(names, req.StartAfter, req.Limit, pageMax)
	return resp, nil
}
