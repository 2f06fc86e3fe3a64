package e2e

import (
	"bufio"
	"compress/gzip"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the other database

	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// mimeType is an entry of mime-db.
type mimeType struct {
	Type         string   `mink:"type" json:"type"`
	Source       *string  `mink:"source" json:"source"`
	Compressible *bool    `mink:"compressible" json:"compressible"`
	Charset      *string  `mink:"charset" json:"charset"`
	Extensions   []string `mink:"extensions" json:"extensions"`
}

func (m mimeType) text() string {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// mimeChange is a line of testdata/mime-db.jsonl.gz.
type mimeChange struct {
	mimeType
	Version string `json:"version"`
	Removed bool   `json:"removed"`
}

// mimeVersions are the changes of each published version.
func mimeVersions(t *testing.T) (versions [][]mimeChange) {
	t.Helper()
	f, err := os.Open("testdata/mime-db.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	for s := bufio.NewScanner(z); s.Scan(); {
		var c mimeChange
		if err := json.Unmarshal(s.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if c.Version != last {
			versions, last = append(versions, nil), c.Version
		}
		versions[len(versions)-1] = append(versions[len(versions)-1], c)
	}
	if len(versions) != 12 {
		t.Fatalf("%d versions", len(versions))
	}
	return versions
}

// mimeSQLite is the same replay in SQLite.
type mimeSQLite struct {
	t  *testing.T
	db *sql.DB
}

func newMimeSQLite(t *testing.T) *mimeSQLite {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+t.TempDir()+"/mime.db")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE types (type TEXT PRIMARY KEY, source TEXT, compressible INT, charset TEXT, extensions TEXT)`); err != nil {
		t.Fatal(err)
	}
	return &mimeSQLite{t, db}
}

func (s *mimeSQLite) apply(changes []mimeChange) {
	s.t.Helper()
	tx, err := s.db.BeginTx(s.t.Context(), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range changes {
		if c.Removed {
			_, err = tx.ExecContext(s.t.Context(), `DELETE FROM types WHERE type = ?`, c.Type)
		} else {
			var extensions any
			if c.Extensions != nil {
				b, _ := json.Marshal(c.Extensions) // strings
				extensions = string(b)
			}
			_, err = tx.ExecContext(s.t.Context(), `INSERT INTO types VALUES (?, ?, ?, ?, ?) ON CONFLICT (type) DO UPDATE SET
				source = excluded.source, compressible = excluded.compressible, charset = excluded.charset, extensions = excluded.extensions`,
				c.Type, c.Source, c.Compressible, c.Charset, extensions)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		s.t.Fatal(err)
	}
}

// all is every row, sorted.
func (s *mimeSQLite) all() (out []string) {
	s.t.Helper()
	rows, err := s.db.QueryContext(s.t.Context(), `SELECT type, source, compressible, charset, extensions FROM types`)
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var m mimeType
		var extensions *string
		if err := rows.Scan(&m.Type, &m.Source, &m.Compressible, &m.Charset, &extensions); err != nil {
			s.t.Fatal(err)
		}
		if extensions != nil {
			if err := json.Unmarshal([]byte(*extensions), &m.Extensions); err != nil {
				s.t.Fatal(err)
			}
		}
		out = append(out, m.text())
	}
	if err := rows.Err(); err != nil {
		s.t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

// mimeFold folds changes to rows. Strict: of a full image, each must fit what is there.
type mimeFold struct {
	strict bool
	rows   map[string]string
	kinds  map[mink.Change]int
}

func newMimeFold(strict bool) *mimeFold {
	return &mimeFold{strict, map[string]string{}, map[mink.Change]int{}}
}

func (f *mimeFold) apply(change mink.Change, m mimeType) error {
	old, exists := f.rows[m.Type]
	f.kinds[change]++
	switch change {
	case mink.ChangeInsert, mink.ChangeUpdateAfter, mink.ChangeAppend:
		if f.strict && exists == (change == mink.ChangeInsert) {
			return fmt.Errorf("%s of %s, which is there: %v", change, m.Type, exists)
		}
		f.rows[m.Type] = m.text()
	case mink.ChangeUpdateBefore:
		if old != m.text() {
			return fmt.Errorf("-U of %s, which is there as %q", m.text(), old)
		}
	case mink.ChangeDelete:
		if f.strict && old != m.text() {
			return fmt.Errorf("-D of %s, which is there as %q", m.text(), old)
		}
		delete(f.rows, m.Type)
	}
	return nil
}

func (f *mimeFold) all() (out []string) {
	for _, r := range f.rows {
		out = append(out, r)
	}
	slices.Sort(out)
	return out
}

// sameRows compares two sorted lists and shows the first difference.
func sameRows(t *testing.T, what string, got, want []string) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("%s: %d rows, want %d; the first that differs is %s, want %s", what, len(got), len(want), got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%s: %d rows, want %d", what, len(got), len(want))
	}
}

// Twelve published versions of npm's mime-db, replayed as upserts and deletes through
// the Go client: at every version the rows are those of SQLite after the same replay,
// and so are the folded changelog and a copy that was bootstrapped and followed, under
// both images of the changelog. In the middle the node is killed under the writes, and
// once more at the end.
func TestMimeDBEqualsSQLite(t *testing.T) {
	versions := mimeVersions(t)
	for _, image := range []string{"full", "wal"} {
		t.Run(image, func(t *testing.T) {
			n := newNode(t)
			n.start()
			n.createTable("web.mime", columns("type STRING", "source STRING", "compressible BOOLEAN", "charset STRING", "extensions ARRAY<STRING>"),
				"--primary-key", "type", "--bucket-count", "4", "--option", "changelog_image="+image)
			other := newMimeSQLite(t)
			cfg := client.Default()
			cfg.Bootstrap = []string{n.flight}
			c, err := client.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			copied := followMime(t, c, image)
			w, err := client.NewTypedUpsertWriter[mimeType](t.Context(), c, "web.mime", client.DefaultUpsert())
			if err != nil {
				t.Fatal(err)
			}
			for i, changes := range versions {
				other.apply(changes)
				for j, change := range changes {
					if i == len(versions)/2 && j == len(changes)/2 {
						n.kill()
						n.start()
					}
					write := w.UpsertRows
					if change.Removed {
						write = w.DeleteRows
					}
					if _, err := write(t.Context(), change.mimeType); err != nil {
						t.Fatal(err)
					}
				}
				if err := w.Flush(t.Context()); err != nil {
					t.Fatalf("version %s: %v", changes[0].Version, err)
				}
				sameRows(t, "version "+changes[0].Version, mimeRows(t, c), other.all())
				if count, err := c.Count(t.Context(), "web.mime", nil); err != nil || count != int64(len(other.all())) {
					t.Fatalf("version %s: count %d, %v; want %d", changes[0].Version, count, err, len(other.all()))
				}
			}
			if err := w.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			n.kill()
			n.start()
			want := other.all()
			sameRows(t, "after a kill", mimeRows(t, c), want)
			fold := foldMime(t, c, image)
			sameRows(t, "the folded changelog", fold.all(), want)
			if removed := fold.kinds[mink.ChangeDelete]; removed != 63 {
				t.Errorf("%d deletes in the changelog, want 63", removed)
			}
			copied(want)
			lookupMime(t, c, versions, want)
		})
	}
}

// mimeRows reads all rows, sorted.
func mimeRows(t *testing.T, c *client.Client) (out []string) {
	t.Helper()
	for b, err := range c.ScanSnapshot(t.Context(), client.SnapshotRequest{Table: "web.mime", Bucket: -1}) {
		if err != nil {
			t.Fatal(err)
		}
		rows, err := client.Decode[mimeType](b.Record)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			out = append(out, r.text())
		}
	}
	slices.Sort(out)
	return out
}

// foldMime folds the whole changelog.
func foldMime(t *testing.T, c *client.Client, image string) *mimeFold {
	t.Helper()
	fold := newMimeFold(image == "full")
	for b, err := range c.Scan(t.Context(), client.ScanRequest{Table: "web.mime", Bucket: -1}) {
		if err != nil {
			t.Fatal(err)
		}
		rows, err := client.Decode[mimeType](b.Record)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range rows {
			if err := fold.apply(b.Change(i), r); err != nil {
				t.Fatalf("offset %d of bucket %s: %v", int64(b.Meta.Base)+int64(i), b.Bucket, err)
			}
		}
	}
	return fold
}

// followMime copies the table and follows it, with the position that it stored when it
// is ended after every 500 rows. It answers what waits until the copy has the wanted rows.
func followMime(t *testing.T, c *client.Client, image string) func(want []string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	fold := newMimeFold(image == "full")
	var mu sync.Mutex
	var failed error
	var wg sync.WaitGroup
	wg.Go(func() {
		positions := map[mink.BucketRef]client.BootstrapPosition{}
		for ctx.Err() == nil {
			request := client.BootstrapRequest{Table: "web.mime", Bucket: -1}
			for _, p := range positions {
				request.Resume = append(request.Resume, p)
			}
			seen := 0
			for b, err := range c.Bootstrap(ctx, request) {
				var rows []mimeType
				if err == nil {
					rows, err = client.Decode[mimeType](b.Record)
				}
				mu.Lock()
				for i, r := range rows {
					err = errors.Join(err, fold.apply(b.Changes[i], r))
				}
				if err != nil && ctx.Err() == nil && failed == nil {
					failed = err
				}
				mu.Unlock()
				if err != nil {
					break
				}
				positions[b.Bucket] = b.Position
				if seen += len(rows); seen > 500 {
					break
				}
			}
		}
	})
	t.Cleanup(func() { stop(); wg.Wait() })
	return func(want []string) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for {
			mu.Lock()
			got, err := fold.all(), failed
			mu.Unlock()
			if err != nil {
				t.Fatalf("the copy: %v", err)
			}
			if slices.Equal(got, want) {
				break
			}
			if time.Now().After(deadline) {
				sameRows(t, "the copy", got, want)
			}
			time.Sleep(50 * time.Millisecond)
		}
		stop()
		wg.Wait()
	}
}

// lookupMime looks up every type that ever was.
func lookupMime(t *testing.T, c *client.Client, versions [][]mimeChange, want []string) {
	t.Helper()
	l, err := client.NewTypedLookuper[string, mimeType](t.Context(), c, "web.mime", client.DefaultLookup())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ever := map[string]bool{}
	for _, changes := range versions {
		for _, change := range changes {
			ever[change.Type] = true
		}
	}
	var got []string
	var mu sync.Mutex
	var wg sync.WaitGroup
	for name := range ever {
		wg.Go(func() {
			row, ok, err := l.Find(t.Context(), name)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				t.Error(err)
			case ok && row.Type != name:
				t.Errorf("lookup of %s found %s", name, row.Type)
			case ok:
				got = append(got, row.text())
			}
		})
	}
	wg.Wait()
	slices.Sort(got)
	sameRows(t, "lookups", got, want)
}
