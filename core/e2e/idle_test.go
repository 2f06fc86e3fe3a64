package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/sdk/client"
)

// An idle node makes no PUT and nearly no CPU time. Its goroutines are as many
// after a load as before.
func TestIdleNode(t *testing.T) {
	n := newNode(t) // not parallel: its own CPU time is measured, but waits cost less alone
	n.start()
	n.mink(nil, "topic", "create", "idle", "--partitions", "8")
	n.createTable("idle.rows", columns("part INT NOT NULL", "seq BIGINT NOT NULL", "text STRING"))
	n.kcat([]byte("x\n"), "-P", "-t", "idle")
	n.uploadedOnce()
	http.DefaultClient.CloseIdleConnections()
	before := n.goroutines()

	for range 3 {
		n.kcat(bytes.Repeat([]byte("load\n"), 5000), "-P", "-t", "idle")
		n.kcat(nil, "-C", "-t", "idle", "-o", "beginning", "-e", "-q")
		c := n.client()
		w, err := c.NewWriter(t.Context(), "idle.rows", client.DefaultWriter())
		if err != nil {
			t.Fatal(err)
		}
		for i := range int64(50) {
			rec := numbered(w.Schema(), 0, i*10, 10)
			if _, err := w.Append(t.Context(), rec); err != nil {
				t.Fatal(err)
			}
			rec.Release()
		}
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.mink(nil, "read", "idle.rows")
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	n.uploadedOnce()
	eventually(t, fmt.Sprintf("no more goroutines than the %d before the load", before), func() bool {
		http.DefaultClient.CloseIdleConnections()
		return n.goroutines() <= before+2
	})

	puts := n.puts()
	cpu, began := n.cpu(), time.Now()
	pause(t.Context(), 15*time.Second)
	used, took := n.cpu()-cpu, time.Since(began)
	share := 100 * used.Seconds() / took.Seconds()
	t.Logf("idle for %s: %s of CPU, %.2f %%; %d goroutines", took.Round(time.Millisecond), used, share, before)
	if share > 5 {
		t.Errorf("an idle node uses %.1f %% of a CPU", share)
	}
	if after := n.puts(); after != puts {
		t.Errorf("an idle node wrote %v objects", after-puts)
	}
	n.stop()
}

// uploadedOnce waits until everything is uploaded and nothing follows from it.
func (n *node) uploadedOnce() {
	n.t.Helper()
	n.uploaded()
	last, since := n.puts(), time.Now()
	eventually(n.t, "no PUT for two seconds", func() bool {
		if now := n.puts(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 2*time.Second
	})
}

// puts counts the objects that the node wrote.
func (n *node) puts() float64 {
	n.t.Helper()
	return n.figure("mink_wal_objects_total") + n.figure("mink_stream_objects_total")
}

// goroutines is the node's count, by its profile.
func (n *node) goroutines() int {
	n.t.Helper()
	resp, err := http.Get("http://" + n.http + "/debug/pprof/goroutine?debug=1")
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil {
		n.t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_, count, _ := strings.Cut(strings.TrimSpace(line), "total ")
	i, err := strconv.Atoi(count)
	if err != nil {
		n.t.Fatalf("goroutine profile: %q", line)
	}
	return i
}

// cpu is the process's CPU time so far. The kernel counts in ticks of 10 ms.
func (n *node) cpu() time.Duration {
	n.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.cmd.Process.Pid))
	if err != nil {
		n.t.Skipf("no CPU time of a process here: %v", err)
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err1 != nil || err2 != nil {
		n.t.Fatalf("stat: %s", b)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
