// Package catalogtest is the conformance kit of lake catalogs. A catalog's own test
// calls Run. The commits of a Swapper are checked; those of a Committer need metadata
// that the kit does not make yet.
package catalogtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mink-project/mink/sdk/catalog"
)

// Target is one empty place, with the means to start clients on it.
type Target struct {
	// Start gives a client as another process would have it: what two of them share is
	// the place alone.
	Start func(ctx context.Context) (catalog.Catalog, error)
	// MetadataLocation names the n-th metadata file of a table; it need not exist.
	MetadataLocation func(table catalog.Identifier, n int) string
}

// Check is one property. Run gets an empty target.
type Check struct {
	Name string
	Run  func(t *testing.T, w *World)
}

// Run runs every check as a subtest, each on an empty place that open makes.
func Run(t *testing.T, open func(t *testing.T) Target) {
	t.Helper()
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) { c.Run(t, &World{t: t, target: open(t)}) })
	}
}

// World is what checks work with.
type World struct {
	t      *testing.T
	target Target
}

func (w *World) start() Client {
	w.t.Helper()
	c, err := w.target.Start(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := errors.Join(c.Close(), c.Close()); err != nil {
			w.t.Error("close, twice:", err)
		}
	})
	if err := catalog.Check(c); err != nil {
		w.t.Fatal(err)
	}
	return Client{Catalog: c, w: w}
}

// Client is a catalog with shorter calls.
type Client struct {
	catalog.Catalog
	w *World
}

func id(namespace, name string) catalog.Identifier {
	return catalog.Identifier{Namespace: strings.Split(namespace, "/"), Name: name}
}

func levels(namespace string) []string {
	if namespace == "" {
		return nil
	}
	return strings.Split(namespace, "/")
}

func (c Client) createNamespace(namespace string, properties ...string) {
	c.w.t.Helper()
	p := map[string]string{}
	for i := 0; i < len(properties); i += 2 {
		p[properties[i]] = properties[i+1]
	}
	_, err := c.CreateNamespace(c.w.t.Context(), catalog.CreateNamespaceRequest{Namespace: levels(namespace), Properties: p})
	c.w.ok(err)
}

func (c Client) create(table catalog.Identifier, n int) error {
	_, err := c.CreateTable(c.w.t.Context(), catalog.CreateTableRequest{Table: table, MetadataLocation: c.w.target.MetadataLocation(table, n)})
	return err
}

func (c Client) load(table catalog.Identifier) (catalog.LoadTableResponse, error) {
	return c.LoadTable(c.w.t.Context(), catalog.LoadTableRequest{Table: table})
}

// swap moves the pointer from file n to file m, as the client saw the table last.
func (c Client) swap(ctx context.Context, table catalog.Identifier, seen catalog.LoadTableResponse, m int) error {
	_, err := c.Catalog.(catalog.Swapper).SwapMetadata(ctx, catalog.SwapMetadataRequest{
		Table: table, ExpectedLocation: seen.MetadataLocation, ExpectedVersion: seen.Version, NewLocation: c.w.target.MetadataLocation(table, m),
	})
	return err
}

func (w *World) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *World) is(err, want error) {
	w.t.Helper()
	if !errors.Is(err, want) {
		w.t.Fatalf("got %v, want %v", err, want)
	}
}

func (w *World) at(c Client, table catalog.Identifier, n int) {
	w.t.Helper()
	got, err := c.load(table)
	w.ok(err)
	if want := w.target.MetadataLocation(table, n); got.MetadataLocation != want {
		w.t.Fatalf("table %s is at %s, want %s", table, got.MetadataLocation, want)
	}
}

func (c Client) names(namespace string) []string {
	c.w.t.Helper()
	var out []string
	for after := ""; ; {
		got, err := c.ListTables(c.w.t.Context(), catalog.ListTablesRequest{Namespace: levels(namespace), StartAfter: after, Limit: 2})
		c.w.ok(err)
		out = append(out, got.Names...)
		if !got.More {
			return out
		}
		if len(got.Names) != 2 {
			c.w.t.Fatalf("a page with More has %d names of 2", len(got.Names))
		}
		after = got.Names[1]
	}
}

func (c Client) namespaces(parent string) []string {
	c.w.t.Helper()
	var out []string
	for after := ""; ; {
		got, err := c.ListNamespaces(c.w.t.Context(), catalog.ListNamespacesRequest{Parent: levels(parent), StartAfter: after, Limit: 2})
		c.w.ok(err)
		for _, n := range got.Namespaces {
			out = append(out, strings.Join(n, "/"))
			after = n[len(n)-1]
		}
		if !got.More {
			return out
		}
		if len(got.Namespaces) != 2 {
			c.w.t.Fatalf("a page with More has %d namespaces of 2", len(got.Namespaces))
		}
	}
}

func (w *World) same(got []string, want ...string) {
	w.t.Helper()
	if !slices.Equal(got, want) {
		w.t.Fatalf("got %q, want %q", got, want)
	}
}

// race runs do n times at once and answers the errors.
func race(n int, do func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			errs[i] = do(i)
		})
	}
	close(begin)
	wg.Wait()
	return errs
}

// one is the index of the only error that is nil; the others must be want.
func (w *World) one(errs []error, want error) int {
	w.t.Helper()
	winner := -1
	for i, err := range errs {
		switch {
		case err == nil && winner >= 0:
			w.t.Fatalf("both %d and %d won", winner, i)
		case err == nil:
			winner = i
		case !errors.Is(err, want):
			w.t.Fatalf("a loser got %v, want %v", err, want)
		}
	}
	if winner < 0 {
		w.t.Fatalf("nobody won: %v", errors.Join(errs...))
	}
	return winner
}

func tableName(i int) string { return fmt.Sprintf("t%02d", i) }
