package plugin

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/mink-project/mink/sdk/internal/handshake"
	"github.com/mink-project/mink/sdk/internal/wire/v1"
)

// closeWait bounds what a plugin does after its host let go of it.
const closeWait = 5 * time.Second

// Serve runs the plugin and does not return. It ends the process when the node
// does.
func Serve(p Plugin) { os.Exit(Main(p, os.Args[1:], os.Stdout, os.Stderr)) }

// Main is Serve for programs that have something to do at the end: it answers the
// exit code.
func Main(p Plugin, args []string, stdout, stderr io.Writer) int {
	m := p.Manifest()
	if err := m.Validate(); err != nil {
		_, _ = fmt.Fprintf(stderr, "this plugin cannot run: %v; its author mends that in plugin.Info\n", err)
		return 1
	}
	switch {
	case len(args) == 1 && args[0] == "--describe":
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(m); err != nil {
			_, _ = fmt.Fprintln(stderr, err)
			return 1
		}
		return 0
	case len(args) == 1 && args[0] == "--version":
		_, _ = fmt.Fprintf(stdout, "%s %s\n", m.FileName(), m.Version)
		return 0
	case len(args) == 1 && (args[0] == "--help" || args[0] == "-h"):
		_, _ = io.WriteString(stdout, usage(m))
		return 0
	case len(args) > 0:
		_, _ = fmt.Fprintf(stderr, "unknown argument %q\n\n%s", args[0], usage(m))
		return 2
	case os.Getenv(handshake.CookieKey) != handshake.CookieValue:
		_, _ = io.WriteString(stderr, usage(m))
		return 2
	}
	return serve(p, m)
}

var kindText = map[string]string{
	KindObjectStore: "an object store", KindSink: "a sink", KindCatalog: "a catalog",
}

func usage(m Manifest) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s is a Mink plugin: %s", m.FileName(), m.Version, kindText[m.Kind])
	if m.Summary != "" {
		fmt.Fprintf(&b, " (%s)", m.Summary)
	}
	b.WriteString(".\nIt does nothing when run by hand: a Mink node starts it when its configuration names it.\n\n")
	fmt.Fprintf(&b, "To install it:  mink plugin install ./%s\n", m.FileName())
	switch m.Kind {
	case KindObjectStore:
		fmt.Fprintf(&b, "To use it:      mink serve --storage-uri %s://...\n", m.Schemes[0])
	case KindCatalog:
		fmt.Fprintf(&b, "To use it:      mink serve --lake-catalog %s\n", m.Name)
	}
	b.WriteString("Its manifest:   --describe prints it as JSON\n")
	if len(m.Options) > 0 {
		b.WriteString("\nOptions:\n")
	}
	for _, o := range m.Options {
		fmt.Fprintf(&b, "  %-22s %s", o.Name, o.Doc)
		if o.Default != "" {
			fmt.Fprintf(&b, " Default: %s.", o.Default)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// grpcPlugin hands go-plugin the kind's service.
type grpcPlugin struct {
	goplugin.NetRPCUnsupportedPlugin
	goplugin.GRPCPlugin // GRPCClient is the host's and never called here
	register            func(*grpc.Server) error
}

func (g grpcPlugin) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error { return g.register(s) }

func serve(p Plugin, m Manifest) int {
	// go-plugin replaces os.Stderr by a pipe that only a connected host drains:
	// the logger keeps the real one.
	stderr := os.Stderr
	slog.SetDefault(slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: logLevel()})))

	manifest, err := json.Marshal(m)
	if err != nil {
		slog.Error("the manifest cannot be encoded", "error", err)
		return 1
	}
	served := false
	set := goplugin.PluginSet{handshake.Service: grpcPlugin{register: func(s *grpc.Server) error {
		wire.RegisterPlugin(s, manifest)
		service := p.register(s)
		served = true
		go endWithHost(s, service) // ends with the process
		return nil
	}}}
	versions := map[int]goplugin.PluginSet{}
	for _, v := range m.Protocols {
		versions[v] = set
	}
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig:  goplugin.HandshakeConfig{MagicCookieKey: handshake.CookieKey, MagicCookieValue: handshake.CookieValue},
		VersionedPlugins: versions,
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(opts, wire.ServerOptions()...)...)
		},
		Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: stderr, JSONFormat: true}),
	})
	if !served {
		return 1
	}
	return 0
}

// endWithHost waits for the end of standard input, a pipe that the host holds
// open for as long as it wants the plugin; then it closes what is open and stops
// the server, with which serve returns.
func endWithHost(s *grpc.Server, service io.Closer) {
	_, _ = io.Copy(io.Discard, os.Stdin)
	time.AfterFunc(2*closeWait, func() { os.Exit(1) })
	closeWithin(service, closeWait)
	s.Stop()
}

func closeWithin(c io.Closer, limit time.Duration) {
	done := make(chan error, 1)
	go func() { done <- c.Close() }()
	select {
	case err := <-done:
		if err != nil {
			slog.Warn("closing what the plugin had open", "error", err)
		}
	case <-time.After(limit):
		slog.Warn("what the plugin had open did not close in time", "limit", limit)
	}
}

func logLevel() slog.Level {
	var l slog.Level
	if err := l.UnmarshalText([]byte(os.Getenv(handshake.LogLevelKey))); err != nil {
		return slog.LevelInfo
	}
	return l
}
