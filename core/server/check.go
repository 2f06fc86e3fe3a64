package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mink-project/mink/core/pluginhost"
	"github.com/mink-project/mink/sdk/objstore"
)

// checkTimeout bounds one store's answer to Check.
const checkTimeout = 30 * time.Second

// Check tries the configuration without starting a node: it starts the plugins,
// opens the stores and the lake's catalog and reads one page of each. It writes nothing, but makes a
// directory store's directory. A Postgres database is read, one in SQLite not
// touched. The answer is one line for each of them, then warnings.
func Check(ctx context.Context, cfg Config, logger *slog.Logger) (report []string, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	plugins, err := newPlugins(cfg, logger)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, plugins.Close()) }()
	line, err := checkStore(ctx, plugins, "storage_uri", cfg.storageURI(), cfg.StorageOptions)
	if err != nil {
		return nil, err
	}
	report = append(report, line)
	if cfg.ownWAL() {
		if line, err = checkStore(ctx, plugins, "wal_uri", cfg.walURI(), cfg.walOptions()); err != nil {
			return nil, err
		}
		report = append(report, line)
	}
	if line, err = checkLake(ctx, plugins, cfg); err != nil {
		return nil, err
	}
	if line != "" {
		report = append(report, line)
	}
	sinks, err := checkSinkConfig(ctx, cfg, plugins)
	if err != nil {
		return nil, err
	}
	report = append(report, sinks...)
	if err := checkDataDir(cfg.DataDir); err != nil {
		return nil, err
	}
	meta, err := checkMeta(ctx, cfg, logger)
	if err != nil {
		return nil, err
	}
	return append(report, append(meta, CheckKeys(cfg)...)...), nil
}

// CheckKeys lists the warnings of a valid configuration; nothing is opened.
func CheckKeys(cfg Config) (report []string) {
	for _, w := range cfg.Warnings() {
		report = append(report, "warning: "+w)
	}
	return report
}

// checkDataDir says whether a start could write to the data directory, or make it.
func checkDataDir(dir string) error {
	at, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("data_dir %s: %w", dir, err)
	}
	for {
		info, err := os.Stat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at):
			at = filepath.Dir(at)
			continue
		case err == nil && !info.IsDir():
			err = fmt.Errorf("%s is no directory", at)
		case err == nil:
			err = unix.Access(at, unix.W_OK|unix.X_OK)
		}
		if err != nil {
			return fmt.Errorf("data_dir %s: %s cannot be written: %w; choose another with --data-dir or make it writable", dir, at, err)
		}
		return nil
	}
}

func checkStore(ctx context.Context, plugins *pluginhost.Host, key, uri string, options Options) (_ string, err error) {
	by := "built in"
	if schemeOf(uri) != "file" {
		if in, err := plugins.FindStore(uri, options); err == nil { // else opening says why
			by = fmt.Sprintf("plugin %s %s, %s", in.Manifest.Name, in.Manifest.Version, in.Path)
		}
	}
	s, err := openStore(ctx, plugins, uri, options)
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if !s.Capabilities().CreateOnlyPut {
		return "", fmt.Errorf("%s: object store %s: it cannot create an object only if it is absent, on which the write-ahead log depends; use another store", key, redactURL(uri))
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if _, err := s.List(ctx, objstore.ListRequest{Limit: 1}); err != nil {
		return "", fmt.Errorf("%s: object store %s: it opens and cannot be read: %w", key, redactURL(uri), err)
	}
	return fmt.Sprintf("%s %s: opened and read (%s)", key, redactURL(uri), by), nil
}
