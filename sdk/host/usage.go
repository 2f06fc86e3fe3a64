package host

import (
	"os"
	"syscall"
	"time"
)

// Usage is what a process has taken from the machine.
type Usage struct {
	RSS int64         // resident memory, bytes
	CPU time.Duration // user and system time since its start
}

// killGroup ends the process and all that it started and that stayed in its group.
func killGroup(p *os.Process) {
	if syscall.Kill(-p.Pid, syscall.SIGKILL) != nil {
		_ = p.Kill() // the group is not there yet; fails when all is gone
	}
}
