// Command faultnode is `mink serve` with fault points in tiering: at the N-th pass of a
// named point the process kills itself, stops itself (SIGSTOP), or one call is held or loses
// its answer. For make chaos-lake; no source of the node differs.
//
//	MINK_TEST_FAULT=FILE faultnode serve [flags of mink serve]
//
// FILE is shared by all nodes of a cluster. A fault is armed when FILE has an Order as JSON.
// The process that carries it out renames FILE, so that it happens once, and says so in
// FILE.done, see Done.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/mink-project/mink/core/e2e/faultpoint"
	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/core/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := serve(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "faultnode:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, args []string) error {
	set, err := settings(args)
	if err != nil {
		return err
	}
	cfg, err := server.LoadConfig("", nil, set)
	if err != nil {
		return err
	}
	file := os.Getenv("MINK_TEST_FAULT")
	if file == "" {
		return errors.New("MINK_TEST_FAULT names no file")
	}
	points := faultpoint.New(file)
	given := server.Given{WrapSink: points.Sink, WrapLake: func(c lake.WarehouseConfig) lake.WarehouseConfig {
		c.Store, c.Catalog = points.Store(c.Store), points.Catalog(c.Catalog)
		return c
	}}
	logger := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	return server.RunOn(ctx, cfg, given, logger, func(server.Ready) { fmt.Printf("faultnode: node %d is ready\n", cfg.NodeID) })
}

// settings are the flags of mink serve, as keys of its configuration.
func settings(args []string) (map[string]string, error) {
	if len(args) == 0 || args[0] != "serve" {
		return nil, errors.New("want: faultnode serve [--flag value ...]")
	}
	keys := map[string]string{}
	for _, k := range server.Keys() {
		keys["--"+k.Flag] = k.Name
	}
	set := map[string]string{}
	for args = args[1:]; len(args) > 0; args = args[2:] {
		flag, value, whole := strings.Cut(args[0], "=")
		if whole {
			args = append([]string{flag, value}, args[1:]...)
		}
		key, ok := keys[args[0]]
		if !ok || len(args) < 2 {
			return nil, fmt.Errorf("flag %q: unknown, or without a value", args[0])
		}
		set[key] = args[1]
	}
	return set, nil
}
