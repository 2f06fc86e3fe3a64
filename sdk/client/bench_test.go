package client

import (
	"sync"
	"testing"
)

// What one lookup among many costs, with the fake node in the same process.
func BenchmarkFind(b *testing.B) {
	f := newFake(b, false)
	f.fill("eu", 1000)
	cfg := DefaultLookup()
	l, err := NewTypedLookuper[itemKey, item](b.Context(), f.client, "db.t", cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for g := range 256 {
		wg.Go(func() {
			for i := g; i < b.N; i += 256 {
				if _, _, err := l.Find(b.Context(), itemKey{"eu", int64(i % 1000)}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
