package server

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/storehead"
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
