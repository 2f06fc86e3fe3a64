package server

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestMemoryLimits(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := groupLimit(root); got != math.MaxInt64 {
		t.Errorf("without control groups: %d", got)
	}
	write("proc/meminfo", "MemFree: 1 kB\nMemTotal:       2048 kB\n")
	if got := machineMemory(root); got != 2048<<10 {
		t.Errorf("machine: %d", got)
	}
	write("proc/self/cgroup", "0::/pods/mink\n")
	write("sys/fs/cgroup/pods/mink/memory.max", "max\n")
	if got := groupLimit(root); got != math.MaxInt64 {
		t.Errorf("no limit: %d", got)
	}
	write("sys/fs/cgroup/pods/memory.max", "1000000\n")
	if got := groupLimit(root); got != 1000000 {
		t.Errorf("limit of the group above: %d", got)
	}
	write("sys/fs/cgroup/pods/mink/memory.max", "500000\n")
	if got := groupLimit(root); got != 500000 {
		t.Errorf("own limit: %d", got)
	}
	if got := memoryLimit(); got <= 0 || got == math.MaxInt64 {
		t.Errorf("this process: %d", got)
	}
}
