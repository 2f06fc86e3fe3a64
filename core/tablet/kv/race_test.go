package kv

import (
	"context"
	"math"
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

// A put without rows waits for the log like any other: its tablet is not idle.
func TestIdleWaitsForEveryPut(t *testing.T) {
	b := simple(t, nil)
	b.kv.used.Store(math.MinInt64 / 2)
	if b.kv.Idle() == 0 {
		t.Fatal("nothing is under way")
	}
	p, err := b.kv.Put(context.Background(), Put{SchemaID: 1, WriterID: 7})
	if err != nil {
		t.Fatal(err)
	}
	b.kv.used.Store(math.MinInt64 / 2)
	if n := b.kv.Idle(); n != 0 {
		t.Fatal("idle for", n)
	}
	b.s.land(1)
	wait(t, p)
}
