package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// census is how many goroutines and open files the nodes of a cluster have, all
// together: what a node leads wanders, the sum stays.
type census struct{ goroutines, files int }

// limit is what a cluster may have after a fault that had first before any: growth that
// does not end passes it after some rounds. The slack is for connections of clients that
// are on their way out, and for stores that open and close with their buckets.
func (first census) limit() census {
	return census{first.goroutines*3/2 + 150, first.files*3/2 + 100}
}

func (c census) within(limit census) bool {
	return c.goroutines <= limit.goroutines && c.files <= limit.files
}

func (c census) String() string {
	return fmt.Sprintf("%d goroutines, %d open files", c.goroutines, c.files)
}

// profile is a node's goroutines by stack.
func (m *member) profile() (total int, text []byte, err error) {
	req, err := http.NewRequestWithContext(m.t.Context(), http.MethodGet, "http://"+m.http+"/debug/pprof/goroutine?debug=1", nil)
	if err != nil {
		return 0, nil, err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	if text, err = io.ReadAll(resp.Body); err != nil {
		return 0, nil, err
	}
	_, err = fmt.Sscanf(string(text), "goroutine profile: total %d", &total)
	return total, text, err
}

// count asks every node; profiles are kept under the diary's directory when dir is set.
func (c *trio) count(dir string) (all census, each string, err error) {
	var parts []string
	for _, m := range c.nodes {
		n, text, err := m.profile()
		if err != nil {
			return all, "", fmt.Errorf("goroutines of node %d: %w", m.id, err)
		}
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.process.Load()))
		if err != nil {
			return all, "", fmt.Errorf("open files of node %d: %w", m.id, err)
		}
		all.goroutines += n
		all.files += len(files)
		parts = append(parts, fmt.Sprintf("node %d: %d, %d", m.id, n, len(files)))
		if dir != "" {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("chaos-goroutines-node-%d.txt", m.id)), text, 0o600); err != nil {
				return all, "", err
			}
		}
	}
	return all, strings.Join(parts, "; "), nil
}

// noLeaks waits, while nothing is written, until the cluster has no more goroutines and
// open files than limit; else the profiles are kept and the test fails. A zero limit
// holds nothing: the first count.
func (l *load) noLeaks(what string, limit census) (last census) {
	l.t.Helper()
	var each string
	for deadline := time.Now().Add(time.Minute); ; pause(l.t.Context(), 200*time.Millisecond) {
		var err error
		if last, each, err = l.c.count(""); err != nil {
			l.t.Fatalf("%s: %v", what, err)
		}
		if limit == (census{}) || last.within(limit) {
			l.t.Logf("%s: %s (%s)", what, last, each)
			return last
		}
		if time.Now().After(deadline) {
			break
		}
	}
	dir := os.Getenv("MINK_TEST_CHAOS_DIARY")
	if _, _, err := l.c.count(dir); err != nil {
		l.t.Error(err)
	}
	l.t.Fatalf("%s: %s (%s), a minute after the last write; more than %s is a leak: the stacks are in %s/chaos-goroutines-node-*.txt", what, last, each, limit, dir)
	return last
}

func TestClusterCensusNoticesGrowth(t *testing.T) {
	first := census{goroutines: 600, files: 300}
	limit := first.limit()
	if !first.within(limit) || !(census{700, 350}).within(limit) {
		t.Errorf("%s: an ordinary count is refused", limit)
	}
	for _, grown := range []census{{2000, 300}, {600, 1000}} {
		if grown.within(limit) {
			t.Errorf("%s is within %s, from %s", grown, limit, first)
		}
	}
}
