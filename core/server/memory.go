package server

import (
	"fmt"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryFallback is assumed where the system does not say how much there is.
const memoryFallback = 4 << 30

// memoryLimit is how much memory this process may count on: the least of
// GOMEMLIMIT, the limits of its control groups and the machine's memory.
func memoryLimit() int64 {
	limit := min(debug.SetMemoryLimit(-1), groupLimit("/"), machineMemory("/"))
	if limit == math.MaxInt64 {
		return memoryFallback
	}
	return limit
}

func machineMemory(root string) int64 {
	b, err := os.ReadFile(path.Join(root, "proc/meminfo"))
	if err != nil {
		return math.MaxInt64
	}
	var kb int64
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "MemTotal: %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	return math.MaxInt64
}

// groupLimit is the least memory.max of the process's control group and those
// above it (cgroup v2); within a container the group is the root.
func groupLimit(root string) int64 {
	limit := int64(math.MaxInt64)
	b, err := os.ReadFile(path.Join(root, "proc/self/cgroup"))
	if err != nil {
		return limit
	}
	for line := range strings.Lines(string(b)) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		for ok {
			limit = min(limit, readLimit(path.Join(root, "sys/fs/cgroup", group, "memory.max")))
			if group == "/" || group == "." || group == "" {
				break
			}
			group = path.Dir(group)
		}
	}
	return limit
}

// readLimit reads a limit in bytes; "max" and what cannot be read are none.
func readLimit(file string) int64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return math.MaxInt64
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || n <= 0 {
		return math.MaxInt64
	}
	return n
}
