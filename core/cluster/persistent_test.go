package cluster

import (
	"maps"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// Handles left behind keep what they had, whatever happens to newer ones, and
// two lines of descent do not see each other.
func TestPersistent(t *testing.T) {
	type version struct {
		m    pmap[int64, int]
		s    pset[int64]
		want map[int64]int
	}
	rapid.Check(t, func(t *rapid.T) {
		versions := []version{{newPmap[int64, int](), newPset(func(a, b int64) bool { return a < b }), map[int64]int{}}}
		key := rapid.Int64Range(0, 400)
		for range rapid.IntRange(1, 8).Draw(t, "versions") {
			v := versions[rapid.IntRange(0, len(versions)-1).Draw(t, "parent")]
			v.m.fresh, v.s.fresh, v.want = false, false, maps.Clone(v.want)
			// Runs of keys, so that nodes split, merge and borrow.
			for range rapid.IntRange(0, 6).Draw(t, "runs") {
				from, n, del := key.Draw(t, "from"), rapid.Int64Range(1, 200).Draw(t, "n"), rapid.Bool().Draw(t, "del")
				for k := from; k < from+n; k++ {
					if del {
						v.m.del(k)
						v.s.del(k)
						delete(v.want, k)
					} else {
						v.m.set(k, int(k+n))
						v.s.set(k)
						v.want[k] = int(k + n)
					}
				}
			}
			versions = append(versions, v)
			for _, v := range versions {
				if !maps.Equal(maps.Collect(v.m.all()), v.want) || v.m.len() != len(v.want) {
					t.Fatal("a map changed behind its handle")
				}
				if got := slices.Collect(v.s.all()); !slices.Equal(got, slices.Sorted(maps.Keys(v.want))) || v.s.len() != len(got) {
					t.Fatal("a set changed behind its handle")
				}
			}
		}
	})
}

// Readers of older states run beside Apply (for the race detector).
func TestReadersBesideApply(t *testing.T) {
	m := newSim(11, faults{})
	var readers sync.WaitGroup
	defer readers.Wait()
	for i := range 600 {
		if err := m.step(); err != nil {
			t.Fatal(err)
		}
		if i%20 == 0 {
			s := m.s
			readers.Go(func() {
				for range 3 {
					if err := s.Check(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}
