package wire_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/mink-project/mink/core/builtin/sqlcatalog"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/catalog/catalogtest"
	"github.com/mink-project/mink/sdk/internal/wire/v1"
	"github.com/mink-project/mink/sdk/objstore"
)

func TestCatalogConformsOverTheWire(t *testing.T) {
	catalogtest.Run(t, func(t *testing.T) catalogtest.Target {
		url := "sqlite:" + filepath.Join(t.TempDir(), "catalog.db")
		conn := wire.Dial(t, func(s *grpc.Server) {
			wire.RegisterCatalog(s, func(ctx context.Context, _ map[string]string) (catalog.Catalog, error) {
				return sqlcatalog.Open(ctx, url, sqlcatalog.Default())
			})
		})
		return catalogtest.Target{Start: func(ctx context.Context) (catalog.Catalog, error) { return wire.OpenCatalog(ctx, conn, nil) }}
	})
}

// answering is a catalog of both kinds that answers the same to every call.
type answering struct {
	catalog.Catalog
	d     catalog.Description
	table catalog.LoadTableResponse
	err   error
}

func (a *answering) Describe() catalog.Description { return a.d }
func (a *answering) Close() error                  { return nil }

func (a *answering) LoadTable(context.Context, catalog.LoadTableRequest) (catalog.LoadTableResponse, error) {
	return a.table, a.err
}

func (a *answering) CommitTable(context.Context, catalog.CommitTableRequest) (catalog.LoadTableResponse, error) {
	return a.table, a.err
}

func (a *answering) SwapMetadata(context.Context, catalog.SwapMetadataRequest) (catalog.SwapMetadataResponse, error) {
	return catalog.SwapMetadataResponse{}, a.err
}

func (a *answering) DropNamespace(context.Context, catalog.DropNamespaceRequest) (catalog.DropNamespaceResponse, error) {
	return catalog.DropNamespaceResponse{}, a.err
}

func serve(t *testing.T, a *answering) catalog.Catalog {
	t.Helper()
	conn := wire.Dial(t, func(s *grpc.Server) {
		wire.RegisterCatalog(s, func(context.Context, map[string]string) (catalog.Catalog, error) { return a, nil })
	})
	c, err := wire.OpenCatalog(t.Context(), conn, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var table = catalog.Identifier{Namespace: []string{"n"}, Name: "t"}

func TestCatalogErrorsCrossTheWire(t *testing.T) {
	a := &answering{d: catalog.Description{Name: "x", Commit: catalog.CommitsUpdates}}
	c := serve(t, a)
	commit := func() error {
		_, err := c.(catalog.Committer).CommitTable(t.Context(), catalog.CommitTableRequest{Table: table})
		return err
	}
	for _, want := range []error{
		catalog.ErrNotExist, catalog.ErrAlreadyExists, catalog.ErrConflict, catalog.ErrFenced, catalog.ErrInvalid, catalog.ErrUnauthorized,
		catalog.ErrThrottled, catalog.ErrUnavailable, catalog.ErrUnknownOutcome, catalog.ErrCorrupt, catalog.ErrUnimplemented, catalog.ErrNotEmpty,
	} {
		a.err = fmt.Errorf("why: %w", want)
		if err := commit(); !errors.Is(err, want) || !errors.Is(want, catalog.ErrUnknownOutcome) && errors.Is(err, catalog.ErrUnknownOutcome) {
			t.Errorf("%v became %v", want, err)
		}
	}
	a.err = &objstore.ThrottledError{RetryAfter: 3 * time.Second}
	if throttled := (*objstore.ThrottledError)(nil); !errors.As(commit(), &throttled) || throttled.RetryAfter != 3*time.Second {
		t.Errorf("the pause is lost: %v", commit())
	}
	a.err = errors.New("of no class")
	if err := commit(); !errors.Is(err, catalog.ErrUnknownOutcome) {
		t.Errorf("a commit that failed somehow: %v", err)
	}
	if _, err := c.LoadTable(t.Context(), catalog.LoadTableRequest{Table: table}); !errors.Is(err, catalog.ErrUnavailable) || errors.Is(err, catalog.ErrUnknownOutcome) {
		t.Errorf("a read that failed somehow: %v", err)
	}
	if _, err := c.DropNamespace(t.Context(), catalog.DropNamespaceRequest{Namespace: table.Namespace}); !errors.Is(err, catalog.ErrUnknownOutcome) {
		t.Errorf("a drop that failed somehow: %v", err)
	}
}

func TestAnswersOfTablesCrossTheWire(t *testing.T) {
	a := &answering{d: catalog.Description{Name: "x", Version: "2", Commit: catalog.CommitsUpdates, VendsCredentials: true, Renames: true, PlainNames: true, ForbiddenProperties: []string{"a.*"}}}
	c := serve(t, a)
	if got := c.Describe(); fmt.Sprint(got) != fmt.Sprint(a.d) {
		t.Errorf("%+v became %+v", a.d, got)
	}
	if _, ok := c.(catalog.Swapper); ok {
		t.Error("it has both companions")
	}
	expires := time.UnixMilli(1_700_000_000_123).UTC()
	a.table = catalog.LoadTableResponse{
		MetadataLocation: "s3://b/m.json", Metadata: []byte(`{"a":1}`), Version: "7", Config: map[string]string{"k": "v"},
		Credentials: []catalog.Credential{{Prefix: "s3://b", Options: map[string]string{"access_key_id": "x"}, Expires: expires}, {}},
	}
	got, err := c.LoadTable(t.Context(), catalog.LoadTableRequest{Table: table, Credentials: true})
	if err != nil || got.MetadataLocation != "s3://b/m.json" || string(got.Metadata) != `{"a":1}` || got.Version != "7" || got.Config["k"] != "v" ||
		len(got.Credentials) != 2 || !got.Credentials[0].Expires.Equal(expires) || got.Credentials[0].Options["access_key_id"] != "x" || !got.Credentials[1].Expires.IsZero() {
		t.Errorf("%+v, %v", got, err)
	}

	// What is too large to travel is said, and is no broken call; after a commit the
	// outcome is one to look at.
	a.table.Metadata = append(append([]byte(`"`), make([]byte, 16<<20)...), '"')
	for i := 1; i < len(a.table.Metadata)-1; i++ {
		a.table.Metadata[i] = 'x'
	}
	if _, err := c.LoadTable(t.Context(), catalog.LoadTableRequest{Table: table}); !errors.Is(err, catalog.ErrUnimplemented) {
		t.Errorf("large metadata: %v", err)
	}
	if _, err := c.(catalog.Committer).CommitTable(t.Context(), catalog.CommitTableRequest{Table: table}); !errors.Is(err, catalog.ErrUnknownOutcome) {
		t.Errorf("a commit that made them large: %v", err)
	}
}

// A catalog that declares one companion and has another is not opened.
func TestACatalogWithoutItsCompanionIsNotServed(t *testing.T) {
	for _, commit := range []catalog.Commit{0, 9} {
		conn := wire.Dial(t, func(s *grpc.Server) {
			wire.RegisterCatalog(s, func(context.Context, map[string]string) (catalog.Catalog, error) {
				return &answering{d: catalog.Description{Name: "x", Commit: commit}}, nil
			})
		})
		if _, err := wire.OpenCatalog(t.Context(), conn, nil); !errors.Is(err, catalog.ErrInvalid) {
			t.Errorf("commit %d: %v", commit, err)
		}
	}
}
