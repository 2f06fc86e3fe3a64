// Package sinktest is the conformance kit of sinks: what every sink.Sink must do,
// in the node or behind a plugin connection. A sink's own test calls Run; a
// program calls Checks and RunCheck. The kit is itself tested against sinks that
// are broken on purpose.
//
// The kit plays Mink's workers: it makes rows whose values follow from bucket and
// offset, writes them in rounds, ends sinks between and during calls, lets two
// workers believe that a table is theirs, and reads the target back.
package sinktest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/sdk/internal/recorder"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// T is the part of testing.T that checks use.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Context() context.Context
}

// Yield takes rows that a reader found; false: enough.
type Yield func(batch arrow.RecordBatch, changes []mink.Change) bool

// Target is one empty place to write to, with the means to start sinks on it.
type Target struct {
	// Start gives a new sink, as a new process would have it: it shares nothing with
	// those before but the place. kill ends it as SIGKILL ends a process, also in
	// the middle of a call; it may be called twice. A sink that cannot be ended goes
	// on as one that nobody can stop, which the kit takes as well.
	Start func(ctx context.Context) (s sink.Sink, kill func(), err error)

	// Read calls yield with the rows of a table, as sink.Reader does. nil: the sink
	// itself is the Reader.
	Read func(ctx context.Context, table sink.TableSpec, yield Yield) error
}

// Check is one property. Run gets an empty target; Applies says for which sinks
// it is one.
type Check struct {
	Name    string
	Applies func(d sink.Description) bool
	Run     func(t T, target Target)
}

// Checks are all of them, in the order in which to read their failures.
func Checks() []Check {
	return slices.Concat(roundChecks(), rowChecks(), crashChecks(), rivalChecks(), schemaChecks(), placeChecks())
}

// Run runs every check as a subtest. open makes an empty target for one of them.
// skip names checks that the target behind the sink is known to fail; each is
// reported as skipped, and so are those that do not apply.
func Run(t *testing.T, open func(t *testing.T) Target, skip ...string) {
	t.Helper()
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			if slices.Contains(skip, c.Name) {
				t.Skip("known limit of this target")
			}
			target := open(t)
			if applies, err := c.AppliesTo(t.Context(), target); err != nil {
				t.Fatal(err)
			} else if !applies {
				t.Skip("does not apply to what the sink declares")
			}
			c.Run(t, target)
		})
	}
}

// AppliesTo starts the sink to see whether the check is for it.
func (c Check) AppliesTo(ctx context.Context, target Target) (bool, error) {
	s, kill, err := target.Start(ctx)
	if err != nil {
		return false, fmt.Errorf("start the sink: %w", err)
	}
	defer kill()
	d := s.Describe()
	if err := s.Close(); err != nil {
		return false, fmt.Errorf("close: %w", err)
	}
	return c.Applies == nil || c.Applies(d), nil
}

// Result is what became of one check.
type Result struct {
	Name    string
	Failed  bool
	Skipped bool
	Text    string // what the check said, a line each
}

// RunCheck runs a check outside of go test.
func RunCheck(ctx context.Context, c Check, target Target) Result {
	applies, err := c.AppliesTo(ctx, target)
	if err != nil || !applies {
		r := Result{Name: c.Name, Failed: err != nil, Skipped: err == nil}
		if err != nil {
			r.Text = err.Error()
		}
		return r
	}
	failed, text := recorder.Run(ctx, func(t *recorder.T) { c.Run(t, target) })
	return Result{Name: c.Name, Failed: failed, Text: text}
}

func exactlyOnce(d sink.Description) bool { return d.Delivery == sink.ExactlyOnce }

func takesChanges(d sink.Description) bool { return d.Changes != sink.ChangesRefused }

func both(conditions ...func(sink.Description) bool) func(sink.Description) bool {
	return func(d sink.Description) bool {
		return !slices.ContainsFunc(conditions, func(c func(sink.Description) bool) bool { return !c(d) })
	}
}
