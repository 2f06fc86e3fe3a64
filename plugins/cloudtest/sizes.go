package cloudtest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/mink-project/mink/sdk/objstore"
)

// CheckSizes writes and reads objects of 0 B to 64 MiB, whole and by range.
func CheckSizes(t *testing.T, s objstore.Store) {
	whole := make([]byte, 64<<20)
	_, _ = rand.NewChaCha8([32]byte{6}).Read(whole) // never fails
	for _, n := range []int{0, 1, 4 << 10, 1<<20 - 1, 5 << 20, 16<<20 + 1, 64 << 20} {
		key, value := fmt.Sprint("size/", n), whole[len(whole)-n:]
		if _, err := s.Put(t.Context(), objstore.PutRequest{Key: key, Chunks: [][]byte{value[:n/3], value[n/3:]}, CreateOnly: true}); err != nil {
			t.Fatalf("put %d bytes: %v", n, err)
		}
		got, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: key, Length: -1})
		if err != nil || got.Size != int64(n) || !bytes.Equal(got.Data, value) {
			t.Fatalf("get %d bytes: %d came back of %d, %v", n, len(got.Data), got.Size, err)
		}
		if n < 100 {
			continue
		}
		got, err = s.GetRange(t.Context(), objstore.GetRangeRequest{Key: key, Offset: int64(n) - 99, Length: 50})
		if err != nil || !bytes.Equal(got.Data, value[n-99:n-49]) {
			t.Fatalf("range at the end of %d bytes: %v", n, err)
		}
	}
}

// CheckPages lists more keys than one page has.
func CheckPages(t *testing.T, s objstore.Store) {
	n := s.Capabilities().ListPageMax + 101
	errs := make([]error, 16)
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			for i := w; i < n && errs[w] == nil; i += len(errs) {
				_, errs[w] = s.Put(t.Context(), objstore.PutRequest{Key: fmt.Sprintf("page/%06d", i)})
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	at := 0
	err := objstore.All(t.Context(), s, "page/", "", func(o objstore.ObjectInfo) bool {
		if want := fmt.Sprintf("page/%06d", at); o.Key != want {
			t.Fatalf("key %d of the listing is %s, want %s", at, o.Key, want)
		}
		at++
		return true
	})
	if err != nil || at != n {
		t.Fatalf("%d keys of %d, %v", at, n, err)
	}
	page, err := s.List(t.Context(), objstore.ListRequest{Prefix: "page/", StartAfter: fmt.Sprintf("page/%06d", n-3), Limit: 10 * n})
	if err != nil || len(page.Objects) != 2 || page.More {
		t.Fatalf("the last two: %d keys, more %v, %v", len(page.Objects), page.More, err)
	}
	keys := make([]string, 0, objstore.DeleteMax)
	for i := range objstore.DeleteMax {
		keys = append(keys, fmt.Sprintf("page/%06d", i))
	}
	resp, err := s.DeleteBatch(t.Context(), keys)
	if err := errors.Join(append(resp.Errors, err)...); err != nil {
		t.Fatalf("delete %d keys: %v", len(keys), err)
	}
	page, err = s.List(t.Context(), objstore.ListRequest{})
	if err != nil || len(page.Objects) == 0 || page.Objects[0].Key != fmt.Sprintf("page/%06d", objstore.DeleteMax) {
		t.Fatalf("after the deletion: %+v, %v", page.Objects[:min(1, len(page.Objects))], err)
	}
}
