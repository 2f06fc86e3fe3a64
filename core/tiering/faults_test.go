package tiering

import (
	"testing"
	"time"
)

// TestFaultsAreNoticed: each protection that is taken out, here or in the target,
// makes one of the tests fail.
func TestFaultsAreNoticed(t *testing.T) {
	simulation := func(f faults, breaks placeFaults) func(*testing.T) error {
		return func(t *testing.T) error {
			for i := range uint64(150) {
				if _, err := simulate(t, uint64(time.Now().UnixNano())+i, f, breaks); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for name, try := range map[string]func(*testing.T) error{
		"a commit of unknown outcome is aborted":   simulation(faults{abortUnknown: true}, placeFaults{}),
		"rounds go on from the recorded ends":      simulation(faults{startRecorded: true}, placeFaults{}),
		"trimmed offsets are left out":             simulation(faults{noGap: true}, placeFaults{}),
		"what the log does not answer is left":     simulation(faults{skipTail: true}, placeFaults{}),
		"a round that was cut counts as whole":     simulation(faults{cutToEnd: true}, placeFaults{}),
		"a round is recorded before its commit":    simulation(faults{recordFirst: true}, placeFaults{}),
		"a dropped table is forgotten at once":     func(t *testing.T) error { return zombie(t, faults{forgetFirst: true}) },
		"keys are inserted into a partition again": simulation(faults{insertRemade: true}, placeFaults{}),
		"the target does not check the base":       simulation(faults{}, placeFaults{noBase: true}),
		"rounds go on without the lease": func(t *testing.T) error {
			for at := range 20 {
				if _, err := paused(t, at, true, faults{noLeaseCheck: true}); err != nil {
					return err
				}
			}
			return nil
		},
		"a sink that lost its rounds begins anew": func(t *testing.T) error { return rolledBack(t, 0, faults{fromBase: true}) },
	} {
		t.Run(name, func(t *testing.T) {
			err := try(t)
			if err == nil {
				t.Fatal("no test notices it")
			}
			t.Logf("%.300s", err)
		})
	}
}
