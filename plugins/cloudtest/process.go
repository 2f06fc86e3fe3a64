package cloudtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/plugin"
)

// Main is the TestMain of a plugin: the test's executable is the plugin when it is
// started under a plugin's name.
func Main(m *testing.M, p plugin.Plugin) {
	if filepath.Base(os.Args[0]) == p.Manifest().FileName() {
		plugin.Serve(p)
	}
	os.Exit(m.Run())
}

// Launch starts the plugin as a process of its own, as a node does, and answers
// how to open stores in it. It ends with the test.
func Launch(t *testing.T, p plugin.ObjectStore) func(t *testing.T, uri string, options map[string]string) objstore.Store {
	t.Helper()
	process := Process(t, p)
	return func(t *testing.T, uri string, options map[string]string) objstore.Store {
		t.Helper()
		s, err := process.OpenStore(t.Context(), uri, options)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
}

// Process starts the plugin as Launch does.
func Process(t testing.TB, p plugin.Plugin) *host.Process {
	t.Helper()
	manifest := p.Manifest()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), manifest.FileName())
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	process, err := host.Launch(t.Context(), host.Config{Path: path, Kind: manifest.Kind, Env: manifest.Env, SharedMemory: manifest.Kind == plugin.KindObjectStore})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := process.Close(); err != nil {
			t.Error(err)
		}
	})
	return process
}
