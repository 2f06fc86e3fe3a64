// Package e2e runs real node processes and real clients. scripts/e2e.sh builds
// what it needs and sets the variables.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mink-project/mink/plugins/cloudtest"
)

// node is one mink process that can be killed and started again on the same
// data and the same ports.
type node struct {
	t                   *testing.T
	dir                 string
	flight, kafka, http string
	flags               []string
	env                 []string
	program             string            // "": the binary under test
	s3                  *cloudtest.Server // nil: a directory
	lake                lakeReaders

	cmd    *exec.Cmd
	exited chan error
	stderr *tail
}

// tail keeps the last lines of a process's log for a failure's message.
type tail struct {
	mu    sync.Mutex
	lines []string
}

func (l *tail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, strings.TrimRight(string(p), "\n"))
	if len(l.lines) > 200 {
		l.lines = l.lines[len(l.lines)-200:]
	}
	return len(p), nil
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

func minkBinary(t *testing.T) string {
	t.Helper()
	b := os.Getenv("MINK_TEST_BINARY")
	if b == "" {
		t.Skip("MINK_TEST_BINARY is not set: run scripts/e2e.sh")
	}
	return b
}

// onS3 says that nodes keep their objects in S3, through the plugin of make
// plugins: MINK_TEST_STORAGE=s3, as scripts/e2e.sh s3 sets it.
func onS3() bool { return os.Getenv("MINK_TEST_STORAGE") == "s3" }

// newNode makes a node on a fresh data directory and free ports; start starts it.
func newNode(t *testing.T, flags ...string) *node {
	t.Helper()
	minkBinary(t)
	n := &node{t: t, dir: t.TempDir(), flags: flags}
	if onS3() {
		n.s3 = cloudtest.S3(t, "mink")
		n.env = s3Environment(n.s3)
	}
	n.flight, n.kafka, n.http = freeAddress(t), freeAddress(t), freeAddress(t)
	t.Cleanup(func() {
		n.kill()
		if t.Failed() && n.stderr != nil {
			t.Logf("log of the node:\n%s", n.stderr)
		}
	})
	return n
}

// taken are the ports that this process handed out.
var taken struct {
	sync.Mutex
	ports map[int]bool
}

// freeAddress answers an address that no one listens on, below the ports that
// the kernel gives to outgoing connections: a node that is down for a moment
// finds its own port free again.
func freeAddress(t *testing.T) string {
	t.Helper()
	taken.Lock()
	defer taken.Unlock()
	if taken.ports == nil {
		taken.ports = map[int]bool{}
	}
	for range 1000 {
		port := 12000 + rand.IntN(18000)
		if taken.ports[port] {
			continue
		}
		address := fmt.Sprintf("127.0.0.1:%d", port)
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if err != nil {
			continue
		}
		_ = l.Close()
		taken.ports[port] = true
		return address
	}
	t.Fatal("no free port")
	return ""
}

func (n *node) command(extra ...string) *exec.Cmd {
	args := append([]string{
		"serve", "--data-dir", filepath.Join(n.dir, "data"),
		"--listen", n.flight, "--kafka-listen", n.kafka, "--http-listen", n.http,
	}, n.flags...)
	program := n.program
	if program == "" {
		program = minkBinary(n.t)
	}
	cmd := exec.Command(program, append(args, extra...)...)
	cmd.Env = append(os.Environ(), n.env...)
	return cmd
}

// start runs the process and waits for its ready line, which it answers.
func (n *node) start() string {
	n.t.Helper()
	ready := n.launch()
	select {
	case line, ok := <-ready:
		if !ok {
			n.t.Fatalf("the node ended before it was ready:\n%s", n.stderr)
		}
		return line
	case <-time.After(60 * time.Second):
		n.t.Fatalf("the node was not ready within a minute:\n%s", n.stderr)
	}
	return ""
}

// launch runs the process. The channel has its ready line, and is closed when
// the process ends.
func (n *node) launch() <-chan string {
	n.t.Helper()
	n.cmd = n.command()
	if n.stderr == nil {
		n.stderr = &tail{}
	}
	n.cmd.Stderr = n.stderr
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	ready := make(chan string, 1)
	n.exited = make(chan error, 1)
	go func(cmd *exec.Cmd, exited chan error) {
		s := bufio.NewScanner(out)
		for s.Scan() {
			if strings.Contains(s.Text(), "ready") {
				select {
				case ready <- s.Text():
				default:
				}
			}
		}
		_, _ = io.Copy(io.Discard, out)
		exited <- cmd.Wait()
		close(ready)
	}(n.cmd, n.exited)
	return ready
}

// kill is kill -9.
func (n *node) kill() {
	n.t.Helper()
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill()
	<-n.exited
	n.cmd = nil
}

// stop asks for an orderly end and fails the test when the process does not
// exit 0.
func (n *node) stop() {
	n.t.Helper()
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-n.exited:
		if err != nil {
			n.t.Fatalf("orderly stop: %v\n%s", err, n.stderr)
		}
	case <-time.After(60 * time.Second):
		n.t.Fatalf("the node did not stop within a minute:\n%s", n.stderr)
	}
	n.cmd = nil
}

// run runs a program to its end and answers its standard output; the test
// fails when it fails.
func run(t *testing.T, stdin []byte, name string, args ...string) []byte {
	t.Helper()
	out, errOut, err := try(t, stdin, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, errOut)
	}
	return out
}

func try(t *testing.T, stdin []byte, name string, args ...string) (out, errOut []byte, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.Bytes(), e.Bytes(), err
}

// mink runs the command line client against the node.
func (n *node) mink(stdin []byte, args ...string) []byte {
	n.t.Helper()
	return run(n.t, stdin, minkBinary(n.t), append([]string{"--bootstrap", "grpc://" + n.flight}, args...)...)
}

// tryMink is mink where a failure is expected.
func (n *node) tryMink(stdin []byte, args ...string) (out, errOut []byte, err error) {
	n.t.Helper()
	return try(n.t, stdin, minkBinary(n.t), append([]string{"--bootstrap", "grpc://" + n.flight}, args...)...)
}

// tryKcat is kcat where a failure is expected.
func (n *node) tryKcat(stdin []byte, args ...string) (out, errOut []byte, err error) {
	n.t.Helper()
	return try(n.t, stdin, "kcat", append([]string{"-b", n.kafka}, args...)...)
}

// python runs a script of testdata with pyarrow; the node's address is its
// first argument.
func (n *node) python(stdin []byte, script string, args ...string) []byte {
	n.t.Helper()
	py := os.Getenv("MINK_TEST_PYTHON")
	if py == "" {
		n.t.Skip("MINK_TEST_PYTHON is not set: run scripts/e2e.sh")
	}
	all := append([]string{filepath.Join("testdata", script), "grpc://" + n.flight}, args...)
	return run(n.t, stdin, py, all...)
}

// kcat runs kcat against the node.
func (n *node) kcat(stdin []byte, args ...string) []byte {
	n.t.Helper()
	return run(n.t, stdin, "kcat", append([]string{"-b", n.kafka}, args...)...)
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// quote shows the head of an output in a failure's message.
func quote(b []byte) string {
	if len(b) > 500 {
		return fmt.Sprintf("%q... (%d bytes)", b[:500], len(b))
	}
	return fmt.Sprintf("%q", b)
}
