// Package catalogtest is the conformance kit of lake catalogs. A catalog's own test
// calls Run; plugintest runs the same checks on a plugin's executable.
//
// A Swapper's tables are metadata files that need not exist. A Committer's have a schema
// whose last column id counts commits: a commit that asserts it and adds a column is the
// compare-and-swap that the checks need, and a property says which one it was.
package catalogtest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/internal/recorder"
)

// T is what checks need of testing.T.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Context() context.Context
}

// Target is one place, with the means to start clients on it.
type Target struct {
	// Start gives a client as another process would have it: what two of them share is
	// the place alone.
	Start func(ctx context.Context) (catalog.Catalog, error)
	// MetadataLocation names the n-th metadata file of a Swapper's table; it need not
	// exist. nil: a name that no file has.
	MetadataLocation func(table catalog.Identifier, n int) string
	// Shared: the place has other namespaces. Those of the check get names of their own,
	// and are dropped when it ends.
	Shared bool
}

// Check is one property. Run gets an empty target.
type Check struct {
	Name string
	// Of is the kind of catalogs that it is of; 0: all.
	Of  catalog.Commit
	Run func(w *World)
}

// Run runs every check as a subtest, each on a place that open makes; skip names those
// that the catalog is known to fail.
func Run(t *testing.T, open func(t *testing.T) Target, skip ...string) {
	t.Helper()
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			if slices.Contains(skip, c.Name) {
				t.Skip("known limit of this catalog")
			}
			if !run(t, c, open(t)) {
				t.Skip("does not apply to this kind of catalog")
			}
		})
	}
}

// Outcome is what became of a check outside of go test.
type Outcome struct {
	Failed, Skipped bool
	Text            string
}

// RunCheck runs one check outside of go test.
func RunCheck(ctx context.Context, c Check, target Target) (o Outcome) {
	o.Failed, o.Text = recorder.Run(ctx, func(t *recorder.T) { o.Skipped = !run(t, c, target) })
	o.Skipped = o.Skipped && !o.Failed
	return o
}

// run answers false when the check does not apply.
func run(t T, c Check, target Target) bool {
	w := &World{T: t, target: target}
	if target.MetadataLocation == nil {
		w.target.MetadataLocation = func(table catalog.Identifier, n int) string {
			return fmt.Sprintf("file:///mink-catalog-test/%s/metadata/%05d.metadata.json", table, n)
		}
	}
	if target.Shared {
		w.prefix = "minktest_" + strings.ToLower(rand.Text()[:10]) + "_"
	}
	defer w.end()
	first := w.start()
	w.d = first.Describe()
	if c.Of != 0 && c.Of != w.d.Commit || c.Name == checkRename && !w.d.Renames {
		return false
	}
	c.Run(w)
	return true
}

// World is what checks work with.
type World struct {
	T
	target  Target
	prefix  string // of namespaces of the first level
	d       catalog.Description
	clients []catalog.Catalog
}

func (w *World) start() Client {
	w.Helper()
	c, err := w.target.Start(w.Context())
	if err != nil {
		w.Fatalf("start a client: %v", err)
	}
	w.clients = append(w.clients, c)
	if err := catalog.Check(c); err != nil {
		w.Fatalf("%v", err)
	}
	return Client{Catalog: c, w: w}
}

// end drops what a check left in a shared place, and closes the clients.
func (w *World) end() {
	if w.target.Shared && len(w.clients) > 0 {
		if c, err := w.target.Start(w.Context()); err == nil {
			w.clients = append(w.clients, c)
			all, _ := c.ListNamespaces(w.Context(), catalog.ListNamespacesRequest{})
			for _, n := range all.Namespaces {
				if strings.HasPrefix(n[0], w.prefix) {
					w.dropAll(c, n)
				}
			}
		}
	}
	for _, c := range w.clients {
		if err := errors.Join(c.Close(), c.Close()); err != nil {
			w.Errorf("close, twice: %v", err)
		}
	}
}

func (w *World) dropAll(c catalog.Catalog, namespace []string) {
	below, _ := c.ListNamespaces(w.Context(), catalog.ListNamespacesRequest{Parent: namespace})
	for _, n := range below.Namespaces {
		w.dropAll(c, n)
	}
	tables, _ := c.ListTables(w.Context(), catalog.ListTablesRequest{Namespace: namespace})
	for _, name := range tables.Names {
		_, _ = c.DropTable(w.Context(), catalog.DropTableRequest{Table: catalog.Identifier{Namespace: namespace, Name: name}})
	}
	_, _ = c.DropNamespace(w.Context(), catalog.DropNamespaceRequest{Namespace: namespace})
}

// Client is a catalog with shorter calls.
type Client struct {
	catalog.Catalog
	w *World
}

func (w *World) id(namespace, name string) catalog.Identifier {
	return catalog.Identifier{Namespace: w.levels(namespace), Name: name}
}

// levels are those of a namespace with slashes between them; "": none.
func (w *World) levels(namespace string) []string {
	if namespace == "" {
		return nil
	}
	return strings.Split(w.prefix+namespace, "/")
}

func (c Client) createNamespace(namespace string, properties ...string) {
	c.w.Helper()
	p := map[string]string{}
	for i := 0; i < len(properties); i += 2 {
		p[properties[i]] = properties[i+1]
	}
	_, err := c.CreateNamespace(c.w.Context(), catalog.CreateNamespaceRequest{Namespace: c.w.levels(namespace), Properties: p})
	c.w.ok(err)
}

const keyOfN = "kit.n" // a property of Committers' tables

// schemaOf has the columns 1 to n.
func schemaOf(n int) json.RawMessage {
	fields := []map[string]any{}
	for i := 1; i <= n; i++ {
		fields = append(fields, map[string]any{"id": i, "name": "c" + strconv.Itoa(i), "required": false, "type": "long"})
	}
	return asJSON(map[string]any{"type": "struct", "schema-id": 0, "fields": fields})
}

func asJSON(v any) json.RawMessage {
	out, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return out
}

type object = map[string]any

func (w *World) createRequest(table catalog.Identifier, n int) catalog.CreateTableRequest {
	if w.d.Commit == catalog.SwapsMetadata {
		return catalog.CreateTableRequest{Table: table, MetadataLocation: w.target.MetadataLocation(table, n)}
	}
	return catalog.CreateTableRequest{Table: table, Schema: schemaOf(1), Properties: map[string]string{keyOfN: strconv.Itoa(n)}}
}

func (c Client) create(table catalog.Identifier, n int) error {
	_, err := c.CreateTable(c.w.Context(), c.w.createRequest(table, n))
	return err
}

func (c Client) load(table catalog.Identifier) (catalog.LoadTableResponse, error) {
	return c.LoadTable(c.w.Context(), catalog.LoadTableRequest{Table: table})
}

// metadata is what the kit reads of a Committer's.
type metadata struct {
	UUID         string            `json:"table-uuid"`
	LastColumnID int               `json:"last-column-id"`
	Schema       int               `json:"current-schema-id"`
	Spec         int               `json:"default-spec-id"`
	LastSpecID   int               `json:"last-partition-id"`
	SortOrder    int               `json:"default-sort-order-id"`
	Properties   map[string]string `json:"properties"`
}

func (w *World) metadata(t catalog.LoadTableResponse) metadata {
	w.Helper()
	m := metadata{UUID: "00000000-0000-0000-0000-000000000001", LastColumnID: 1}
	if len(t.Metadata) > 0 {
		if err := json.Unmarshal(t.Metadata, &m); err != nil {
			w.Fatalf("metadata: %v", err)
		}
	}
	return m
}

// swap makes the m-th state of a table, as the client saw it last.
func (c Client) swap(ctx context.Context, table catalog.Identifier, seen catalog.LoadTableResponse, m int) error {
	if s, ok := c.Catalog.(catalog.Swapper); ok && c.w.d.Commit == catalog.SwapsMetadata {
		_, err := s.SwapMetadata(ctx, catalog.SwapMetadataRequest{
			Table: table, ExpectedLocation: seen.MetadataLocation, ExpectedVersion: seen.Version, NewLocation: c.w.target.MetadataLocation(table, m),
		})
		return err
	}
	at := c.w.metadata(seen)
	return c.commit(ctx, table,
		[]object{{"type": "assert-table-uuid", "uuid": at.UUID}, {"type": "assert-last-assigned-field-id", "last-assigned-field-id": at.LastColumnID}},
		[]object{
			{"action": "add-schema", "schema": schemaOf(at.LastColumnID + 1), "last-column-id": at.LastColumnID + 1},
			{"action": "set-current-schema", "schema-id": -1}, setN(m),
		})
}

// location is one that the catalog accepts for a table: beside one that it chose.
func (w *World) location(c Client, table catalog.Identifier) string {
	probe := catalog.Identifier{Namespace: table.Namespace, Name: "where_" + strings.ToLower(rand.Text()[:8])}
	got, err := c.CreateTable(w.Context(), w.createRequest(probe, 0))
	if err == nil {
		_, err = c.DropTable(w.Context(), catalog.DropTableRequest{Table: probe})
	}
	var m struct{ Location string }
	if err = errors.Join(err, json.Unmarshal(got.Metadata, &m)); err != nil || m.Location == "" {
		w.Errorf("where the catalog puts tables: %q, %v", m.Location, err)
	}
	return m.Location
}

func setN(n int) object {
	return object{"action": "set-properties", "updates": object{keyOfN: strconv.Itoa(n)}}
}

func (c Client) commit(ctx context.Context, table catalog.Identifier, requirements, updates []object) error {
	_, err := c.Catalog.(catalog.Committer).CommitTable(ctx, catalog.CommitTableRequest{
		Table: table, Requirements: asJSON(requirements), Updates: asJSON(updates),
	})
	return err
}

func (w *World) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatalf("%v", err)
	}
}

func (w *World) is(err, want error) {
	w.Helper()
	if !errors.Is(err, want) {
		w.Fatalf("got %v, want %v", err, want)
	}
}

func (w *World) at(c Client, table catalog.Identifier, n int) {
	w.Helper()
	got, err := c.load(table)
	w.ok(err)
	if w.d.Commit == catalog.CommitsUpdates {
		if is := w.metadata(got).Properties[keyOfN]; is != strconv.Itoa(n) {
			w.Fatalf("table %s is at %q, want %d", table, is, n)
		}
		return
	}
	if want := w.target.MetadataLocation(table, n); got.MetadataLocation != want {
		w.Fatalf("table %s is at %s, want %s", table, got.MetadataLocation, want)
	}
}

func (c Client) names(namespace string) []string {
	c.w.Helper()
	var out []string
	for after := ""; ; {
		got, err := c.ListTables(c.w.Context(), catalog.ListTablesRequest{Namespace: c.w.levels(namespace), StartAfter: after, Limit: 2})
		c.w.ok(err)
		out = append(out, got.Names...)
		if !got.More {
			return out
		}
		if len(got.Names) != 2 {
			c.w.Fatalf("a page with More has %d names of 2", len(got.Names))
		}
		after = got.Names[1]
	}
}

// namespaces are those of the check, below a parent, with slashes.
func (c Client) namespaces(parent string) []string {
	c.w.Helper()
	var out []string
	for after := ""; ; {
		got, err := c.ListNamespaces(c.w.Context(), catalog.ListNamespacesRequest{Parent: c.w.levels(parent), StartAfter: after, Limit: 2})
		c.w.ok(err)
		for _, n := range got.Namespaces {
			if rest, mine := strings.CutPrefix(strings.Join(n, "/"), c.w.prefix); mine {
				out = append(out, rest)
			}
			after = n[len(n)-1]
		}
		if !got.More {
			return out
		}
		if len(got.Namespaces) != 2 {
			c.w.Fatalf("a page with More has %d namespaces of 2", len(got.Namespaces))
		}
	}
}

func (w *World) same(got []string, want ...string) {
	w.Helper()
	if !slices.Equal(got, want) {
		w.Fatalf("got %q, want %q", got, want)
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
	w.Helper()
	winner := -1
	for i, err := range errs {
		switch {
		case err == nil && winner >= 0:
			w.Fatalf("both %d and %d won", winner, i)
		case err == nil:
			winner = i
		case !errors.Is(err, want):
			w.Fatalf("a loser got %v, want %v", err, want)
		}
	}
	if winner < 0 {
		w.Fatalf("nobody won: %v", errors.Join(errs...))
	}
	return winner
}

func tableName(i int) string { return fmt.Sprintf("t%02d", i) }
