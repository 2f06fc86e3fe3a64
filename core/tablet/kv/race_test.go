package kv

import (
	"context"
	"testing"
	"time"
)

// Readers are told of a trim also when the stream has advanced twice in a row before.
func TestTrimWakesReaders(t *testing.T) {
	b := simple(t, nil)
	wake := func(twice int) {
		b.s.mu.Lock()
		b.s.twice = twice
		b.s.wakeLocked()
		b.s.mu.Unlock()
	}
	p := b.put(false, nil, Row{int32(1), "a", nil})
	b.s.land(1)
	wait(t, p)
	wake(3)
	for left := 1; left > 0; time.Sleep(time.Millisecond) {
		b.s.mu.Lock()
		left = b.s.twice
		b.s.mu.Unlock()
		if left == 2 { // the flusher takes no notice any more
			break
		}
	}
	changed := b.log.Changed()
	if err := b.log.Trim(context.Background(), 1); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Fatal("nobody is told of the trim")
	}
}
