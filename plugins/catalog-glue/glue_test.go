package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/plugins/cloudtest"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/catalog/catalogtest"
	"github.com/mink-project/mink/sdk/sink"
	"github.com/mink-project/mink/sdk/sink/sinktest"
)

func TestMain(m *testing.M) { cloudtest.Main(m, self) }

func TestManual(t *testing.T) { cloudtest.CheckOptions(t, self.Info) }

func optionsFor(url string, more ...string) map[string]string {
	o := map[string]string{"endpoint": url, "region": "us-east-1", "access_key_id": "AKID", "secret_access_key": "hunter2"}
	for i := 0; i < len(more); i += 2 {
		o[more[i]] = more[i+1]
	}
	return o
}

// versions stands before moto, which takes every UpdateTable whatever its VersionId says;
// Glue refuses one that is not the table's.
type versions struct {
	moto string
	mu   sync.Mutex
	fail func(operation string) (status int, code string, after bool) // nil: nothing fails
}

func withVersions(t *testing.T, moto *cloudtest.Server) (*versions, string) {
	t.Helper()
	v := &versions{moto: moto.URL}
	s := httptest.NewServer(v)
	t.Cleanup(s.Close)
	return v, s.URL
}

func (v *versions) send(r *http.Request, target string, body []byte) (*http.Response, []byte, error) {
	req, err := http.NewRequestWithContext(r.Context(), r.Method, v.moto+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header = r.Header.Clone()
	req.Header.Set("X-Amz-Target", target)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	return resp, answer, err
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"__type":%q,"Message":"said so"}`, code)
}

func (v *versions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	target := r.Header.Get("X-Amz-Target")
	operation := strings.TrimPrefix(target, "AWSGlue.")
	v.mu.Lock()
	fail := v.fail
	v.mu.Unlock()
	status, code, after := 0, "", false
	if fail != nil {
		if status, code, after = fail(operation); status != 0 && !after {
			refuse(w, status, code)
			return
		}
	}
	if operation == "UpdateTable" {
		v.mu.Lock()
		defer v.mu.Unlock()
		var in struct {
			DatabaseName, VersionId string
			TableInput              struct{ Name string }
		}
		_ = json.Unmarshal(body, &in)
		_, answer, err := v.send(r, "AWSGlue.GetTable", fmt.Appendf(nil, `{"DatabaseName":%q,"Name":%q}`, in.DatabaseName, in.TableInput.Name))
		var got struct{ Table *struct{ VersionId string } }
		if err == nil {
			err = json.Unmarshal(answer, &got)
		}
		if err == nil && got.Table != nil && got.Table.VersionId != in.VersionId {
			refuse(w, http.StatusBadRequest, "ConcurrentModificationException")
			return
		}
	}
	resp, answer, err := v.send(r, target, body)
	switch {
	case err != nil:
		refuse(w, http.StatusBadGateway, "InternalServiceException")
		return
	case status < 0: // the answer is lost
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close()
		}
		return
	case status != 0:
		refuse(w, status, code)
		return
	}
	for name, values := range resp.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(answer)
}

type opener func(ctx context.Context, options map[string]string) (catalog.Catalog, error)

func conformance(t *testing.T, open opener) {
	_, url := withVersions(t, cloudtest.Moto(t))
	catalogtest.Run(t, func(*testing.T) catalogtest.Target {
		return catalogtest.Target{Shared: true, Start: func(ctx context.Context) (catalog.Catalog, error) { return open(ctx, optionsFor(url)) }}
	})
}

func TestConformance(t *testing.T)        { conformance(t, open) }
func TestProcessConformance(t *testing.T) { conformance(t, cloudtest.Process(t, self).OpenCatalog) }

// The kit sees that versions are what keeps commits apart: without them moto lets two win.
func TestTheVersionDecides(t *testing.T) {
	moto := cloudtest.Moto(t)
	c, err := open(t.Context(), optionsFor(moto.URL))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	id := newTable(t, c)
	first, err := c.LoadTable(t.Context(), catalog.LoadTableRequest{Table: id})
	if err != nil || first.Version == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	if err := swap(t, c, first, 1); err != nil {
		t.Fatal(err)
	}
	second, err := c.LoadTable(t.Context(), catalog.LoadTableRequest{Table: id})
	if err != nil || second.Version == first.Version || second.MetadataLocation != file(1) {
		t.Fatalf("%+v, %v", second, err)
	}
	second.Version = first.Version // planned on an older entry that led to the same file
	if err := swap(t, c, second, 2); !errors.Is(err, catalog.ErrConflict) {
		t.Errorf("%v", err)
	}
}

func file(n int) string { return fmt.Sprintf("s3://b/w/t/metadata/%05d.metadata.json", n) }

func newTable(t *testing.T, c catalog.Catalog) catalog.Identifier {
	t.Helper()
	id := catalog.Identifier{Namespace: []string{"shop"}, Name: "orders"}
	_, err := c.CreateNamespace(t.Context(), catalog.CreateNamespaceRequest{Namespace: id.Namespace, Properties: map[string]string{"location": "s3://b/w", "comment": "all of it", "k": "v"}})
	if err == nil {
		_, err = c.CreateTable(t.Context(), catalog.CreateTableRequest{Table: id, MetadataLocation: file(0)})
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.LoadNamespace(t.Context(), catalog.LoadNamespaceRequest{Namespace: id.Namespace})
	if err != nil || got.Properties["location"] != "s3://b/w" || got.Properties["comment"] != "all of it" || got.Properties["k"] != "v" {
		t.Errorf("%v, %v", got.Properties, err)
	}
	return id
}

func swap(t *testing.T, c catalog.Catalog, seen catalog.LoadTableResponse, to int) error {
	t.Helper()
	_, err := c.(catalog.Swapper).SwapMetadata(t.Context(), catalog.SwapMetadataRequest{
		Table: catalog.Identifier{Namespace: []string{"shop"}, Name: "orders"}, ExpectedLocation: seen.MetadataLocation, ExpectedVersion: seen.Version, NewLocation: file(to),
	})
	return err
}

// What each failure of UpdateTable says of the commit, and that it is so.
func TestFailuresOfACommit(t *testing.T) {
	moto := cloudtest.Moto(t)
	for name, c := range map[string]struct {
		status  int // below 0: the answer is lost
		code    string
		after   bool
		is      error
		unknown bool
	}{
		"throttled":               {400, "ThrottlingException", false, catalog.ErrThrottled, false},
		"another was faster":      {400, "ConcurrentModificationException", false, catalog.ErrConflict, false},
		"denied":                  {400, "AccessDeniedException", false, catalog.ErrUnauthorized, false},
		"expired":                 {400, "ExpiredTokenException", false, catalog.ErrUnauthorized, false},
		"internal, before":        {500, "InternalServiceException", false, catalog.ErrUnknownOutcome, true},
		"internal, after":         {500, "InternalServiceException", true, catalog.ErrUnknownOutcome, true},
		"timeout, after":          {500, "OperationTimeoutException", true, catalog.ErrUnknownOutcome, true},
		"the connection is gone":  {-1, "", true, catalog.ErrUnknownOutcome, true},
		"dropped in the meantime": {400, "EntityNotFoundException", false, catalog.ErrNotExist, false},
		"invalid":                 {400, "InvalidInputException", false, catalog.ErrInvalid, false},
	} {
		t.Run(name, func(t *testing.T) {
			v, url := withVersions(t, moto)
			if resp, err := http.Post(moto.URL+"/moto-api/reset", "", nil); err != nil || resp.Body.Close() != nil { //nolint:noctx // a test
				t.Fatal(err)
			}
			cat, err := open(t.Context(), optionsFor(url))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cat.Close() }()
			id := newTable(t, cat)
			seen, err := cat.LoadTable(t.Context(), catalog.LoadTableRequest{Table: id})
			if err != nil {
				t.Fatal(err)
			}
			v.mu.Lock()
			v.fail = func(operation string) (int, string, bool) {
				if operation != "UpdateTable" {
					return 0, "", false
				}
				return c.status, c.code, c.after
			}
			v.mu.Unlock()
			err = swap(t, cat, seen, 1)
			if !errors.Is(err, c.is) || errors.Is(err, catalog.ErrUnknownOutcome) != c.unknown || strings.Contains(fmt.Sprint(err), "hunter2") {
				t.Errorf("%v; want %v", err, c.is)
			}
			now, err := cat.LoadTable(t.Context(), catalog.LoadTableRequest{Table: id})
			if err != nil || (now.MetadataLocation == file(1)) != c.after {
				t.Errorf("%+v, %v", now, err)
			}
		})
	}
}

// Reads fail as unavailable, and what others keep in Glue is left alone.
func TestOtherTables(t *testing.T) {
	v, url := withVersions(t, cloudtest.Moto(t))
	c, err := open(t.Context(), optionsFor(url))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	id := newTable(t, c)
	gc := c.(*glueCatalog)
	hive := catalog.Identifier{Namespace: id.Namespace, Name: "hive"}
	putHive(t, gc, hive)
	if got, err := c.ListTables(t.Context(), catalog.ListTablesRequest{Namespace: id.Namespace}); err != nil || fmt.Sprint(got.Names) != "[orders]" {
		t.Errorf("%v, %v", got.Names, err)
	}
	if _, err := c.LoadTable(t.Context(), catalog.LoadTableRequest{Table: hive}); !errors.Is(err, catalog.ErrInvalid) {
		t.Error(err)
	}
	if _, err := c.DropTable(t.Context(), catalog.DropTableRequest{Table: hive}); !errors.Is(err, catalog.ErrInvalid) {
		t.Error(err)
	}
	if _, err := c.DropTable(t.Context(), catalog.DropTableRequest{Table: id}); err != nil {
		t.Error(err)
	}
	// Dropping the database would take the other's table with it.
	if _, err := c.DropNamespace(t.Context(), catalog.DropNamespaceRequest{Namespace: id.Namespace}); !errors.Is(err, catalog.ErrNotEmpty) {
		t.Error(err)
	}
	v.mu.Lock()
	v.fail = func(string) (int, string, bool) { return 500, "InternalServiceException", false }
	v.mu.Unlock()
	if _, err := c.LoadTable(t.Context(), catalog.LoadTableRequest{Table: id}); !errors.Is(err, catalog.ErrUnavailable) || errors.Is(err, catalog.ErrUnknownOutcome) {
		t.Error(err)
	}
}

// The lake's sink keeps its contract on Glue, as far as commits decide it; moto is too slow
// for the checks with thousands of calls.
func TestTheLakesSinkOnGlue(t *testing.T) {
	about := []string{"Rounds", "CommitAgain", "AnswerLost", "KilledDuringCommit", "StaleBase", "StaleFence", "RivalPrepared", "OlderBegins"}
	var others []string
	for _, c := range sinktest.Checks() {
		if !slices.Contains(about, c.Name) {
			others = append(others, c.Name)
		}
	}
	_, url := withVersions(t, cloudtest.Moto(t))
	process := cloudtest.Process(t, self)
	n := 0
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		store := memstore.New(memstore.Default())
		n++
		c, err := process.OpenCatalog(t.Context(), optionsFor(url))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return sinktest.Target{Start: func(context.Context) (sink.Sink, func(), error) {
			w, err := lake.NewWarehouse(lake.WarehouseConfig{Store: store, Root: "file:///w", Catalog: renamed{c, c.(catalog.Swapper), n}})
			if err != nil {
				return nil, nil, err
			}
			return lake.NewSink(w, lake.SinkConfig{}), func() {}, nil
		}}
	}, others...)
}

// renamed gives each check databases of its own: moto's are kept for all.
type renamed struct {
	catalog.Catalog
	catalog.Swapper
	n int
}

func (r renamed) ns(namespace []string) []string {
	return []string{fmt.Sprintf("c%d_%s", r.n, plain(namespace[0]))}
}

// plain: the kit's names are of the kind that Glue refuses.
func plain(name string) string {
	return strings.Map(func(c rune) rune {
		if 'a' <= c && c <= 'z' || '0' <= c && c <= '9' {
			return c
		}
		return '_'
	}, strings.ToLower(name))
}

func (r renamed) id(id catalog.Identifier) catalog.Identifier {
	return catalog.Identifier{Namespace: r.ns(id.Namespace), Name: plain(id.Name)}
}

func (r renamed) CreateNamespace(ctx context.Context, req catalog.CreateNamespaceRequest) (catalog.CreateNamespaceResponse, error) {
	req.Namespace = r.ns(req.Namespace)
	return r.Catalog.CreateNamespace(ctx, req)
}

func (r renamed) LoadTable(ctx context.Context, req catalog.LoadTableRequest) (catalog.LoadTableResponse, error) {
	req.Table = r.id(req.Table)
	return r.Catalog.LoadTable(ctx, req)
}

func (r renamed) CreateTable(ctx context.Context, req catalog.CreateTableRequest) (catalog.LoadTableResponse, error) {
	req.Table = r.id(req.Table)
	return r.Catalog.CreateTable(ctx, req)
}

func (r renamed) DropTable(ctx context.Context, req catalog.DropTableRequest) (catalog.DropTableResponse, error) {
	req.Table = r.id(req.Table)
	return r.Catalog.DropTable(ctx, req)
}

func (r renamed) SwapMetadata(ctx context.Context, req catalog.SwapMetadataRequest) (catalog.SwapMetadataResponse, error) {
	req.Table = r.id(req.Table)
	return r.Swapper.SwapMetadata(ctx, req)
}

func TestConfigIsRefused(t *testing.T) {
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("HOME", t.TempDir())
	for name, c := range map[string]struct {
		options map[string]string
		is      error
		says    string
	}{
		"endpoint":       {optionsFor("localhost:1"), catalog.ErrInvalid, "endpoint"},
		"archive":        {optionsFor("http://h", "archive", "some"), catalog.ErrInvalid, "archive"},
		"half a key":     {optionsFor("http://h", "secret_access_key", ""), catalog.ErrInvalid, "go together"},
		"no region":      {optionsFor("http://h", "region", ""), catalog.ErrInvalid, "AWS_REGION"},
		"no credentials": {map[string]string{"region": "us-east-1"}, catalog.ErrUnauthorized, "AWS_ACCESS_KEY_ID"},
	} {
		if _, err := open(t.Context(), c.options); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Nobody listens: nothing was sent.
	c, err := open(t.Context(), optionsFor("http://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.CreateTable(t.Context(), catalog.CreateTableRequest{Table: catalog.Identifier{Namespace: []string{"n"}, Name: "t"}, MetadataLocation: file(0)})
	if !errors.Is(err, catalog.ErrUnavailable) || errors.Is(err, catalog.ErrUnknownOutcome) {
		t.Error(err)
	}
}
