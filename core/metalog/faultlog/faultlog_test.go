package faultlog_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/faultlog"
	"github.com/mink-project/mink/core/metalog/memlog"
	"github.com/mink-project/mink/core/metalog/metalogtest"
	"github.com/mink-project/mink/sdk/mink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Without faults the wrapper changes nothing.
func TestConformance(t *testing.T) {
	metalogtest.Run(t, metalogtest.Options{
		Open: func(*testing.T) metalog.Log { return faultlog.New(memlog.New(), faultlog.Config{}) },
	})
}

// What each fault answers, and whether the append happens: at once, later, never.
func TestFaults(t *testing.T) {
	const never = -1
	for _, c := range []struct {
		fault   faultlog.Fault
		want    error
		happens time.Duration
	}{
		{faultlog.Refused, mink.ErrUnavailable, never},
		{faultlog.Disconnected, mink.ErrUnknownOutcome, never},
		{faultlog.LostResponse, mink.ErrUnknownOutcome, 0},
		{faultlog.Late, mink.ErrUnknownOutcome, time.Second},
		{faultlog.Stalled, mink.ErrUnknownOutcome, time.Minute + time.Second},
		{"unheard of", mink.ErrInvalid, never},
	} {
		t.Run(string(c.fault), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := memlog.New()
				l := faultlog.New(inner, faultlog.Config{LateBy: time.Second, Plan: func(faultlog.Op) faultlog.Fault { return c.fault }})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				began := time.Now()
				if _, err := l.Append(ctx, metalog.Append{Payloads: [][]byte{{1}}}); !errors.Is(err, c.want) {
					t.Fatalf("got error %v, want %v", err, c.want)
				}
				landed := func() bool {
					h, err := inner.Head(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					return h.Index == 1
				}
				synctest.Wait()
				if landed() != (c.happens == time.Since(began) && c.happens == 0) {
					t.Fatalf("happened at once: %v", landed())
				}
				time.Sleep(time.Hour)
				if landed() != (c.happens != never) {
					t.Fatalf("happened in the end: %v", landed())
				}
				if l.Counts()[c.fault] != 1 {
					t.Fatalf("counts %v", l.Counts())
				}
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// Every call can be made to fail, and a call that is refused changes nothing.
func TestEveryCallFails(t *testing.T) {
	inner := memlog.New()
	on := faultlog.None
	var asked faultlog.Op
	l := faultlog.New(inner, faultlog.Config{Plan: func(op faultlog.Op) faultlog.Fault {
		asked = op
		return on
	}})
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := l.Append(ctx, metalog.Append{Payloads: [][]byte{{1}}, Register: 1})
	must(err)
	taken := func(mink.LeaseEpoch) ([]byte, error) { return []byte{2}, nil }
	lease, _, err := l.TakeLease(ctx, metalog.TakeLease{Node: 1, NodeEpoch: 1, TTL: time.Hour, Payload: taken})
	must(err)
	head, err := l.Head(ctx)
	must(err)
	parts := func(yield func([]byte, error) bool) { _ = yield([]byte("a"), nil) && yield([]byte("b"), nil) }
	snapshot := func() error {
		return l.WriteSnapshot(ctx, metalog.SnapshotWrite{Position: head, Lease: lease, Parts: parts})
	}
	must(snapshot())
	calls := map[faultlog.Op]func() error{
		faultlog.Append: func() error {
			_, err := l.Append(ctx, metalog.Append{Payloads: [][]byte{{1}}})
			return err
		},
		faultlog.TakeLease: func() error {
			_, _, err := l.TakeLease(ctx, metalog.TakeLease{Node: 1, NodeEpoch: 1, TTL: time.Hour, Payload: taken})
			return err
		},
		faultlog.RenewLease:    func() error { _, err := l.RenewLease(ctx, lease, 2*time.Hour); return err },
		faultlog.ReleaseLease:  func() error { return l.ReleaseLease(ctx, lease) },
		faultlog.Heartbeat:     func() error { _, err := l.Heartbeat(ctx, 1, 1, 7); return err },
		faultlog.WriteSnapshot: snapshot,
		faultlog.Truncate:      func() error { return l.Truncate(ctx, 1, lease) },
		faultlog.Read:          func() error { _, err := l.Read(ctx, 0, 1, 1); return err },
		faultlog.Head:          func() error { _, err := l.Head(ctx); return err },
		faultlog.ReadLease:     func() error { _, _, err := l.ReadLease(ctx); return err },
		faultlog.Heartbeats:    func() error { _, err := l.Heartbeats(ctx); return err },
		faultlog.Snapshots:     func() error { _, err := l.Snapshots(ctx); return err },
		faultlog.ReadSnapshot: func() error {
			for _, err := range l.ReadSnapshot(ctx, head.Index) {
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	on = faultlog.Refused
	for op, call := range calls {
		if err := call(); !errors.Is(err, mink.ErrUnavailable) || asked != op {
			t.Errorf("%s, planned as %s: %v", op, asked, err)
		}
	}
	on = faultlog.Disconnected
	for op, call := range calls {
		want := mink.ErrUnavailable
		if op.Writes() {
			want = mink.ErrUnknownOutcome
		}
		if err := call(); !errors.Is(err, want) {
			t.Errorf("%s is cut off: %v, want %v", op, err, want)
		}
	}
	now, _, err := inner.ReadLease(ctx)
	must(err)
	rows, err := inner.Heartbeats(ctx)
	must(err)
	if h, err := inner.Head(ctx); err != nil || h != head || now != lease || rows[0].Applied != 0 {
		t.Errorf("refused calls left head %s, lease %+v, heartbeats %+v", h, now, rows)
	}
	on = faultlog.None
	got := 0
	for _, err := range l.ReadSnapshot(ctx, head.Index) {
		must(err)
		if got++; got == 1 {
			on = faultlog.Refused // it is under way
		}
	}
	if got != 2 {
		t.Errorf("the snapshot has %d parts", got)
	}
	must(l.Close())
}
