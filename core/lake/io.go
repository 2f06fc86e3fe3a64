package lake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	iceio "github.com/apache/iceberg-go/io"

	"github.com/mink-project/mink/sdk/objstore"
)

// KeyPrefix is where the lake lies in the store.
const KeyPrefix = "lake/"

// wholeMax is the size up to which a file is read in one request when it is first
// read: metadata and manifests, which the library reads in pieces of 4 KiB.
const wholeMax = 4 << 20

// Root maps locations of files, as Iceberg's metadata has them, to keys of the
// store and back: a location is the store's URI, a slash, and the key.
type Root struct{ uri string }

// NewRoot takes the store's URI: file:///abs/dir, s3://bucket/prefix.
func NewRoot(uri string) (Root, error) {
	scheme, rest, ok := strings.Cut(uri, "://")
	switch {
	case !ok || scheme == "":
		return Root{}, fmt.Errorf("lake root %q: %w: must be a URI with a scheme, such as file:///var/lib/mink/objects", uri, objstore.ErrInvalid)
	case strings.ContainsAny(uri, "?#"):
		return Root{}, fmt.Errorf("lake root %q: %w: a query or fragment cannot be part of file names", uri, objstore.ErrInvalid)
	case scheme == "file" && !strings.HasPrefix(rest, "/"):
		return Root{}, fmt.Errorf("lake root %q: %w: the directory must be absolute", uri, objstore.ErrInvalid)
	case scheme == "file":
		rest = path.Clean(rest)
	}
	uri = scheme + "://" + strings.TrimRight(rest, "/")
	if u, err := url.Parse(uri + "/"); err != nil || u.JoinPath("x").String() != uri+"/x" {
		return Root{}, fmt.Errorf("lake root %q: %w: it has characters that are escaped in URIs, which engines do each in their own way; use a path of letters, digits, - _ . and /", uri, objstore.ErrInvalid)
	}
	return Root{uri: uri}, nil
}

// String is the URI, without a slash at its end.
func (r Root) String() string { return r.uri }

// Location is the URI of the object with the key.
func (r Root) Location(key string) string { return r.uri + "/" + key }

// Key is the inverse of Location. The ways in which other engines spell the same
// file are understood: file:/dir, a bare /dir, s3a:// and s3n://. ErrInvalid for
// files outside the root, or not below lake/ in it.
func (r Root) Key(location string) (string, error) {
	key, ok := strings.CutPrefix(r.spell(location), r.uri+"/")
	if !ok {
		return "", fmt.Errorf("%w: %q is not below this lake's root %q", objstore.ErrInvalid, location, r.uri)
	}
	if err := objstore.ValidateKey(key); err != nil {
		return "", fmt.Errorf("location %q: %w", location, err)
	}
	if !strings.HasPrefix(key, KeyPrefix) {
		return "", fmt.Errorf("%w: %q is in the store at %q, but not of the lake, which is below %q", objstore.ErrInvalid, location, r.uri, r.Location(KeyPrefix))
	}
	return key, nil
}

func (r Root) spell(location string) string {
	scheme, _, _ := strings.Cut(r.uri, "://")
	switch scheme {
	case "file":
		for _, p := range []string{"file://localhost/", "file:///", "file:/", "/"} {
			if rest, ok := strings.CutPrefix(location, p); ok && !strings.HasPrefix(rest, "/") {
				return "file:///" + rest
			}
		}
	case "s3":
		for _, p := range []string{"s3a://", "s3n://"} {
			if rest, ok := strings.CutPrefix(location, p); ok {
				return "s3://" + rest
			}
		}
	}
	return location
}

// Files is the store as the Iceberg library reads and writes it. Files are
// immutable: one is written whole, under a name that was never used before, and
// a second write of the same name succeeds only with the same bytes. Safe for
// concurrent use.
type Files struct {
	store  objstore.Store
	root   Root
	local  bool // no price and no latency for each request
	cached *cache[[]byte]
	counts struct{ gets, heads, puts, deletes, bytesRead, bytesWritten, hits atomic.Int64 }
}

// filesCacheMax is the memory for small files when nobody says.
const filesCacheMax = 32 << 20

// NewFiles reads and writes the store, whose URI is root.
func NewFiles(store objstore.Store, root Root) *Files {
	return &Files{store: store, root: root, local: store.Capabilities().Local, cached: newCache[[]byte](filesCacheMax)}
}

// FileStats counts what was asked of the store since the start.
type FileStats struct {
	Gets, Heads, Puts, Deletes int64 // requests; a delete is of up to objstore.DeleteMax files
	BytesRead, BytesWritten    int64
	CacheHits                  int64 // small files that were in memory
}

// Stats reads the counters.
func (f *Files) Stats() FileStats {
	c := &f.counts
	return FileStats{
		Gets: c.gets.Load(), Heads: c.heads.Load(), Puts: c.puts.Load(), Deletes: c.deletes.Load(),
		BytesRead: c.bytesRead.Load(), BytesWritten: c.bytesWritten.Load(), CacheHits: c.hits.Load(),
	}
}

func (f *Files) get(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	f.counts.gets.Add(1)
	got, err := f.store.GetRange(ctx, req)
	f.counts.bytesRead.Add(int64(len(got.Data)))
	return got, err
}

func (f *Files) head(ctx context.Context, key string) (objstore.ObjectInfo, error) {
	f.counts.heads.Add(1)
	return f.store.Head(ctx, key)
}

// With gives the library's interface, whose calls ctx ends.
func (f *Files) With(ctx context.Context) *BoundFiles { return &BoundFiles{Files: f, ctx: ctx} }

// BoundFiles is Files for as long as a context lives: the library's interface has
// no place for one. It implements iceio.IO, ReadFileIO, WriteFileIO, StatIO and
// BulkRemovableIO.
type BoundFiles struct {
	*Files
	ctx context.Context
}

var (
	_ iceio.ReadFileIO      = (*BoundFiles)(nil)
	_ iceio.WriteFileIO     = (*BoundFiles)(nil)
	_ iceio.StatIO          = (*BoundFiles)(nil)
	_ iceio.BulkRemovableIO = (*BoundFiles)(nil)
)

// pathError is a fs.PathError, which the library looks for, that also keeps the
// store's sentinel.
func pathError(op, location string, err error) error {
	switch {
	case errors.Is(err, objstore.ErrNotExist):
		err = errors.Join(err, fs.ErrNotExist)
	case errors.Is(err, objstore.ErrAlreadyExists):
		err = errors.Join(err, fs.ErrExist)
	case errors.Is(err, objstore.ErrInvalid):
		err = errors.Join(err, fs.ErrInvalid)
	}
	return &fs.PathError{Op: op, Path: location, Err: err}
}

// ReadFile reads a whole file.
func (b *BoundFiles) ReadFile(location string) ([]byte, error) {
	key, err := b.root.Key(location)
	if err != nil {
		return nil, pathError("open", location, err)
	}
	got, err := b.get(b.ctx, objstore.GetRangeRequest{Key: key, Length: -1})
	if errors.Is(err, objstore.ErrNotExist) {
		if f, foreign := b.openForeign(key); foreign == nil {
			data, err := io.ReadAll(f)
			return data, errors.Join(err, f.Close())
		}
	}
	if err != nil {
		return nil, pathError("read", location, err)
	}
	return got.Data, nil
}

// Stat asks for the size and time of a file.
func (b *BoundFiles) Stat(location string) (fs.FileInfo, error) {
	key, err := b.root.Key(location)
	if err != nil {
		return nil, pathError("stat", location, err)
	}
	info, err := b.head(b.ctx, key)
	if errors.Is(err, objstore.ErrNotExist) {
		if f, foreign := b.openForeign(key); foreign == nil {
			info, err := f.Stat()
			return info, errors.Join(err, f.Close())
		}
	}
	if err != nil {
		return nil, pathError("stat", location, err)
	}
	return fileInfo{info}, nil
}

// Open opens a file to read; one that is absent is found out here. Metadata and
// manifests are read whole, in one request, or come from memory; of other files the
// size is asked, and small ones are read whole when they are read first.
func (b *BoundFiles) Open(location string) (iceio.File, error) {
	key, err := b.root.Key(location)
	if err != nil {
		return nil, pathError("open", location, err)
	}
	f := &file{files: b, location: location}
	switch {
	case !metadataFile(key):
		f.info, err = b.head(b.ctx, key)
	default:
		data, ok := b.cached.get(key)
		if ok {
			b.counts.hits.Add(1)
		} else {
			var got objstore.GetRangeResponse
			if got, err = b.get(b.ctx, objstore.GetRangeRequest{Key: key, Length: -1}); err == nil {
				data = got.Data
				b.cached.put(key, data, int64(len(data)))
			}
		}
		f.entire = true
		f.once.Do(func() { f.whole = data })
		f.info = objstore.ObjectInfo{Key: key, Size: int64(len(data))}
	}
	if errors.Is(err, objstore.ErrNotExist) {
		if f, foreign := b.openForeign(key); foreign == nil {
			return f, nil
		}
	}
	if err != nil {
		return nil, pathError("open", location, err)
	}
	return f, nil
}

// metadataFile: such files are read from the first byte to the last.
func metadataFile(key string) bool {
	return strings.HasSuffix(key, ".avro") || strings.HasSuffix(key, ".metadata.json")
}

// openForeign opens a file that another engine wrote into a directory store under a name
// which the store itself would spell another way, such as one with capital letters.
func (f *Files) openForeign(key string) (*os.File, error) {
	dir, ok := strings.CutPrefix(f.root.uri, "file://")
	if !ok || !f.local {
		return nil, objstore.ErrNotExist
	}
	opened, err := os.OpenInRoot(dir+"/", filepath.FromSlash(key))
	if err != nil {
		return nil, err
	}
	if info, err := opened.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(objstore.ErrNotExist, opened.Close())
	}
	return opened, nil
}

// makeDirs makes the directories of a table in a directory store: engines on the same
// machine write there, and some do not make any.
func (f *Files) makeDirs(location string) error {
	key, err := f.root.Key(location)
	root, ok := strings.CutPrefix(f.root.uri, "file://")
	if err != nil || !ok || !f.local {
		return err
	}
	if _, err := os.Stat(root); err != nil {
		return nil // the store is elsewhere
	}
	for _, last := range []string{"metadata", "data"} {
		dir := root
		for part := range strings.SplitSeq(key+"/"+last, "/") {
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); errors.Is(err, fs.ErrExist) { //nolint:gosec // other engines' users read there
				continue
			} else if err != nil {
				return err
			}
			if err := syncDir(parent); err != nil { // the store takes a directory that is there for durable
				return err
			}
		}
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removeForeign is the same for deletion; that there is none is no error.
func (f *Files) removeForeign(key string) error {
	opened, err := f.openForeign(key)
	if err != nil {
		return nil //nolint:nilerr // there is none
	}
	name := opened.Name()
	if err := opened.Close(); err != nil {
		return err
	}
	root, err := os.OpenRoot(strings.TrimPrefix(f.root.uri, "file://") + "/")
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return errors.Join(root.Remove(filepath.FromSlash(key)), root.Close())
}

// WriteFile writes a new file.
func (b *BoundFiles) WriteFile(location string, p []byte) error {
	key, err := b.root.Key(location)
	if err != nil {
		return pathError("create", location, err)
	}
	if err := b.writeNew(b.ctx, key, p); err != nil {
		return pathError("write", location, err)
	}
	return nil
}

// writeNew puts an object under a key that must be free. After an outcome that is
// unknown it looks, and puts again: names are unique, so the same bytes under the
// key are this write's.
func (f *Files) writeNew(ctx context.Context, key string, p []byte) error {
	req := objstore.PutRequest{Key: key, Chunks: [][]byte{p}, CreateOnly: true, CRC32C: objstore.Checksum(p), HasCRC32C: true}
	for attempt := 1; ; attempt++ {
		f.counts.puts.Add(1)
		f.counts.bytesWritten.Add(int64(len(p)))
		_, err := f.store.Put(ctx, req)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, objstore.ErrAlreadyExists):
			got, readErr := f.get(ctx, objstore.GetRangeRequest{Key: key, Length: -1})
			if readErr != nil {
				return errors.Join(objstore.UnknownOutcome("put", key, readErr), err)
			}
			if bytes.Equal(got.Data, p) {
				return nil
			}
			return err
		case !errors.Is(err, objstore.ErrUnknownOutcome) || attempt == writeAttempts || ctx.Err() != nil:
			return err
		}
	}
}

const writeAttempts = 3

// Create gives a writer of a new file, which is there when Close has returned nil.
func (b *BoundFiles) Create(location string) (iceio.FileWriter, error) {
	key, err := b.root.Key(location)
	if err != nil {
		return nil, pathError("create", location, err)
	}
	return &fileWriter{files: b, location: location, key: key}, nil
}

// Remove deletes a file; an absent one counts as deleted.
func (b *BoundFiles) Remove(location string) error {
	_, err := b.DeleteFiles(b.ctx, []string{location})
	return err
}

// DeleteFiles deletes files and answers which are gone.
func (b *BoundFiles) DeleteFiles(ctx context.Context, locations []string) (deleted []string, err error) {
	var errs []error
	for len(locations) > 0 {
		n := min(len(locations), objstore.DeleteMax)
		var keys, asked []string
		for _, location := range locations[:n] {
			key, err := b.root.Key(location)
			if err != nil {
				errs = append(errs, pathError("remove", location, err))
				continue
			}
			keys, asked = append(keys, key), append(asked, location)
		}
		locations = locations[n:]
		if len(keys) == 0 {
			continue
		}
		b.counts.deletes.Add(1)
		got, err := b.store.DeleteBatch(ctx, keys)
		if err != nil {
			errs = append(errs, fmt.Errorf("remove %d files of the lake: %w", len(keys), err))
			continue
		}
		for i, location := range asked {
			b.cached.drop(keys[i])
			if err := errors.Join(got.Errors[i], b.removeForeign(keys[i])); err != nil {
				errs = append(errs, pathError("remove", location, err))
			} else {
				deleted = append(deleted, location)
			}
		}
	}
	return deleted, errors.Join(errs...)
}

// deleteBelow deletes everything below a prefix of keys.
func (f *Files) deleteBelow(ctx context.Context, prefix string) error {
	for {
		page, err := f.store.List(ctx, objstore.ListRequest{Prefix: prefix, Limit: objstore.DeleteMax})
		if err != nil || len(page.Objects) == 0 {
			return err
		}
		var keys []string
		for _, o := range page.Objects {
			keys = append(keys, o.Key)
			f.cached.drop(o.Key)
		}
		f.counts.deletes.Add(1)
		got, err := f.store.DeleteBatch(ctx, keys)
		if err := errors.Join(append(got.Errors, err)...); err != nil {
			return err
		}
		if !page.More {
			return nil
		}
	}
}

type fileInfo struct{ objstore.ObjectInfo }

func (i fileInfo) Name() string       { return path.Base(i.Key) }
func (i fileInfo) Size() int64        { return i.ObjectInfo.Size }
func (i fileInfo) Mode() fs.FileMode  { return 0o444 }
func (i fileInfo) ModTime() time.Time { return i.Modified }
func (i fileInfo) IsDir() bool        { return false }
func (i fileInfo) Sys() any           { return nil }

// fileWriter gathers a file in memory.
type fileWriter struct {
	files    *BoundFiles
	location string
	key      string
	buf      bytes.Buffer
	closed   bool
}

func (w *fileWriter) Write(p []byte) (int, error) {
	if w.closed {
		return 0, pathError("write", w.location, fs.ErrClosed)
	}
	return w.buf.Write(p)
}

func (w *fileWriter) ReadFrom(r io.Reader) (int64, error) {
	if w.closed {
		return 0, pathError("write", w.location, fs.ErrClosed)
	}
	return w.buf.ReadFrom(r)
}

func (w *fileWriter) Close() error {
	if w.closed {
		return nil
	}
	w.closed = true
	if err := w.files.writeNew(w.files.ctx, w.key, w.buf.Bytes()); err != nil {
		return pathError("write", w.location, err)
	}
	return nil
}
