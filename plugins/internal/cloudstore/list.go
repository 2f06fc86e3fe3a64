package cloudstore

import (
	"context"
	"strings"
	"unicode/utf8"

	"github.com/mink-project/mink/sdk/objstore"
)

// List implements objstore.Store. Names that are no keys of the contract (folder
// markers of consoles, parts of uploads) are passed over.
func (s *Store) List(ctx context.Context, req objstore.ListRequest) (objstore.ListResponse, error) {
	limit, err := req.PageSize(s.service.Capabilities().ListPageMax)
	if err != nil {
		return objstore.ListResponse{}, err
	}
	end, err := s.begin(ctx, "list", req.Prefix)
	if err != nil {
		return objstore.ListResponse{}, err
	}
	defer end()
	prefix, after := s.prefix+req.Prefix, ""
	if req.StartAfter != "" {
		after = s.prefix + req.StartAfter
	}
	if after <= prefix && after != prefix {
		after = "" // every name with the prefix comes after it
	} else if !strings.HasPrefix(after, prefix) {
		return objstore.ListResponse{}, nil // none does
	}
	// A prefix or start that ends within a character is no text, which a query
	// must be: ask with what is whole of it, and leave out the rest here.
	page := Page{Prefix: wholeText(prefix), After: wholeText(after), Limit: limit}
	var resp objstore.ListResponse
	for {
		var objects []objstore.ObjectInfo
		var next string
		err := s.run(ctx, call{op: "list", key: req.Prefix}, func(ctx context.Context) (err error) {
			objects, next, err = s.service.List(ctx, page)
			return err
		})
		if err != nil {
			return objstore.ListResponse{}, err
		}
		for _, o := range objects {
			key, ok := strings.CutPrefix(o.Key, s.prefix)
			if !ok || !strings.HasPrefix(o.Key, prefix) || o.Key <= after || objstore.ValidateKey(key) != nil {
				continue
			}
			o.Key = key
			resp.Objects = append(resp.Objects, o)
		}
		if len(resp.Objects) > 0 || next == "" {
			resp.More = next != "" || len(resp.Objects) > limit
			resp.Objects = resp.Objects[:min(len(resp.Objects), limit)]
			return resp, nil
		}
		page.Next = next
	}
}

// wholeText is s without the bytes from where it stops being UTF-8.
func wholeText(s string) string {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			return s[:i]
		}
		i += n
	}
	return s
}
