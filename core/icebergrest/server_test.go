package icebergrest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/builtin/sqlcatalog"
	"github.com/mink-project/mink/core/icebergrest"
	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/catalog/catalogtest"
)

type world struct {
	t      testing.TB
	faulty *catalogtest.Faulty
	server http.Handler
	token  string
	header http.Header // of the last answer
}

func newWorld(t testing.TB, cfg icebergrest.Config) *world {
	t.Helper()
	c, err := sqlcatalog.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "catalog.db"), sqlcatalog.Default())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	o := &world{t: t, faulty: &catalogtest.Faulty{Catalog: c}}
	w, err := lake.NewWarehouse(lake.WarehouseConfig{Store: memstore.New(memstore.Config{}), Root: "file:///w", Catalog: o.faulty})
	if err != nil {
		t.Fatal(err)
	}
	o.server = icebergrest.New(&lake.Guard{Warehouse: w}, cfg, slog.New(slog.DiscardHandler))
	return o
}

// do asks, and answers the status and the body as an object.
func (o *world) do(method, path, body string, headers ...string) (int, map[string]any) {
	o.t.Helper()
	r := httptest.NewRequestWithContext(context.WithoutCancel(o.t.Context()), method, path, strings.NewReader(body))
	if o.token != "" {
		r.Header.Set("Authorization", "Bearer "+o.token)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	o.server.ServeHTTP(rec, r)
	resp := rec.Result()
	o.header = resp.Header
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		o.t.Fatal(err)
	}
	out := map[string]any{}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &out); err != nil {
			o.t.Fatalf("%s %s: %s: %v", method, path, raw, err)
		}
	}
	return resp.StatusCode, out
}

// want asks and checks the status and, of errors, the type.
func (o *world) want(status int, kind, method, path, body string, headers ...string) map[string]any {
	o.t.Helper()
	got, out := o.do(method, path, body, headers...)
	if got != status {
		o.t.Fatalf("%s %s: status %d, want %d: %v", method, path, got, status, out)
	}
	if status >= 400 && method != "HEAD" {
		e, _ := out["error"].(map[string]any)
		if e["type"] != kind || e["code"] != float64(status) || e["message"] == "" {
			o.t.Fatalf("%s %s: error %v, want %s", method, path, out, kind)
		}
	}
	return out
}

const aTable = `{"name":"t","schema":{"type":"struct","fields":[{"id":1,"name":"a","type":"long","required":false}]}}`

func (o *world) table() map[string]any {
	o.t.Helper()
	o.want(200, "", "POST", "/v1/namespaces", `{"namespace":["n"]}`)
	return o.want(200, "", "POST", "/v1/namespaces/n/tables", aTable)
}

func TestNamespaces(t *testing.T) {
	o := newWorld(t, icebergrest.Config{})
	o.want(200, "", "POST", "/v1/namespaces", `{"namespace":["a","b"],"properties":{"x":"1","y":"2"}}`)
	o.want(409, "AlreadyExistsException", "POST", "/v1/namespaces", `{"namespace":["a","b"]}`)
	o.want(400, "BadRequestException", "POST", "/v1/namespaces", `{"namespace":[]}`)
	o.want(204, "", "HEAD", "/v1/namespaces/a%1Fb", "")
	o.want(404, "", "HEAD", "/v1/namespaces/c", "")
	o.want(404, "NoSuchNamespaceException", "GET", "/v1/namespaces/c", "")
	got := o.want(200, "", "GET", "/v1/namespaces/a%1Fb", "")
	if fmt.Sprint(got) != "map[namespace:[a b] properties:map[x:1 y:2]]" {
		t.Error(got)
	}
	got = o.want(200, "", "POST", "/v1/namespaces/a%1Fb/properties", `{"removals":["x","none"],"updates":{"z":"3"}}`)
	if fmt.Sprint(got) != "map[missing:[none] removed:[x] updated:[z]]" {
		t.Error(got)
	}
	o.want(422, "UnprocessableEntityException", "POST", "/v1/namespaces/a%1Fb/properties", `{"removals":["x"],"updates":{"x":"3"}}`)
	o.want(404, "NoSuchNamespaceException", "POST", "/v1/namespaces/c/properties", `{"updates":{"x":"3"}}`)
	if got := o.want(200, "", "GET", "/v1/namespaces?parent=a", ""); fmt.Sprint(got["namespaces"]) != "[[a b]]" {
		t.Error(got)
	}
	o.want(409, "NamespaceNotEmptyException", "DELETE", "/v1/namespaces/a", "")
	o.want(204, "", "DELETE", "/v1/namespaces/a%1Fb", "")
	o.want(404, "NoSuchNamespaceException", "DELETE", "/v1/namespaces/a%1Fb", "")
}

func TestTables(t *testing.T) {
	o := newWorld(t, icebergrest.Config{Client: map[string]string{"s3.region": "x"}})
	o.want(404, "NoSuchNamespaceException", "POST", "/v1/namespaces/n/tables", aTable)
	made := o.table()
	if fmt.Sprint(made["config"]) != "map[s3.region:x]" {
		t.Error(made["config"])
	}
	o.want(409, "AlreadyExistsException", "POST", "/v1/namespaces/n/tables", aTable)
	o.want(204, "", "HEAD", "/v1/namespaces/n/tables/t", "")
	o.want(404, "", "HEAD", "/v1/namespaces/n/tables/none", "")
	o.want(404, "NoSuchTableException", "GET", "/v1/namespaces/n/tables/none", "")
	o.want(200, "", "GET", "/v1/namespaces/n/tables/t", "")
	tag := o.header.Get("ETag")
	o.want(304, "", "GET", "/v1/namespaces/n/tables/t", "", "If-None-Match", `"other", W/`+tag)
	uuid := made["metadata"].(map[string]any)["table-uuid"].(string)
	commit := func(requirement, update string) string {
		return fmt.Sprintf(`{"requirements":[%s],"updates":[%s]}`, requirement, update)
	}
	o.want(200, "", "POST", "/v1/namespaces/n/tables/t", commit(`{"type":"assert-table-uuid","uuid":"`+uuid+`"}`, `{"action":"set-properties","updates":{"k":"v"}}`))
	got := o.want(200, "", "GET", "/v1/namespaces/n/tables/t", "", "If-None-Match", tag)
	if got["metadata"].(map[string]any)["properties"].(map[string]any)["k"] != "v" {
		t.Error(got)
	}
	o.want(409, "CommitFailedException", "POST", "/v1/namespaces/n/tables/t", commit(`{"type":"assert-table-uuid","uuid":"9c12d441-03fe-4693-9a96-a0705ddf69c1"}`, `{"action":"set-properties","updates":{"k":"w"}}`))
	o.want(404, "NoSuchTableException", "POST", "/v1/namespaces/n/tables/none", commit("", `{"action":"set-properties","updates":{"k":"w"}}`))
	for _, bad := range []string{commit(`{"type":"assert-the-moon"}`, ""), commit("", `{"action":"fly-to-the-moon"}`)} {
		if got := o.want(400, "BadRequestException", "POST", "/v1/namespaces/n/tables/t", bad); !strings.Contains(fmt.Sprint(got), "moon") {
			t.Error("the unknown kind is not named:", got)
		}
	}
	o.want(400, "BadRequestException", "POST", "/v1/namespaces/n/tables/t", `{"identifier":{"namespace":["n"],"name":"u"},"updates":[]}`)
	o.want(204, "", "POST", "/v1/namespaces/n/tables/t/metrics", `{"report-type":"scan-report"}`)
	o.want(200, "", "GET", "/v1/namespaces/n/tables/t/credentials", "")
	rename := func(from, to string) string {
		return fmt.Sprintf(`{"source":{"namespace":["n"],"name":%q},"destination":{"namespace":%s}}`, from, to)
	}
	o.want(404, "NoSuchTableException", "POST", "/v1/tables/rename", rename("none", `["n"],"name":"u"`))
	o.want(404, "NoSuchNamespaceException", "POST", "/v1/tables/rename", rename("t", `["m"],"name":"u"`))
	o.want(204, "", "POST", "/v1/tables/rename", rename("t", `["n"],"name":"u"`))
	location := o.want(200, "", "GET", "/v1/namespaces/n/tables/u", "")["metadata-location"].(string)
	o.want(204, "", "DELETE", "/v1/namespaces/n/tables/u", "")
	o.want(404, "NoSuchTableException", "DELETE", "/v1/namespaces/n/tables/u", "")
	o.want(200, "", "POST", "/v1/namespaces/n/register", fmt.Sprintf(`{"name":"again","metadata-location":%q}`, location))
	o.want(409, "AlreadyExistsException", "POST", "/v1/namespaces/n/register", fmt.Sprintf(`{"name":"again","metadata-location":%q}`, location))
	o.want(400, "BadRequestException", "POST", "/v1/namespaces/n/register", `{"name":"x","metadata-location":"s3://other/metadata.json"}`)
	o.want(400, "BadRequestException", "POST", "/v1/namespaces/n/register", `{"name":"x","metadata-location":"file:///w/lake/none.metadata.json"}`)
	o.want(204, "", "DELETE", "/v1/namespaces/n/tables/again?purgeRequested=true", "")
	o.want(400, "BadRequestException", "POST", "/v1/namespaces/n/register", fmt.Sprintf(`{"name":"again","metadata-location":%q}`, location))
}

func TestAStagedTableIsNowhereUntilItsCommit(t *testing.T) {
	o := newWorld(t, icebergrest.Config{})
	o.want(200, "", "POST", "/v1/namespaces", `{"namespace":["n"]}`)
	got := o.want(200, "", "POST", "/v1/namespaces/n/tables", strings.Replace(aTable, "{", `{"stage-create":true,`, 1))
	if _, ok := got["metadata-location"]; ok {
		t.Error(got)
	}
	o.want(404, "NoSuchTableException", "GET", "/v1/namespaces/n/tables/t", "")
}

func TestPages(t *testing.T) {
	o := newWorld(t, icebergrest.Config{})
	o.table()
	for i := range 4 {
		o.want(200, "", "POST", "/v1/namespaces/n/tables", strings.Replace(aTable, `"t"`, fmt.Sprintf(`"t%d"`, i), 1))
	}
	if got := o.want(200, "", "GET", "/v1/namespaces/n/tables", ""); len(got["identifiers"].([]any)) != 5 || got["next-page-token"] != nil {
		t.Error(got)
	}
	var names []string
	token := ""
	for {
		got := o.want(200, "", "GET", "/v1/namespaces/n/tables?pageSize=2&pageToken="+token, "")
		for _, i := range got["identifiers"].([]any) {
			names = append(names, i.(map[string]any)["name"].(string))
		}
		next, ok := got["next-page-token"].(string)
		if !ok {
			break
		}
		token = next
	}
	if strings.Join(names, " ") != "t t0 t1 t2 t3" {
		t.Error(names)
	}
	o.want(400, "BadRequestException", "GET", "/v1/namespaces/n/tables?pageSize=x", "")
	o.want(400, "BadRequestException", "GET", "/v1/namespaces/n/tables?pageToken=%21", "")
}

// A commit whose answer was lost must not look like one that failed: clients would
// delete its files.
func TestOutcomesAreToldApart(t *testing.T) {
	o := newWorld(t, icebergrest.Config{})
	o.table()
	commit := `{"requirements":[],"updates":[{"action":"set-properties","updates":{"k":"v"}}]}`
	swap := func(err error) func(string) error {
		return func(call string) error {
			if call == "SwapMetadata" {
				return err
			}
			return nil
		}
	}
	for _, c := range []struct {
		err    error
		status int
		kind   string
	}{
		{catalog.ErrUnknownOutcome, 500, "CommitStateUnknownException"},
		{errors.New("odd"), 500, "CommitStateUnknownException"},
		{catalog.ErrUnavailable, 503, "ServiceUnavailableException"},
		{catalog.ErrConflict, 409, "CommitFailedException"},
	} {
		o.faulty.Before = swap(c.err)
		o.want(c.status, c.kind, "POST", "/v1/namespaces/n/tables/t", commit)
	}
	o.faulty.Before = func(string) error { return catalog.ErrUnavailable }
	o.want(503, "ServiceUnavailableException", "GET", "/v1/namespaces/n/tables/t", "")
	if o.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

func TestMinksTablesAreGuarded(t *testing.T) {
	o := newWorld(t, icebergrest.Config{})
	o.want(200, "", "POST", "/v1/namespaces", `{"namespace":["n"]}`)
	o.want(400, "BadRequestException", "POST", "/v1/namespaces/n/tables", strings.Replace(aTable, "{", `{"properties":{"mink.table-id":"7"},`, 1))
	o.want(404, "NoSuchTableException", "GET", "/v1/namespaces/n/tables/t", "")
}

func TestTheTokenIsAskedFor(t *testing.T) {
	o := newWorld(t, icebergrest.Config{Token: "s3cret"})
	for _, token := range []string{"", "s3cre", "s3cret2"} {
		o.token = token
		for _, path := range []string{"/v1/config", "/v1/namespaces", "/v1/namespaces/n/tables/t", "/nowhere"} {
			o.want(401, "NotAuthorizedException", "GET", path, "")
		}
		if o.header.Get("WWW-Authenticate") == "" {
			t.Error("no WWW-Authenticate")
		}
	}
	o.token = ""
	o.want(401, "NotAuthorizedException", "GET", "/v1/config", "", "Authorization", "Basic s3cret")
	o.token = "s3cret"
	o.want(200, "", "GET", "/v1/config", "")
}

func TestWhatIsNotOffered(t *testing.T) {
	o := newWorld(t, icebergrest.Config{})
	o.table()
	o.want(200, "", "GET", "/v1/namespaces/n/views", "")
	o.want(404, "NoSuchNamespaceException", "GET", "/v1/namespaces/m/views", "")
	o.want(404, "NoSuchViewException", "GET", "/v1/namespaces/n/views/v", "")
	o.want(406, "UnsupportedOperationException", "POST", "/v1/namespaces/n/views", "{}")
	o.want(406, "UnsupportedOperationException", "POST", "/v1/transactions/commit", "{}")
	o.want(406, "UnsupportedOperationException", "POST", "/v1/namespaces/n/tables/t/plan", "{}")
	o.want(406, "UnsupportedOperationException", "POST", "/v1/oauth/tokens", "")
	o.want(404, "NotFoundException", "GET", "/v2/namespaces", "")
	config := o.want(200, "", "GET", "/v1/config?warehouse=w", "")
	for _, e := range config["endpoints"].([]any) {
		for _, no := range []string{"views", "transactions", "plan", "oauth"} {
			if strings.Contains(e.(string), no) {
				t.Error("offers", e)
			}
		}
	}
}

func TestBodiesAreBounded(t *testing.T) {
	o := newWorld(t, icebergrest.Config{BodyBytesMax: 1 << 10})
	o.want(413, "BadRequestException", "POST", "/v1/namespaces", `{"namespace":["`+strings.Repeat("x", 2<<10)+`"]}`)
	o.want(400, "BadRequestException", "POST", "/v1/namespaces", `{"namespace":`)
	o.want(400, "BadRequestException", "POST", "/v1/namespaces/n/tables", strings.Repeat(`[`, 1000))
}

// Whatever a client sends to make or change a table: an answer that is an error of the
// client's, or a table that everybody can read. Never a failure of the server.
func FuzzTable(f *testing.F) {
	for _, body := range []string{
		aTable, "null", "{}", `{"name":"t","schema":null}`, `{"name":"t","schema":{"type":"struct","fields":[null]}}`,
		`{"name":"t","schema":{"type":"struct","fields":[{"id":1,"name":"a","type":"list"}]}}`,
		`{"name":"t","schema":{"type":"struct","fields":[{"id":1,"name":"a","type":"decimal(99,1)","required":true}]},"partition-spec":{"fields":[{"source-id":9,"name":"b","transform":"bucket[0]"}]}}`,
		`{"name":"t","schema":{"type":"struct","fields":[{"id":1,"name":"a","type":"long","required":false}]},"write-order":{"order-id":1,"fields":[{"source-id":1,"direction":"asc","null-order":"nulls-first","transform":"identity"}]}}`,
		`{"updates":[{"action":"add-snapshot","snapshot":null}]}`, `{"updates":[{"action":"add-spec","spec":{"spec-id":1,"fields":[{"source-id":77,"field-id":1000,"name":"b","transform":"void"}]}}]}`,
		`{"requirements":[{"type":"assert-create"}],"updates":[{"action":"assign-uuid","uuid":"9c12d441-03fe-4693-9a96-a0705ddf69c1"}]}`,
		`{"updates":[{"action":"set-statistics","snapshot-id":1,"statistics":{"snapshot-id":1}}]}`, `{"updates":[{"action":"remove-snapshots","snapshot-ids":[1]}]}`,
		`{"updates":[{"action":"add-schema","schema":{"type":"struct","fields":[]}},{"action":"set-current-schema","schema-id":-1}]}`,
		`{"updates":[{"action":"upgrade-format-version","format-version":3}]}`, `{"updates":[{"action":"set-snapshot-ref","ref-name":"","type":"tag","snapshot-id":-1}]}`,
		`{"requirements":[{"type":"assert-create"}],"updates":[{"action":"upgrade-format-version","format-version":-7},{"action":"set-default-spec","spec-id":-1}]}`,
	} {
		f.Add(body)
	}
	o := newWorld(f, icebergrest.Config{})
	o.table()
	f.Fuzz(func(t *testing.T, body string) {
		o.t = t
		for _, path := range []string{"/v1/namespaces/n/tables", "/v1/namespaces/n/tables/t", "/v1/namespaces/n/tables/new"} {
			status, out := o.do("POST", path, body)
			if status >= 500 {
				t.Fatalf("%s: %d: %v", path, status, out)
			}
			if status != 200 {
				continue
			}
			listed := o.want(200, "", "GET", "/v1/namespaces/n/tables", "")
			for _, i := range listed["identifiers"].([]any) {
				name := i.(map[string]any)["name"].(string)
				r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
				r.URL.Path = "/v1/namespaces/n/tables/" + name
				if strings.ContainsAny(name, "/?#%") || name == "." || name == ".." || strings.Contains(name, "//") {
					continue
				}
				rec := httptest.NewRecorder()
				o.server.ServeHTTP(rec, r)
				if rec.Code != 200 {
					t.Fatalf("table %q cannot be read after it: %d %s", name, rec.Code, rec.Body)
				}
				if name != "t" {
					o.want(204, "", "DELETE", r.URL.EscapedPath(), "")
				}
			}
		}
	})
}
