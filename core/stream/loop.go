package stream

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// LoopStats is how one background loop fares.
type LoopStats struct {
	Name     string        `json:"name"`
	Interval time.Duration `json:"interval"`
	Runs     int64         `json:"runs"`
	Failures int64         `json:"failures"`
	Last     time.Time     `json:"last"` // end of the last run; zero: none yet
	Next     time.Time     `json:"next"`
	Error    string        `json:"error,omitempty"` // of the last run
}

// loop is one background job. A failing run is logged, counted, tried again
// after a pause, and never ends the loop.
type loop struct {
	name     string
	interval time.Duration
	wake     signal // nil: by the clock only
	run      func(context.Context) error
	state    *loopState
}

type loopState struct {
	sync.Mutex
	LoopStats
}

func (e *Engine) loops() []loop {
	return []loop{
		{"wal upload", e.cfg.WALUploadInterval, e.uploadWake, e.UploadNow, &e.stats.upload},
		{"compaction", e.cfg.CompactInterval, nil, e.CompactNow, &e.stats.compact},
		{"object deletion", e.cfg.CleanInterval, nil, e.CleanNow, &e.stats.clean},
		{"orphan sweep", e.cfg.SweepInterval, nil, e.SweepNow, &e.stats.sweep},
	}
}

func (e *Engine) runLoop(ctx context.Context, l loop) {
	pause := time.Duration(0) // of the next retry
	wait := l.interval
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		l.state.Lock()
		l.state.Name, l.state.Interval, l.state.Next = l.name, l.interval, time.Now().Add(wait)
		l.state.Unlock()
		wake := l.wake
		if pause > 0 {
			wake = nil // a wake-up does not cut a retry's pause short
		}
		select {
		case <-timer.C:
		case <-wake:
		case <-ctx.Done():
			return
		}
		err := l.run(ctx)
		if ctx.Err() != nil {
			return
		}
		if wait = l.interval; err != nil {
			pause = min(max(2*pause, e.cfg.RetryMin), e.cfg.RetryMax)
			wait = min(pause/2+rand.N(pause/2+1), l.interval)
			e.log.Warn(l.name+" failed", "wal", e.deps.WAL.String(), "err", err, "retry_in", wait)
		} else {
			pause = 0
		}
		l.state.record(err)
		timer.Reset(wait)
	}
}

func (s *loopState) record(err error) {
	s.Lock()
	defer s.Unlock()
	s.Runs++
	s.Last = time.Now()
	s.Error = ""
	if err != nil {
		s.Failures++
		s.Error = err.Error()
	}
}

func (s *loopState) snapshot() LoopStats {
	s.Lock()
	defer s.Unlock()
	return s.LoopStats
}
