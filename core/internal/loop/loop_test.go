package loop

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRunsAtItsIntervalAndSurvivesFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		var at []time.Duration
		var l *Loop
		l = New("upload", 10*time.Second, slog.New(slog.DiscardHandler), func(context.Context) error {
			at = append(at, time.Since(start))
			switch len(at) {
			case 2:
				return errors.New("the store is away")
			case 4: // both come while the job runs: they merge
				l.Trigger()
				l.Trigger()
			}
			return nil
		})
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()

		time.Sleep(20*time.Second + time.Millisecond)
		synctest.Wait()
		if len(at) != 2 || at[0] != 10*time.Second || at[1] != 20*time.Second {
			t.Fatalf("ran at %v, want 10s and 20s", at)
		}
		if s := l.Status(); s.LastError != "the store is away" || s.Failures != 1 {
			t.Fatalf("status after the failure: %+v", s)
		}
		time.Sleep(firstRetry)
		synctest.Wait()
		if len(at) != 3 {
			t.Fatalf("no retry within %v of the failure: ran at %v", firstRetry, at)
		}
		if s := l.Status(); s.LastError != "" || s.Runs != 3 {
			t.Fatalf("status after the retry: %+v", s)
		}
		l.Trigger()
		synctest.Wait()
		if len(at) != 5 {
			t.Fatalf("a trigger and two merged ones ran the job %d times, want 2", len(at)-3)
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestBackoffGrowsToTheInterval(t *testing.T) {
	for failures, limit := 1, 3*time.Second; failures < 80; failures++ {
		d := backoff(failures, limit)
		if d <= 0 || d > limit {
			t.Fatalf("backoff(%d) = %v, want within (0, %v]", failures, d, limit)
		}
		if failures > 10 && d < limit*4/5 {
			t.Fatalf("backoff(%d) = %v, want about %v", failures, d, limit)
		}
	}
}

func TestAnIdleRunIsNoWorkAndNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var idle atomic.Bool
		idle.Store(true)
		l := New("of the holder", time.Second, slog.New(slog.DiscardHandler), func(context.Context) error {
			if idle.Load() {
				return ErrIdle
			}
			return nil
		})
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		time.Sleep(3*time.Second + time.Millisecond)
		synctest.Wait()
		if s := l.Status(); !s.Idle || s.Runs != 3 || s.Worked != 0 || s.Failures != 0 || s.LastError != "" || s.LastEnd.IsZero() {
			t.Errorf("after idle runs: %+v", s)
		}
		idle.Store(false)
		time.Sleep(time.Second)
		synctest.Wait()
		if s := l.Status(); s.Idle || s.Runs != 4 || s.Worked != 1 {
			t.Errorf("after one that worked: %+v", s)
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}
