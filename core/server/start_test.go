package server

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A start that cannot succeed says why in one error, and leaves nothing behind.
func TestStartsThatCannotSucceed(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, []byte("not a directory"), 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(t.TempDir(), "meta.db")
	if err := os.WriteFile(damaged, []byte(strings.Repeat("this is no database. ", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no directory for the metadata": {func(c *Config) { c.MetaURL = "sqlite:" + filepath.Join(blocked, "meta.db") }, "metadata database"},
		"damaged metadata":              {func(c *Config) { c.MetaURL = "sqlite:" + damaged }, damaged},
		"Postgres away":                 {func(c *Config) { c.MetaURL = "postgres://nobody:secret@127.0.0.1:1/none" }, "127.0.0.1"},
		"unknown metadata database":     {func(c *Config) { c.MetaURL = "mysql://x" }, "postgres://"},
		"unknown store":                 {func(c *Config) { c.StorageURI = "ftp://x" }, "no plugin opens ftp://"},
		"cloud store":                   {func(c *Config) { c.StorageURI = "s3://bucket" }, "mink plugin install"},
		"store in a file":               {func(c *Config) { c.StorageURI = "file://" + blocked }, blocked},
		"data directory in a file":      {func(c *Config) { c.DataDir = filepath.Join(blocked, "data") }, "--data-dir"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.DataDir = t.TempDir()
			cfg.Listen, cfg.KafkaListen, cfg.HTTPListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
			c.change(&cfg)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := Run(ctx, cfg, slog.New(slog.DiscardHandler), func(Ready) {
				t.Error("the node says that it is ready")
				cancel()
			})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("error %q, want one with %q and no password", err, c.want)
			}
			again, err := lockDataDir(cfg.DataDir)
			if name == "data directory in a file" {
				return
			}
			if err != nil {
				t.Fatalf("the data directory stays locked: %v", err)
			}
			if err := again(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A port in use is noticed before a store or a database is made.
func TestAPortInUseLeavesNoStoreBehind(t *testing.T) {
	held, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for name, set := range map[string]func(*Config, string){
		"listen":       func(c *Config, at string) { c.Listen = at },
		"kafka_listen": func(c *Config, at string) { c.KafkaListen = at },
		"http_listen":  func(c *Config, at string) { c.HTTPListen = at },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.DataDir = t.TempDir()
			cfg.Listen, cfg.KafkaListen, cfg.HTTPListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
			set(&cfg, held.Addr().String())
			err := Run(t.Context(), cfg, slog.New(slog.DiscardHandler), func(Ready) { t.Error("the node says that it is ready") })
			if err == nil || !strings.Contains(err.Error(), name+" "+held.Addr().String()+": the port is in use") {
				t.Errorf("error %v", err)
			}
			left, err := os.ReadDir(cfg.DataDir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range left {
				if e.Name() != "LOCK" {
					t.Errorf("%s was made", e.Name())
				}
			}
		})
	}
}
