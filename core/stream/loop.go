package stream

import (
	"context"
	"time"

	"github.com/mink-project/mink/core/internal/loop"
)

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
