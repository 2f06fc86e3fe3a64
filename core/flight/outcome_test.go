package flight

import (
	"errors"
	"fmt"
	"testing"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// A batch whose log ended under it has an unknown outcome. The writer that sends it
// again under its sequence must be told to do so; who would write it twice, must not.
func TestOutcomeOfBatchOnItsWay(t *testing.T) {
	ended := fmt.Errorf("append: %w: write-ahead log: %w", mink.ErrFenced, mink.ErrUnknownOutcome)
	for _, c := range []struct {
		err        error
		idempotent bool
		want       string
	}{
		{ended, true, api.ReasonUnavailable},
		{ended, false, api.ReasonUnknownOutcome},
		{fmt.Errorf("append: %w", mink.ErrFenced), false, api.ReasonUnknownOutcome},
		{errors.Join(mink.ErrCorrupt, mink.ErrUnknownOutcome), true, api.ReasonCorrupt},
	} {
		if got := codeOf(outcome(c.err, c.idempotent)); got != c.want {
			t.Errorf("%v, idempotent %v: %s, want %s", c.err, c.idempotent, got, c.want)
		}
	}
}
