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
	if filepath.Base(os.Args[0]) == plugin.FilePrefix+"sink-print" {
		main()
	}
	os.Exit(m.Run())
}

func TestConformance(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		path := filepath.Join(t.TempDir(), "lines")
		return sinktest.Target{Start: func(context.Context) (sink.Sink, func(), error) {
			s, err := open(path)
			return s, func() {}, err
		}}
	})
}

// TestConformanceAsPlugin kills real processes.
func TestConformanceAsPlugin(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), plugin.FilePrefix+"sink-print")
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		return plugintest.SinkTarget(host.Config{Path: path}, map[string]string{"file": filepath.Join(t.TempDir(), "lines")})
	})
}
