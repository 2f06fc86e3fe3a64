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
