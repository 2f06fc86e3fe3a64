package catalogtest

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/mink-project/mink/sdk/catalog"
)

// Checks are all of them.
func Checks() []Check {
	return []Check{
		{"Namespaces", namespaces},
		{"NamespaceProperties", namespaceProperties},
		{"NamespacesAreDroppedWhenEmpty", dropNamespaces},
		{"NamesKeepApart", namesKeepApart},
		{"BadNamesAreRefused", badNames},
		{"Tables", tables},
		{"TablesAreListedInPages", pages},
		{"Rename", rename},
		{"ASwapNeedsTheExpectedPointer", swaps},
		{"OfRacingSwapsOneWins", racingSwaps},
		{"OfRacingCreatesOneWins", racingCreates},
		{"OfRacingDropsOneWins", racingDrops},
		{"ASwapOfADroppedTableChangesNothing", swapAfterDrop},
		{"ADropNeedsTheExpectedPointer", dropExpected},
		{"AnEndedContextChangesNothing", endedContext},
		{"CloseEndsCalls", closing},
	}
}

func namespaces(t *testing.T, w *World) {
	c, other := w.start(), w.start()
	w.same(c.namespaces(""))
	for range 2 {
		c.createNamespace("sales")
	}
	got, err := c.CreateNamespace(t.Context(), catalog.CreateNamespaceRequest{Namespace: []string{"sales"}})
	w.ok(err)
	if !got.Existed {
		t.Fatal("the namespace was there, and that was not said")
	}
	c.createNamespace("eu/shop/orders")
	c.createNamespace("eu/bank")
	w.same(other.namespaces(""), "eu", "sales")
	w.same(other.namespaces("eu"), "eu/bank", "eu/shop")
	w.same(other.namespaces("eu/shop"), "eu/shop/orders")
	w.same(other.namespaces("sales"))
	_, err = c.ListNamespaces(t.Context(), catalog.ListNamespacesRequest{Parent: []string{"none"}})
	w.is(err, catalog.ErrNotExist)
	_, err = c.LoadNamespace(t.Context(), catalog.LoadNamespaceRequest{Namespace: []string{"none"}})
	w.is(err, catalog.ErrNotExist)
	_, err = c.LoadNamespace(t.Context(), catalog.LoadNamespaceRequest{Namespace: []string{"eu"}}) // made with what is below it
	w.ok(err)
}

func namespaceProperties(t *testing.T, w *World) {
	c, other := w.start(), w.start()
	c.createNamespace("n", "owner", "ann", "x", "1")
	c.createNamespace("n", "owner", "bob") // keeps what is there
	has := func(want map[string]string) {
		t.Helper()
		got, err := other.LoadNamespace(t.Context(), catalog.LoadNamespaceRequest{Namespace: []string{"n"}})
		w.ok(err)
		if !maps.Equal(got.Properties, want) {
			t.Fatalf("properties %v, want %v", got.Properties, want)
		}
	}
	has(map[string]string{"owner": "ann", "x": "1"})
	update := func(set map[string]string, remove ...string) (catalog.UpdateNamespaceResponse, error) {
		return c.UpdateNamespace(t.Context(), catalog.UpdateNamespaceRequest{Namespace: []string{"n"}, Set: set, Remove: remove})
	}
	got, err := update(map[string]string{"owner": "eve's \"ü\"", "y": ""}, "x", "none")
	w.ok(err)
	w.same(got.Removed, "x")
	has(map[string]string{"owner": "eve's \"ü\"", "y": ""})
	_, err = update(map[string]string{"a": "1", "y": "2"}, "y")
	w.is(err, catalog.ErrInvalid)
	has(map[string]string{"owner": "eve's \"ü\"", "y": ""})
	_, err = c.UpdateNamespace(t.Context(), catalog.UpdateNamespaceRequest{Namespace: []string{"none"}, Set: map[string]string{"a": "1"}})
	w.is(err, catalog.ErrNotExist)
	_, err = update(nil, "owner", "y")
	w.ok(err)
	_, err = other.LoadNamespace(t.Context(), catalog.LoadNamespaceRequest{Namespace: []string{"n"}})
	w.ok(err) // still there without any
}

func dropNamespaces(t *testing.T, w *World) {
	c := w.start()
	drop := func(namespace string) error {
		_, err := c.DropNamespace(t.Context(), catalog.DropNamespaceRequest{Namespace: levels(namespace)})
		return err
	}
	w.is(drop("a"), catalog.ErrNotExist)
	c.createNamespace("a/b")
	c.createNamespace("ab")
	w.is(drop("a"), catalog.ErrNotEmpty)
	w.ok(c.create(id("ab", "t"), 1))
	w.is(drop("ab"), catalog.ErrNotEmpty)
	_, err := c.DropTable(t.Context(), catalog.DropTableRequest{Table: id("ab", "t")})
	w.ok(err)
	w.ok(drop("ab"))
	w.is(drop("ab"), catalog.ErrNotExist)
	w.ok(drop("a/b"))
	w.same(c.namespaces("a_"[:0]))
}

// Names that a pattern, a fold of case or a join of levels would confuse.
func namesKeepApart(t *testing.T, w *World) {
	c := w.start()
	all := []string{"a_c", "abc", "a%c", "ABC", "a!c", "ü", "'; DROP TABLE iceberg_tables; --"}
	for i, n := range all {
		c.createNamespace(n)
		w.ok(c.create(id(n, "t"), i))
		w.ok(c.create(id(n, "T"), 100+i))
	}
	for i, n := range all {
		w.at(c, id(n, "t"), i)
		w.at(c, id(n, "T"), 100+i)
		w.same(c.names(n), "T", "t")
		w.same(c.namespaces(n))
	}
	c.createNamespace("abc/x")
	for _, n := range all {
		if n != "abc" {
			w.same(c.namespaces(n))
		}
	}
	if got := len(c.namespaces("")); got != len(all) {
		t.Fatalf("%d namespaces of %d", got, len(all))
	}
}

func badNames(t *testing.T, w *World) {
	c := w.start()
	c.createNamespace("n")
	long := strings.Repeat("x", 5000)
	for _, namespace := range [][]string{nil, {""}, {"a", ""}, {long}, {"a\xff"}, {"a\x00"}} {
		_, err := c.CreateNamespace(t.Context(), catalog.CreateNamespaceRequest{Namespace: namespace})
		w.is(err, catalog.ErrInvalid)
		w.is(c.create(catalog.Identifier{Namespace: namespace, Name: "t"}, 1), catalog.ErrInvalid)
	}
	for _, name := range []string{"", long, "a\xff", "a\x00"} {
		w.is(c.create(id("n", name), 1), catalog.ErrInvalid)
		_, err := c.load(id("n", name))
		w.is(err, catalog.ErrInvalid)
	}
	w.same(c.namespaces(""), "n")
	w.same(c.names("n"))
}

func tables(t *testing.T, w *World) {
	c, other := w.start(), w.start()
	w.is(c.create(id("n", "t"), 1), catalog.ErrNotExist)
	c.createNamespace("n")
	_, err := c.load(id("n", "t"))
	w.is(err, catalog.ErrNotExist)
	w.ok(c.create(id("n", "t"), 1))
	w.is(other.create(id("n", "t"), 2), catalog.ErrAlreadyExists)
	w.at(other, id("n", "t"), 1)
	_, err = other.DropTable(t.Context(), catalog.DropTableRequest{Table: id("n", "t")})
	w.ok(err)
	_, err = c.DropTable(t.Context(), catalog.DropTableRequest{Table: id("n", "t")})
	w.is(err, catalog.ErrNotExist)
	_, err = c.load(id("n", "t"))
	w.is(err, catalog.ErrNotExist)
	w.ok(c.create(id("n", "t"), 3))
	w.at(other, id("n", "t"), 3)
}

func pages(t *testing.T, w *World) {
	c := w.start()
	_, err := c.ListTables(t.Context(), catalog.ListTablesRequest{Namespace: []string{"n"}})
	w.is(err, catalog.ErrNotExist)
	c.createNamespace("n/below")
	w.same(c.names("n"))
	w.ok(c.create(id("n/below", "x"), 1))
	var want []string
	for i := range 7 {
		w.ok(c.create(id("n", tableName(6-i)), 1))
		want = append(want, tableName(i))
	}
	w.same(c.names("n"), want...)
	w.same(c.names("n/below"), "x")
}

func rename(t *testing.T, w *World) {
	c := w.start()
	if !c.Describe().Renames {
		t.Skip("the catalog does not rename")
	}
	c.createNamespace("a")
	c.createNamespace("b")
	w.ok(c.create(id("a", "t"), 1))
	w.ok(c.create(id("b", "taken"), 2))
	to := func(from, to catalog.Identifier) error {
		_, err := c.RenameTable(t.Context(), catalog.RenameTableRequest{From: from, To: to})
		return err
	}
	w.is(to(id("a", "none"), id("a", "x")), catalog.ErrNotExist)
	w.is(to(id("a", "t"), id("none", "x")), catalog.ErrNotExist)
	w.is(to(id("a", "t"), id("b", "taken")), catalog.ErrAlreadyExists)
	w.at(c, id("a", "t"), 1)
	w.at(c, id("b", "taken"), 2)
	seen, err := c.load(id("a", "t"))
	w.ok(err)
	w.ok(to(id("a", "t"), id("b", "t")))
	_, err = c.load(id("a", "t"))
	w.is(err, catalog.ErrNotExist)
	got, err := c.load(id("b", "t"))
	w.ok(err)
	if got.MetadataLocation != seen.MetadataLocation {
		t.Fatalf("renaming moved the metadata from %s to %s", seen.MetadataLocation, got.MetadataLocation)
	}
}

func swaps(t *testing.T, w *World) {
	c, other := w.start(), w.start()
	c.createNamespace("n")
	table := id("n", "t")
	w.is(c.swap(t.Context(), table, catalog.LoadTableResponse{MetadataLocation: w.target.MetadataLocation(table, 1)}, 2), catalog.ErrNotExist)
	w.ok(c.create(table, 1))
	first, err := other.load(table)
	w.ok(err)
	w.ok(c.swap(t.Context(), table, first, 2))
	w.at(other, table, 2)
	w.is(other.swap(t.Context(), table, first, 3), catalog.ErrConflict)
	w.is(c.swap(t.Context(), table, first, 2), catalog.ErrConflict) // even to where it is
	w.at(c, table, 2)
	second, err := other.load(table)
	w.ok(err)
	w.ok(other.swap(t.Context(), table, second, 3))
	w.at(c, table, 3)
}

// Each of some clients swaps again and again; every acknowledged swap must be a step
// from the pointer that it expected, so the steps make one chain without a gap.
func racingSwaps(t *testing.T, w *World) {
	const clients, rounds = 4, 12
	first := w.start()
	first.createNamespace("n")
	table := id("n", "t")
	w.ok(first.create(table, 0))
	var all [clients]Client
	for i := range all {
		all[i] = w.start()
	}
	at := 0
	for range rounds {
		seen, err := first.load(table)
		w.ok(err)
		winner := w.one(race(clients, func(i int) error { return all[i].swap(t.Context(), table, seen, at+1+i) }), catalog.ErrConflict)
		w.at(first, table, at+1+winner)
		at += clients
	}
}

func racingCreates(_ *testing.T, w *World) {
	clients := []Client{w.start(), w.start(), w.start()}
	clients[0].createNamespace("n")
	for i := range 5 {
		table := id("n", tableName(i))
		winner := w.one(race(len(clients), func(i int) error { return clients[i].create(table, i) }), catalog.ErrAlreadyExists)
		w.at(clients[0], table, winner)
	}
}

func racingDrops(t *testing.T, w *World) {
	clients := []Client{w.start(), w.start(), w.start()}
	clients[0].createNamespace("n")
	for range 5 {
		w.ok(clients[0].create(id("n", "t"), 1))
		w.one(race(len(clients), func(i int) error {
			_, err := clients[i].DropTable(t.Context(), catalog.DropTableRequest{Table: id("n", "t")})
			return err
		}), catalog.ErrNotExist)
	}
}

// A writer that planned on a table which was dropped, and made anew by another, must
// not take the new one over.
func swapAfterDrop(t *testing.T, w *World) {
	c, other := w.start(), w.start()
	c.createNamespace("n")
	table := id("n", "t")
	w.ok(c.create(table, 1))
	seen, err := other.load(table)
	w.ok(err)
	_, err = c.DropTable(t.Context(), catalog.DropTableRequest{Table: table})
	w.ok(err)
	w.is(other.swap(t.Context(), table, seen, 2), catalog.ErrNotExist)
	_, err = c.load(table)
	w.is(err, catalog.ErrNotExist)
	w.ok(c.create(table, 5))
	w.is(other.swap(t.Context(), table, seen, 2), catalog.ErrConflict)
	w.at(c, table, 5)
}

// One that comes late must not take away the table that has the name by then.
func dropExpected(t *testing.T, w *World) {
	c := w.start()
	if c.Describe().Commit != catalog.SwapsMetadata {
		t.Skip("of Swappers")
	}
	c.createNamespace("n")
	table := id("n", "t")
	drop := func(n int) error {
		_, err := c.DropTable(t.Context(), catalog.DropTableRequest{Table: table, ExpectedLocation: w.target.MetadataLocation(table, n)})
		return err
	}
	w.is(drop(1), catalog.ErrNotExist)
	w.ok(c.create(table, 2))
	w.is(drop(1), catalog.ErrConflict)
	w.at(c, table, 2)
	w.ok(drop(2))
	w.is(drop(2), catalog.ErrNotExist)
}

func endedContext(t *testing.T, w *World) {
	c := w.start()
	c.createNamespace("n")
	table := id("n", "t")
	w.ok(c.create(table, 1))
	seen, err := c.load(table)
	w.ok(err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.is(c.swap(ctx, table, seen, 2), context.Canceled)
	_, err = c.CreateTable(ctx, catalog.CreateTableRequest{Table: id("n", "u"), MetadataLocation: w.target.MetadataLocation(id("n", "u"), 1)})
	w.is(err, context.Canceled)
	_, err = c.DropTable(ctx, catalog.DropTableRequest{Table: table})
	w.is(err, context.Canceled)
	_, err = c.LoadTable(ctx, catalog.LoadTableRequest{Table: table})
	w.is(err, context.Canceled)
	w.at(c, table, 1)
	w.same(c.names("n"), "t")
}

func closing(t *testing.T, w *World) {
	c, other := w.start(), w.start()
	c.createNamespace("n")
	w.ok(errors.Join(c.Close(), c.Close()))
	_, err := c.load(id("n", "t"))
	w.is(err, catalog.ErrUnavailable)
	_, err = c.CreateNamespace(t.Context(), catalog.CreateNamespaceRequest{Namespace: []string{"m"}})
	w.is(err, catalog.ErrUnavailable)
	w.same(other.namespaces(""), "n")
}
