package host

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/mink-project/mink/sdk/internal/handshake"
)

// passed are the variables of this process that every plugin gets: paths,
// certificates, proxies, locale.
var passed = []string{
	"PATH", "HOME", "USER", "TMPDIR", "TZ", "LANG", "LC_ALL", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"GOMAXPROCS", "GOMEMLIMIT", "GODEBUG",
}

// environment is what a plugin sees beside go-plugin's own variables. wanted are
// names and, ending in *, prefixes; none reaches Mink's own variables, which may
// hold its secrets.
func environment(wanted []string, logger *slog.Logger) []string {
	env := []string{handshake.LogLevelKey + "=" + lowest(logger)}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if slices.Contains(passed, name) || slices.ContainsFunc(wanted, func(w string) bool { return wants(w, name) }) {
			env = append(env, kv)
		}
	}
	if _, set := os.LookupEnv("GOMAXPROCS"); !set && runtime.NumCPU() <= smallMachine {
		env = append(env, "GOMAXPROCS=1")
	}
	return env
}

// smallMachine has so few processors that a plugin's threads mostly wake each
// other: with one of them small calls take a fifth less CPU time.
const smallMachine = 2

func wants(w, name string) bool {
	if strings.HasPrefix(name, "MINK_") {
		return false
	}
	prefix, many := strings.CutSuffix(w, "*")
	return w == name || many && strings.HasPrefix(name, prefix)
}

// lowest is the lowest level that the logger keeps.
func lowest(logger *slog.Logger) string {
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn} {
		if logger.Enabled(context.Background(), l) {
			return l.String()
		}
	}
	return slog.LevelError.String()
}
