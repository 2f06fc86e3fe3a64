package lake_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/apache/iceberg-go"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/builtin/dirstore"
	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/sdk/objstore"
)

func root(t testing.TB, uri string) lake.Root {
	t.Helper()
	r, err := lake.NewRoot(uri)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRootMapsLocationsToKeys(t *testing.T) {
	for _, c := range []struct{ root, location, key string }{
		{"file:///var/mink", "file:///var/mink/lake/d/t-1/data/a.parquet", "lake/d/t-1/data/a.parquet"},
		{"file:///var/mink/", "file:///var/mink/lake/a", "lake/a"},
		{"file:///var//x/../mink", "file:///var/mink/lake/a", "lake/a"},
		{"file:///var/mink", "file:/var/mink/lake/a", "lake/a"},
		{"file:///var/mink", "file://localhost/var/mink/lake/a", "lake/a"},
		{"file:///var/mink", "/var/mink/lake/a", "lake/a"},
		{"file:///", "file:///lake/a", "lake/a"},
		{"s3://bucket", "s3://bucket/lake/a", "lake/a"},
		{"s3://bucket/pre/fix", "s3://bucket/pre/fix/lake/a", "lake/a"},
		{"s3://bucket/pre", "s3a://bucket/pre/lake/a", "lake/a"},
		{"s3://bucket/pre", "s3n://bucket/pre/lake/a", "lake/a"},
		{"gs://b/p", "gs://b/p/lake/a", "lake/a"},

		{"file:///var/mink", "file:///var/mink/wal/1", ""},
		{"file:///var/mink", "file:///var/mink/lake/../wal/1", ""},
		{"file:///var/mink", "file:///var/mink/lake", ""},
		{"file:///var/mink", "file:///var/mink/lake/", ""},
		{"file:///var/mink", "file:///var/minka/lake/a", ""},
		{"file:///var/mink", "file:////var/mink/lake/a", ""},
		{"file:///var/mink", "file:///etc/passwd", ""},
		{"file:///var/mink", "lake/a", ""},
		{"file:///var/mink", "", ""},
		{"s3://bucket", "s3://bucket2/lake/a", ""},
		{"s3://bucket", "gs://bucket/lake/a", ""},
	} {
		r := root(t, c.root)
		key, err := r.Key(c.location)
		if key != c.key || (err == nil) != (c.key != "") {
			t.Errorf("root %s: %s: key %q, %v", c.root, c.location, key, err)
		}
		if err != nil && (!errors.Is(err, objstore.ErrInvalid) || !strings.Contains(err.Error(), c.location)) {
			t.Error(err)
		}
		if err != nil {
			continue
		}
		if again, err := r.Key(r.Location(key)); again != key || err != nil {
			t.Errorf("root %s: %s does not come back: %q, %v", c.root, key, again, err)
		}
	}
	for _, uri := range []string{"", "/var/mink", "file://relative", "s3://b/p?region=x", "://x"} {
		if _, err := lake.NewRoot(uri); !errors.Is(err, objstore.ErrInvalid) {
			t.Errorf("root %q: %v", uri, err)
		}
	}
}

func FuzzRootKey(f *testing.F) {
	for _, s := range []string{"file:///r/lake/a", "file:/r/lake/../wal/x", "/r/lake/a//b", "file:///r/lake/\x00", "file://localhost/r/lake/a"} {
		f.Add(s)
	}
	r := root(f, "file:///r")
	f.Fuzz(func(t *testing.T, location string) {
		key, err := r.Key(location)
		if err != nil {
			if !errors.Is(err, objstore.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if !strings.HasPrefix(key, "lake/") || objstore.ValidateKey(key) != nil || !strings.HasSuffix(location, key) {
			t.Fatalf("%q is key %q", location, key)
		}
	})
}

func TestAFileIsReadAsItWasWritten(t *testing.T) {
	for _, size := range []int{0, 1, 4096, 1<<20 + 7, 9<<20 + 1} {
		store := memstore.New(memstore.Config{})
		files := lake.NewFiles(store, root(t, "file:///r")).With(t.Context())
		want := make([]byte, size)
		for i := range want {
			want[i] = byte(rand.Uint32())
		}
		const location = "file:///r/lake/d/t-1/data/x.parquet"
		w, err := files.Create(location)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.ReadFrom(iotest.HalfReader(bytes.NewReader(want))); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Close(), w.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("x")); !errors.Is(err, fs.ErrClosed) {
			t.Fatal(err)
		}
		f, err := files.Open(location)
		if err != nil {
			t.Fatal(err)
		}
		if err := iotest.TestReader(f, want); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		info, err := f.Stat()
		if err != nil || info.Size() != int64(size) || info.Name() != "x.parquet" {
			t.Fatal(info, err)
		}
		if got, err := files.ReadFile(location); err != nil || !bytes.Equal(got, want) {
			t.Fatal(len(got), err)
		}
	}
}

func TestAFileIsNeverReplaced(t *testing.T) {
	files := lake.NewFiles(memstore.New(memstore.Config{}), root(t, "file:///r")).With(t.Context())
	const location = "file:///r/lake/a.avro"
	if err := files.WriteFile(location, []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := files.WriteFile(location, []byte("one")); err != nil {
		t.Fatal("the same bytes again:", err)
	}
	err := files.WriteFile(location, []byte("two"))
	if !errors.Is(err, objstore.ErrAlreadyExists) || !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	if got, err := files.ReadFile(location); string(got) != "one" || err != nil {
		t.Fatal(string(got), err)
	}
}

func TestAbsentAndForeignFilesSaySo(t *testing.T) {
	files := lake.NewFiles(memstore.New(memstore.Config{}), root(t, "file:///r")).With(t.Context())
	_, openErr := files.Open("file:///r/lake/none")
	_, readErr := files.ReadFile("file:///r/lake/none")
	_, statErr := files.Stat("file:///r/lake/none")
	for _, err := range []error{openErr, readErr, statErr} {
		if !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, objstore.ErrNotExist) || !strings.Contains(err.Error(), "lake/none") {
			t.Error(err)
		}
	}
	if err := files.Remove("file:///r/lake/none"); err != nil {
		t.Error(err)
	}
	deleted, err := files.DeleteFiles(t.Context(), []string{"file:///r/lake/none", "file:///r/wal/1", "s3://x/lake/y"})
	if len(deleted) != 1 || !errors.Is(err, objstore.ErrInvalid) || !strings.Contains(err.Error(), "wal/1") || !strings.Contains(err.Error(), "s3://x") {
		t.Error(deleted, err)
	}
	if _, err := files.Create("file:///r/wal/1"); !errors.Is(err, objstore.ErrInvalid) {
		t.Error(err)
	}
}

// Other engines open the location itself: the directory store must have the file
// under just that name.
func TestTheDirectoryStoreHasTheFileAtItsLocation(t *testing.T) {
	dir := t.TempDir()
	cfg := dirstore.Default()
	cfg.Dir = dir
	store, err := dirstore.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	files := lake.NewFiles(store, root(t, "file://"+dir)).With(t.Context())

	schema := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true})
	location := "file://" + dir + "/lake/db/t-7"
	meta, err := table.NewMetadata(schema, iceberg.UnpartitionedSpec, table.UnsortedSortOrder, location, nil)
	if err != nil {
		t.Fatal(err)
	}
	at := location + "/metadata/00000-5f3c.metadata.json"
	w, err := files.Create(at)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := meta.(interface{ MarshalJSON() ([]byte, error) }).MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	onDisk, err := os.ReadFile(filepath.Join(dir, "lake/db/t-7/metadata/00000-5f3c.metadata.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(onDisk, raw) {
		t.Fatal("other bytes")
	}
	tbl, err := table.NewFromLocation(t.Context(), table.Identifier{"db", "t"}, at, iceio.LoadFSFunc(nil, at), nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := files.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := table.ParseMetadataBytes(got)
	if err != nil || !ours.Equals(tbl.Metadata()) {
		t.Fatal(err)
	}
}
