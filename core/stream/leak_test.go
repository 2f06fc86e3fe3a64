package stream

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"weak"
)

func (s *Stream) appendBytes(tb testing.TB, n int) *Ticket {
	tb.Helper()
	t, err := s.Append(AppendRequest{Start: s.LogEnd(), Span: 1, Count: 1, Parts: [][]byte{make([]byte, n)}})
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// The committer and an upload evict at the same time: whoever comes second with
// the older bulk must find nothing left, and nothing may stay for ever.
func TestEvictionsOutOfOrder(t *testing.T) {
	e, streams, _ := alone(t, 1, 1<<30)
	s := streams[0]
	for range 3 {
		s.appendBytes(t, 100)
		e.sealNow(t)
	}
	bulks := slices.Clone(e.queue.acked)
	e.uploaded(3)
	s.evict(bulks[1])
	s.evict(bulks[0])
	if n := len(s.mu.chain); n != 1 || s.mu.chain[0].bulk != bulks[2] {
		t.Fatalf("%d bulks are cached, want the last one alone", n)
	}
	s.evict(bulks[2])
	if len(s.mu.chain) != 0 {
		t.Fatal("the last bulk stays cached for ever")
	}
}

// A stream that falls silent must not keep the bulk that holds its last record,
// megabytes of other streams' records: nothing accounts for it.
func TestIdleStreamKeepsNoBulk(t *testing.T) {
	e, streams, _ := alone(t, 2, 1<<30)
	streams[0].appendBytes(t, 100)
	old := weak.Make(e.app.open)
	e.sealNow(t)
	streams[1].appendBytes(t, 100)
	e.sealNow(t)
	e.uploaded(2)
	e.drop()
	for range 10 { // a collection may already be under way
		if runtime.GC(); old.Value() == nil {
			break
		}
	}
	if old.Value() != nil {
		t.Error("the bulk is uploaded and evicted, and still in memory")
	}
	runtime.KeepAlive(streams)
	runtime.KeepAlive(e)
}

// A bulk that is being sealed is neither open nor in flight yet: a drain must
// wait for it all the same, or what was admitted is not acknowledged.
func TestDrainSeesABulkThatIsBeingSealed(t *testing.T) {
	e, streams, _ := alone(t, 1, 1<<30)
	streams[0].appendBytes(t, 100)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := e.takeOpen(); err != nil {
		t.Fatal(err)
	}
	if err := e.waitAcked(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("a drain found nothing to wait for: %v", err)
	}
}

// Failure 3: an append is acknowledged once it can be read, never before.
func TestAcknowledgedIsVisible(t *testing.T) {
	e, streams, _ := alone(t, 2000, 1<<30)
	for range 30 {
		var last *Ticket
		for _, s := range streams {
			last = s.appendBytes(t, 10)
		}
		ready, seen := make(chan struct{}), make(chan int)
		go func() {
			close(ready)
			<-last.Done()
			hidden := 0
			for i := len(streams) - 1; i >= 0; i-- { // the last to become visible first
				if s := streams[i]; s.HighWatermark() != s.LogEnd() {
					hidden++
				}
			}
			seen <- hidden
		}()
		<-ready
		e.sealNow(t)
		if hidden := <-seen; hidden > 0 {
			t.Fatalf("%d acknowledged records are not visible", hidden)
		}
	}
}

// Between an upload's commit and its bulks' leaving the queue, a release finds
// bulks that are committed already: it names only the rest.
func TestReleaseNamesWhatIsNotCommitted(t *testing.T) {
	e, streams, meta := alone(t, 1, 1<<30)
	for range 3 {
		streams[0].appendBytes(t, 100)
		e.sealNow(t)
	}
	meta.end = 2
	r, err := streams[0].Release(context.Background(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Items) != 1 || r.Items[0].Start != 2 || r.Items[0].End != 3 || len(r.Objects) != 1 || r.Objects[0].ID.Seq != 2 {
		t.Errorf("%+v", r)
	}
}
