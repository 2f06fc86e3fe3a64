package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/plugin"
	"github.com/mink-project/mink/sdk/plugintest"
	"github.com/mink-project/mink/sdk/sink"
	"github.com/mink-project/mink/sdk/sink/sinktest"
)

func TestConformance(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		dir := t.TempDir()
		return sinktest.Target{Start: func(context.Context) (sink.Sink, func(), error) {
			s, err := open(dir)
			return s, func() {}, err // it cannot be ended: it goes on, as one that nobody can stop
		}}
	})
}

// TestConformanceAsPlugin kills real processes.
func TestConformanceAsPlugin(t *testing.T) {
	path := filepath.Join(t.TempDir(), plugin.FilePrefix+"sink-jsonl")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		return plugintest.SinkTarget(host.Config{Path: path}, map[string]string{"dir": t.TempDir()})
	})
}
