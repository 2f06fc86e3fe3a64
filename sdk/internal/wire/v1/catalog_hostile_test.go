package wire

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/mink-project/mink/sdk/catalog"
	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
)

// fakeCatalog answers what it is told to.
type fakeCatalog struct {
	pb.UnimplementedCatalogServer
	open       *pb.OpenCatalogResponse
	namespaces *pb.ListNamespacesResponse
	tables     *pb.ListTablesResponse
	table      *pb.LoadTableResponse
}

func (f *fakeCatalog) Open(context.Context, *pb.OpenCatalogRequest) (*pb.OpenCatalogResponse, error) {
	return f.open, nil
}

func (f *fakeCatalog) ListNamespaces(context.Context, *pb.ListNamespacesRequest) (*pb.ListNamespacesResponse, error) {
	return f.namespaces, nil
}

func (f *fakeCatalog) ListTables(context.Context, *pb.ListTablesRequest) (*pb.ListTablesResponse, error) {
	return f.tables, nil
}

func (f *fakeCatalog) LoadTable(context.Context, *pb.LoadTableRequest) (*pb.LoadTableResponse, error) {
	return f.table, nil
}

func (f *fakeCatalog) CommitTable(context.Context, *pb.CommitTableRequest) (*pb.LoadTableResponse, error) {
	return f.table, nil
}

func goodCatalog() *fakeCatalog {
	return &fakeCatalog{
		open:       &pb.OpenCatalogResponse{Catalog: 1, Description: &pb.CatalogDescription{Name: "fake", Commit: pb.CatalogCommit_COMMITS_UPDATES}},
		namespaces: &pb.ListNamespacesResponse{Namespaces: []*pb.Namespace{{Levels: []string{"a", "b"}}, {Levels: []string{"a", "c"}}}, More: true},
		tables:     &pb.ListTablesResponse{Names: []string{"b", "c"}, More: true},
		table:      &pb.LoadTableResponse{Metadata: []byte(`{}`)},
	}
}

// useCatalog makes every call whose answer has content: the first error, and whether it
// was a commit's.
func useCatalog(t *testing.T, f *fakeCatalog) (err error, commit bool) { //nolint:revive // the error is what it is about
	t.Helper()
	conn := Dial(t, func(s *grpc.Server) { pb.RegisterCatalogServer(s, f) })
	c, err := OpenCatalog(t.Context(), conn, nil)
	if err != nil {
		return err, false
	}
	if _, err := c.ListNamespaces(t.Context(), catalog.ListNamespacesRequest{Parent: []string{"a"}, StartAfter: "a", Limit: 2}); err != nil {
		return err, false
	}
	if _, err := c.ListTables(t.Context(), catalog.ListTablesRequest{Namespace: []string{"a"}, StartAfter: "a", Limit: 2}); err != nil {
		return err, false
	}
	id := catalog.Identifier{Namespace: []string{"a"}, Name: "t"}
	_, err = c.(catalog.Committer).CommitTable(t.Context(), catalog.CommitTableRequest{Table: id})
	if err != nil {
		return err, true
	}
	_, err = c.LoadTable(t.Context(), catalog.LoadTableRequest{Table: id})
	return err, false
}

func TestAnswersOfCatalogsAreChecked(t *testing.T) {
	if err, _ := useCatalog(t, goodCatalog()); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*fakeCatalog){
		"no id":                   func(f *fakeCatalog) { f.open.Catalog = 0 },
		"no way to commit":        func(f *fakeCatalog) { f.open.Description.Commit = 0 },
		"a way not known":         func(f *fakeCatalog) { f.open.Description.Commit = 258 }, // 2 as a byte
		"no description":          func(f *fakeCatalog) { f.open.Description = nil },
		"another's namespace":     func(f *fakeCatalog) { f.namespaces.Namespaces[1].Levels[0] = "b" },
		"a namespace two below":   func(f *fakeCatalog) { f.namespaces.Namespaces[1].Levels = []string{"a", "c", "d"} },
		"the parent itself":       func(f *fakeCatalog) { f.namespaces.Namespaces[1].Levels = []string{"a"} },
		"namespaces out of order": func(f *fakeCatalog) { f.namespaces.Namespaces[1].Levels[1] = "b" },
		"more, and none":          func(f *fakeCatalog) { f.namespaces.Namespaces = nil },
		"tables out of order":     func(f *fakeCatalog) { f.tables.Names = []string{"c", "b"} },
		"tables from the start":   func(f *fakeCatalog) { f.tables.Names = []string{"a"} },
		"too many tables":         func(f *fakeCatalog) { f.tables.Names = []string{"b", "c", "d"} },
		"more tables, and none":   func(f *fakeCatalog) { f.tables.Names = nil },
		"no metadata":             func(f *fakeCatalog) { f.table.Metadata = nil },
		"metadata that are none":  func(f *fakeCatalog) { f.table.Metadata = []byte(`{"a":`) },
		"no location": func(f *fakeCatalog) {
			f.open.Description.Commit = pb.CatalogCommit_SWAPS_METADATA
		},
		"a time that is none": func(f *fakeCatalog) {
			f.table.Credentials = []*pb.VendedCredential{{Expires: &timestamppb.Timestamp{Nanos: -1}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := goodCatalog()
			spoil(f)
			if f.open.GetDescription().GetCommit() == pb.CatalogCommit_SWAPS_METADATA {
				conn := Dial(t, func(s *grpc.Server) { pb.RegisterCatalogServer(s, f) })
				c, err := OpenCatalog(t.Context(), conn, nil)
				if err == nil {
					_, err = c.LoadTable(t.Context(), catalog.LoadTableRequest{Table: catalog.Identifier{Namespace: []string{"a"}, Name: "t"}})
				}
				if !errors.Is(err, catalog.ErrUnavailable) || !strings.Contains(err.Error(), "breaks the protocol") {
					t.Fatal(err)
				}
				return
			}
			err, commit := useCatalog(t, f)
			if !errors.Is(err, catalog.ErrUnavailable) || !strings.Contains(err.Error(), "breaks the protocol") {
				t.Fatal(err)
			}
			if errors.Is(err, catalog.ErrUnknownOutcome) != commit {
				t.Errorf("of a commit: %v; %v", commit, err)
			}
		})
	}
}

// What no message can carry is refused before it is sent, with no doubt about its effect.
func TestTextsThatNoMessageCarriesAreRefused(t *testing.T) {
	conn := Dial(t, func(s *grpc.Server) { pb.RegisterCatalogServer(s, goodCatalog()) })
	c, err := OpenCatalog(t.Context(), conn, nil)
	if err != nil {
		t.Fatal(err)
	}
	bad, n := "a\xff", []string{"n"}
	for name, call := range map[string]func() error{
		"property": func() error {
			_, err := c.CreateNamespace(t.Context(), catalog.CreateNamespaceRequest{Namespace: n, Properties: map[string]string{"a": bad}})
			return err
		},
		"removed": func() error {
			_, err := c.UpdateNamespace(t.Context(), catalog.UpdateNamespaceRequest{Namespace: n, Remove: []string{bad}})
			return err
		},
		"location": func() error {
			_, err := c.CreateTable(t.Context(), catalog.CreateTableRequest{Table: catalog.Identifier{Namespace: n, Name: "t"}, MetadataLocation: bad})
			return err
		},
		"after": func() error {
			_, err := c.ListTables(t.Context(), catalog.ListTablesRequest{Namespace: n, StartAfter: bad})
			return err
		},
		"new name": func() error {
			id := catalog.Identifier{Namespace: n, Name: "t"}
			_, err := c.RenameTable(t.Context(), catalog.RenameTableRequest{From: id, To: catalog.Identifier{Namespace: n, Name: bad}})
			return err
		},
	} {
		if err := call(); !errors.Is(err, catalog.ErrInvalid) || errors.Is(err, catalog.ErrUnknownOutcome) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
