package kafka

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// sharedMemory is what all connections hold of the budget.
func (s *testServer) sharedMemory() (total int64, connections int) {
	u := s.unanswered
	u.mu.Lock()
	defer u.mu.Unlock()
	for h := range u.mu.holders {
		total += h.shared
	}
	return total, len(u.mu.holders)
}

// Many connections that pipeline more long polls than there is memory for: it
// stays bounded over all of them, an ordinary client does not wait, and a larger
// request gets its turn because the polls that fill the budget are cut short.
func TestUnansweredMemoryIsBounded(t *testing.T) {
	const budget, allowance = 1 << 20, 16 << 10
	s := startServer(t, func(c *Config) {
		c.UnansweredBytesMax, c.UnansweredAllowance, c.UnansweredPatience = budget, allowance, time.Minute
	})
	s.node.topic("t", 64)
	poll := fetchFrom(12, "t", [16]byte{}, make([]int64, 64)...)
	poll.MaxWaitMillis = 3_600_000
	wire := frameOf(poll, 1)
	const connections, polls = 20, 100
	if all := int64(connections * polls * len(wire) * heldGrowth); all < 10*budget {
		t.Fatalf("the load is %d bytes, too little for a budget of %d", all, budget)
	}
	stop := make(chan struct{})
	var peak int64
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				n, _ := s.sharedMemory()
				peak = max(peak, n)
			}
		}
	})
	var hostile []*rawClient
	for range connections {
		c := dial(t, s.addr)
		hostile = append(hostile, c)
		watching.Go(func() { _, _ = io.Copy(io.Discard, c.nc) })
		for range polls {
			if _, err := c.nc.Write(wire); err != nil { // the sockets take what the server does not read
				t.Fatal(err)
			}
		}
	}
	small := dial(t, s.addr)
	for range 50 {
		small.call(kmsg.NewPtrApiVersionsRequest())
		small.call(metadataFor(9, false, "t"))
	}
	names := make([]string, 2000) // beyond the allowance
	for i := range names {
		names[i] = fmt.Sprint("topic-", i)
	}
	if got := len(small.call(metadataFor(9, false, names...)).(*kmsg.MetadataResponse).Topics); got != len(names) {
		t.Errorf("%d topics, want %d", got, len(names))
	}
	for _, c := range hostile {
		_ = c.nc.Close()
	}
	until(t, "all of it is given back", func() bool { n, c := s.sharedMemory(); return n == 0 && c == 0 })
	close(stop)
	watching.Wait()
	if peak > budget || peak < budget/2 {
		t.Errorf("at most %d bytes were held at once, the budget is %d", peak, budget)
	}
}

// Requests that hold memory and cannot be cut short: the connection that holds
// the most is closed, and the others go on.
func TestTheLargestHolderIsClosed(t *testing.T) {
	s := startServer(t, func(c *Config) {
		c.UnansweredBytesMax, c.UnansweredAllowance, c.UnansweredPatience = 40*2*perPartition, 2*perPartition, 100*time.Millisecond
	})
	log := s.node.topic("t", 1)[0]
	log.set(func(l *fakeLog) { l.mu.hold = true })
	r := produceTo(9, "t", map[int32][]byte{0: batch("a")})
	greedy, modest := dial(t, s.addr), dial(t, s.addr)
	for i := range int32(3) {
		modest.write(frameOf(r, i))
	}
	until(t, "the modest ones are appended", func() bool { return log.held() == 3 })
	for i := range int32(60) {
		greedy.write(frameOf(r, i))
	}
	greedy.closed()
	log.release(nil)
	for i := range int32(3) {
		if p := produced(t, modest.receive(r, i)); p.ErrorCode != 0 {
			t.Errorf("answer %d: %+v", i, p)
		}
	}
	until(t, "all of it is given back", func() bool { n, c := s.sharedMemory(); return n == 0 && c == 0 })
}

func TestUnansweredShares(t *testing.T) {
	u := newUnanswered(100, 10, time.Hour)
	a, b := &holder{hurry: make(chan struct{})}, &holder{hurry: make(chan struct{})}
	take := func(h *holder, memory, want int64) {
		t.Helper()
		if share, err := u.acquire(t.Context(), h, memory); err != nil || share != want {
			t.Errorf("%d more are a share of %d (%v), want %d", memory, share, err, want)
		}
	}
	take(a, 10, 0) // the allowance
	take(a, 5, 5)
	take(b, 25, 15)
	take(b, 80, 80)
	hurried := func(h *holder) bool {
		select {
		case <-u.hurry(h):
			return true
		default:
			return false
		}
	}
	c := &holder{hurry: make(chan struct{})}
	take(c, 10, 0) // an allowance is there whatever others hold
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := u.acquire(ctx, c, 1); done <- err }()
	for !hurried(a) || !hurried(b) {
		time.Sleep(time.Millisecond)
	}
	if hurried(c) {
		t.Error("one that holds no share is hurried")
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("acquired beyond the budget")
	}
	if hurried(a) || hurried(b) {
		t.Error("hurried though nobody waits")
	}
	if c.memory != 10 {
		t.Errorf("a request that was given up is counted: %d", c.memory)
	}
}
