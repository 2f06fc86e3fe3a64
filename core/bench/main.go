// Command bench measures a broker through its Kafka port, beside the limits of
// the machine and beside peers, in one run. It is built by scripts/bench.sh and
// ships with nothing.
//
//	bench suite            the whole comparison, one broker process at a time
//	bench reopen           a primary-key bucket, opened from its snapshot
//	bench broker KIND      one of the brokers that the suite starts: node, kfake, drop, keep
//
// How it measures. Every figure of a broker is taken against a fresh process of
// its own; brokers take turns within a round (A B C, A B C, ...), so that a noisy
// neighbour hits all of them alike; tables show medians over the rounds. CPU is
// that of the broker's process alone, from /proc. Client and broker share the
// machine's cores: absolute figures say as much about it as about the broker,
// which is why every table has the floors of the same run in it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "suite":
			return suiteCommand(ctx, args[1:])
		case "broker":
			return brokerCommand(ctx, args[1:])
		case "reopen":
			return reopenCommand(ctx, args[1:])
		}
	}
	return errors.New("usage: bench suite [flags] | bench reopen [flags] | bench broker KIND [flags]")
}
