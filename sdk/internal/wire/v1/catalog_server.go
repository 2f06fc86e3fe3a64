package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/mink-project/mink/sdk/catalog"
	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
)

// OpenCatalogFunc makes a catalog from options.
type OpenCatalogFunc func(ctx context.Context, options map[string]string) (catalog.Catalog, error)

type catalogServer struct {
	pb.UnimplementedCatalogServer
	open OpenCatalogFunc

	mu struct {
		sync.Mutex
		last     uint64
		catalogs map[uint64]catalog.Catalog
		closed   bool
	}
}

// RegisterCatalog serves catalogs that open makes. Closing what it answers closes every
// catalog and lets no other open.
func RegisterCatalog(s *grpc.Server, open OpenCatalogFunc) io.Closer {
	srv := &catalogServer{open: open}
	srv.mu.catalogs = map[uint64]catalog.Catalog{}
	pb.RegisterCatalogServer(s, catalogService{srv})
	return srv
}

func (s *catalogServer) Close() error {
	s.mu.Lock()
	s.mu.closed = true
	all := slices.Collect(maps.Values(s.mu.catalogs))
	clear(s.mu.catalogs)
	s.mu.Unlock()
	errs := make([]error, len(all))
	for i, c := range all {
		errs[i] = c.Close()
	}
	return errors.Join(errs...)
}

func (s *catalogServer) Open(ctx context.Context, req *pb.OpenCatalogRequest) (*pb.OpenCatalogResponse, error) {
	c, err := s.open(ctx, req.GetOptions())
	if err != nil {
		return nil, catalogs.status(err)
	}
	if err := catalog.Check(c); err != nil {
		return nil, catalogs.status(errors.Join(err, c.Close()))
	}
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil, catalogs.status(errors.Join(errEnding, c.Close()))
	}
	defer s.mu.Unlock()
	s.mu.last++
	s.mu.catalogs[s.mu.last] = c
	return &pb.OpenCatalogResponse{Catalog: s.mu.last, Description: encodeCatalogDescription(c.Describe())}, nil
}

// catalogService gives the RPC Close its name back, which the server's own Close has.
type catalogService struct{ *catalogServer }

// Close ends one catalog.
func (s catalogService) Close(_ context.Context, req *pb.CloseCatalogRequest) (*pb.CloseCatalogResponse, error) {
	s.mu.Lock()
	c, ok := s.mu.catalogs[req.GetCatalog()]
	delete(s.mu.catalogs, req.GetCatalog())
	s.mu.Unlock()
	if !ok {
		return &pb.CloseCatalogResponse{}, nil
	}
	return &pb.CloseCatalogResponse{}, catalogs.status(c.Close())
}

// with runs a call on a catalog.
func (s *catalogServer) with(id uint64, call func(catalog.Catalog) error) error {
	s.mu.Lock()
	c, ok := s.mu.catalogs[id]
	s.mu.Unlock()
	if !ok {
		return catalogs.status(fmt.Errorf("%w: the catalog is closed", catalog.ErrUnavailable))
	}
	return catalogs.status(call(c))
}

func (s *catalogServer) CreateNamespace(ctx context.Context, req *pb.CreateNamespaceRequest) (resp *pb.CreateNamespaceResponse, err error) {
	err = s.with(req.GetCatalog(), func(c catalog.Catalog) error {
		got, err := c.CreateNamespace(ctx, catalog.CreateNamespaceRequest{Namespace: req.GetNamespace(), Properties: req.GetProperties()})
		resp = &pb.CreateNamespaceResponse{Existed: got.Existed}
		return err
	})
	return resp, err
}

func (s *catalogServer) LoadNamespace(ctx context.Context, req *pb.LoadNamespaceRequest) (resp *pb.LoadNamespaceResponse, err error) {
	err = s.with(req.GetCatalog(), func(c catalog.Catalog) error {
		got, err := c.LoadNamespace(ctx, catalog.LoadNamespaceRequest{Namespace: req.GetNamespace()})
		resp = &pb.LoadNamespaceResponse{Properties: got.Properties}
		return err
	})
	return resp, err
}

func (s *catalogServer) UpdateNamespace(ctx context.Context, req *pb.UpdateNamespaceRequest) (resp *pb.UpdateNamespaceResponse, err error) {
	err = s.with(req.GetCatalog(), func(c catalog.Catalog) error {
		got, err := c.UpdateNamespace(ctx, catalog.UpdateNamespaceRequest{Namespace: req.GetNamespace(), Set: req.GetSet(), Remove: req.GetRemove()})
		resp = &pb.UpdateNamespaceResponse{Removed: got.Removed}
		return err
	})
	return resp, err
}

func (s *catalogServer) DropNamespace(ctx context.Context, req *pb.DropNamespaceRequest) (*pb.DropNamespaceResponse, error) {
	return &pb.DropNamespaceResponse{}, s.with(req.GetCatalog(), func(c catalog.Catalog) error {
		_, err := c.DropNamespace(ctx, catalog.DropNamespaceRequest{Namespace: req.GetNamespace()})
		return err
	})
}

func (s *catalogServer) ListNamespaces(ctx context.Context, req *pb.ListNamespacesRequest) (resp *pb.ListNamespacesResponse, err error) {
	err = s.with(req.GetCatalog(), func(c catalog.Catalog) error {
		got, err := c.ListNamespaces(ctx, catalog.ListNamespacesRequest{Parent: req.GetParent(), StartAfter: req.GetStartAfter(), Limit: int(req.GetLimit())})
		resp = &pb.ListNamespacesResponse{More: got.More}
		for _, n := range got.Namespaces {
			resp.Namespaces = append(resp.Namespaces, &pb.Namespace{Levels: n})
		}
		return err
	})
	return resp, err
}

func (s *catalogServer) ListTables(ctx context.Context, req *pb.ListTablesRequest) (resp *pb.ListTablesResponse, err error) {
	err = s.with(req.GetCatalog(), func(c catalog.Catalog) error {
		got, err := c.ListTables(ctx, catalog.ListTablesRequest{Namespace: req.GetNamespace(), StartAfter: req.GetStartAfter(), Limit: int(req.GetLimit())})
		resp = &pb.ListTablesResponse{Names: got.Names, More: got.More}
		return err
	})
	return resp, err
}

// table runs a call that answers a table. effect says whether the call has changed it by
// then: metadata that cannot travel leave its outcome unknown.
func (s *catalogServer) table(id uint64, ef effect, call func(catalog.Catalog) (catalog.LoadTableResponse, error)) (resp *pb.LoadTableResponse, err error) {
	err = s.with(id, func(c catalog.Catalog) error {
		got, err := call(c)
		if err == nil && len(got.Metadata) > metadataMax {
			err = fmt.Errorf("%w: the table has %d bytes of metadata, and at most %d pass between a plugin and its node: expire snapshots", catalog.ErrUnimplemented, len(got.Metadata), metadataMax)
			if ef == writes {
				err = fmt.Errorf("%w: %w", catalog.ErrUnknownOutcome, err)
			}
		}
		resp = encodeTable(got)
		return err
	})
	return resp, err
}

func (s *catalogServer) LoadTable(ctx context.Context, req *pb.LoadTableRequest) (*pb.LoadTableResponse, error) {
	return s.table(req.GetCatalog(), reads, func(c catalog.Catalog) (catalog.LoadTableResponse, error) {
		return c.LoadTable(ctx, catalog.LoadTableRequest{Table: decodeIdentifier(req.GetTable()), Credentials: req.GetCredentials()})
	})
}

func (s *catalogServer) CreateTable(ctx context.Context, req *pb.CreateTableRequest) (*pb.LoadTableResponse, error) {
	return s.table(req.GetCatalog(), writes, func(c catalog.Catalog) (catalog.LoadTableResponse, error) {
		return c.CreateTable(ctx, catalog.CreateTableRequest{
			Table: decodeIdentifier(req.GetTable()), Location: req.GetLocation(), Schema: req.GetSchema(), PartitionSpec: req.GetPartitionSpec(),
			SortOrder: req.GetSortOrder(), Properties: req.GetProperties(), MetadataLocation: req.GetMetadataLocation(),
		})
	})
}

func (s *catalogServer) DropTable(ctx context.Context, req *pb.DropTableRequest) (*pb.DropTableResponse, error) {
	return &pb.DropTableResponse{}, s.with(req.GetCatalog(), func(c catalog.Catalog) error {
		_, err := c.DropTable(ctx, catalog.DropTableRequest{Table: decodeIdentifier(req.GetTable()), Purge: req.GetPurge(), ExpectedLocation: req.GetExpectedLocation()})
		return err
	})
}

func (s *catalogServer) RenameTable(ctx context.Context, req *pb.RenameTableRequest) (*pb.RenameTableResponse, error) {
	return &pb.RenameTableResponse{}, s.with(req.GetCatalog(), func(c catalog.Catalog) error {
		_, err := c.RenameTable(ctx, catalog.RenameTableRequest{From: decodeIdentifier(req.GetFrom()), To: decodeIdentifier(req.GetTo())})
		return err
	})
}

func (s *catalogServer) CommitTable(ctx context.Context, req *pb.CommitTableRequest) (*pb.LoadTableResponse, error) {
	return s.table(req.GetCatalog(), writes, func(c catalog.Catalog) (catalog.LoadTableResponse, error) {
		committer, ok := c.(catalog.Committer)
		if !ok {
			return catalog.LoadTableResponse{}, fmt.Errorf("%w: this catalog swaps metadata", catalog.ErrUnimplemented)
		}
		return committer.CommitTable(ctx, catalog.CommitTableRequest{Table: decodeIdentifier(req.GetTable()), Requirements: req.GetRequirements(), Updates: req.GetUpdates()})
	})
}

func (s *catalogServer) SwapMetadata(ctx context.Context, req *pb.SwapMetadataRequest) (resp *pb.SwapMetadataResponse, err error) {
	err = s.with(req.GetCatalog(), func(c catalog.Catalog) error {
		swapper, ok := c.(catalog.Swapper)
		if !ok {
			return fmt.Errorf("%w: this catalog commits updates", catalog.ErrUnimplemented)
		}
		got, err := swapper.SwapMetadata(ctx, catalog.SwapMetadataRequest{
			Table: decodeIdentifier(req.GetTable()), ExpectedLocation: req.GetExpectedLocation(), ExpectedVersion: req.GetExpectedVersion(), NewLocation: req.GetNewLocation(),
		})
		resp = &pb.SwapMetadataResponse{Version: got.Version}
		return err
	})
	return resp, err
}
