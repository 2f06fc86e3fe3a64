// Package objstoretest is the conformance kit of object stores: what every
// objstore.Store must do, built in or behind a plugin connection. A store's own
// test calls Run; the kit is itself tested against stores that are broken on
// purpose.
package objstoretest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/mink-project/mink/sdk/objstore"
)

// T is the part of testing.T that checks use.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Context() context.Context
}

// Check is one property. Run gets a fresh, empty store and need not close it.
type Check struct {
	Name string
	Run  func(t T, s objstore.Store)
}

// Checks are all of them, in the order in which to read their failures.
func Checks() []Check {
	return slices.Concat(objectChecks(), keyChecks(), writeChecks(), partChecks())
}

// Run runs every check as a subtest. open makes an empty store for one of them;
// the kit closes it. skip names checks that the service behind the store is known
// to fail; each is reported as skipped.
func Run(t *testing.T, open func(t *testing.T) objstore.Store, skip ...string) {
	t.Helper()
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			if slices.Contains(skip, c.Name) {
				t.Skip("known limit of this store")
			}
			s := open(t)
			defer func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}()
			c.Run(t, s)
		})
	}
}

func mustPut(t T, s objstore.Store, key string, chunks ...[]byte) objstore.PutResponse {
	t.Helper()
	resp, err := s.Put(t.Context(), objstore.PutRequest{Key: key, Chunks: chunks})
	if err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
	return resp
}

func create(ctx context.Context, s objstore.Store, key string, value []byte) error {
	_, err := s.Put(ctx, objstore.PutRequest{
		Key: key, Chunks: [][]byte{value}, CreateOnly: true,
		CRC32C: objstore.Checksum(value), HasCRC32C: true,
	})
	return err
}

func read(t T, s objstore.Store, key string) []byte {
	t.Helper()
	resp, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: key, Length: -1})
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	if resp.Size != int64(len(resp.Data)) {
		t.Fatalf("get %q: %d bytes of a whole object whose size is said to be %d", key, len(resp.Data), resp.Size)
	}
	return resp.Data
}

func wantValue(t T, s objstore.Store, key string, want []byte) {
	t.Helper()
	if got := read(t, s, key); !bytes.Equal(got, want) {
		t.Fatalf("get %q: %s, want %s", key, brief(got), brief(want))
	}
}

func wantAbsent(t T, s objstore.Store, key string) {
	t.Helper()
	_, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: key, Length: -1})
	wantIs(t, err, objstore.ErrNotExist, "get %q", key)
	_, err = s.Head(t.Context(), key)
	wantIs(t, err, objstore.ErrNotExist, "head %q", key)
}

func wantIs(t T, err, target error, format string, args ...any) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf(format+": got the error %v, want %v", append(args, err, target)...)
	}
}

func brief(b []byte) string {
	if len(b) > 40 {
		return string(b[:40]) + "..."
	}
	return string(b)
}

// listAll walks every page of at most limit keys and checks each.
func listAll(t T, s objstore.Store, prefix, after string, limit int) []string {
	t.Helper()
	keys := []string{}
	for {
		page, err := s.List(t.Context(), objstore.ListRequest{Prefix: prefix, StartAfter: after, Limit: limit})
		if err != nil {
			t.Fatalf("list %q after %q limit %d: %v", prefix, after, limit, err)
		}
		most := s.Capabilities().ListPageMax
		if limit > 0 {
			most = min(most, limit)
		}
		if len(page.Objects) > most {
			t.Fatalf("list %q limit %d: a page of %d keys, at most %d may come", prefix, limit, len(page.Objects), most)
		}
		for _, o := range page.Objects {
			keys = append(keys, o.Key)
		}
		if !page.More {
			return keys
		}
		if len(page.Objects) == 0 {
			t.Fatalf("list %q after %q: an empty page that says there is more", prefix, after)
		}
		if last := page.Objects[len(page.Objects)-1].Key; last > after {
			after = last
		} else {
			t.Fatalf("list %q after %q: the page ends with %q", prefix, after, last)
		}
	}
}

func wantKeys(t T, s objstore.Store, prefix, after string, limit int, want []string) {
	t.Helper()
	got := listAll(t, s, prefix, after, limit)
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("list %q after %q limit %d: %d keys, want %d; they differ at %d:\n got %q\nwant %q",
				prefix, after, limit, len(got), len(want), i, tail(got, i), tail(want, i))
		}
	}
}

func tail(keys []string, from int) []string {
	from = min(from, len(keys))
	return keys[from:min(from+4, len(keys))]
}
