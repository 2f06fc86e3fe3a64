package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// lineMax is the longest line of output that is kept, in bytes. A handshake with
// a certificate has about a thousand.
const lineMax = 16 << 10

// drainWait is how long output is still read after the process ended: something
// that it started may hold the pipes open for ever.
const drainWait = time.Second

// child is the process: go-plugin's runner.Runner. It keeps the pid and the
// pipes itself, so that killing never waits for anybody.
type child struct {
	path  string
	env   []string
	extra []*os.File // inherited from descriptor 3 on
	log   *lineLogger

	process   atomic.Pointer[os.Process]
	lifeline  *os.File // write end of the child's standard input; set before process
	letGoOnce sync.Once

	begun    atomic.Bool // go-plugin came as far as Start
	unwanted atomic.Bool // to be killed as soon as it is there
	killed   atomic.Bool // by the host, before it ended
	exited   chan struct{}
	state    *os.ProcessState // once exited

	first     *io.PipeReader // its first line, for go-plugin
	firstW    *io.PipeWriter
	firstLine atomic.Pointer[string]
}

func newChild(path string, logger *slog.Logger) *child {
	c := &child{path: path, log: newLineLogger(logger), exited: make(chan struct{})}
	c.first, c.firstW = io.Pipe()
	return c
}

// Start starts the process. A goroutine locked to its thread does, and waits for
// it: the parent-death signal comes when the starting thread ends.
func (c *child) Start(context.Context) error {
	c.begun.Store(true)
	cmd := exec.Command(c.path) //nolint:gosec,noctx // the executable is the point; kill ends it
	cmd.Env, cmd.ExtraFiles = c.env, c.extra
	cmd.SysProcAttr = processAttributes()
	pipes, err := openPipes()
	if err != nil {
		close(c.exited)
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pipes.stdin[0], pipes.stdout[1], pipes.stderr[1]
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		pipes.closeChildEnds()
		if err == nil {
			c.lifeline = pipes.stdin[1]
			c.process.Store(cmd.Process)
			if c.unwanted.Load() { // kill came before there was a process
				c.kill()
			}
		}
		started <- err
		if err == nil {
			c.wait(cmd, pipes)
		}
	}()
	if err := <-started; err != nil {
		pipes.closeHostEnds()
		close(c.exited)
		return err
	}
	return nil
}

// wait reads the output and reaps the process.
func (c *child) wait(cmd *exec.Cmd, pipes *pipes) {
	var readers sync.WaitGroup
	readers.Go(func() { c.readStdout(pipes.stdout[0]) })
	readers.Go(func() { c.log.stream("stderr").copy(pipes.stderr[0]) })
	_ = cmd.Wait()         // its state says it
	killGroup(cmd.Process) // what it started and left behind
	deadline := time.Now().Add(drainWait)
	_ = pipes.stdout[0].SetReadDeadline(deadline)
	_ = pipes.stderr[0].SetReadDeadline(deadline)
	readers.Wait()
	pipes.closeHostEnds()
	c.state = cmd.ProcessState
	close(c.exited)
}

// readStdout hands the first line to go-plugin and the rest to the log.
func (c *child) readStdout(r io.Reader) {
	line, rest := firstLine(r)
	c.firstLine.Store(&line)
	_, _ = io.WriteString(c.firstW, line+"\n") // fails when nobody waits for it any more
	_ = c.firstW.Close()
	c.log.stream("stdout").copy(rest)
}

// firstLine reads up to a line's end, at most lineMax bytes.
func firstLine(r io.Reader) (string, io.Reader) {
	var buf []byte
	chunk := make([]byte, 4<<10)
	for len(buf) < lineMax {
		n, err := r.Read(chunk)
		buf = append(buf, chunk[:n]...)
		if i := bytes.IndexByte(buf, '\n'); i >= 0 {
			return string(buf[:i]), io.MultiReader(bytes.NewReader(buf[i+1:]), r)
		}
		if err != nil {
			break
		}
	}
	return string(buf), r
}

// never ends a child whose Start was not reached.
func (c *child) never() {
	if !c.begun.Load() {
		close(c.exited)
	}
}

// letGo closes the plugin's standard input: it is to end by itself.
func (c *child) letGo() {
	c.letGoOnce.Do(func() {
		if c.process.Load() != nil {
			_ = c.lifeline.Close()
		}
	})
}

// kill ends the process and its group at once, or when it is started; it does not
// wait.
func (c *child) kill() {
	c.unwanted.Store(true)
	p := c.process.Load()
	if p == nil {
		return
	}
	select {
	case <-c.exited: // the id may be somebody else's by now
		return
	default:
	}
	c.killed.Store(true)
	killGroup(p)
}

// wasKilled says that the host's kill ended it; call it after exited.
func (c *child) wasKilled() bool {
	if c.state == nil || !c.killed.Load() {
		return false
	}
	status, ok := c.state.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

func (c *child) pid() int {
	if p := c.process.Load(); p != nil {
		return p.Pid
	}
	return 0
}

// ending says how it ended; call it after exited.
func (c *child) ending() error {
	if c.state == nil {
		return errors.New("it was never started")
	}
	text := fmt.Sprintf("process %d ended: %s", c.pid(), c.state)
	if tail := c.log.tail(); tail != "" {
		text += "; its last output: " + tail
	}
	return errors.New(text)
}

// The rest of runner.Runner.

func (c *child) Stdout() io.ReadCloser { return c.first }

// Stderr is empty for go-plugin: the lines go to our own log.
func (c *child) Stderr() io.ReadCloser { return io.NopCloser(bytes.NewReader(nil)) }

func (c *child) Wait(context.Context) error {
	<-c.exited
	return nil
}

func (c *child) Kill(context.Context) error {
	c.kill()
	return nil
}

func (c *child) ID() string {
	if pid := c.pid(); pid != 0 {
		return strconv.Itoa(pid)
	}
	return ""
}

func (c *child) Name() string                    { return c.path }
func (c *child) Diagnose(context.Context) string { return "" }

func (c *child) PluginToHost(network, address string) (string, string, error) {
	return network, address, nil
}

func (c *child) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}

// pipes are the child's three, read end first.
type pipes struct{ stdin, stdout, stderr [2]*os.File }

func openPipes() (*pipes, error) {
	p := &pipes{}
	for _, ends := range []*[2]*os.File{&p.stdin, &p.stdout, &p.stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			p.closeChildEnds()
			p.closeHostEnds()
			return nil, err
		}
		ends[0], ends[1] = r, w
	}
	return p, nil
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

func (p *pipes) closeChildEnds() { closeAll(p.stdin[0], p.stdout[1], p.stderr[1]) }
func (p *pipes) closeHostEnds()  { closeAll(p.stdin[1], p.stdout[0], p.stderr[0]) }
