package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// diary keeps what the clients of a cluster say that they do, for the explanation of a
// long time without an acknowledgement.
type diary struct {
	mu      sync.Mutex
	entries []entry
	franzes atomic.Int64
}

type entry struct {
	at   time.Time
	text string
}

// entriesMax bounds a diary: some minutes of a cluster in trouble.
const entriesMax = 200_000

// Write implements io.Writer: a line of a log.
func (d *diary) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.entries) == entriesMax {
		d.entries = append(d.entries[:0], d.entries[entriesMax/2:]...)
	}
	d.entries = append(d.entries, entry{time.Now(), strings.TrimRight(string(p), "\n")})
	return len(p), nil
}

// franz is a logger for one more Kafka client.
func (d *diary) franz() kgo.Logger {
	name := fmt.Sprintf("kafka client %d: ", d.franzes.Add(1))
	return kgo.BasicLogger(d, kgo.LogLevelDebug, func() string { return name })
}

// since writes what was said from at on.
func (d *diary) since(at time.Time, to io.Writer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.entries {
		if !e.at.Before(at) {
			fmt.Fprintf(to, "%s %s\n", e.at.Format("15:04:05.000"), e.text)
		}
	}
}

// long is for how long a writer may go without an acknowledgement before what the
// clients and the nodes said is kept.
const long = 12 * time.Second

// explain keeps what was said while a writer had no acknowledgement.
func (c *trio) explain(what string, p *pulse, gap time.Duration, since time.Time) {
	c.t.Helper()
	if gap >= long {
		c.keep(fmt.Sprintf("%s\n%s had no acknowledgement for %s since %s", what, p.name, gap, since.Format("15:04:05.000")), since)
	}
}

// keep writes what nodes and clients said into a file of the directory
// MINK_TEST_CHAOS_DIARY.
func (c *trio) keep(what string, since time.Time) {
	c.t.Helper()
	dir := os.Getenv("MINK_TEST_CHAOS_DIARY")
	if dir == "" {
		return
	}
	f, err := os.CreateTemp(dir, "chaos-diary-*.log")
	if err != nil {
		c.t.Error(err)
		return
	}
	w := bufio.NewWriter(f)
	fmt.Fprintln(w, what)
	for _, m := range c.nodes {
		fmt.Fprintf(w, "node %d: flight %s by way of %s, kafka %s\n%s\n", m.id, m.flight, m.in.address, m.kafka, m.stderr)
	}
	for _, m := range c.nodes {
		fmt.Fprintf(w, "goroutines of node %d:\n%s\n", m.id, m.get("/debug/pprof/goroutine?debug=1"))
	}
	c.clients.since(since.Add(-time.Second), w)
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		c.t.Error(err)
	}
	c.t.Logf("what was said meanwhile: %s", filepath.Base(f.Name()))
}

// get asks a node's HTTP port; what is wrong is the answer when there is none.
func (m *member) get(path string) string {
	ctx, cancel := context.WithTimeout(m.t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.http+path, nil)
	if err != nil {
		return err.Error()
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}
