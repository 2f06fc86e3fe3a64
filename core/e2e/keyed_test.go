package e2e

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// counted is a key's counter, which only its own goroutine moves.
type counted struct {
	Region string `mink:"region"`
	ID     int64  `mink:"id"`
	N      int64  `mink:"n"`
	Kept   *int64 `mink:"kept"`
}

// What a writer was told is what the next lookup finds, while the node is killed again
// and again: upserts, partial updates and deletes of many keys at once, each waited for
// and then looked up. In the end every change is in the changelog once.
func TestKeyedWritesAreSeenAcrossKills(t *testing.T) {
	n := newNode(t)
	n.start()
	n.createTable("e2e.counted", columns("region STRING", "id BIGINT", "n BIGINT", "kept BIGINT"), "--primary-key", "region,id", "--partition-by", "region", "--bucket-count", "3")
	cfg := client.Default()
	cfg.Bootstrap = []string{n.flight}
	c, err := client.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	whole, err := client.NewTypedUpsertWriter[counted](t.Context(), c, "e2e.counted", client.DefaultUpsert())
	if err != nil {
		t.Fatal(err)
	}
	some := client.DefaultUpsert()
	some.Columns = []string{"region", "id", "n"}
	part, err := client.NewTypedUpsertWriter[counted](t.Context(), c, "e2e.counted", some)
	if err != nil {
		t.Fatal(err)
	}
	type key struct {
		Region string `mink:"region"`
		ID     int64  `mink:"id"`
	}
	l, err := client.NewTypedLookuper[key, counted](t.Context(), c, "e2e.counted", client.DefaultLookup())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const kills, keys = 3, 24
	var changes, round atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for id := range int64(keys) {
		wg.Go(func() {
			k := key{[]string{"eu", "us", "moon"}[id%3], id}
			for i := int64(0); !stop.Load(); i++ {
				row := counted{Region: k.Region, ID: id, N: i}
				want := i%5 != 4
				var a *client.Append
				var err error
				switch i % 5 {
				case 0:
					row.Kept = &i
					a, err = whole.UpsertRows(t.Context(), row)
				case 4:
					a, err = whole.DeleteRows(t.Context(), row)
				default:
					a, err = part.UpsertRows(t.Context(), row)
				}
				if err == nil {
					err = a.Wait(t.Context())
				}
				if err != nil {
					t.Errorf("key %v, write %d: %v", k, i, err)
					return
				}
				changes.Add(1)
				round.Add(1)
				got, ok, err := l.Find(t.Context(), k)
				if err != nil || ok != want || want && (got.N != i || got.Kept == nil || *got.Kept != i/5*5) {
					t.Errorf("key %v after write %d: found %v, %+v, %v", k, i, ok, got, err)
					return
				}
			}
		})
	}
	for range kills {
		begun := round.Load()
		eventually(t, "writes", func() bool { return t.Failed() || round.Load() > begun+200 })
		n.kill()
		n.start()
	}
	begun := round.Load()
	eventually(t, "writes after the last kill", func() bool { return t.Failed() || round.Load() > begun+100 })
	stop.Store(true)
	wg.Wait()
	for _, w := range []*client.TypedUpsertWriter[counted]{whole, part} {
		if err := w.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	logged, last := int64(0), map[string]int64{}
	for b, err := range c.Scan(t.Context(), client.ScanRequest{Table: "e2e.counted", Bucket: -1}) {
		if err != nil {
			t.Fatal(err)
		}
		rows, err := client.Decode[counted](b.Record)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range rows {
			at := fmt.Sprint(r.Region, r.ID)
			switch b.Change(i) {
			case mink.ChangeUpdateBefore:
				continue
			case mink.ChangeDelete:
				r.N++
			}
			if before, ok := last[at]; ok && r.N != before+1 {
				t.Errorf("the changelog of %s goes from %d to %d", at, before, r.N)
			}
			last[at] = r.N
			logged++
		}
	}
	if logged != changes.Load() {
		t.Errorf("%d changes in the changelog, %d were acknowledged", logged, changes.Load())
	}
	t.Logf("%d changes over %d kills", logged, kills)
}
