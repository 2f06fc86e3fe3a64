package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"

	"github.com/mink-project/mink/core/builtin/dirstore"
	"github.com/mink-project/mink/core/pluginhost"
	"github.com/mink-project/mink/sdk/objstore"
)

// openStore builds the object store that a URI names: a directory, or whatever an
// installed plugin makes of it. A store that cannot be built fails the start:
// nothing is fallen back to.
func openStore(ctx context.Context, plugins *pluginhost.Host, uri string, options Options) (objstore.Store, error) {
	scheme, rest, found := strings.Cut(uri, "://")
	if !found {
		return nil, fmt.Errorf("object store %q: want a URI such as file://./data/objects", redactURL(uri))
	}
	if scheme != "file" {
		s, err := plugins.OpenStore(ctx, uri, options)
		if err != nil {
			return nil, fmt.Errorf("object store %s: %w", redactURL(uri), err)
		}
		return s, nil
	}
	path, err := filepath.Abs(rest)
	if err != nil {
		return nil, fmt.Errorf("object store %s: %w", uri, err)
	}
	s, err := dirstore.Open(ctx, dirstore.Config{Dir: path})
	if err != nil {
		return nil, fmt.Errorf("object store %s: %w", uri, err)
	}
	return s, nil
}

// newPlugins makes the host of the node's plugins; it runs nothing yet.
func newPlugins(cfg Config, logger *slog.Logger) (*pluginhost.Host, error) {
	c := pluginhost.Default()
	c.Dirs = PluginDirs(cfg.PluginDir)
	c.Plaintext, c.SharedMemory = !cfg.PluginTLS, cfg.PluginSharedMemory
	if c.MemoryMax = int64(cfg.PluginMemoryMax); c.MemoryMax == 0 {
		c.MemoryMax = memoryLimit() / 2
	}
	return pluginhost.New(c, logger)
}

// PluginDirs lists the directories that the key plugin_dir names, the default ones
// when it is empty.
func PluginDirs(key string) []string {
	if key != "" {
		return filepath.SplitList(key)
	}
	executable, _ := os.Executable() // an unknown one has no directory beside it
	home, _ := os.UserHomeDir()
	return pluginhost.DefaultDirs(executable, home)
}

// redactURL hides a URL's password and query values that look secret. A text
// that is no URL may still be one that somebody mistyped: what could be its
// password goes too.
func redactURL(s string) string {
	u, err := url.Parse(s)
	if err == nil && (u.Scheme == "file" || u.Scheme == "sqlite") && u.User == nil && u.RawQuery == "" {
		return s // a path may hold any sign
	}
	if err != nil || u.User == nil && strings.Contains(s, "@") {
		return redactText(s)
	}
	if u.User == nil && u.RawQuery == "" {
		return s
	}
	q := u.Query()
	for k := range q {
		lower := strings.ToLower(k)
		for _, secret := range []string{"secret", "password", "key", "token", "sig"} {
			if strings.Contains(lower, secret) {
				q.Set(k, "xxxxx")
			}
		}
	}
	u.RawQuery = q.Encode()
	return u.Redacted()
}

// redactText hides what stands between a scheme and the last "@", and all after
// a "?".
func redactText(s string) string {
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		head := ""
		if j := strings.Index(s[:i], "://"); j >= 0 {
			head = s[:j+3]
		}
		s = head + "xxxxx" + s[i:]
	}
	if i := strings.IndexByte(s, '?'); i >= 0 {
		s = s[:i] + "?xxxxx"
	}
	return s
}

// lockDataDir keeps a second process out of the data directory. The lock is the
// kernel's: it goes with the process, however it ends.
func lockDataDir(dir string) (unlock func() error, err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("data directory %s: %w; choose another with --data-dir or make it writable", dir, err)
	}
	l := flock.New(filepath.Join(dir, "LOCK"))
	ok, err := l.TryLock()
	if err != nil {
		return nil, fmt.Errorf("data directory %s: cannot lock it: %w; choose another with --data-dir or make it writable", dir, err)
	}
	if !ok {
		return nil, fmt.Errorf("data directory %s: %w", dir, errLocked)
	}
	return l.Unlock, nil
}

var errLocked = errors.New("another mink process uses it; stop that one, or give this one a --data-dir of its own")
