package catalogtest_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/mink-project/mink/core/builtin/sqlcatalog"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/catalog/catalogtest"
)

// wrong is a good catalog but for what it is told to do.
type wrong struct {
	*sqlcatalog.Catalog
	how string
}

func (w wrong) SwapMetadata(ctx context.Context, req catalog.SwapMetadataRequest) (catalog.SwapMetadataResponse, error) {
	if w.how == "last writer wins" {
		now, err := w.LoadTable(ctx, catalog.LoadTableRequest{Table: req.Table})
		if err != nil {
			return catalog.SwapMetadataResponse{}, err
		}
		req.ExpectedLocation = now.MetadataLocation
	}
	resp, err := w.Catalog.SwapMetadata(ctx, req)
	switch {
	case w.how == "conflicts are unavailable" && errors.Is(err, catalog.ErrConflict):
		err = catalog.ErrUnavailable
	case w.how == "conflicts are lost" && errors.Is(err, catalog.ErrConflict):
		err = nil
	}
	return resp, err
}

func (w wrong) CreateTable(ctx context.Context, req catalog.CreateTableRequest) (catalog.LoadTableResponse, error) {
	resp, err := w.Catalog.CreateTable(ctx, req)
	if w.how == "creates over" && errors.Is(err, catalog.ErrAlreadyExists) {
		return resp, nil
	}
	return resp, err
}

func (w wrong) DropTable(ctx context.Context, req catalog.DropTableRequest) (catalog.DropTableResponse, error) {
	if w.how == "drops whatever it is" {
		req.ExpectedLocation = ""
	}
	return w.Catalog.DropTable(ctx, req)
}

func (w wrong) ListTables(ctx context.Context, req catalog.ListTablesRequest) (catalog.ListTablesResponse, error) {
	resp, err := w.Catalog.ListTables(ctx, req)
	if w.how == "one page" {
		resp.More = false
	}
	return resp, err
}

func (w wrong) Close() error {
	if w.how == "stays open" {
		return nil
	}
	return w.Catalog.Close()
}

func verdicts(t *testing.T, how string) map[string]catalogtest.Outcome {
	t.Helper()
	out := map[string]catalogtest.Outcome{}
	for _, c := range catalogtest.Checks() {
		url := "sqlite:" + filepath.Join(t.TempDir(), "catalog.db")
		out[c.Name] = catalogtest.RunCheck(t.Context(), c, catalogtest.Target{Shared: true, Start: func(ctx context.Context) (catalog.Catalog, error) {
			inner, err := sqlcatalog.Open(ctx, url, sqlcatalog.Default())
			return wrong{inner, how}, err
		}})
	}
	return out
}

// Each fault is found by the check that is about it, and a good catalog passes them all.
func TestTheKitFindsFaults(t *testing.T) {
	for name, o := range verdicts(t, "good") {
		if o.Failed {
			t.Errorf("%s of a good catalog: %s", name, o.Text)
		}
	}
	for how, check := range map[string]string{
		"last writer wins":          "ACommitNeedsTheExpectedState",
		"conflicts are unavailable": "OfRacingCommitsOneWins",
		"conflicts are lost":        "ACommitNeedsTheExpectedState",
		"creates over":              "OfRacingCreatesOneWins",
		"drops whatever it is":      "ADropNeedsTheExpectedPointer",
		"one page":                  "TablesAreListedInPages",
		"stays open":                "CloseEndsCalls",
	} {
		if o := verdicts(t, how)[check]; !o.Failed {
			t.Errorf("%s: %s passes", how, check)
		}
	}
}
