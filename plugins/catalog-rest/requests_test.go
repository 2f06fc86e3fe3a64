package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/objstore"
)

// script is a catalog whose answers a test writes.
type script struct {
	t      *testing.T
	mu     sync.Mutex
	seen   []string // METHOD path
	answer http.HandlerFunc
	config string // of /v1/config; "": {}
	server *httptest.Server
}

func newScript(t *testing.T, answer http.HandlerFunc) *script {
	t.Helper()
	s := &script{t: t, answer: answer}
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.seen = append(s.seen, r.Method+" "+r.URL.EscapedPath())
		config := s.config
		s.mu.Unlock()
		if strings.HasSuffix(r.URL.Path, "/v1/config") && config != "refuse" {
			if config == "" {
				config = "{}"
			}
			_, _ = w.Write([]byte(config))
			return
		}
		s.answer(w, r)
	}))
	t.Cleanup(s.server.Close)
	return s
}

func (s *script) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

func (s *script) open(options ...string) catalog.Catalog {
	s.t.Helper()
	c, err := s.try(options...)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *script) try(options ...string) (catalog.Catalog, error) {
	all := map[string]string{"uri": s.server.URL, "signing_name": "execute-api", "scope": "catalog"}
	for i := 0; i < len(options); i += 2 {
		all[options[i]] = options[i+1]
	}
	c, err := open(s.t.Context(), all)
	if err == nil {
		s.t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

var orders = catalog.Identifier{Namespace: []string{"shop"}, Name: "orders"}

func commit(t *testing.T, c catalog.Catalog) error {
	t.Helper()
	_, err := c.(catalog.Committer).CommitTable(t.Context(), catalog.CommitTableRequest{Table: orders})
	return err
}

func load(t *testing.T, c catalog.Catalog) error {
	t.Helper()
	_, err := c.LoadTable(t.Context(), catalog.LoadTableRequest{Table: orders})
	return err
}

func drop(t *testing.T, c catalog.Catalog) error {
	t.Helper()
	_, err := c.DropTable(t.Context(), catalog.DropTableRequest{Table: orders})
	return err
}

func create(t *testing.T, c catalog.Catalog) error {
	t.Helper()
	_, err := c.CreateTable(t.Context(), catalog.CreateTableRequest{Table: orders, Schema: []byte(`{}`)})
	return err
}

const goodTable = `{"metadata-location":"s3://b/m.json","metadata":{"location":"s3://b/t"}}`

func problemText(kind string, code int) string {
	return fmt.Sprintf(`{"error":{"message":"said so","type":%q,"code":%d}}`, kind, code)
}

// What each answer means, as the specification has it: whether nothing happened, or
// something may have.
func TestAnswersAreClassified(t *testing.T) {
	for name, c := range map[string]struct {
		status  int
		body    string
		header  string
		call    func(*testing.T, catalog.Catalog) error
		is      error
		unknown bool
	}{
		"a commit was faster":          {409, problemText("CommitFailedException", 409), "", commit, catalog.ErrConflict, false},
		"the table is there":           {409, problemText("AlreadyExistsException", 409), "", create, catalog.ErrAlreadyExists, false},
		"commit, table gone":           {404, problemText("NoSuchTableException", 404), "", commit, catalog.ErrNotExist, false},
		"commit, state unknown":        {500, problemText("CommitStateUnknownException", 500), "", commit, catalog.ErrUnknownOutcome, true},
		"commit, 500":                  {500, problemText("InternalServerError", 500), "", commit, catalog.ErrUnknownOutcome, true},
		"commit, 500 of a proxy":       {500, `<html>`, "", commit, catalog.ErrUnknownOutcome, true},
		"commit, bad gateway":          {502, ``, "", commit, catalog.ErrUnknownOutcome, true},
		"commit, gateway timeout":      {504, problemText("GatewayTimeout", 504), "", commit, catalog.ErrUnknownOutcome, true},
		"commit, not now":              {503, problemText("ServiceUnavailableException", 503), "", commit, catalog.ErrUnavailable, false},
		"commit, a proxy's not now":    {503, `upstream connect error`, "", commit, catalog.ErrUnknownOutcome, true},
		"commit, slow down":            {429, problemText("TooManyRequestsException", 429), "Retry-After: 7", commit, catalog.ErrThrottled, false},
		"commit, forbidden property":   {400, problemText("BadRequestException", 400), "", commit, catalog.ErrInvalid, false},
		"commit, cannot be processed":  {422, problemText("UnprocessableEntityException", 422), "", commit, catalog.ErrInvalid, false},
		"commit, answer without table": {200, `{}`, "", commit, catalog.ErrUnknownOutcome, true},
		"commit, no JSON":              {200, `<html>`, "", commit, catalog.ErrUnknownOutcome, true},
		"load, gone":                   {404, problemText("NoSuchTableException", 404), "", load, catalog.ErrNotExist, false},
		"load, wrong address":          {404, `<html>not found</html>`, "", load, catalog.ErrUnavailable, false},
		"load, forbidden":              {403, problemText("ForbiddenException", 403), "", load, catalog.ErrUnauthorized, false},
		"load, 500":                    {500, problemText("InternalServerError", 500), "", load, catalog.ErrUnavailable, false},
		"load, a redirect":             {302, ``, "Location: http://127.0.0.1:1/", load, catalog.ErrUnavailable, false},
		"load, no JSON":                {200, `<html>`, "", load, catalog.ErrUnavailable, false},
		"load, no metadata":            {200, `{"metadata":null}`, "", load, catalog.ErrUnavailable, false},
		"drop, 500":                    {500, problemText("InternalServerError", 500), "", drop, catalog.ErrUnknownOutcome, true},
		"drop, not offered":            {406, problemText("UnsupportedOperationException", 406), "", drop, catalog.ErrUnimplemented, false},
		"create, 500":                  {500, problemText("InternalServerError", 500), "", create, catalog.ErrUnknownOutcome, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, func(w http.ResponseWriter, _ *http.Request) {
				if k, v, ok := strings.Cut(c.header, ": "); ok {
					w.Header().Set(k, v)
				}
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			})
			err := c.call(t, s.open())
			if !errors.Is(err, c.is) || errors.Is(err, catalog.ErrUnknownOutcome) != c.unknown {
				t.Errorf("%v; want %v, unknown %v", err, c.is, c.unknown)
			}
			if throttled := (*objstore.ThrottledError)(nil); c.header == "Retry-After: 7" && (!errors.As(err, &throttled) || throttled.RetryAfter != 7*time.Second) {
				t.Errorf("the pause is lost: %v", err)
			}
			if n := len(s.requests()); n != 2 { // its configuration, and the call
				t.Errorf("%d requests: %q", n, s.requests())
			}
		})
	}
}

// A connection that ends under a commit leaves its outcome open; one that never was does
// not.
func TestBrokenConnections(t *testing.T) {
	s := newScript(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	})
	c := s.open()
	if err := commit(t, c); !errors.Is(err, catalog.ErrUnknownOutcome) {
		t.Errorf("cut after the request: %v", err)
	}
	if err := load(t, c); !errors.Is(err, catalog.ErrUnavailable) || errors.Is(err, catalog.ErrUnknownOutcome) {
		t.Errorf("a read that was cut: %v", err)
	}
	s.server.Close()
	if err := commit(t, c); !errors.Is(err, catalog.ErrUnavailable) || errors.Is(err, catalog.ErrUnknownOutcome) {
		t.Errorf("nobody listens: %v", err)
	}
}

// A catalog that is down when the node starts is asked again; one that refuses is an
// error of the start.
func TestACatalogThatIsDownAtTheStart(t *testing.T) {
	s := newScript(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/config") {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(goodTable))
	})
	s.config = "refuse"
	c := s.open()
	if err := load(t, c); !errors.Is(err, catalog.ErrUnavailable) {
		t.Error(err)
	}
	s.mu.Lock()
	s.config = `{"overrides":{"prefix":"p"}}`
	s.mu.Unlock()
	if err := load(t, c); err != nil {
		t.Error(err)
	}
	for status, want := range map[int]error{401: catalog.ErrUnauthorized, 403: catalog.ErrUnauthorized, 400: catalog.ErrInvalid} {
		refusing := newScript(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		refusing.config = "refuse"
		if _, err := refusing.try("token", "x"); !errors.Is(err, want) {
			t.Errorf("%d: %v", status, err)
		}
	}
}

func TestConfigurationOfTheCatalog(t *testing.T) {
	for name, c := range map[string]struct {
		config  string
		options []string
		path    string
	}{
		"nothing":             {`{}`, nil, "/v1/namespaces/shop/tables/orders"},
		"prefix":              {`{"overrides":{"prefix":"main|prod"}}`, nil, "/v1/main%7Cprod/namespaces/shop/tables/orders"},
		"prefix of two parts": {`{"defaults":{"prefix":"a/b"}}`, nil, "/v1/a/b/namespaces/shop/tables/orders"},
		"ours":                {`{"defaults":{"prefix":"theirs"}}`, []string{"prefix", "ours"}, "/v1/ours/namespaces/shop/tables/orders"},
		"theirs after all":    {`{"overrides":{"prefix":"theirs"}}`, []string{"prefix", "ours"}, "/v1/theirs/namespaces/shop/tables/orders"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(goodTable)) })
			s.config = c.config
			if err := load(t, s.open(c.options...)); err != nil {
				t.Fatal(err)
			}
			if got := s.requests(); got[1] != "GET "+c.path {
				t.Errorf("%q, want %q", got[1], c.path)
			}
		})
	}
	s := newScript(t, func(w http.ResponseWriter, r *http.Request) { t.Errorf("asked for %s", r.URL) })
	s.config = `{"overrides":{"uri":"ftp://elsewhere"}}`
	if _, err := s.try(); !errors.Is(err, catalog.ErrInvalid) {
		t.Errorf("another URL: %v", err)
	}
	var asked string
	asking := newScript(t, func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Query().Get("warehouse")
		_, _ = w.Write([]byte(`{}`))
	})
	asking.config = "refuse"
	asking.open("warehouse", "s3://b/w & more")
	if asked != "s3://b/w & more" {
		t.Errorf("warehouse %q", asked)
	}
}

// tokens is a token server and a catalog that knows its newest token.
type tokens struct {
	mu      sync.Mutex
	issued  int
	valid   string
	expires int
	refuse  int // status with which tokens that are not valid are refused
	form    string
}

func (s *tokens) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.HasSuffix(r.URL.Path, "/oauth/tokens") {
		_ = r.ParseForm()
		s.form = r.PostForm.Encode()
		if r.PostForm.Get("client_secret") != "hunter2" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":"invalid_client","error_description":"no such client"}`))
			return
		}
		s.issued++
		s.valid = fmt.Sprintf("token-%d", s.issued)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": s.valid, "token_type": "bearer", "expires_in": s.expires})
		return
	}
	if r.Header.Get("Authorization") != "Bearer "+s.valid {
		w.WriteHeader(s.refuse)
		_, _ = w.Write([]byte(problemText("NotAuthorizedException", s.refuse)))
		return
	}
	if strings.HasSuffix(r.URL.Path, "/config") {
		_, _ = w.Write([]byte(`{}`))
		return
	}
	_, _ = w.Write([]byte(goodTable))
}

func TestTokens(t *testing.T) {
	for _, refuse := range []int{401, 419} {
		o := &tokens{expires: 3600, refuse: refuse}
		s := newScript(t, o.serve)
		s.config = "refuse"
		c := s.open("credential", "me:hunter2", "scope", "PRINCIPAL_ROLE:ALL", "audience", "them")
		if o.form != "audience=them&client_id=me&client_secret=hunter2&grant_type=client_credentials&scope=PRINCIPAL_ROLE%3AALL" {
			t.Error(o.form)
		}
		for range 3 {
			if err := commit(t, c); err != nil {
				t.Fatal(err)
			}
		}
		if o.issued != 1 {
			t.Errorf("%d tokens for one", o.issued)
		}
		// A token that ended before its time: another is fetched, and the commit, which the
		// catalog refused before it looked at it, is sent again.
		o.mu.Lock()
		o.valid = "another's"
		o.mu.Unlock()
		if err := commit(t, c); err != nil || o.issued != 2 {
			t.Errorf("%v, %d tokens", err, o.issued)
		}
	}
}

// A token that expires soon is fetched anew before a request.
func TestTokensThatExpire(t *testing.T) {
	o := &tokens{expires: 5, refuse: 401} // within the ten seconds
	s := newScript(t, o.serve)
	s.config = "refuse"
	c := s.open("credential", "me:hunter2")
	if err := errors.Join(load(t, c), load(t, c)); err != nil || o.issued != 3 {
		t.Errorf("%v, %d tokens for three requests", err, o.issued)
	}
}

func TestCredentialsThatAreRefused(t *testing.T) {
	o := &tokens{expires: 3600, refuse: 401}
	s := newScript(t, o.serve)
	s.config = "refuse"
	_, err := s.try("credential", "me:verysecret")
	if !errors.Is(err, catalog.ErrUnauthorized) || !strings.Contains(err.Error(), "no such client") || strings.Contains(err.Error(), "verysecret") {
		t.Errorf("%v", err)
	}
	if _, err := s.try("token", "stale"); !errors.Is(err, catalog.ErrUnauthorized) || strings.Contains(err.Error(), "stale") {
		t.Errorf("%v", err)
	}
	// Refused again with a new token: no third attempt.
	denies := newScript(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/oauth/tokens") {
			o.serve(w, r)
			return
		}
		w.WriteHeader(http.StatusUnauthorized)
	})
	c := denies.open("credential", "me:hunter2")
	if err := commit(t, c); !errors.Is(err, catalog.ErrUnauthorized) || errors.Is(err, catalog.ErrUnknownOutcome) {
		t.Errorf("%v", err)
	}
	posts := 0
	for _, r := range denies.requests() {
		if strings.HasSuffix(r, "/tables/orders") {
			posts++
		}
	}
	if posts != 2 {
		t.Errorf("%d attempts: %q", posts, denies.requests())
	}
	// The token server is away: nothing was asked of the catalog.
	away := newScript(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	if err := commit(t, away.open("credential", "me:hunter2")); !errors.Is(err, catalog.ErrUnavailable) || errors.Is(err, catalog.ErrUnknownOutcome) {
		t.Errorf("%v", err)
	}
}

func TestVendedCredentials(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		want   map[string]string
		prefix string
	}{
		"of prefixes": {
			`{"metadata":{"location":"s3://b/t"},"storage-credentials":[{"prefix":"s3://b/t/","config":{"s3.access-key-id":"a","s3.secret-access-key":"s","s3.session-token":"t","client.region":"eu-west-1","s3.session-token-expires-at-ms":"1700000000000"}}]}`,
			map[string]string{"access_key_id": "a", "secret_access_key": "s", "session_token": "t", "region": "eu-west-1"}, "s3://b/t/",
		},
		"in the configuration": {
			`{"metadata":{"location":"s3://b/t"},"config":{"s3.access-key-id":"a","s3.secret-access-key":"s","s3.endpoint":"http://minio:9000","s3.path-style-access":"true","s3.session-token-expires-at-ms":"1700000000000"}}`,
			map[string]string{"access_key_id": "a", "secret_access_key": "s", "endpoint": "http://minio:9000", "path_style": "true"}, "s3://b/t/",
		},
		"of Azure": {
			`{"metadata":{"location":"abfss://c@acc.dfs.core.windows.net/t"},"storage-credentials":[{"prefix":"abfss://c@acc.dfs.core.windows.net/t","config":{"adls.sas-token.acc.dfs.core.windows.net":"sig","adls.sas-token-expires-at-ms.acc.dfs.core.windows.net":"1700000000000"}}]}`,
			map[string]string{"sas_token": "sig"}, "abfss://c@acc.dfs.core.windows.net/t",
		},
		"none": {`{"metadata":{"location":"s3://b/t"},"config":{"s3.region":"x"}}`, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var asked string
			s := newScript(t, func(w http.ResponseWriter, r *http.Request) {
				asked = r.Header.Get("X-Iceberg-Access-Delegation")
				_, _ = w.Write([]byte(c.answer))
			})
			cat := s.open()
			got, err := cat.LoadTable(t.Context(), catalog.LoadTableRequest{Table: orders, Credentials: true})
			if err != nil || asked != "vended-credentials" {
				t.Fatalf("%v, asked for %q", err, asked)
			}
			if c.want == nil {
				if len(got.Credentials) != 0 {
					t.Errorf("%+v", got.Credentials)
				}
				return
			}
			if len(got.Credentials) != 1 || fmt.Sprint(got.Credentials[0].Options) != fmt.Sprint(c.want) || got.Credentials[0].Prefix != c.prefix || got.Credentials[0].Expires.UnixMilli() != 1_700_000_000_000 {
				t.Errorf("%+v", got.Credentials)
			}
			for name := range got.Config {
				if strings.Contains(name, "secret") || strings.Contains(name, "token") {
					t.Errorf("the configuration shows %s", name)
				}
			}
			plain, err := cat.LoadTable(t.Context(), catalog.LoadTableRequest{Table: orders})
			if err != nil || len(plain.Credentials) != 0 || asked != "" {
				t.Errorf("not asked for: %+v, %v, %q", plain.Credentials, err, asked)
			}
		})
	}
}

// The signature is the library's own; what is signed, for whom, and what happens when it
// is refused is ours.
func TestSigV4(t *testing.T) {
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	var mu sync.Mutex
	var authorization []string
	refuse := 0
	s := newScript(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		authorization = append(authorization, r.Header.Get("Authorization"))
		if r.Header.Get("X-Amz-Content-Sha256") == "" || r.Header.Get("X-Amz-Date") == "" || r.Header.Get("X-Amz-Security-Token") != "session" {
			t.Errorf("%v", r.Header)
		}
		if refuse > 0 {
			refuse--
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"message":"The security token included in the request is expired"}`))
			return
		}
		_, _ = w.Write([]byte(goodTable))
	})
	c := s.open("sigv4", "true", "signing_name", "s3tables", "region", "eu-north-1", "access_key_id", "AKID", "secret_access_key", "hunter2", "session_token", "session")
	if err := commit(t, c); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(authorization[0], "AWS4-HMAC-SHA256 Credential=AKID/") || !strings.Contains(authorization[0], "/eu-north-1/s3tables/aws4_request") {
		t.Error(authorization[0])
	}
	refuse = 1
	if err := commit(t, c); err != nil || len(authorization) != 3 {
		t.Errorf("expired credentials are looked for again: %v, %d requests", err, len(authorization))
	}
	refuse = 9
	if err := commit(t, c); !errors.Is(err, catalog.ErrUnauthorized) || len(authorization) != 5 {
		t.Errorf("%v, %d requests", err, len(authorization))
	}
}

func TestConfigIsRefused(t *testing.T) {
	for _, c := range []struct {
		options map[string]string
		says    string
	}{
		{nil, "uri is not set"},
		{map[string]string{"uri": "catalog.example.com"}, "option uri"},
		{map[string]string{"uri": "https://user:pass@host"}, "option uri"},
		{map[string]string{"uri": "http://h", "token": "t", "credential": "a:b"}, "give one"},
		{map[string]string{"uri": "http://h", "sigv4": "true", "token": "t"}, "give one"},
		{map[string]string{"uri": "http://h", "credential": "a:"}, "no secret"},
		{map[string]string{"uri": "http://h", "oauth2_server_uri": "http://o"}, "needs credential"},
		{map[string]string{"uri": "http://h", "region": "eu"}, "for sigv4"},
		{map[string]string{"uri": "http://h", "sigv4": "maybe"}, "sigv4"},
		{map[string]string{"uri": "http://h", "stall_timeout": "30"}, "stall_timeout"},
	} {
		_, err := readConfig(c.options)
		if !errors.Is(err, catalog.ErrInvalid) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "pass@") {
			t.Errorf("%v: %v; want it to say %q", c.options, err, c.says)
		}
	}
	s := newScript(t, nil)
	if got := s.open("forbidden_properties", "write.*, owner").Describe(); !got.Forbids("write.format.default") || !got.Forbids("owner") || got.Forbids("owners") {
		t.Errorf("%+v", got)
	}
}
