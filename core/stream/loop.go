package stream

import (
	"context"
	"time"

	"github.com/mink-project/mink/core/internal/loop"
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

// newLoops makes the background jobs; the first is the upload.
func (e *Engine) newLoops() []*loop.Loop {
	loopOf := func(name string, every time.Duration, run func(context.Context) error) *loop.Loop {
		return loop.New(name, every, e.log, run)
	}
	return []*loop.Loop{
		loopOf("wal upload", e.cfg.WALUploadInterval, e.UploadNow),
		loopOf("compaction", e.cfg.CompactInterval, e.CompactNow),
		loopOf("object deletion", e.cfg.CleanInterval, e.CleanNow),
		loopOf("orphan sweep", e.cfg.SweepInterval, e.SweepNow),
	}
}

// hurryUpload makes the upload run before its interval. One that failed is left
// to its back-off, and one that has nothing to upload is not run: refused appends
// must not turn it into a busy loop.
func (e *Engine) hurryUpload() {
	e.queue.Lock()
	idle := len(e.queue.acked) == 0
	e.queue.Unlock()
	if idle {
		return
	}
	if upload := e.loops[0]; upload.Status().LastError == "" {
		upload.Trigger()
	}
}

func loopStats(s loop.Status) LoopStats {
	return LoopStats{
		Name: s.Name, Interval: s.Interval, Runs: int64(s.Runs), Failures: int64(s.Failures),
		Last: s.LastEnd, Next: s.Next, Error: s.LastError,
	}
}
