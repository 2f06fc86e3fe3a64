//go:build unix && !linux

package host

import (
	"errors"
	"syscall"
)

// processAttributes: a group of its own. Without a parent-death signal the plugin
// ends by the end of its standard input alone.
func processAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// Usage is not known here.
func (p *Process) Usage() (Usage, error) { return Usage{}, errors.ErrUnsupported }
