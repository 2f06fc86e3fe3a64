// Command lakenode is mink serve whose lake can be held still, so that a test kills the
// process at a chosen call of a round:
//
//	MINK_TEST_HOLD/hold   the test writes "CALL before" or "CALL after"
//	MINK_TEST_HOLD/held   the node writes when it stands there; it stays until it is killed
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/mink-project/mink/core/server"
	"github.com/mink-project/mink/sdk/sink"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

func run(ctx context.Context) error {
	flags := map[string]string{}
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "serve" {
		args = args[1:]
	}
	for i := 0; i+1 < len(args); i += 2 {
		flags[strings.ReplaceAll(strings.TrimPrefix(args[i], "--"), "-", "_")] = args[i+1]
	}
	cfg, err := server.LoadConfig("", nil, flags)
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	h := holder{os.Getenv("MINK_TEST_HOLD")}
	given := server.Given{WrapSink: func(_ string, s sink.Sink) sink.Sink { return &heldSink{s, h} }}
	return server.RunOn(ctx, cfg, given, logger, func(server.Ready) { fmt.Println("ready") })
}

// holder stands still at the place that the test names.
type holder struct{ dir string }

func (h holder) at(call, when string) {
	want, err := os.ReadFile(filepath.Join(h.dir, "hold"))
	if err != nil || string(want) != call+" "+when {
		return
	}
	_ = os.WriteFile(filepath.Join(h.dir, "held"), want, 0o600)
	select {}
}

type heldSink struct {
	sink.Sink
	h holder
}

func (s *heldSink) Open(ctx context.Context, req sink.OpenRequest) (sink.Table, error) {
	t, err := held(s.h, "open", func() (sink.Table, error) { return s.Sink.Open(ctx, req) })
	if err != nil {
		return nil, err
	}
	return &heldTable{t, s.h}, nil
}

type heldTable struct {
	sink.Table
	h holder
}

func held[R any](h holder, call string, do func() (R, error)) (R, error) {
	h.at(call, "before")
	r, err := do()
	h.at(call, "after")
	return r, err
}

func (t *heldTable) Recover(ctx context.Context, req sink.RecoverRequest) (sink.RecoverResponse, error) {
	return held(t.h, "recover", func() (sink.RecoverResponse, error) { return t.Table.Recover(ctx, req) })
}

func (t *heldTable) BeginRound(ctx context.Context, req sink.BeginRoundRequest) (sink.BeginRoundResponse, error) {
	return held(t.h, "begin", func() (sink.BeginRoundResponse, error) { return t.Table.BeginRound(ctx, req) })
}

func (t *heldTable) Write(ctx context.Context, req sink.WriteRequest) (sink.WriteResponse, error) {
	return held(t.h, "write", func() (sink.WriteResponse, error) { return t.Table.Write(ctx, req) })
}

func (t *heldTable) Prepare(ctx context.Context, req sink.PrepareRequest) (sink.PrepareResponse, error) {
	return held(t.h, "prepare", func() (sink.PrepareResponse, error) { return t.Table.Prepare(ctx, req) })
}

func (t *heldTable) Commit(ctx context.Context, req sink.CommitRequest) (sink.CommitResponse, error) {
	return held(t.h, "commit", func() (sink.CommitResponse, error) { return t.Table.Commit(ctx, req) })
}

// Close is after the round was recorded.
func (t *heldTable) Close() error {
	_, err := held(t.h, "close", func() (struct{}, error) { return struct{}{}, t.Table.Close() })
	return err
}
