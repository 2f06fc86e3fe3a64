package main

import (
	"context"
	"testing"

	"github.com/mink-project/mink/sdk/sink"
	"github.com/mink-project/mink/sdk/sink/sinktest"
)

// TestConformance runs the kit in this process: quick, and good with a debugger.
// `mink plugin test` runs it on the executable, whose processes it kills.
func TestConformance(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		dir := t.TempDir() // an empty target for each check
		return sinktest.Target{Start: func(context.Context) (sink.Sink, func(), error) {
			s, err := open(dir)
			return s, func() {}, err
		}}
	})
}
