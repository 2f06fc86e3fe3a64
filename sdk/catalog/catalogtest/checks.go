package catalogtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mink-project/mink/sdk/catalog"
)

const checkRename = "Rename"

// Checks are all of them.
func Checks() []Check {
	const swapsOnly, commitsOnly = catalog.SwapsMetadata, catalog.CommitsUpdates
	return []Check{
		{"Namespaces", 0, namespaces},
		{"NestedNamespaces", 0, nestedNamespaces},
		{"NamespaceProperties", 0, namespaceProperties},
		{"NamespacesAreDroppedWhenEmpty", 0, dropNamespaces},
		{"NamesKeepApart", 0, namesKeepApart},
		{"BadNamesAreRefused", 0, badNames},
		{"Tables", 0, tables},
		{"TablesAreListedInPages", 0, pages},
		{checkRename, 0, rename},
		{"ACommitNeedsTheExpectedState", 0, swaps},
		{"OfRacingCommitsOneWins", 0, racingSwaps},
		{"OfRacingCreatesOneWins", 0, racingCreates},
		{"OfRacingDropsOneWins", 0, racingDrops},
		{"ACommitToADroppedTableChangesNothing", 0, swapAfterDrop},
		{"ADropNeedsTheExpectedPointer", swapsOnly, dropExpected},
		{"RequirementsAreChecked", commitsOnly, requirements},
		{"AllUpdatesOrNone", commitsOnly, allOrNone},
		{"ACommitMakesATable", commitsOnly, createByCommit},
		{"AnEndedContextChangesNothing", 0, endedContext},
		{"CloseEndsCalls", 0, closing},
	}
}

func namespaces(w *World) {
	c, other := w.start(), w.start()
	w.same(c.namespaces(""))
	for range 2 {
		c.createNamespace("sales")
	}
	got, err := c.CreateNamespace(w.Context(), catalog.CreateNamespaceRequest{Namespace: w.levels("sales")})
	w.ok(err)
	if !got.Existed {
		w.Fatalf("the namespace was there, and that was not said")
	}
	c.createNamespace("eu")
	w.same(other.namespaces(""), "eu", "sales")
	_, err = c.ListNamespaces(w.Context(), catalog.ListNamespacesRequest{Parent: w.levels("none")})
	w.is(err, catalog.ErrNotExist)
	_, err = c.LoadNamespace(w.Context(), catalog.LoadNamespaceRequest{Namespace: w.levels("none")})
	w.is(err, catalog.ErrNotExist)
}

func nestedNamespaces(w *World) {
	c, other := w.start(), w.start()
	if w.d.PlainNames {
		for _, n := range []string{"eu/shop", "Eu", "e-u"} {
			_, err := c.CreateNamespace(w.Context(), catalog.CreateNamespaceRequest{Namespace: w.levels(n)})
			w.is(err, catalog.ErrInvalid)
		}
		w.same(c.namespaces(""))
		return
	}
	c.createNamespace("sales")
	c.createNamespace("eu/shop/orders")
	c.createNamespace("eu/bank")
	w.same(other.namespaces(""), "eu", "sales")
	w.same(other.namespaces("eu"), "eu/bank", "eu/shop")
	w.same(other.namespaces("eu/shop"), "eu/shop/orders")
	w.same(other.namespaces("sales"))
	_, err := c.LoadNamespace(w.Context(), catalog.LoadNamespaceRequest{Namespace: w.levels("eu")}) // made with what is below it
	w.ok(err)
}

func namespaceProperties(w *World) {
	c, other := w.start(), w.start()
	c.createNamespace("n", "owner", "ann", "x", "1")
	c.createNamespace("n", "owner", "bob") // keeps what is there
	// A catalog may have properties of its own beside them.
	has := func(want map[string]string) {
		w.Helper()
		got, err := other.LoadNamespace(w.Context(), catalog.LoadNamespaceRequest{Namespace: w.levels("n")})
		w.ok(err)
		maps.DeleteFunc(got.Properties, func(k, _ string) bool { return k != "owner" && k != "x" && k != "y" && k != "a" })
		if !maps.Equal(got.Properties, want) {
			w.Fatalf("properties %v, want %v", got.Properties, want)
		}
	}
	has(map[string]string{"owner": "ann", "x": "1"})
	update := func(set map[string]string, remove ...string) (catalog.UpdateNamespaceResponse, error) {
		return c.UpdateNamespace(w.Context(), catalog.UpdateNamespaceRequest{Namespace: w.levels("n"), Set: set, Remove: remove})
	}
	got, err := update(map[string]string{"owner": "eve's \"ü\"", "y": ""}, "x", "none")
	w.ok(err)
	w.same(got.Removed, "x")
	has(map[string]string{"owner": "eve's \"ü\"", "y": ""})
	_, err = update(map[string]string{"a": "1", "y": "2"}, "y")
	w.is(err, catalog.ErrInvalid)
	has(map[string]string{"owner": "eve's \"ü\"", "y": ""})
	_, err = c.UpdateNamespace(w.Context(), catalog.UpdateNamespaceRequest{Namespace: w.levels("none"), Set: map[string]string{"a": "1"}})
	w.is(err, catalog.ErrNotExist)
	_, err = update(nil, "owner", "y")
	w.ok(err)
	_, err = other.LoadNamespace(w.Context(), catalog.LoadNamespaceRequest{Namespace: w.levels("n")})
	w.ok(err) // still there without any
}

func dropNamespaces(w *World) {
	c := w.start()
	drop := func(namespace string) error {
		_, err := c.DropNamespace(w.Context(), catalog.DropNamespaceRequest{Namespace: w.levels(namespace)})
		return err
	}
	w.is(drop("a"), catalog.ErrNotExist)
	c.createNamespace("ab")
	if !w.d.PlainNames {
		c.createNamespace("a/b")
		w.is(drop("a"), catalog.ErrNotEmpty)
		w.ok(drop("a/b"))
		if err := drop("a"); err != nil { // it may have been there for what was below it alone
			w.is(err, catalog.ErrNotExist)
		}
	}
	w.ok(c.create(w.id("ab", "t"), 1))
	w.is(drop("ab"), catalog.ErrNotEmpty)
	_, err := c.DropTable(w.Context(), catalog.DropTableRequest{Table: w.id("ab", "t")})
	w.ok(err)
	w.ok(drop("ab"))
	w.is(drop("ab"), catalog.ErrNotExist)
	w.same(c.namespaces(""))
}

// Names that a pattern, a fold of case or a join of levels would confuse.
func namesKeepApart(w *World) {
	c := w.start()
	all, other := []string{"a_c", "abc", "a%c", "ABC", "a!c", "ü", "'; DROP TABLE iceberg_tables; --"}, "T"
	if w.d.PlainNames {
		all, other = []string{"a_c", "abc", "a__c", "_"}, "_t"
	}
	for i, n := range all {
		c.createNamespace(n)
		w.ok(c.create(w.id(n, "t"), i))
		w.ok(c.create(w.id(n, other), 100+i))
	}
	for i, n := range all {
		w.at(c, w.id(n, "t"), i)
		w.at(c, w.id(n, other), 100+i)
		w.same(c.names(n), other, "t")
	}
	if !w.d.PlainNames {
		c.createNamespace("abc/x")
		for _, n := range all {
			if n != "abc" {
				w.same(c.namespaces(n))
			}
		}
	}
	if got := len(c.namespaces("")); got != len(all) {
		w.Fatalf("%d namespaces of %d", got, len(all))
	}
}

func badNames(w *World) {
	c := w.start()
	c.createNamespace("n")
	long := strings.Repeat("x", 5000)
	bad := [][]string{nil, {""}, {"a", ""}, {long}, {"a\xff"}, {"a\x00"}}
	for _, namespace := range bad {
		_, err := c.CreateNamespace(w.Context(), catalog.CreateNamespaceRequest{Namespace: namespace})
		w.is(err, catalog.ErrInvalid)
		_, err = c.CreateTable(w.Context(), w.createRequest(catalog.Identifier{Namespace: namespace, Name: "t"}, 1))
		w.is(err, catalog.ErrInvalid)
	}
	for _, name := range []string{"", long, "a\xff", "a\x00"} {
		w.is(c.create(w.id("n", name), 1), catalog.ErrInvalid)
		_, err := c.load(w.id("n", name))
		w.is(err, catalog.ErrInvalid)
	}
	w.same(c.namespaces(""), "n")
	w.same(c.names("n"))
}

func tables(w *World) {
	c, other := w.start(), w.start()
	w.is(c.create(w.id("n", "t"), 1), catalog.ErrNotExist)
	c.createNamespace("n")
	_, err := c.load(w.id("n", "t"))
	w.is(err, catalog.ErrNotExist)
	w.ok(c.create(w.id("n", "t"), 1))
	w.is(other.create(w.id("n", "t"), 2), catalog.ErrAlreadyExists)
	w.at(other, w.id("n", "t"), 1)
	_, err = other.DropTable(w.Context(), catalog.DropTableRequest{Table: w.id("n", "t")})
	w.ok(err)
	_, err = c.DropTable(w.Context(), catalog.DropTableRequest{Table: w.id("n", "t")})
	w.is(err, catalog.ErrNotExist)
	_, err = c.load(w.id("n", "t"))
	w.is(err, catalog.ErrNotExist)
	w.ok(c.create(w.id("n", "t"), 3))
	w.at(other, w.id("n", "t"), 3)
}

func pages(w *World) {
	c := w.start()
	_, err := c.ListTables(w.Context(), catalog.ListTablesRequest{Namespace: w.levels("n")})
	w.is(err, catalog.ErrNotExist)
	c.createNamespace("n")
	w.same(c.names("n"))
	if !w.d.PlainNames {
		c.createNamespace("n/below")
		w.ok(c.create(w.id("n/below", "x"), 1))
	}
	var want []string
	for i := range 7 {
		w.ok(c.create(w.id("n", tableName(6-i)), 1))
		want = append(want, tableName(i))
	}
	w.same(c.names("n"), want...)
	if !w.d.PlainNames {
		w.same(c.names("n/below"), "x")
	}
}

func rename(w *World) {
	c := w.start()
	c.createNamespace("a")
	c.createNamespace("b")
	w.ok(c.create(w.id("a", "t"), 1))
	w.ok(c.create(w.id("b", "taken"), 2))
	to := func(from, to catalog.Identifier) error {
		_, err := c.RenameTable(w.Context(), catalog.RenameTableRequest{From: from, To: to})
		return err
	}
	w.is(to(w.id("a", "none"), w.id("a", "x")), catalog.ErrNotExist)
	w.is(to(w.id("a", "t"), w.id("none", "x")), catalog.ErrNotExist)
	w.is(to(w.id("a", "t"), w.id("b", "taken")), catalog.ErrAlreadyExists)
	w.at(c, w.id("a", "t"), 1)
	w.at(c, w.id("b", "taken"), 2)
	seen, err := c.load(w.id("a", "t"))
	w.ok(err)
	w.ok(to(w.id("a", "t"), w.id("b", "t")))
	_, err = c.load(w.id("a", "t"))
	w.is(err, catalog.ErrNotExist)
	got, err := c.load(w.id("b", "t"))
	w.ok(err)
	if got.MetadataLocation != seen.MetadataLocation {
		w.Fatalf("renaming moved the metadata from %s to %s", seen.MetadataLocation, got.MetadataLocation)
	}
}

func swaps(w *World) {
	c, other := w.start(), w.start()
	c.createNamespace("n")
	table := w.id("n", "t")
	w.is(c.swap(w.Context(), table, catalog.LoadTableResponse{MetadataLocation: w.target.MetadataLocation(table, 1)}, 2), catalog.ErrNotExist)
	w.ok(c.create(table, 1))
	first, err := other.load(table)
	w.ok(err)
	w.ok(c.swap(w.Context(), table, first, 2))
	w.at(other, table, 2)
	w.is(other.swap(w.Context(), table, first, 3), catalog.ErrConflict)
	if w.d.Commit == catalog.SwapsMetadata {
		w.is(c.swap(w.Context(), table, first, 2), catalog.ErrConflict) // even to where it is
	}
	w.at(c, table, 2)
	second, err := other.load(table)
	w.ok(err)
	w.ok(other.swap(w.Context(), table, second, 3))
	w.at(c, table, 3)
}

// Each of some clients swaps again and again; every acknowledged swap must be a step
// from the pointer that it expected, so the steps make one chain without a gap.
func racingSwaps(w *World) {
	const clients, rounds = 4, 12
	first := w.start()
	first.createNamespace("n")
	table := w.id("n", "t")
	w.ok(first.create(table, 0))
	var all [clients]Client
	for i := range all {
		all[i] = w.start()
	}
	at := 0
	for range rounds {
		seen, err := first.load(table)
		w.ok(err)
		winner := w.one(race(clients, func(i int) error { return all[i].swap(w.Context(), table, seen, at+1+i) }), catalog.ErrConflict)
		w.at(first, table, at+1+winner)
		at += clients
	}
}

func racingCreates(w *World) {
	clients := []Client{w.start(), w.start(), w.start()}
	clients[0].createNamespace("n")
	for i := range 5 {
		table := w.id("n", tableName(i))
		winner := w.one(race(len(clients), func(i int) error { return clients[i].create(table, i) }), catalog.ErrAlreadyExists)
		w.at(clients[0], table, winner)
	}
}

func racingDrops(w *World) {
	clients := []Client{w.start(), w.start(), w.start()}
	clients[0].createNamespace("n")
	for range 5 {
		w.ok(clients[0].create(w.id("n", "t"), 1))
		w.one(race(len(clients), func(i int) error {
			_, err := clients[i].DropTable(w.Context(), catalog.DropTableRequest{Table: w.id("n", "t")})
			return err
		}), catalog.ErrNotExist)
	}
}

// A writer that planned on a table which was dropped, and made anew by another, must
// not take the new one over.
func swapAfterDrop(w *World) {
	c, other := w.start(), w.start()
	c.createNamespace("n")
	table := w.id("n", "t")
	w.ok(c.create(table, 1))
	seen, err := other.load(table)
	w.ok(err)
	_, err = c.DropTable(w.Context(), catalog.DropTableRequest{Table: table})
	w.ok(err)
	w.is(other.swap(w.Context(), table, seen, 2), catalog.ErrNotExist)
	_, err = c.load(table)
	w.is(err, catalog.ErrNotExist)
	w.ok(c.create(table, 5))
	w.is(other.swap(w.Context(), table, seen, 2), catalog.ErrConflict)
	w.at(c, table, 5)
}

// One that comes late must not take away the table that has the name by then.
func dropExpected(w *World) {
	c := w.start()
	c.createNamespace("n")
	table := w.id("n", "t")
	drop := func(n int) error {
		_, err := c.DropTable(w.Context(), catalog.DropTableRequest{Table: table, ExpectedLocation: w.target.MetadataLocation(table, n)})
		return err
	}
	w.is(drop(1), catalog.ErrNotExist)
	w.ok(c.create(table, 2))
	w.is(drop(1), catalog.ErrConflict)
	w.at(c, table, 2)
	w.ok(drop(2))
	w.is(drop(2), catalog.ErrNotExist)
}

func endedContext(w *World) {
	c := w.start()
	c.createNamespace("n")
	table := w.id("n", "t")
	w.ok(c.create(table, 1))
	seen, err := c.load(table)
	w.ok(err)
	ctx, cancel := context.WithCancel(w.Context())
	cancel()
	w.is(c.swap(ctx, table, seen, 2), context.Canceled)
	_, err = c.CreateTable(ctx, w.createRequest(w.id("n", "u"), 1))
	w.is(err, context.Canceled)
	_, err = c.DropTable(ctx, catalog.DropTableRequest{Table: table})
	w.is(err, context.Canceled)
	_, err = c.LoadTable(ctx, catalog.LoadTableRequest{Table: table})
	w.is(err, context.Canceled)
	w.at(c, table, 1)
	w.same(c.names("n"), "t")
}

func closing(w *World) {
	c, other := w.start(), w.start()
	c.createNamespace("n")
	w.ok(errors.Join(c.Close(), c.Close()))
	_, err := c.load(w.id("n", "t"))
	w.is(err, catalog.ErrUnavailable)
	_, err = c.CreateNamespace(w.Context(), catalog.CreateNamespaceRequest{Namespace: w.levels("m")})
	w.is(err, catalog.ErrUnavailable)
	w.same(other.namespaces(""), "n")
}

// Each requirement of the specification that does not hold is a conflict, and the whole
// commit with it.
func requirements(w *World) {
	c := w.start()
	c.createNamespace("n")
	table := w.id("n", "t")
	w.ok(c.create(table, 1))
	got, err := c.load(table)
	w.ok(err)
	at := w.metadata(got)
	hold := []object{
		{"type": "assert-table-uuid", "uuid": at.UUID},
		{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": nil},
		{"type": "assert-last-assigned-field-id", "last-assigned-field-id": at.LastColumnID},
		{"type": "assert-current-schema-id", "current-schema-id": at.Schema},
		{"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": at.LastSpecID},
		{"type": "assert-default-spec-id", "default-spec-id": at.Spec},
		{"type": "assert-default-sort-order-id", "default-sort-order-id": at.SortOrder},
	}
	for _, fails := range []object{
		{"type": "assert-create"},
		{"type": "assert-table-uuid", "uuid": "00000000-0000-0000-0000-000000000002"},
		{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 5},
		{"type": "assert-last-assigned-field-id", "last-assigned-field-id": at.LastColumnID + 1},
		{"type": "assert-current-schema-id", "current-schema-id": at.Schema + 1},
		{"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": at.LastSpecID + 1},
		{"type": "assert-default-spec-id", "default-spec-id": at.Spec + 1},
		{"type": "assert-default-sort-order-id", "default-sort-order-id": at.SortOrder + 1},
	} {
		all := append(slices.Clone(hold), fails)
		if fails["type"] == "assert-create" { // which goes with no other
			all = []object{fails}
		}
		err := c.commit(w.Context(), table, all, []object{setN(2)})
		if !errors.Is(err, catalog.ErrConflict) {
			w.Fatalf("%v: got %v, want %v", fails, err, catalog.ErrConflict)
		}
		w.at(c, table, 1)
	}
	w.ok(c.commit(w.Context(), table, hold, []object{setN(3)}))
	w.at(c, table, 3)
}

func allOrNone(w *World) {
	c := w.start()
	c.createNamespace("n")
	table := w.id("n", "t")
	w.ok(c.create(table, 1))
	err := c.commit(w.Context(), table, nil, []object{setN(2), {"action": "set-current-schema", "schema-id": 77}})
	if !errors.Is(err, catalog.ErrInvalid) && !errors.Is(err, catalog.ErrConflict) {
		w.Fatalf("a schema that is not there: got %v, want %v", err, catalog.ErrInvalid)
	}
	w.at(c, table, 1)
}

func createByCommit(w *World) {
	c, other := w.start(), w.start()
	c.createNamespace("n")
	table := w.id("n", "t")
	build := func(c Client, n int) error {
		return c.commit(w.Context(), table, []object{{"type": "assert-create"}}, []object{
			{"action": "assign-uuid", "uuid": "2f9b1a1e-6d0c-4c3f-9a52-0000000000" + fmt.Sprintf("%02x", n)},
			{"action": "upgrade-format-version", "format-version": 2},
			{"action": "add-schema", "schema": schemaOf(1), "last-column-id": 1}, {"action": "set-current-schema", "schema-id": -1},
			{"action": "add-spec", "spec": object{"spec-id": 0, "fields": []object{}}}, {"action": "set-default-spec", "spec-id": -1},
			{"action": "add-sort-order", "sort-order": object{"order-id": 0, "fields": []object{}}}, {"action": "set-default-sort-order", "sort-order-id": -1},
			{"action": "set-location", "location": w.location(c, table)}, setN(n),
		})
	}
	clients := []Client{c, other}
	winner := w.one(race(2, func(i int) error { return build(clients[i], 10+i) }), catalog.ErrConflict)
	w.at(c, table, 10+winner)
	w.is(build(other, 20), catalog.ErrConflict)
	w.at(c, table, 10+winner)
}
