// Package handshake holds what a host and a plugin agree on before the first
// call: the cookie, the protocol versions, and the environment between them.
package handshake

// A host sets the cookie in a plugin's environment: without it the executable
// was run by hand. It is no secret.
const (
	CookieKey   = "MINK_PLUGIN_COOKIE"
	CookieValue = "5c1f0de6a34b4be0a3f6b1d7c20ce8f9"
)

// LogLevelKey is the environment variable that tells a plugin the lowest level
// that the host keeps: debug, info, warn or error.
const LogLevelKey = "MINK_PLUGIN_LOG_LEVEL"

// Versions are the protocol's majors that this SDK speaks, newest first: the
// newest and the one before it. The first is the only one so far.
func Versions() []int { return []int{1} }

// Service is the name under which go-plugin's sets hold the plugin.
const Service = "mink"
