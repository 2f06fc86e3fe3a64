package icebergrest

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/sdk/catalog"
)

// identifier is a table's name in a body.
type identifier struct {
	Namespace []string `json:"namespace"`
	Name      string   `json:"name"`
}

func (i identifier) id() catalog.Identifier {
	return catalog.Identifier{Namespace: i.Namespace, Name: i.Name}
}

func tableOf(r *http.Request) catalog.Identifier {
	return catalog.Identifier{Namespace: namespaceOf(r), Name: r.PathValue("table")}
}

func (s *Server) listTables(r *http.Request) (answer, error) {
	p, err := pageOf(r)
	if err != nil {
		return answer{}, err
	}
	namespace := namespaceOf(r)
	all := []identifier{}
	for {
		got, err := s.lake.Catalog().ListTables(r.Context(), catalog.ListTablesRequest{Namespace: namespace, StartAfter: p.after, Limit: p.limit})
		if err != nil {
			return answer{}, of(noSuchNamespace, err)
		}
		for _, name := range got.Names {
			all = append(all, identifier{namespace, name})
			p.after = name
		}
		if p.paged || !got.More {
			return answer{body: map[string]any{"identifiers": all, "next-page-token": p.next(got.More, p.after)}}, nil
		}
	}
}

// loaded is a table as clients get it. The tag changes with the metadata.
func (s *Server) loaded(tbl *table.Table) answer {
	config := map[string]string{}
	for k, v := range s.cfg.Client {
		config[k] = v
	}
	return answer{
		body: map[string]any{"metadata-location": tbl.MetadataLocation(), "metadata": tbl.Metadata(), "config": config},
		etag: etag(tbl),
	}
}

func etag(tbl *table.Table) string {
	sum := sha256.Sum256([]byte(tbl.Metadata().TableUUID().String() + tbl.MetadataLocation()))
	return fmt.Sprintf(`"%x"`, sum[:12])
}

func (s *Server) loadTable(r *http.Request) (answer, error) {
	tbl, err := s.lake.Load(r.Context(), tableOf(r))
	if err != nil {
		return answer{}, of(noSuchTable, err)
	}
	tag := etag(tbl)
	for seen := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
		if strings.TrimPrefix(strings.TrimSpace(seen), "W/") == tag {
			return answer{status: http.StatusNotModified, etag: tag}, nil
		}
	}
	return s.loaded(tbl), nil
}

func (s *Server) createTable(r *http.Request) (answer, error) {
	req, stage, err := createRequest(r)
	if err != nil {
		return answer{}, err
	}
	if !stage {
		tbl, err := s.lake.Create(r.Context(), req)
		if err != nil {
			return answer{}, of(noSuchNamespace, err)
		}
		return s.loaded(tbl), nil
	}
	// A staged table is nowhere but in the answer; its first commit makes it.
	if _, err := s.lake.Catalog().LoadNamespace(r.Context(), catalog.LoadNamespaceRequest{Namespace: req.ID.Namespace}); err != nil {
		return answer{}, of(noSuchNamespace, err)
	}
	switch _, err := s.lake.Load(r.Context(), req.ID); {
	case err == nil:
		return answer{}, fmt.Errorf("create lake table %s: %w", req.ID, catalog.ErrAlreadyExists)
	case !errors.Is(err, catalog.ErrNotExist):
		return answer{}, err
	}
	meta, err := s.lake.Stage(req)
	if err != nil {
		return answer{}, err
	}
	config := map[string]string{}
	for k, v := range s.cfg.Client {
		config[k] = v
	}
	return answer{body: map[string]any{"metadata": meta, "config": config}}, nil
}

func createRequest(r *http.Request) (req lake.CreateTable, stage bool, err error) {
	var body struct {
		Name          string            `json:"name"`
		Location      string            `json:"location"`
		Schema        json.RawMessage   `json:"schema"`
		PartitionSpec json.RawMessage   `json:"partition-spec"`
		WriteOrder    json.RawMessage   `json:"write-order"`
		StageCreate   bool              `json:"stage-create"`
		Properties    map[string]string `json:"properties"`
	}
	if err := decode(r, &body); err != nil {
		return req, false, err
	}
	req = lake.CreateTable{
		ID: catalog.Identifier{Namespace: namespaceOf(r), Name: body.Name}, FreshIDs: true,
		Spec: *iceberg.UnpartitionedSpec, SortOrder: table.UnsortedSortOrder, Location: body.Location, Properties: body.Properties,
	}
	if body.Name == "" {
		return req, false, fmt.Errorf("%w: the table has no name", catalog.ErrInvalid)
	}
	if none(body.Schema) {
		return req, false, fmt.Errorf("%w: the table has no schema", catalog.ErrInvalid)
	}
	err = parse("schema", body.Schema, func(raw []byte) error {
		req.Schema = &iceberg.Schema{}
		return json.Unmarshal(raw, req.Schema)
	})
	if err == nil && !none(body.PartitionSpec) {
		err = parse("partition-spec", body.PartitionSpec, func(raw []byte) error {
			var spec iceberg.UnboundPartitionSpec
			err := json.Unmarshal(raw, &spec)
			req.Spec = spec.PartitionSpec
			return err
		})
	}
	if err == nil && !none(body.WriteOrder) {
		err = parse("write-order", body.WriteOrder, func(raw []byte) error {
			var order table.UnboundSortOrder
			err := json.Unmarshal(raw, &order)
			req.SortOrder = order.SortOrder
			return err
		})
	}
	return req, body.StageCreate, err
}

func none(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// parse guards the library's parsers, which were not written for what hostile clients
// send.
func parse(what string, raw []byte, do func([]byte) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %s: the library cannot read it: %v", catalog.ErrInvalid, what, p)
		}
	}()
	if err := do(raw); err != nil {
		return fmt.Errorf("%w: %s: %w", catalog.ErrInvalid, what, err)
	}
	return nil
}

func (s *Server) registerTable(r *http.Request) (answer, error) {
	var req struct {
		Name             string `json:"name"`
		MetadataLocation string `json:"metadata-location"`
		Overwrite        bool   `json:"overwrite"`
	}
	if err := decode(r, &req); err != nil {
		return answer{}, err
	}
	if req.Overwrite {
		return answer{}, fmt.Errorf("%w: registering over a table; drop that one first", catalog.ErrUnimplemented)
	}
	tbl, err := s.lake.Register(r.Context(), catalog.Identifier{Namespace: namespaceOf(r), Name: req.Name}, req.MetadataLocation)
	if err != nil {
		return answer{}, of(noSuchNamespace, err)
	}
	return s.loaded(tbl), nil
}

func (s *Server) commitTable(r *http.Request) (answer, error) {
	var req struct {
		Identifier   *identifier     `json:"identifier"`
		Requirements json.RawMessage `json:"requirements"`
		Updates      json.RawMessage `json:"updates"`
	}
	if err := decode(r, &req); err != nil {
		return answer{}, err
	}
	id := tableOf(r)
	if req.Identifier != nil && req.Identifier.Name != "" && req.Identifier.id().String() != id.String() {
		return answer{}, fmt.Errorf("%w: the path names table %s, the body %s", catalog.ErrInvalid, id, req.Identifier.id())
	}
	reqs, updates, err := lake.ParseUpdates(req.Requirements, req.Updates)
	if err != nil {
		return answer{}, err
	}
	tbl, err := s.lake.Commit(r.Context(), id, reqs, updates)
	if err != nil {
		return answer{}, of(noSuchTable, err)
	}
	a := s.loaded(tbl)
	return answer{body: map[string]any{"metadata-location": tbl.MetadataLocation(), "metadata": tbl.Metadata()}, etag: a.etag}, nil
}

func (s *Server) dropTable(r *http.Request) (answer, error) {
	purge := strings.EqualFold(r.URL.Query().Get("purgeRequested"), "true")
	return answer{}, of(noSuchTable, s.lake.Drop(r.Context(), tableOf(r), purge))
}

func (s *Server) renameTable(r *http.Request) (answer, error) {
	var req struct {
		Source      identifier `json:"source"`
		Destination identifier `json:"destination"`
	}
	if err := decode(r, &req); err != nil {
		return answer{}, err
	}
	from, to := req.Source.id(), req.Destination.id()
	if _, err := s.lake.Catalog().LoadTable(r.Context(), catalog.LoadTableRequest{Table: from}); err != nil {
		return answer{}, of(noSuchTable, err)
	}
	return answer{}, of(noSuchNamespace, s.lake.Rename(r.Context(), from, to))
}

// reportMetrics takes a client's report of a scan or commit, and lets it go.
func (s *Server) reportMetrics(r *http.Request) (answer, error) {
	var report json.RawMessage
	return answer{}, decode(r, &report)
}

// credentials: clients bring their own.
func (s *Server) credentials(r *http.Request) (answer, error) {
	if _, err := s.lake.Catalog().LoadTable(r.Context(), catalog.LoadTableRequest{Table: tableOf(r)}); err != nil {
		return answer{}, of(noSuchTable, err)
	}
	return answer{body: map[string]any{"storage-credentials": []any{}}}, nil
}
