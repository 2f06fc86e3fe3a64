package pluginhost_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mink-project/mink/core/pluginhost"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/catalog/catalogtest"
	"github.com/mink-project/mink/sdk/host/hosttest"
)

func openCatalog(t *testing.T, h *pluginhost.Host, name, dir string) catalog.Catalog {
	t.Helper()
	c, err := h.OpenCatalog(t.Context(), name, map[string]string{"dir": dir})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSupervisedCatalogConforms(t *testing.T) {
	h, plugins := start(t, nil)
	hosttest.InstallCatalog(t, plugins, "sql")
	keep := openCatalog(t, h, "sql", t.TempDir()) // the process stays
	catalogtest.Run(t, func(t *testing.T) catalogtest.Target {
		dir := t.TempDir()
		return catalogtest.Target{Start: func(ctx context.Context) (catalog.Catalog, error) {
			return h.OpenCatalog(ctx, "sql", map[string]string{"dir": dir})
		}}
	})
	if st := h.Stats(); len(st) != 1 || st[0].Kind != "catalog" || st[0].Restarts != 0 || st[0].InFlight != 0 {
		t.Errorf("%+v", st)
	}
	if err := keep.Close(); err != nil {
		t.Error(err)
	}
	if st := h.Stats(); len(st) != 0 {
		t.Errorf("its last catalog is closed, and it still runs: %+v", st)
	}
}

var lakeTable = catalog.Identifier{Namespace: []string{"n"}, Name: "t"}

func file(n int) string { return fmt.Sprintf("file:///w/%d.metadata.json", n) }

func newTable(t *testing.T, c catalog.Catalog) {
	t.Helper()
	_, err := c.CreateNamespace(t.Context(), catalog.CreateNamespaceRequest{Namespace: lakeTable.Namespace})
	if err == nil {
		_, err = c.CreateTable(t.Context(), catalog.CreateTableRequest{Table: lakeTable, MetadataLocation: file(0)})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func swap(ctx context.Context, c catalog.Catalog, from, to int) error {
	_, err := c.(catalog.Swapper).SwapMetadata(ctx, catalog.SwapMetadataRequest{Table: lakeTable, ExpectedLocation: file(from), NewLocation: file(to)})
	return err
}

// at waits for an answer: the plugin may be starting.
func at(t *testing.T, c catalog.Catalog) (location string) {
	t.Helper()
	waitFor(t, "the catalog answers", func() bool {
		got, err := c.LoadTable(t.Context(), catalog.LoadTableRequest{Table: lakeTable})
		location = got.MetadataLocation
		return err == nil
	})
	return location
}

// A catalog whose process is killed under commits loses none that was acknowledged, and
// answers of the others whether they may have happened: a conflict that is none would
// make a writer take its own commit for another's.
func TestKilledCatalogLosesNoCommit(t *testing.T) {
	const kills = 10
	h, plugins := start(t, nil)
	hosttest.InstallCatalog(t, plugins, "sql")
	c := openCatalog(t, h, "sql", t.TempDir())
	newTable(t, c)
	ended, ending := context.WithCancel(t.Context())
	defer ending()
	go func() {
		defer ending()
		for last, n := 0, 0; n < kills; {
			st := h.Stats()
			if len(st) == 1 && st[0].PID != 0 && st[0].PID != last {
				time.Sleep(time.Duration(n*3) * time.Millisecond)
				if syscall.Kill(st[0].PID, syscall.SIGKILL) == nil {
					last, n = st[0].PID, n+1
				}
			}
			time.Sleep(time.Millisecond)
		}
	}()
	seen, unknown := 0, 0
	for next := 1; ended.Err() == nil; next++ {
		err := swap(t.Context(), c, seen, next)
		switch {
		case err == nil:
			seen = next
			continue
		case errors.Is(err, catalog.ErrConflict) || errors.Is(err, catalog.ErrNotExist):
			t.Fatalf("commit %d on %d: %v", next, seen, err)
		case errors.Is(err, catalog.ErrUnknownOutcome):
			unknown++
		case !errors.Is(err, catalog.ErrUnavailable):
			t.Fatalf("commit %d on %d: %v", next, seen, err)
		}
		switch now := at(t, c); now {
		case file(seen):
		case file(next):
			if !errors.Is(err, catalog.ErrUnknownOutcome) {
				t.Fatalf("commit %d happened, and its error says that nothing was changed: %v", next, err)
			}
			seen = next
		default:
			t.Fatalf("the table is at %s, after commit %d on %d", now, next, seen)
		}
	}
	if unknown == 0 {
		t.Error("no commit met a kill")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A commit that ends the plugin, or hangs it, is of unknown outcome, and the catalog
// serves again.
func TestCommitsThatHarmThePlugin(t *testing.T) {
	for _, behaviour := range []string{"panics", "stuck"} {
		t.Run(behaviour, func(t *testing.T) {
			h, plugins := start(t, nil)
			hosttest.InstallCatalog(t, plugins, behaviour)
			c := openCatalog(t, h, behaviour, t.TempDir())
			newTable(t, c)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if err := swap(ctx, c, 0, 1); !errors.Is(err, catalog.ErrUnknownOutcome) {
				t.Errorf("%v", err)
			}
			if now := at(t, c); now != file(1) {
				t.Errorf("the table is at %s", now)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCatalogsThatAreNotThere(t *testing.T) {
	h, plugins := start(t, nil, "mem")
	hosttest.InstallCatalog(t, plugins, "sql")
	for _, c := range []struct {
		name    string
		options map[string]string
		says    string
	}{
		{"sqll", nil, "Did you mean sql?"},
		{"mem", nil, "Installed are sql."}, // a store
		{"rest", nil, "mink plugin install"},
		{"sql", map[string]string{"dri": "x"}, "did you mean dir?"},
	} {
		if _, err := h.FindCatalog(c.name, c.options); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %q", c.name, err, c.says)
		}
		if _, err := h.OpenCatalog(t.Context(), c.name, c.options); err == nil {
			t.Errorf("%s opened", c.name)
		}
	}
	if _, err := h.OpenCatalog(t.Context(), "sql", nil); !errors.Is(err, catalog.ErrInvalid) || !strings.Contains(err.Error(), "dir is not set") {
		t.Error(err)
	}
	if st := h.Stats(); len(st) != 0 {
		t.Errorf("a plugin runs of which nothing is open: %+v", st)
	}
}

// A catalog that commits in another way after a restart is not used: the lake's commits
// would go nowhere.
func TestCatalogThatTurnedIsNotUsed(t *testing.T) {
	h, plugins := start(t, nil)
	hosttest.InstallCatalog(t, plugins, "sql")
	dir := t.TempDir()
	c := openCatalog(t, h, "sql", dir)
	newTable(t, c)
	turned := filepath.Join(dir, "turned")
	if err := os.WriteFile(turned, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid(t, h), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the new process is refused", func() bool {
		err := swap(t.Context(), c, 0, 1)
		return errors.Is(err, catalog.ErrUnavailable) && strings.Contains(err.Error(), "other things")
	})
	if err := os.Remove(turned); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "it commits again", func() bool { return swap(t.Context(), c, 0, 1) == nil })
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
