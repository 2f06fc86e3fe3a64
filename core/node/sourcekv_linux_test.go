package node_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
)

// A disk that takes nothing more, here one that is a few pages large.
func TestSourceOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Skip("this process may not mount a small disk:", err)
	}
	defer func() { _ = syscall.Unmount(dir, 0) }()
	twoNodes(t, filepath.Join(dir, "kv"), func(t *testing.T, _ *sim.World, _, reader *sim.Process, ref mink.BucketRef, _ kvplan.Snapshot, target *schema.Schema) {
		if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, 12<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := snapshotText(t.Context(), reader, ref, target)
		if !errors.Is(err, mink.ErrUnavailable) || !errors.Is(err, syscall.ENOSPC) || errors.Is(err, mink.ErrCorrupt) {
			t.Fatal(err)
		}
		t.Log(err)
		if err := os.Remove(filepath.Join(dir, "full")); err != nil {
			t.Fatal(err)
		}
		if _, text, err := snapshotText(t.Context(), reader, ref, target); err != nil || text != "1a3c" {
			t.Fatal(text, err)
		}
	})
}
