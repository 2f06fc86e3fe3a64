package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// broker is a broker to be measured: one that the suite starts, or a peer that
// runs already and is known by address.
type broker struct {
	name    string
	command []string // %DIR% is a fresh directory, %KAFKA% a free address; nil: a peer, or see prepare
	// prepare makes the command for a fresh directory, for a broker that does not
	// say when it is ready: it is once the address takes connections.
	prepare func(ctx context.Context, dir string) (command []string, kafka string, err error)
	kafka   string // of a peer
	pid     int    // of a peer; 0: no CPU figures
}

// process is a running broker.
type process struct {
	name        string
	kafka, http string
	pid         int
	args        []string
	says        bool      // when it is ready
	cmd         *exec.Cmd // nil: a peer, or not running
	exited      chan error
	dir         string // empty: a peer
	stderr      *bytes.Buffer
}

const (
	startTimeout = 30 * time.Second
)

// The ready line of every broker: "... ready: ..., kafka HOST:PORT, http HOST:PORT ...".
var kafkaAt, httpAt = regexp.MustCompile(`kafka (\S+?)(,|$)`), regexp.MustCompile(`http (\S+?)(,|$)`)

// start runs the broker on a fresh directory below scratch and waits until it
// serves.
func (b *broker) start(ctx context.Context, scratch string) (*process, error) {
	if b.command == nil && b.prepare == nil {
		return &process{kafka: b.kafka, pid: b.pid}, nil
	}
	dir, err := os.MkdirTemp(scratch, "broker-")
	if err != nil {
		return nil, err
	}
	p := &process{name: b.name, dir: dir, args: slices.Clone(b.command), says: b.prepare == nil}
	if b.prepare != nil {
		if p.args, p.kafka, err = b.prepare(ctx, p.data()); err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	for i, a := range p.args {
		p.args[i] = strings.NewReplacer("%DIR%", p.data(), "%KAFKA%", port).Replace(a)
	}
	if err := p.launch(ctx); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// data is the broker's directory.
func (p *process) data() string { return filepath.Join(p.dir, "data") }

// launch runs the command and waits until it serves.
func (p *process) launch(ctx context.Context) error {
	p.stderr, p.exited = &bytes.Buffer{}, make(chan error, 1)
	p.cmd = exec.Command(p.args[0], p.args[1:]...) //nolint:noctx // stop ends it
	p.cmd.Stderr = p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		p.cmd = nil
		return err
	}
	if err := p.cmd.Start(); err != nil {
		p.cmd = nil
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.pid = p.cmd.Process.Pid
	ready := make(chan string, 1)
	exited := make(chan struct{})
	go func() {
		s := bufio.NewScanner(out)
		for s.Scan() {
			if p.says && strings.Contains(s.Text(), "ready") {
				select {
				case ready <- s.Text():
				default:
				}
			}
		}
		_, _ = io.Copy(io.Discard, out)
		p.exited <- p.cmd.Wait()
		close(exited)
	}()
	wait, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if !p.says {
		go func() {
			if dialed(wait, p.kafka) == nil {
				ready <- ""
			}
		}()
	}
	select {
	case line := <-ready:
		if m := kafkaAt.FindStringSubmatch(line); m != nil {
			p.kafka = m[1]
		}
		if m := httpAt.FindStringSubmatch(line); m != nil {
			p.http = m[1]
		}
		return nil
	case <-exited:
		return fmt.Errorf("%s ended before it was ready:\n%s", p.name, p.stderr)
	case <-wait.Done():
		return fmt.Errorf("%s was not ready in %s", p.name, startTimeout)
	}
}

// kill ends the process as a crash would.
func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		<-p.exited //nolint:errcheck // it was killed
		p.cmd = nil
	}
}

// stop ends the process and removes its directory. A broker that has seconds of
// work left is killed: nobody reads its data.
func (p *process) stop() error {
	if p.dir == "" {
		return nil
	}
	p.kill()
	return os.RemoveAll(p.dir)
}

// cpu is the processor time the process has used, user and system; 0 for an
// unknown process.
func (p *process) cpu() (time.Duration, error) {
	if p.pid == 0 {
		return 0, nil
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		return 0, fmt.Errorf("processor time of the broker: %w", err)
	}
	return parseStat(string(b))
}

// ticksPerSecond of /proc: USER_HZ, which Linux fixed at 100.
const ticksPerSecond = 100

// parseStat reads utime and stime, fields 14 and 15 of proc_pid_stat(5). The
// second field is the program's name in parentheses, which may hold anything.
func parseStat(s string) (time.Duration, error) {
	_, rest, ok := cutLast(s, ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 13 {
		return 0, fmt.Errorf("unexpected /proc/PID/stat: %q", s)
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * time.Second / ticksPerSecond, errors.Join(err1, err2)
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// figures reads metrics without labels from the broker's HTTP port; nil when it
// has none.
func (p *process) figures(ctx context.Context) (map[string]float64, error) {
	if p.http == "" {
		return nil, nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.http+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out := map[string]float64{}
	s := bufio.NewScanner(resp.Body)
	for s.Scan() {
		name, value, ok := strings.Cut(s.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			out[name] = v
		}
	}
	return out, s.Err()
}

// profile stores the broker's CPU profile of the next seconds in path.
func (p *process) profile(ctx context.Context, path string, seconds int) error {
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", p.http, seconds)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, resp.Body)
	return errors.Join(err, f.Close())
}

// interrupted reports a run that the user ended.
func interrupted(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, syscall.EINTR)
}

// freePort answers a loopback address that was free a moment ago.
func freePort(ctx context.Context) (string, error) {
	l, err := listen(ctx)
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// dialed waits until the address takes connections.
func dialed(ctx context.Context, addr string) error {
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}
