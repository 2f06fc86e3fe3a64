package host

// WithVersions lets a host speak other protocol versions than this SDK's.
func WithVersions(c Config, versions ...int) Config {
	c.versions = versions
	return c
}
