// Package icebergrest is the Iceberg REST catalog (the open specification of Apache
// Iceberg, "rest-catalog-open-api") over the lake: what other engines use to find,
// read and change tables. It owns no data and knows nothing of Mink but which tables
// are Mink's; those are guarded.
//
//	server.go    routes, authentication, limits
//	errors.go    errors as the specification has them
//	namespaces.go, tables.go
//
// Not offered: views, transactions over several tables, planning of scans, remote
// signing, vended credentials.
package icebergrest

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/sdk/catalog"
)

// Lake is what the catalog is over: lake.Guard.
type Lake interface {
	Load(ctx context.Context, id catalog.Identifier) (*table.Table, error)
	Stage(req lake.CreateTable) (table.Metadata, error)
	Create(ctx context.Context, req lake.CreateTable) (*table.Table, error)
	Register(ctx context.Context, id catalog.Identifier, location string) (*table.Table, error)
	Commit(ctx context.Context, id catalog.Identifier, reqs []table.Requirement, updates []table.Update) (*table.Table, error)
	Drop(ctx context.Context, id catalog.Identifier, purge bool) error
	Rename(ctx context.Context, from, to catalog.Identifier) error
	Catalog() catalog.Catalog
}

// Config of the server.
type Config struct {
	Token string // bearer token that clients must give; "": none is asked for
	// Client is handed to clients with each table: how they reach its files. No secrets.
	Client map[string]string
	// BodyBytesMax bounds a request's body. Default 16 MiB.
	BodyBytesMax int64
	// RequestsMax bounds the requests at work; more are answered 503. Default 64.
	RequestsMax int64
	// BodyTimeout bounds how long a client may take to send one. Default 1 minute.
	BodyTimeout time.Duration
}

// Server implements http.Handler.
type Server struct {
	cfg    Config
	lake   Lake
	logger *slog.Logger
	token  [sha256.Size]byte
	mux    *http.ServeMux
	active atomic.Int64
	counts [6]atomic.Int64 // by the first digit of the status
}

// New makes a server. Its paths begin with /v1/.
func New(l Lake, cfg Config, logger *slog.Logger) *Server {
	if cfg.BodyBytesMax <= 0 {
		cfg.BodyBytesMax = 16 << 20
	}
	if cfg.RequestsMax <= 0 {
		cfg.RequestsMax = 64
	}
	if cfg.BodyTimeout <= 0 {
		cfg.BodyTimeout = time.Minute
	}
	s := &Server{cfg: cfg, lake: l, logger: logger, token: sha256.Sum256([]byte(cfg.Token)), mux: http.NewServeMux()}
	for _, r := range s.routes() {
		s.mux.HandleFunc(r.pattern, s.handle(r.do))
	}
	s.mux.HandleFunc("/", s.handle(func(r *http.Request) (answer, error) {
		return answer{}, &failure{status: http.StatusNotFound, kind: "NotFoundException", text: fmt.Sprintf("no such resource: %s %s", r.Method, r.URL.Path)}
	}))
	return s
}

// Requests counts answers by the first digit of their status, 1 to 5.
func (s *Server) Requests(class int) int64 { return s.counts[class].Load() }

type route struct {
	pattern string
	do      func(*http.Request) (answer, error)
	hidden  bool // not offered in the configuration
}

func (s *Server) routes() []route {
	const namespace = "/v1/namespaces/{namespace}"
	const tables = namespace + "/tables/{table}"
	return []route{
		{"GET /v1/config", s.config, true},
		{"GET /v1/namespaces", s.listNamespaces, false},
		{"POST /v1/namespaces", s.createNamespace, false},
		{"GET " + namespace, s.loadNamespace, false}, // and HEAD
		{"DELETE " + namespace, s.dropNamespace, false},
		{"POST " + namespace + "/properties", s.updateNamespace, false},
		{"GET " + namespace + "/tables", s.listTables, false},
		{"POST " + namespace + "/tables", s.createTable, false},
		{"POST " + namespace + "/register", s.registerTable, false},
		{"GET " + tables, s.loadTable, false}, // and HEAD
		{"POST " + tables, s.commitTable, false},
		{"DELETE " + tables, s.dropTable, false},
		{"POST " + tables + "/metrics", s.reportMetrics, false},
		{"GET " + tables + "/credentials", s.credentials, false},
		{"POST /v1/tables/rename", s.renameTable, false},

		// Views are not offered; clients ask for them all the same.
		{"GET " + namespace + "/views", s.listViews, true},
		{"GET " + namespace + "/views/{view}", noView, true},
		{"DELETE " + namespace + "/views/{view}", noView, true},
		{"POST " + namespace + "/views/{view}", noView, true},
		{"POST " + namespace + "/views", unsupported("views"), true},
		{"POST /v1/views/rename", unsupported("views"), true},
		{"POST /v1/transactions/commit", unsupported("commits to several tables at once"), true},
		{"POST " + tables + "/plan", unsupported("planning of scans"), true},
		{"POST /v1/oauth/tokens", unsupported("OAuth: give the token itself, as the property token"), true},
	}
}

func unsupported(what string) func(*http.Request) (answer, error) {
	return func(*http.Request) (answer, error) {
		return answer{}, fmt.Errorf("%w: this catalog does not offer %s", catalog.ErrUnimplemented, what)
	}
}

// answer is what a handler says when it does not fail.
type answer struct {
	status int // 0: 200, or 204 without a body
	body   any
	etag   string
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

func (s *Server) handle(do func(*http.Request) (answer, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// A client that reads a directory's worth of headers and then a body drop by drop
		// would hold its place; not every writer can bound that, tests' cannot.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.cfg.BodyTimeout))
		a, err := s.admit(r, do)
		if err != nil {
			a = s.failed(r, err)
			if a.status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Bearer realm="mink"`)
			}
			if a.status == http.StatusServiceUnavailable {
				w.Header().Set("Retry-After", "1")
			}
		}
		s.write(w, r, a)
	}
}

func (s *Server) admit(r *http.Request, do func(*http.Request) (answer, error)) (answer, error) {
	defer s.active.Add(-1)
	if s.active.Add(1) > s.cfg.RequestsMax {
		return answer{}, fmt.Errorf("%w: %d requests are at work", catalog.ErrThrottled, s.cfg.RequestsMax)
	}
	if !s.allowed(r) {
		return answer{}, &failure{status: http.StatusUnauthorized, kind: "NotAuthorizedException", text: "give the token of the node's configuration, iceberg_token, as Authorization: Bearer"}
	}
	r.Body = http.MaxBytesReader(nil, r.Body, s.cfg.BodyBytesMax)
	return do(r)
}

func (s *Server) allowed(r *http.Request) bool {
	if s.cfg.Token == "" {
		return true
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(sum[:], s.token[:]) == 1
}

func (s *Server) write(w http.ResponseWriter, r *http.Request, a answer) {
	if a.etag != "" {
		w.Header().Set("ETag", a.etag)
	}
	var body []byte
	if a.body != nil && r.Method != http.MethodHead {
		var err error
		if body, err = json.Marshal(a.body); err != nil {
			s.logger.Error("lake catalog answer", "path", r.URL.Path, "error", err)
			a = answer{status: http.StatusInternalServerError}
		}
	}
	if a.status == 0 {
		if a.status = http.StatusOK; a.body == nil || r.Method == http.MethodHead {
			a.status = http.StatusNoContent
		}
	}
	s.counts[min(a.status/100, 5)].Add(1)
	if body != nil {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(body) // a client that is gone needs no answer
}

// decode reads a request's body.
func decode(r *http.Request, into any) error {
	raw, err := io.ReadAll(r.Body)
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return &failure{status: http.StatusRequestEntityTooLarge, kind: "BadRequestException", text: fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit)}
	}
	if err != nil {
		return fmt.Errorf("%w: the body was cut off: %w", catalog.ErrInvalid, err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%w: the body: %w", catalog.ErrInvalid, err)
	}
	return nil
}

func (s *Server) config(*http.Request) (answer, error) {
	var endpoints []string
	for _, r := range s.routes() {
		if r.hidden {
			continue
		}
		method, path, _ := strings.Cut(r.pattern, " ")
		path = strings.Replace(path, "/v1/", "/v1/{prefix}/", 1)
		endpoints = append(endpoints, method+" "+path)
		if method == "GET" && strings.HasSuffix(path, "}") {
			endpoints = append(endpoints, "HEAD "+path)
		}
	}
	defaults := map[string]string{}
	for k, v := range s.cfg.Client {
		defaults[k] = v
	}
	return answer{body: map[string]any{"defaults": defaults, "overrides": map[string]string{}, "endpoints": endpoints}}, nil
}
