package tiering

import (
	"testing"
	"time"
)

// TestFaultsAreNoticed: each protection that is taken out makes one of the tests fail.
func TestFaultsAreNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the simulation many times")
	}
	for name, c := range map[string]struct {
		faults faults
		breaks placeFaults
	}{
		"rounds go on without the lease":           {faults: faults{noLeaseCheck: true}},
		"a commit of unknown outcome is aborted":   {faults: faults{abortUnknown: true}},
		"rounds go on from the recorded ends":      {faults: faults{startRecorded: true}},
		"the handle keeps its schema":              {faults: faults{noSchema: true}},
		"trimmed offsets are left out":             {faults: faults{noGap: true}},
		"what the log does not answer is skipped":  {faults: faults{skipTail: true, cutReads: true}},
		"a name is taken before its drop":          {faults: faults{noDropWait: true}},
		"the target does not check the base":       {breaks: placeFaults{noBase: true}},
		"a record is proposed for what was staged": {faults: faults{recordStaged: true}},
		"offsets without rows are not committed":   {faults: faults{rowsOnly: true}},
		"a sink that lost its rounds begins anew":  {faults: faults{fromBase: true}},
		"reads are at the schema of the round before": {faults: faults{oldView: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range uint64(40) {
				if err := anyTest(t, uint64(time.Now().UnixNano())+i, c.faults, c.breaks); err != nil {
					t.Logf("try %d: %.300s", i, err)
					return
				}
			}
			t.Error("no test notices it")
		})
	}
}
