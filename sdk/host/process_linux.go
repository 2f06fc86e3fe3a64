package host

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// processAttributes: a group of its own, so that all of it can be killed and a
// terminal's Ctrl-C reaches the host alone; killed by the kernel when the thread
// that started it ends.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// clockTicks per second in /proc: USER_HZ, 100 on every Linux that Go runs on.
const clockTicks = 100

// Usage reads what the process uses. It fails once the process is gone.
func (p *Process) Usage() (Usage, error) {
	if err := p.Err(); err != nil { // the id may be somebody else's by now
		return Usage{}, err
	}
	return usage(p.PID())
}

func usage(pid int) (Usage, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	statm, err := os.ReadFile(dir + "/statm")
	if err != nil {
		return Usage{}, err
	}
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return Usage{}, err
	}
	memory := bytes.Fields(statm)
	// The command's name, in parentheses, may hold spaces.
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	times := bytes.Fields(rest)
	if len(memory) < 2 || len(times) < 13 {
		return Usage{}, fmt.Errorf("%s has an unknown form", dir)
	}
	pages, err1 := strconv.ParseInt(string(memory[1]), 10, 64)
	user, err2 := strconv.ParseInt(string(times[11]), 10, 64)
	system, err3 := strconv.ParseInt(string(times[12]), 10, 64)
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return Usage{}, fmt.Errorf("%s: %w", dir, err)
		}
	}
	return Usage{RSS: pages * int64(os.Getpagesize()), CPU: time.Duration(user+system) * time.Second / clockTicks}, nil
}
