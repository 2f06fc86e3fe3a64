// Package plugin makes an executable a Mink plugin. Its whole main is one call:
//
//	func main() {
//		plugin.Serve(plugin.ObjectStore{
//			Info: plugin.Info{Name: "s3", Version: "1.2.0", Schemes: []string{"s3"}},
//			Open: open,
//		})
//	}
//
// The node starts the executable and talks to it over a socket of their own; see
// package host for that side. Run by hand, it says what it is; with --describe it
// prints its Manifest as JSON.
//
// What a plugin can count on: log/slog's default logger reaches the node's log,
// under the plugin's name, and so does all else that it prints; standard input is
// the node's (the plugin ends with it) and is not to be read; the environment has
// PATH, HOME, TMPDIR, proxies, certificate directories, and what Info.Env asks
// for, nothing else of the node's.
//
// To add a kind: a contract package with its conformance kit, a service in
// sdk/proto, its translator in sdk/internal/wire, a type beside ObjectStore here,
// and an Open method in sdk/host.
package plugin

import (
	"io"

	"google.golang.org/grpc"

	"github.com/mink-project/mink/sdk/internal/handshake"
)

// Plugin is what Serve takes: ObjectStore, and the other kinds of this package.
type Plugin interface {
	// Manifest is the plugin's, without a checksum.
	Manifest() Manifest

	// register adds the kind's service. What it answers is closed at the end.
	register(s *grpc.Server) io.Closer
}

// Info describes a plugin of any kind.
type Info struct {
	Name    string   // of the plugin: a-z, 0-9, hyphens
	Version string   // its own, free
	Summary string   // one line for people
	Schemes []string // of the URIs that it opens, such as "s3"
	Options []Option // settings beside the URI
	// Env names the variables of the node's environment that the plugin wants to
	// see; "AWS_*" stands for all with the prefix. Others do not reach it.
	Env       []string
	Stability string // Experimental when empty
}

// Config is what a plugin is opened with.
type Config struct {
	URI     string            // as configured, with scheme
	Options map[string]string // one value for each of Info.Options, "" where none is set and none is default
}

func (i Info) manifest(kind string) Manifest {
	m := Manifest{
		Kind: kind, Name: i.Name, Version: i.Version, Summary: i.Summary, Stability: i.Stability,
		Protocols: handshake.Versions(), Schemes: i.Schemes, Options: i.Options, Env: i.Env,
	}
	if m.Stability == "" {
		m.Stability = Experimental
	}
	return m
}
