// Package readers asks other engines what they read of lake tables: foreign/readers.py, in
// one process for all tests of a package, since starting an engine takes seconds.
package readers

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

// Process is readers.py, started by the first question. Its methods may be called by several
// goroutines; questions wait for each other.
type Process struct {
	script string

	mu  sync.Mutex
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// New names the script; MINK_TEST_LAKE_PYTHON the interpreter.
func New(script string) *Process { return &Process{script: script} }

// Ask sends a JSON array on one line, without its end, and answers the JSON object.
func (p *Process) Ask(line []byte) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		if err := p.start(); err != nil {
			return nil, fmt.Errorf("%s: %w", p.script, err)
		}
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		return nil, fmt.Errorf("%s: %w", p.script, err)
	}
	answer, err := p.out.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("%s ended: %w", p.script, err)
	}
	return answer, nil
}

func (p *Process) start() error {
	cmd := exec.Command(os.Getenv("MINK_TEST_LAKE_PYTHON"), p.script, "-") //nolint:gosec,noctx // of a test's environment; it outlives the test
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd, p.in, p.out = cmd, in, bufio.NewReader(out)
	return nil
}

// Close ends the process, if there is one, and answers how it ended.
func (p *Process) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return nil
	}
	err := errors.Join(p.in.Close(), p.cmd.Wait())
	p.cmd = nil
	return err
}
