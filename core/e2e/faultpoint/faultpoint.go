// Package faultpoint is places in a round of tiering at which a real process can be made to
// end, to stand still, or to lose an answer. A file arms one fault for all processes of a
// cluster; the first that passes the point often enough carries it out:
//
//	FILE        the Order, as JSON; renamed to FILE.taken by who carries it out
//	FILE.done   then: the Done, as JSON
//	FILE.go     ends a Hold, when it is made
package faultpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Action is what happens at a point.
type Action string

// The actions.
const (
	Kill Action = "kill" // SIGKILL of the process
	Stop Action = "stop" // SIGSTOP of the process, until somebody sends SIGCONT
	Hold Action = "hold" // the call stands still until FILE.go is there, whatever its context says
	// Lose: the call was made, and its answer is an error that says nothing. Of points
	// after a call.
	Lose Action = "lose"
)

// Order is a fault that is armed.
type Order struct {
	ID     string // of this order, to count passes by
	Point  string // one of Points
	Table  string // "database.table"; "": any
	Pass   int    // it happens at this pass in one process, from 1
	Action Action
}

// Done says who carried an order out.
type Done struct {
	ID    string
	PID   int
	Table string
}

// Steps are the calls of a round in their order: of the worker to the sink, and of the sink
// to the object store (put ..., delete ...) and to the catalog (swap). A worker closes its
// handle when the round is recorded in the metadata log.
var Steps = []string{
	"open", "recover", "begin", "put open", "write", "put data", "prepare", "put files",
	"commit", "put decision", "put manifest", "put metadata", "swap", "delete files", "delete open", "delete decision", "close",
}

// Points are the points before and after each step.
func Points() []string {
	var out []string
	for _, s := range Steps {
		out = append(out, "before "+s, "after "+s)
	}
	return out
}

// errLost is the answer of a call whose own was lost.
var errLost = errors.New("500 Internal Server Error")

// Faults are the points of one process. Safe for concurrent use.
type Faults struct {
	file string

	mu     sync.Mutex
	id     string // of the order of now
	passes int
}

// New reads orders from a file, which need not be there.
func New(file string) *Faults { return &Faults{file: file} }

// Arm makes an order that waits in file for a process.
func Arm(file string, o Order) error {
	if !slices.Contains(Points(), o.Point) {
		return fmt.Errorf("no fault point %q", o.Point)
	}
	for _, left := range []string{".taken", ".done", ".go"} {
		if err := os.Remove(file + left); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	text, err := json.Marshal(o)
	if err == nil {
		err = os.WriteFile(file+".new", text, 0o600)
	}
	if err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// Disarm takes an order back. false: it is carried out already.
func Disarm(file string) bool { return os.Remove(file) == nil }

// Carried answers who carried the order out; false: nobody yet.
func Carried(file string) (d Done, ok bool) {
	text, err := os.ReadFile(file + ".done")
	return d, err == nil && json.Unmarshal(text, &d) == nil
}

// Release ends a Hold.
func Release(file string) error { return os.WriteFile(file+".go", nil, 0o600) }

// pass passes a point, and answers what was carried out there; "": nothing.
func (f *Faults) pass(point, table string) Action {
	text, err := os.ReadFile(f.file)
	if err != nil {
		return ""
	}
	var o Order
	if json.Unmarshal(text, &o) != nil || o.Point != point || o.Table != "" && o.Table != table || !f.due(o) {
		return ""
	}
	if os.Rename(f.file, f.file+".taken") != nil {
		return "" // another process was first
	}
	text, err = json.Marshal(Done{ID: o.ID, PID: os.Getpid(), Table: table})
	if err == nil {
		err = os.WriteFile(f.file+".done.new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(f.file+".done.new", f.file+".done")
	}
	if err != nil {
		panic("fault point: " + err.Error())
	}
	switch o.Action {
	case Kill:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case Stop:
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		time.Sleep(time.Millisecond) // the signal is taken before anything else is done
	case Hold:
		for {
			if _, err := os.Stat(f.file + ".go"); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	case Lose: // the caller's
	}
	return o.Action
}

// due counts passes of the order's point.
func (f *Faults) due(o Order) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.id != o.ID {
		f.id, f.passes = o.ID, 0
	}
	f.passes++
	return f.passes >= o.Pass
}

// call makes a call between its two points. One that was held before it goes on whatever its
// context says by then, as a request that was on its way.
func call[T any](ctx context.Context, f *Faults, step, table string, do func(context.Context) (T, error)) (T, error) {
	if f.pass("before "+step, table) == Hold {
		ctx = context.WithoutCancel(ctx)
	}
	v, err := do(ctx)
	if f.pass("after "+step, table) == Lose {
		var none T
		return none, errLost
	}
	return v, err
}
