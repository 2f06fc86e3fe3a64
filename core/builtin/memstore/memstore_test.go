package memstore_test

import (
	"errors"
	"testing"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/objstore/objstoretest"
)

func TestConformance(t *testing.T) {
	objstoretest.Run(t, func(*testing.T) objstore.Store { return memstore.New(memstore.Default()) })
}

func TestConformanceSmallPagesAndBigParts(t *testing.T) {
	objstoretest.Run(t, func(*testing.T) objstore.Store {
		return memstore.New(memstore.Config{PageMax: 2, PartSizeMin: 1024})
	})
}

func TestBytesMaxCountsWhatIsStored(t *testing.T) {
	s := memstore.New(memstore.Config{BytesMax: 10})
	put := func(key string, n int) error {
		_, err := s.Put(t.Context(), objstore.PutRequest{Key: key, Chunks: [][]byte{make([]byte, n)}})
		return err
	}
	if err := put("a", 6); err != nil {
		t.Fatal(err)
	}
	if err := put("b", 5); !errors.Is(err, objstore.ErrNoSpace) {
		t.Fatalf("11 of 10 bytes: %v", err)
	}
	if err := put("a", 10); err != nil {
		t.Fatalf("a replacement counts the difference: %v", err)
	}
	if _, err := s.DeleteBatch(t.Context(), []string{"a"}); err != nil {
		t.Fatal(err)
	}
	if err := put("b", 10); err != nil {
		t.Fatalf("after a delete: %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	if err := (memstore.Config{PageMax: -1}).Validate(); !errors.Is(err, objstore.ErrInvalid) {
		t.Fatalf("page -1: %v", err)
	}
}
