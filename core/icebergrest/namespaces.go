package icebergrest

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/mink-project/mink/sdk/catalog"
)

// separator of the levels of a namespace in a path, escaped as %1F.
const separator = "\x1f"

func namespaceOf(r *http.Request) []string { return strings.Split(r.PathValue("namespace"), separator) }

// page is what a client asks of a list: all, if it does not know of pages.
type page struct {
	paged bool
	after string
	limit int
}

func pageOf(r *http.Request) (p page, err error) {
	q := r.URL.Query()
	p.paged = q.Has("pageToken") || q.Has("pageSize")
	if text := q.Get("pageSize"); text != "" {
		if p.limit, err = strconv.Atoi(text); err != nil || p.limit < 1 {
			return p, fmt.Errorf("%w: pageSize is %q, must be a number from 1 on", catalog.ErrInvalid, text)
		}
	}
	after, err := base64.RawURLEncoding.DecodeString(q.Get("pageToken"))
	if err != nil {
		return p, fmt.Errorf("%w: pageToken %q is not one that this catalog gave", catalog.ErrInvalid, q.Get("pageToken"))
	}
	p.after = string(after)
	return p, nil
}

// next is the token of the page after name, or null.
func (p page) next(more bool, name string) any {
	if !p.paged || !more {
		return nil
	}
	return base64.RawURLEncoding.EncodeToString([]byte(name))
}

func (s *Server) listNamespaces(r *http.Request) (answer, error) {
	p, err := pageOf(r)
	if err != nil {
		return answer{}, err
	}
	var parent []string
	if text := r.URL.Query().Get("parent"); text != "" {
		parent = strings.Split(text, separator)
	}
	all := [][]string{}
	for {
		got, err := s.lake.Catalog().ListNamespaces(r.Context(), catalog.ListNamespacesRequest{Parent: parent, StartAfter: p.after, Limit: p.limit})
		if err != nil {
			return answer{}, of(noSuchNamespace, err)
		}
		all = append(all, got.Namespaces...)
		if n := len(got.Namespaces); n > 0 {
			last := got.Namespaces[n-1]
			p.after = last[len(last)-1]
		}
		if p.paged || !got.More {
			return answer{body: map[string]any{"namespaces": all, "next-page-token": p.next(got.More, p.after)}}, nil
		}
	}
}

func (s *Server) createNamespace(r *http.Request) (answer, error) {
	var req struct {
		Namespace  []string          `json:"namespace"`
		Properties map[string]string `json:"properties"`
	}
	if err := decode(r, &req); err != nil {
		return answer{}, err
	}
	got, err := s.lake.Catalog().CreateNamespace(r.Context(), catalog.CreateNamespaceRequest{Namespace: req.Namespace, Properties: req.Properties})
	if err == nil && got.Existed {
		err = fmt.Errorf("namespace %q: %w", req.Namespace, catalog.ErrAlreadyExists)
	}
	if err != nil {
		return answer{}, err
	}
	if req.Properties == nil {
		req.Properties = map[string]string{}
	}
	return answer{body: map[string]any{"namespace": req.Namespace, "properties": req.Properties}}, nil
}

func (s *Server) loadNamespace(r *http.Request) (answer, error) {
	namespace := namespaceOf(r)
	got, err := s.lake.Catalog().LoadNamespace(r.Context(), catalog.LoadNamespaceRequest{Namespace: namespace})
	if err != nil {
		return answer{}, of(noSuchNamespace, err)
	}
	return answer{body: map[string]any{"namespace": namespace, "properties": got.Properties}}, nil
}

func (s *Server) dropNamespace(r *http.Request) (answer, error) {
	_, err := s.lake.Catalog().DropNamespace(r.Context(), catalog.DropNamespaceRequest{Namespace: namespaceOf(r)})
	return answer{}, of(noSuchNamespace, err)
}

func (s *Server) updateNamespace(r *http.Request) (answer, error) {
	var req struct {
		Removals []string          `json:"removals"`
		Updates  map[string]string `json:"updates"`
	}
	if err := decode(r, &req); err != nil {
		return answer{}, err
	}
	for _, name := range req.Removals {
		if _, both := req.Updates[name]; both {
			return answer{}, &failure{http.StatusUnprocessableEntity, "UnprocessableEntityException", fmt.Sprintf("property %q is to be both set and removed", name)}
		}
	}
	got, err := s.lake.Catalog().UpdateNamespace(r.Context(), catalog.UpdateNamespaceRequest{Namespace: namespaceOf(r), Set: req.Updates, Remove: req.Removals})
	if err != nil {
		return answer{}, of(noSuchNamespace, err)
	}
	updated, removed, missing := []string{}, []string{}, []string{}
	for name := range req.Updates {
		updated = append(updated, name)
	}
	gone := map[string]bool{}
	for _, name := range got.Removed {
		removed, gone[name] = append(removed, name), true
	}
	for _, name := range req.Removals {
		if !gone[name] {
			missing = append(missing, name)
		}
	}
	return answer{body: map[string]any{"updated": updated, "removed": removed, "missing": missing}}, nil
}

func (s *Server) listViews(r *http.Request) (answer, error) {
	if _, err := s.loadNamespace(r); err != nil {
		return answer{}, err
	}
	return answer{body: map[string]any{"identifiers": []any{}, "next-page-token": nil}}, nil
}

func noView(r *http.Request) (answer, error) {
	return answer{}, &failure{http.StatusNotFound, noSuchView, fmt.Sprintf("view %q does not exist: this catalog has no views", r.PathValue("view"))}
}
