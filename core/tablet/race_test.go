package tablet

import (
	"fmt"
	"sync"
	"testing"

	"github.com/mink-project/mink/sdk/mink"
)

// Many writers and readers at once: offsets are dense, every answer is true, and
// what is read is in order.
func TestConcurrentUse(t *testing.T) {
	s := newFake(true)
	l := openTopic(t, s, &clock{t0})
	const writers, batches = 8, 50
	var mu sync.Mutex
	taken := map[mink.Offset]string{}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range int32(batches) {
				name := fmt.Sprint(w, "/", i)
				p, err := l.AppendKafka(produced{pid: int64(w), seq: i, stamps: []int64{t0}, value: name}.bytes(), KafkaAppend{})
				if err != nil {
					t.Error(err)
					return
				}
				<-p.Done()
				res, err := p.Result()
				mu.Lock()
				if other, twice := taken[res.First]; twice || err != nil {
					t.Errorf("%s at %d, as %s: %v", name, res.First, other, err)
				}
				taken[res.First] = name
				mu.Unlock()
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			for from := mink.Offset(0); from < writers*batches; {
				res, err := l.Read(t.Context(), ReadRequest{From: from, MaxBytes: 1000})
				if err != nil {
					t.Error(err)
					return
				}
				from = res.Next
				if _, _, err := l.MaxTimestamp(t.Context()); err != nil {
					t.Error(err)
				}
				l.EpochEnd(0)
				l.Stats()
			}
		})
	}
	wg.Wait()
	if len(taken) != writers*batches || l.LogEnd() != writers*batches {
		t.Fatal(len(taken), l.LogEnd())
	}
}
