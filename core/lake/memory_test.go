package lake

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"strings"
	"sync"
	"time"

	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
)

const memoryRoot = "file:///lake-of-a-test"

// memoryWarehouse is a catalog in memory over a store.
type memoryWarehouse struct {
	store objstore.Store
	mu    *sync.Mutex
	// tables has metadata by "db.name"; the mutex and the map are shared by all that
	// work on one place.
	tables map[string]table.Metadata
	// before and after, when set, are called around a commit's effect.
	before, after func(reqs []table.Requirement, updates []table.Update) error
}

func newMemoryWarehouse(store objstore.Store) *memoryWarehouse {
	return &memoryWarehouse{store: store, mu: &sync.Mutex{}, tables: map[string]table.Metadata{}}
}

func (w *memoryWarehouse) Store() objstore.Store      { return w.store }
func (w *memoryWarehouse) Location(key string) string { return memoryRoot + "/" + key }
func (w *memoryWarehouse) CreateNamespace(ctx context.Context, _ []string, _ map[string]string) error {
	return ctx.Err()
}

func tableKey(id catalog.Identifier) string { return strings.Join(id.Namespace, ".") + "|" + id.Name }

func (w *memoryWarehouse) table(id catalog.Identifier, meta table.Metadata) *table.Table {
	return table.New(append(append([]string{}, id.Namespace...), id.Name), meta, memoryRoot+"/none", func(ctx context.Context) (iceio.IO, error) {
		return &memoryIO{ctx: ctx, store: w.store}, nil
	}, bound{w, id})
}

func (w *memoryWarehouse) Load(ctx context.Context, id catalog.Identifier) (*table.Table, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	meta, ok := w.tables[tableKey(id)]
	if !ok {
		return nil, fmt.Errorf("table %s: %w", tableKey(id), sink.ErrNotExist)
	}
	return w.table(id, meta), nil
}

func (w *memoryWarehouse) Create(ctx context.Context, req CreateTable) (*table.Table, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.tables[tableKey(req.ID)]; ok {
		return nil, fmt.Errorf("table %s: %w", tableKey(req.ID), sink.ErrAlreadyExists)
	}
	version := 2
	props := maps.Clone(req.Properties)
	if props[table.PropertyFormatVersion] == "3" {
		version = 3
	}
	delete(props, table.PropertyFormatVersion)
	b, err := table.NewMetadataBuilder(version)
	if err != nil {
		return nil, err
	}
	spec, order := req.Spec, req.SortOrder
	for _, err := range []error{
		b.SetUUID(uuid.New()), b.AddSchema(req.Schema), b.SetCurrentSchemaID(-1), b.AddPartitionSpec(&spec, true), b.SetDefaultSpecID(-1),
		b.AddSortOrder(&order), b.SetDefaultSortOrderID(-1), b.SetLoc(req.Location), b.SetProperties(props),
	} {
		if err != nil {
			return nil, err
		}
	}
	meta, err := b.Build()
	if err != nil {
		return nil, err
	}
	w.tables[tableKey(req.ID)] = meta
	return w.table(req.ID, meta), nil
}

func (w *memoryWarehouse) Commit(ctx context.Context, id catalog.Identifier, reqs []table.Requirement, updates []table.Update) (*table.Table, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if w.before != nil {
		if err := w.before(reqs, updates); err != nil {
			return nil, err
		}
	}
	meta, err := w.apply(id, reqs, updates)
	if err != nil {
		return nil, err
	}
	if w.after != nil {
		if err := w.after(reqs, updates); err != nil {
			return nil, err
		}
	}
	return w.table(id, meta), nil
}

func (w *memoryWarehouse) apply(id catalog.Identifier, reqs []table.Requirement, updates []table.Update) (table.Metadata, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	meta, ok := w.tables[tableKey(id)]
	if !ok {
		return nil, fmt.Errorf("table %s: %w", tableKey(id), sink.ErrNotExist)
	}
	for _, r := range reqs {
		if err := r.Validate(meta); err != nil {
			return nil, fmt.Errorf("%w: %w", sink.ErrConflict, err)
		}
	}
	b, err := table.MetadataBuilderFromBase(meta, memoryRoot+"/none")
	if err != nil {
		return nil, err
	}
	for _, u := range updates {
		if err := u.Apply(b); err != nil {
			return nil, err
		}
	}
	next, err := b.Build()
	if err != nil {
		return nil, err
	}
	w.tables[tableKey(id)] = next
	return next, nil
}

func (w *memoryWarehouse) DropLoaded(ctx context.Context, id catalog.Identifier, _ *table.Table, _ bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.tables, tableKey(id))
	return nil
}

// memoryIO is the library's file interface over a store.
type memoryIO struct {
	ctx   context.Context
	store objstore.Store
}

func (m *memoryIO) key(location string) string { return strings.TrimPrefix(location, memoryRoot+"/") }

func (m *memoryIO) Open(name string) (iceio.File, error) {
	got, err := m.store.GetRange(m.ctx, objstore.GetRangeRequest{Key: m.key(name), Length: -1})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return &memoryFile{Reader: bytes.NewReader(got.Data), name: name}, nil
}

func (m *memoryIO) Remove(name string) error {
	_, err := m.store.DeleteBatch(m.ctx, []string{m.key(name)})
	return err
}

func (m *memoryIO) Create(name string) (iceio.FileWriter, error) {
	return &memoryFileWriter{m: m, name: name}, nil
}

func (m *memoryIO) WriteFile(name string, p []byte) error {
	_, err := m.store.Put(m.ctx, objstore.PutRequest{Key: m.key(name), Chunks: [][]byte{p}})
	return err
}

type memoryFile struct {
	*bytes.Reader
	name string
}

func (f *memoryFile) Close() error               { return nil }
func (f *memoryFile) Stat() (fs.FileInfo, error) { return memoryInfo{f}, nil }

type memoryInfo struct{ f *memoryFile }

func (i memoryInfo) Name() string       { return i.f.name }
func (i memoryInfo) Size() int64        { return i.f.Reader.Size() }
func (i memoryInfo) Mode() fs.FileMode  { return 0 }
func (i memoryInfo) ModTime() time.Time { return time.Time{} }
func (i memoryInfo) IsDir() bool        { return false }
func (i memoryInfo) Sys() any           { return nil }

type memoryFileWriter struct {
	bytes.Buffer
	m    *memoryIO
	name string
	done bool
}

func (w *memoryFileWriter) Close() error {
	if w.done {
		return nil
	}
	w.done = true
	return w.m.WriteFile(w.name, w.Bytes())
}

func (w *memoryFileWriter) ReadFrom(r io.Reader) (int64, error) { return w.Buffer.ReadFrom(r) }
