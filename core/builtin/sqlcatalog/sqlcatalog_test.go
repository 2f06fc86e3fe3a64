package sqlcatalog_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mink-project/mink/core/builtin/sqlcatalog"
	"github.com/mink-project/mink/core/metalog/pgtest"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/catalog/catalogtest"
)

func target(url string) catalogtest.Target {
	return catalogtest.Target{
		Start: func(ctx context.Context) (catalog.Catalog, error) {
			return sqlcatalog.Open(ctx, url, sqlcatalog.Default())
		},
		MetadataLocation: func(_ catalog.Identifier, n int) string {
			return fmt.Sprintf("file:///warehouse/metadata/%05d.metadata.json", n)
		},
	}
}

func TestSQLiteKeepsTheContract(t *testing.T) {
	catalogtest.Run(t, func(t *testing.T) catalogtest.Target {
		return target("sqlite:" + filepath.Join(t.TempDir(), "catalog.db"))
	})
}

func TestPostgresKeepsTheContract(t *testing.T) {
	pg := pgtest.Start(t)
	catalogtest.Run(t, func(t *testing.T) catalogtest.Target { return target(pg.Schema(t)) })
}

// A database that dies under commits loses none that was acknowledged, and its clients
// say of the others whether they may have happened.
func TestACrashOfPostgresLosesNoCommit(t *testing.T) {
	pg := pgtest.Start(t)
	c, err := sqlcatalog.Open(t.Context(), pg.URL(), sqlcatalog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	table := catalog.Identifier{Namespace: []string{"n"}, Name: "t"}
	at := func(i int) string { return fmt.Sprintf("file:///m/%d", i) }
	_, err = c.CreateNamespace(t.Context(), catalog.CreateNamespaceRequest{Namespace: table.Namespace})
	if err == nil {
		_, err = c.CreateTable(t.Context(), catalog.CreateTableRequest{Table: table, MetadataLocation: at(0)})
	}
	if err != nil {
		t.Fatal(err)
	}
	const last = 400
	down := make(chan error, 1)
	seen, crashes, next := 0, 0, 1
	for ; next < last || crashes == 0; next++ {
		if next == last/2 {
			go func() { down <- errors.Join(pg.Down("QUIT"), pg.Up(context.WithoutCancel(t.Context()))) }()
		}
		_, err := c.SwapMetadata(t.Context(), catalog.SwapMetadataRequest{Table: table, ExpectedLocation: at(seen), NewLocation: at(next)})
		switch {
		case err == nil:
			seen = next
			continue
		case errors.Is(err, catalog.ErrConflict) || errors.Is(err, catalog.ErrNotExist):
			t.Fatalf("commit %d on %d: %v", next, seen, err)
		}
		if crashes++; crashes == 1 {
			if err := <-down; err != nil {
				t.Fatal(err)
			}
		}
		got, loadErr := c.LoadTable(t.Context(), catalog.LoadTableRequest{Table: table})
		switch {
		case loadErr != nil:
			// A connection that the crash cut; the next one is new.
		case got.MetadataLocation == at(seen):
		case got.MetadataLocation == at(next) && errors.Is(err, catalog.ErrUnknownOutcome):
			seen = next
		default:
			t.Fatalf("after %v on %d: the table is at %s", err, seen, got.MetadataLocation)
		}
		if loadErr != nil && errors.Is(err, catalog.ErrUnknownOutcome) {
			got, err := c.LoadTable(t.Context(), catalog.LoadTableRequest{Table: table})
			if err != nil {
				t.Fatal(err)
			}
			if got.MetadataLocation == at(next) {
				seen = next
			}
		}
	}
	got, err := c.LoadTable(t.Context(), catalog.LoadTableRequest{Table: table})
	if err != nil || got.MetadataLocation != at(seen) {
		t.Fatal(got, seen, err)
	}
}

func TestURLsThatAreWrongSayWhy(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("this is no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		url  string
		want error
	}{
		{"", catalog.ErrInvalid},
		{"mysql://x", catalog.ErrInvalid},
		{"sqlite:", catalog.ErrInvalid},
		{"sqlite::memory:", catalog.ErrInvalid},
		{"sqlite:" + filepath.Join(dir, "none", "x.db"), catalog.ErrInvalid},
		{"sqlite:" + garbage, catalog.ErrCorrupt},
		{"postgres://user:secret@127.0.0.1:1/x?connect_timeout=1", catalog.ErrUnavailable},
		{"postgres://user:secret@[/x", catalog.ErrInvalid},
	} {
		_, err := sqlcatalog.Open(t.Context(), c.url, sqlcatalog.Default())
		if !errors.Is(err, c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", c.url, err)
		}
	}
}

func TestPostgresThatMayLoseCommitsIsRefused(t *testing.T) {
	pg := pgtest.Start(t, "synchronous_commit=off")
	if _, err := sqlcatalog.Open(t.Context(), pg.URL(), sqlcatalog.Default()); !errors.Is(err, catalog.ErrInvalid) || !strings.Contains(err.Error(), "synchronous_commit") {
		t.Fatal(err)
	}
}

// Views of other writers are not shown as tables, and keep their names.
func TestViewsAreLeftAlone(t *testing.T) {
	pg := pgtest.Start(t)
	url := pg.URL()
	c, err := sqlcatalog.Open(t.Context(), url, sqlcatalog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pg.Exec(t, `INSERT INTO iceberg_tables VALUES ('mink', 'n', 'v', 'file:///v', NULL, 'VIEW'), ('mink', 'n', 'old', 'file:///old', NULL, NULL)`)
	view := catalog.Identifier{Namespace: []string{"n"}, Name: "v"}
	if _, err := c.LoadTable(t.Context(), catalog.LoadTableRequest{Table: view}); !errors.Is(err, catalog.ErrNotExist) {
		t.Fatal(err)
	}
	if _, err := c.DropTable(t.Context(), catalog.DropTableRequest{Table: view}); !errors.Is(err, catalog.ErrNotExist) {
		t.Fatal(err)
	}
	if _, err := c.CreateTable(t.Context(), catalog.CreateTableRequest{Table: view, MetadataLocation: "file:///t"}); !errors.Is(err, catalog.ErrAlreadyExists) {
		t.Fatal(err)
	}
	got, err := c.ListTables(t.Context(), catalog.ListTablesRequest{Namespace: view.Namespace})
	if err != nil || len(got.Names) != 1 || got.Names[0] != "old" {
		t.Fatal(got, err)
	}
}
