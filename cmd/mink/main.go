// Command mink runs a node and is its command line client.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	_ "time/tzdata" // auto_partition's time zones, whatever the machine has

	"github.com/mink-project/mink/sdk/mink"
)

// Exit codes: 0 done, 1 failed, 2 wrong usage.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	a := &app{in: os.Stdin, out: os.Stdout, errOut: os.Stderr}
	code := a.execute(ctx, os.Args[1:])
	stop()
	if code != 0 {
		os.Exit(code)
	}
}

// execute runs one command line and answers the exit code.
func (a *app) execute(ctx context.Context, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(a.errOut, "mink:", err)
	if usage := (*usageError)(nil); errors.As(err, &usage) {
		return exitUsage
	}
	if hint := a.hint(err); hint != "" {
		fmt.Fprintln(a.errOut, "mink:", hint)
	}
	return exitFailed
}

// hint says what to do when the client could not connect; "" for other errors.
func (a *app) hint(err error) string {
	switch {
	case !nobodyThere(err):
		return ""
	case strings.Contains(err.Error(), "server preface") && strings.Contains(err.Error(), "connection reset"):
		return fmt.Sprintf("what answers at %s closed the connection: a node that was killed, or no node's Flight address, which --bootstrap wants", a.bootstrap)
	case strings.Contains(err.Error(), "server preface"):
		return fmt.Sprintf("what answers at %s is not Arrow Flight: --bootstrap wants the node's Flight address, not its Kafka or HTTP one", a.bootstrap)
	}
	return fmt.Sprintf("no node answers at %s: `mink serve` starts one here, --bootstrap or MINK_BOOTSTRAP names another", a.bootstrap)
}

// nobodyThere reports whether the client could not connect at all.
func nobodyThere(err error) bool {
	return errors.Is(err, mink.ErrUnavailable) && (strings.Contains(err.Error(), "connection error") || strings.Contains(err.Error(), "name resolver error"))
}
