// Package recorder runs checks of conformance kits outside of go test.
package recorder

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
)

// T has the methods of testing.T that kits use. Safe for concurrent use.
type T struct {
	ctx    context.Context //nolint:containedctx // kits ask it for one, as they ask testing.T
	mu     sync.Mutex
	failed bool
	text   strings.Builder
}

// Run runs a check to its end, also when it ends by Fatalf or a panic, and answers
// whether it failed and what it said, a line each.
func Run(ctx context.Context, check func(t *T)) (failed bool, text string) {
	t := &T{ctx: ctx}
	var wg sync.WaitGroup
	wg.Go(func() { // Fatalf ends this goroutine
		defer func() {
			if p := recover(); p != nil {
				t.Errorf("panic: %v", p)
			}
		}()
		check(t)
	})
	wg.Wait()
	return t.failed, t.text.String()
}

// Helper does nothing.
func (t *T) Helper() {}

// Context is Run's.
func (t *T) Context() context.Context { return t.ctx }

func (t *T) say(failed bool, format string, args []any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = t.failed || failed
	_, _ = fmt.Fprintf(&t.text, format+"\n", args...)
}

// Logf adds a line.
func (t *T) Logf(format string, args ...any) { t.say(false, format, args) }

// Errorf adds a line and fails the check.
func (t *T) Errorf(format string, args ...any) { t.say(true, format, args) }

// Fatalf is Errorf and ends the check; only for the goroutine that runs it.
func (t *T) Fatalf(format string, args ...any) {
	t.say(true, format, args)
	runtime.Goexit()
}
