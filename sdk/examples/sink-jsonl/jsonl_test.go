package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/plugin"
	"github.com/mink-project/mink/sdk/plugintest"
	"github.com/mink-project/mink/sdk/sink"
	"github.com/mink-project/mink/sdk/sink/sinktest"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == plugin.FilePrefix+"sink-jsonl" {
		main()
	}
	os.Exit(m.Run())
}

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
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), plugin.FilePrefix+"sink-jsonl")
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		return plugintest.SinkTarget(host.Config{Path: path}, map[string]string{"dir": t.TempDir()})
	})
}
