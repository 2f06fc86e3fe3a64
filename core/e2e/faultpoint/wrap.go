package faultpoint

import (
	"context"
	"path"
	"strings"

	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
)

// Sink has the points of the calls to a sink.
func (f *Faults) Sink(_ string, s sink.Sink) sink.Sink { return &pointSink{s, f} }

type pointSink struct {
	sink.Sink
	f *Faults
}

func (s *pointSink) Open(ctx context.Context, req sink.OpenRequest) (sink.Table, error) {
	if req.Drop {
		return s.Sink.Open(ctx, req)
	}
	name := req.Table.FullName()
	t, err := call(ctx, s.f, "open", name, func(ctx context.Context) (sink.Table, error) { return s.Sink.Open(ctx, req) })
	if err != nil {
		return nil, err
	}
	return &pointTable{t, s.f, name}, nil
}

type pointTable struct {
	sink.Table
	f    *Faults
	name string
}

func (t *pointTable) Recover(ctx context.Context, req sink.RecoverRequest) (sink.RecoverResponse, error) {
	return call(ctx, t.f, "recover", t.name, func(ctx context.Context) (sink.RecoverResponse, error) { return t.Table.Recover(ctx, req) })
}

func (t *pointTable) BeginRound(ctx context.Context, req sink.BeginRoundRequest) (sink.BeginRoundResponse, error) {
	return call(ctx, t.f, "begin", t.name, func(ctx context.Context) (sink.BeginRoundResponse, error) { return t.Table.BeginRound(ctx, req) })
}

func (t *pointTable) Write(ctx context.Context, req sink.WriteRequest) (sink.WriteResponse, error) {
	return call(ctx, t.f, "write", t.name, func(ctx context.Context) (sink.WriteResponse, error) { return t.Table.Write(ctx, req) })
}

func (t *pointTable) Prepare(ctx context.Context, req sink.PrepareRequest) (sink.PrepareResponse, error) {
	return call(ctx, t.f, "prepare", t.name, func(ctx context.Context) (sink.PrepareResponse, error) { return t.Table.Prepare(ctx, req) })
}

func (t *pointTable) Commit(ctx context.Context, req sink.CommitRequest) (sink.CommitResponse, error) {
	return call(ctx, t.f, "commit", t.name, func(ctx context.Context) (sink.CommitResponse, error) { return t.Table.Commit(ctx, req) })
}

func (t *pointTable) Close() error {
	_, err := call(context.Background(), t.f, "close", t.name, func(context.Context) (struct{}, error) { return struct{}{}, t.Table.Close() })
	return err
}

// Store has the points of the requests for objects of a lake table.
func (f *Faults) Store(s objstore.Store) objstore.Store {
	if m, ok := objstore.Multipart(s); ok {
		return &pointParts{pointStore{s, f}, m}
	}
	return &pointStore{s, f}
}

type pointStore struct {
	objstore.Store
	f *Faults
}

// pointParts is a store with multipart uploads: a data file is put when its upload
// completes.
type pointParts struct {
	pointStore
	objstore.Multiparter
}

func (s *pointParts) CompleteUpload(ctx context.Context, req objstore.CompleteUploadRequest) (objstore.PutResponse, error) {
	step, table := stepOf(req.Key)
	return call(ctx, s.f, "put "+step, table, func(ctx context.Context) (objstore.PutResponse, error) {
		return s.Multiparter.CompleteUpload(ctx, req)
	})
}

// stepOf is what an object is for, and whose: lake/<database>/<table>-<id>/...
func stepOf(key string) (step, table string) {
	parts := strings.Split(key, "/")
	if len(parts) < 5 || parts[0] != "lake" {
		return "", ""
	}
	table = parts[1] + "." + parts[2][:max(0, strings.LastIndexByte(parts[2], '-'))]
	switch {
	case parts[3] == "_staged":
		return strings.TrimPrefix(path.Ext(key), "."), table
	case parts[3] == "data":
		return "data", table
	case strings.HasSuffix(key, ".metadata.json"):
		return "metadata", table
	case strings.HasSuffix(key, ".avro"):
		return "manifest", table
	}
	return "", table
}

func (s *pointStore) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	step, table := stepOf(req.Key)
	return call(ctx, s.f, "put "+step, table, func(ctx context.Context) (objstore.PutResponse, error) { return s.Store.Put(ctx, req) })
}

func (s *pointStore) DeleteBatch(ctx context.Context, keys []string) (objstore.DeleteResponse, error) {
	step, table := "", ""
	if len(keys) > 0 {
		step, table = stepOf(keys[0])
	}
	return call(ctx, s.f, "delete "+step, table, func(ctx context.Context) (objstore.DeleteResponse, error) { return s.Store.DeleteBatch(ctx, keys) })
}

// Catalog has the points of the move of a table's pointer. c is a catalog.Swapper.
func (f *Faults) Catalog(c catalog.Catalog) catalog.Catalog {
	return &pointCatalog{c, c.(catalog.Swapper), f}
}

type pointCatalog struct {
	catalog.Catalog
	swapper catalog.Swapper
	f       *Faults
}

func (c *pointCatalog) SwapMetadata(ctx context.Context, req catalog.SwapMetadataRequest) (catalog.SwapMetadataResponse, error) {
	return call(ctx, c.f, "swap", req.Table.String(), func(ctx context.Context) (catalog.SwapMetadataResponse, error) {
		return c.swapper.SwapMetadata(ctx, req)
	})
}
