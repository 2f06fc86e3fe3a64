package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/builtin/dirstore"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/pgtest"
	"github.com/mink-project/mink/core/metalog/storehead"
	"github.com/mink-project/mink/sdk/mink"
)

// runOnce runs a node until it serves, then stops it.
func runOnce(t *testing.T, dataDir string, change func(*Config)) error {
	t.Helper()
	cfg := DefaultConfig()
	cfg.DataDir, cfg.LeaseTTL = dataDir, dur(time.Second)
	cfg.Listen, cfg.KafkaListen, cfg.HTTPListen = "127.0.0.1:0", off, off
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	served := false
	err := Run(ctx, cfg, slog.New(slog.DiscardHandler), func(Ready) {
		served = true
		cancel()
	})
	if err == nil && !served {
		return errors.New("it never served")
	}
	return err
}

// A node does not start on metadata that went back, nor with a store of its own on
// another node's metadata, and says what to do.
func TestMetadataAndStoreMustFit(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	database := filepath.Join(one, "meta.db")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(runOnce(t, one, nil))
	old, err := os.ReadFile(database)
	must(err)
	must(runOnce(t, one, nil))

	second := func(c *Config) { c.NodeID, c.MetaURL = 2, "sqlite:"+database }
	err = runOnce(t, two, second)
	if !errors.Is(err, storehead.ErrMismatch) || !strings.Contains(err.Error(), "point storage_uri at the store that the cluster's other nodes use") {
		t.Errorf("a second node with a store of its own: %v", err)
	}
	must(runOnce(t, two, func(c *Config) {
		second(c)
		c.StorageURI = "file://" + filepath.Join(one, "objects")
	}))
	must(runOnce(t, one, nil))

	must(os.WriteFile(database, old, 0o600))
	err = runOnce(t, one, nil)
	if !errors.Is(err, metalog.ErrWentBack) || strings.Contains(err.Error(), "\n") || strings.Count(err.Error(), "went back") != 1 || strings.Contains(err.Error(), "which was given") {
		t.Fatalf("restored from an old copy: %v", err)
	}
	token := regexp.MustCompile(`--accept-metadata=([0-9a-f]+)`).FindStringSubmatch(err.Error())
	if token == nil {
		t.Fatalf("no way out in: %v", err)
	}
	accept := func(c *Config) { c.AcceptMetadata = token[1] }
	for err = runOnce(t, one, accept); err != nil && strings.Contains(err.Error(), "until its lease is over"); err = runOnce(t, one, accept) {
		if t.Context().Err() != nil {
			break
		}
	}
	must(err)
	must(runOnce(t, one, accept)) // it does no harm later
	must(runOnce(t, one, nil))
	must(os.WriteFile(database, old, 0o600))
	if err := runOnce(t, one, accept); !errors.Is(err, storehead.ErrMismatch) || !strings.Contains(err.Error(), token[1]+", which was given, is not for this mismatch") {
		t.Errorf("the token of an earlier mismatch: %v", err)
	}
}

// A Postgres that fails over without its last commits ends the nodes that run on it,
// and a fresh one is told the command to go on with.
func TestAPostgresThatWentBack(t *testing.T) {
	pg := pgtest.Start(t)
	where := pg.Schema(t)
	u, err := url.Parse(where)
	if err != nil {
		t.Fatal(err)
	}
	table := func(name string) string { return u.Query().Get("search_path") + "." + name }
	dir := t.TempDir()
	on := func(c *Config) { c.MetaURL = where }
	if err := runOnce(t, dir, on); err != nil {
		t.Fatal(err)
	}
	store, err := dirstore.Open(t.Context(), dirstore.Config{Dir: filepath.Join(dir, "objects")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	remembered := func() uint64 {
		h, _, err := storehead.Look(t.Context(), store)
		if err != nil {
			t.Fatal(err)
		}
		return h.Index
	}
	back := remembered() // a copy of the database from here
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cfg := DefaultConfig()
	cfg.DataDir, cfg.LeaseTTL, cfg.MetaURL = dir, dur(time.Second), where
	cfg.Listen, cfg.KafkaListen, cfg.HTTPListen = "127.0.0.1:0", off, off
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, cfg, slog.New(slog.DiscardHandler), func(Ready) {}) }()
	for remembered() <= back && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	pg.Exec(t, "BEGIN", // the head first: its lock keeps the node from appending
		fmt.Sprintf("UPDATE %s SET idx = %d, hash = (SELECT hash FROM %s WHERE idx = %d)", table("meta_head"), back, table("meta_log"), back),
		fmt.Sprintf("DELETE FROM %s WHERE idx > %d", table("meta_log"), back), "COMMIT")
	err = <-ended
	if !errors.Is(err, metalog.ErrWentBack) || !strings.Contains(err.Error(), "then run mink serve on one node") {
		t.Fatalf("the running node ended with %v", err)
	}
	err = runOnce(t, dir, on)
	token := regexp.MustCompile(`run, on one node, mink serve --accept-metadata=([0-9a-f]{16});`).FindStringSubmatch(fmt.Sprint(err))
	if !errors.Is(err, metalog.ErrWentBack) || token == nil {
		t.Fatalf("a fresh node: %v", err)
	}
	accept := func(c *Config) { on(c); c.AcceptMetadata = token[1] }
	for err = runOnce(t, dir, accept); err != nil && strings.Contains(err.Error(), "until its lease is over"); err = runOnce(t, dir, accept) {
		if t.Context().Err() != nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	// From Postgres into SQLite and back into another Postgres.
	var export bytes.Buffer
	cfg = DefaultConfig()
	cfg.DataDir, cfg.MetaURL = dir, where
	logger := slog.New(slog.DiscardHandler)
	if _, err := ExportMeta(t.Context(), cfg, &export, logger); err != nil {
		t.Fatal(err)
	}
	cfg.MetaURL = ""
	r, err := RestoreMeta(t.Context(), cfg, bytes.NewReader(export.Bytes()), RestoreOptions{}, logger)
	if err != nil {
		t.Fatal(err)
	}
	if err := runOnce(t, dir, nil); err != nil {
		t.Fatalf("on SQLite, incarnation %s: %v", r.Incarnation, err)
	}
	export.Reset()
	if _, err := ExportMeta(t.Context(), cfg, &export, logger); err != nil {
		t.Fatal(err)
	}
	if err := runOnce(t, dir, on); !errors.Is(err, storehead.ErrMismatch) {
		t.Fatalf("a node on the database of before: %v", err)
	}
	cfg.MetaURL = where
	if _, err := RestoreMeta(t.Context(), cfg, bytes.NewReader(export.Bytes()), RestoreOptions{}, logger); !errors.Is(err, mink.ErrExists) {
		t.Fatalf("restored over a log: %v", err)
	}
	cfg.MetaURL = pg.Schema(t)
	if _, err := RestoreMeta(t.Context(), cfg, bytes.NewReader(export.Bytes()), RestoreOptions{}, logger); err != nil {
		t.Fatal(err)
	}
	if err := runOnce(t, dir, func(c *Config) { c.MetaURL = cfg.MetaURL }); err != nil {
		t.Fatal(err)
	}
}
