package host

import "log/slog"

// WithVersions lets a host speak other protocol versions than this SDK's.
func WithVersions(c Config, versions ...int) Config {
	c.versions = versions
	return c
}

// Environment is what a plugin that wants these variables gets.
func Environment(wanted ...string) []string {
	return environment(wanted, slog.New(slog.DiscardHandler))
}
