package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/mink-project/mink/sdk/catalog"
	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
)

type catalogClient struct {
	rpc    pb.CatalogClient
	id     uint64
	d      catalog.Description
	closed atomic.Bool
}

// The two kinds, each with its companion alone.
type (
	committerClient struct{ *catalogClient }
	swapperClient   struct{ *catalogClient }
)

var (
	_ catalog.Committer = committerClient{}
	_ catalog.Swapper   = swapperClient{}
)

// OpenCatalog opens a catalog in the plugin at the other end of conn. What it answers
// has the companion that its description declares.
func OpenCatalog(ctx context.Context, conn grpc.ClientConnInterface, options map[string]string) (catalog.Catalog, error) {
	c := &catalogClient{rpc: pb.NewCatalogClient(conn)}
	resp, err := c.rpc.Open(ctx, &pb.OpenCatalogRequest{Options: options})
	if err != nil {
		return nil, catalogs.failed(ctx, err, reads)
	}
	c.id, c.d = resp.GetCatalog(), decodeCatalogDescription(resp.GetDescription())
	switch {
	case c.id == 0:
		return nil, catalogs.failed(ctx, protocolError("a catalog without an id"), reads)
	case c.d.Commit == catalog.CommitsUpdates:
		return committerClient{c}, nil
	case c.d.Commit == catalog.SwapsMetadata:
		return swapperClient{c}, nil
	}
	return nil, catalogs.failed(ctx, protocolError("a catalog that commits in no way that is known here"), reads)
}

// Describe implements catalog.Catalog.
func (c *catalogClient) Describe() catalog.Description { return c.d }

// begin refuses a call that is to have no effect.
func (c *catalogClient) begin(ctx context.Context, requests ...error) error {
	if c.closed.Load() {
		return fmt.Errorf("%w: the catalog is closed", catalog.ErrUnavailable)
	}
	return errors.Join(append(requests, ctx.Err())...)
}

// catalogCall runs one call. bad are the faults of the request itself.
func catalogCall[Req, Resp, Out any](ctx context.Context, c *catalogClient, op, what string, ef effect, bad []error,
	call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req, decode func(Resp) (Out, error),
) (Out, error) {
	var none Out
	fail := func(err error) (Out, error) { return none, fmt.Errorf("%s %s: %w", op, what, err) }
	if err := c.begin(ctx, bad...); err != nil {
		return fail(err)
	}
	resp, err := call(ctx, req)
	if err != nil {
		return fail(catalogs.failed(ctx, err, ef))
	}
	out, err := decode(resp)
	if err != nil {
		return fail(catalogs.failed(ctx, err, ef))
	}
	return out, nil
}

func nothing[Resp, Out any](Resp) (out Out, _ error) { return out, nil }

func joined(namespace []string) string {
	return strings.ToValidUTF8(strings.Join(namespace, "."), "\uFFFD")
}

// CreateNamespace implements catalog.Catalog.
func (c *catalogClient) CreateNamespace(ctx context.Context, req catalog.CreateNamespaceRequest) (catalog.CreateNamespaceResponse, error) {
	return catalogCall(ctx, c, "create namespace", joined(req.Namespace), reads, []error{catalog.CheckNamespace(req.Namespace), checkMap(req.Properties)},
		c.rpc.CreateNamespace, &pb.CreateNamespaceRequest{Catalog: c.id, Namespace: req.Namespace, Properties: req.Properties},
		func(resp *pb.CreateNamespaceResponse) (catalog.CreateNamespaceResponse, error) {
			return catalog.CreateNamespaceResponse{Existed: resp.GetExisted()}, nil
		})
}

// LoadNamespace implements catalog.Catalog.
func (c *catalogClient) LoadNamespace(ctx context.Context, req catalog.LoadNamespaceRequest) (catalog.LoadNamespaceResponse, error) {
	return catalogCall(ctx, c, "load namespace", joined(req.Namespace), reads, []error{catalog.CheckNamespace(req.Namespace)},
		c.rpc.LoadNamespace, &pb.LoadNamespaceRequest{Catalog: c.id, Namespace: req.Namespace},
		func(resp *pb.LoadNamespaceResponse) (catalog.LoadNamespaceResponse, error) {
			return catalog.LoadNamespaceResponse{Properties: resp.GetProperties()}, nil
		})
}

// UpdateNamespace implements catalog.Catalog.
func (c *catalogClient) UpdateNamespace(ctx context.Context, req catalog.UpdateNamespaceRequest) (catalog.UpdateNamespaceResponse, error) {
	return catalogCall(ctx, c, "update namespace", joined(req.Namespace), writes,
		[]error{catalog.CheckNamespace(req.Namespace), checkMap(req.Set), checkTexts(req.Remove...)},
		c.rpc.UpdateNamespace, &pb.UpdateNamespaceRequest{Catalog: c.id, Namespace: req.Namespace, Set: req.Set, Remove: req.Remove},
		func(resp *pb.UpdateNamespaceResponse) (catalog.UpdateNamespaceResponse, error) {
			return catalog.UpdateNamespaceResponse{Removed: resp.GetRemoved()}, nil
		})
}

// DropNamespace implements catalog.Catalog.
func (c *catalogClient) DropNamespace(ctx context.Context, req catalog.DropNamespaceRequest) (catalog.DropNamespaceResponse, error) {
	return catalogCall(ctx, c, "drop namespace", joined(req.Namespace), writes, []error{catalog.CheckNamespace(req.Namespace)},
		c.rpc.DropNamespace, &pb.DropNamespaceRequest{Catalog: c.id, Namespace: req.Namespace}, nothing[*pb.DropNamespaceResponse, catalog.DropNamespaceResponse])
}

// ListNamespaces implements catalog.Catalog.
func (c *catalogClient) ListNamespaces(ctx context.Context, req catalog.ListNamespacesRequest) (catalog.ListNamespacesResponse, error) {
	bad := []error{checkTexts(req.StartAfter)}
	if len(req.Parent) > 0 {
		bad = append(bad, catalog.CheckNamespace(req.Parent))
	}
	return catalogCall(ctx, c, "list namespaces of", "\""+joined(req.Parent)+"\"", reads, bad,
		c.rpc.ListNamespaces, &pb.ListNamespacesRequest{Catalog: c.id, Parent: req.Parent, StartAfter: req.StartAfter, Limit: limitOf(req.Limit)},
		func(resp *pb.ListNamespacesResponse) (out catalog.ListNamespacesResponse, _ error) {
			var last []string
			for _, n := range resp.GetNamespaces() {
				levels := n.GetLevels()
				if len(levels) != len(req.Parent)+1 || !slices.Equal(levels[:len(req.Parent)], req.Parent) {
					return out, protocolError("namespace %.80q is not one below %.80q", levels, req.Parent)
				}
				last = append(last, levels[len(levels)-1])
				out.Namespaces = append(out.Namespaces, levels)
			}
			out.More = resp.GetMore()
			return out, checkPage(last, req.StartAfter, req.Limit, out.More)
		})
}

// limitOf makes what the catalog decides of what is not asked for.
func limitOf(n int) int32 {
	return int32(min(max(n, 0), pageNamesMax)) //nolint:gosec // bounded
}

// ListTables implements catalog.Catalog.
func (c *catalogClient) ListTables(ctx context.Context, req catalog.ListTablesRequest) (catalog.ListTablesResponse, error) {
	return catalogCall(ctx, c, "list tables of", joined(req.Namespace), reads, []error{catalog.CheckNamespace(req.Namespace), checkTexts(req.StartAfter)},
		c.rpc.ListTables, &pb.ListTablesRequest{Catalog: c.id, Namespace: req.Namespace, StartAfter: req.StartAfter, Limit: limitOf(req.Limit)},
		func(resp *pb.ListTablesResponse) (catalog.ListTablesResponse, error) {
			out := catalog.ListTablesResponse{Names: resp.GetNames(), More: resp.GetMore()}
			return out, checkPage(out.Names, req.StartAfter, req.Limit, out.More)
		})
}

func (c *catalogClient) table(resp *pb.LoadTableResponse) (catalog.LoadTableResponse, error) {
	return decodeTable(c.d.Commit, resp)
}

// LoadTable implements catalog.Catalog.
func (c *catalogClient) LoadTable(ctx context.Context, req catalog.LoadTableRequest) (catalog.LoadTableResponse, error) {
	return catalogCall(ctx, c, "load table", req.Table.String(), reads, []error{req.Table.Validate()},
		c.rpc.LoadTable, &pb.LoadTableRequest{Catalog: c.id, Table: encodeIdentifier(req.Table), Credentials: req.Credentials}, c.table)
}

// CreateTable implements catalog.Catalog.
func (c *catalogClient) CreateTable(ctx context.Context, req catalog.CreateTableRequest) (catalog.LoadTableResponse, error) {
	return catalogCall(ctx, c, "create table", req.Table.String(), writes,
		[]error{req.Table.Validate(), checkMap(req.Properties), checkTexts(req.Location, req.MetadataLocation)},
		c.rpc.CreateTable, &pb.CreateTableRequest{
			Catalog: c.id, Table: encodeIdentifier(req.Table), Location: req.Location, Schema: req.Schema, PartitionSpec: req.PartitionSpec,
			SortOrder: req.SortOrder, Properties: req.Properties, MetadataLocation: req.MetadataLocation,
		}, c.table)
}

// DropTable implements catalog.Catalog.
func (c *catalogClient) DropTable(ctx context.Context, req catalog.DropTableRequest) (catalog.DropTableResponse, error) {
	return catalogCall(ctx, c, "drop table", req.Table.String(), writes, []error{req.Table.Validate(), checkTexts(req.ExpectedLocation)},
		c.rpc.DropTable, &pb.DropTableRequest{Catalog: c.id, Table: encodeIdentifier(req.Table), Purge: req.Purge, ExpectedLocation: req.ExpectedLocation},
		nothing[*pb.DropTableResponse, catalog.DropTableResponse])
}

// RenameTable implements catalog.Catalog.
func (c *catalogClient) RenameTable(ctx context.Context, req catalog.RenameTableRequest) (catalog.RenameTableResponse, error) {
	return catalogCall(ctx, c, "rename table", req.From.String()+" to "+req.To.String(), writes, []error{req.From.Validate(), req.To.Validate()},
		c.rpc.RenameTable, &pb.RenameTableRequest{Catalog: c.id, From: encodeIdentifier(req.From), To: encodeIdentifier(req.To)},
		nothing[*pb.RenameTableResponse, catalog.RenameTableResponse])
}

// CommitTable implements catalog.Committer.
func (c committerClient) CommitTable(ctx context.Context, req catalog.CommitTableRequest) (catalog.LoadTableResponse, error) {
	return catalogCall(ctx, c.catalogClient, "commit to table", req.Table.String(), writes, []error{req.Table.Validate()},
		c.rpc.CommitTable, &pb.CommitTableRequest{Catalog: c.id, Table: encodeIdentifier(req.Table), Requirements: req.Requirements, Updates: req.Updates}, c.table)
}

// SwapMetadata implements catalog.Swapper.
func (c swapperClient) SwapMetadata(ctx context.Context, req catalog.SwapMetadataRequest) (catalog.SwapMetadataResponse, error) {
	return catalogCall(ctx, c.catalogClient, "commit to table", req.Table.String(), writes,
		[]error{req.Table.Validate(), checkTexts(req.ExpectedLocation, req.ExpectedVersion, req.NewLocation)},
		c.rpc.SwapMetadata, &pb.SwapMetadataRequest{
			Catalog: c.id, Table: encodeIdentifier(req.Table), ExpectedLocation: req.ExpectedLocation, ExpectedVersion: req.ExpectedVersion, NewLocation: req.NewLocation,
		}, func(resp *pb.SwapMetadataResponse) (catalog.SwapMetadataResponse, error) {
			return catalog.SwapMetadataResponse{Version: resp.GetVersion()}, nil
		})
}

// Close implements catalog.Catalog.
func (c *catalogClient) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if _, err := c.rpc.Close(ctx, &pb.CloseCatalogRequest{Catalog: c.id}); err != nil {
		return fmt.Errorf("close: %w", catalogs.failed(ctx, err, reads))
	}
	return nil
}
