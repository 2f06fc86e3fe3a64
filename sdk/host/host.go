// Package host starts plugins: executables whose main is plugin.Serve, or that
// speak the same protocol in another language. Launch answers a Process; what it
// serves comes as the contract's Go interface, from OpenStore and its like.
//
// The plugin runs in a process group of its own, with an environment that has
// only what it needs, on a socket in a directory that only this user can enter,
// behind TLS with certificates made for the one start. It ends when this process
// does, however that ends: standard input is a pipe whose end it sees, and on
// Linux the kernel kills it.
//
// A Process does not restart: whoever wants that launches another
// (core/pluginhost does). Nothing here blocks for longer than its context, or the
// limit named beside it, whatever the plugin does.
package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/internal/handshake"
	"github.com/mink-project/mink/sdk/internal/wire/v1"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/plugin"
	"github.com/mink-project/mink/sdk/sink"
)

// Config says what to start. Only Path is needed.
type Config struct {
	Path   string       // of the executable
	Kind   string       // the kind that it must be, such as plugin.KindObjectStore; "": any
	SHA256 string       // hexadecimal checksum that the executable must have; "": not checked
	Env    []string     // variables of this process that it gets, as in plugin.Manifest
	Logger *slog.Logger // gets what the plugin logs and prints; nil: nobody does
	// StartTimeout bounds the time from the start to the first answer. Default 15 s.
	StartTimeout time.Duration
	// StopTimeout is how long a plugin that was asked to end may take before it is
	// killed. Default 6 s: its own limit is 5 s.
	StopTimeout time.Duration
	// Plaintext leaves out TLS: 45 ms less at the start, and a third less CPU time for
	// objects that go over the socket. Whoever runs as this user or as root could talk
	// to the plugin then.
	Plaintext bool
	// SharedMemory lets objects of 64 KiB to 8 MiB pass through 64 MiB of memory that
	// the plugin inherits, where the system has that (Linux) and the plugin knows it;
	// see wire.Shared for the rule that makes it safe.
	SharedMemory bool

	versions []int // of the protocol; nil: handshake.Versions
}

func (c Config) withDefaults() Config {
	if c.StartTimeout <= 0 {
		c.StartTimeout = 15 * time.Second
	}
	if c.StopTimeout <= 0 {
		c.StopTimeout = 6 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.versions == nil {
		c.versions = handshake.Versions()
	}
	return c
}

// killWait is how long a killed process may take to be gone: the kernel's time.
const killWait = 5 * time.Second

// Process is a running plugin. Its methods may be called at once, and after its
// end.
type Process struct {
	cfg      Config
	client   *goplugin.Client
	child    *child
	conn     *grpc.ClientConn
	manifest plugin.Manifest
	dir      *socketDir
	shared   *wire.Shared // nil: none
	clean    sync.Once
	cleaned  chan struct{}

	mu struct {
		sync.Mutex
		conns []*grpc.ClientConn // that go-plugin made, those that it forgot too
	}
}

// Launch starts the executable and waits for its first answer. Errors say what
// the plugin did instead, with its last output.
func Launch(ctx context.Context, cfg Config) (*Process, error) {
	cfg = cfg.withDefaults()
	if cfg.SHA256 != "" {
		if err := verify(cfg.Path, cfg.SHA256); err != nil {
			return nil, err
		}
	}
	dir, err := newSocketDir()
	if err != nil {
		return nil, fmt.Errorf("plugin %s: no directory for its socket: %w", cfg.Path, err)
	}
	p := &Process{cfg: cfg, dir: dir, cleaned: make(chan struct{})}
	p.child = newChild(cfg.Path, cfg.Logger)
	if cfg.SharedMemory {
		if p.shared = wire.NewShared(); p.shared != nil {
			p.child.extra = []*os.File{p.shared.File()} // wire.SharedFD
		}
	}
	p.client = goplugin.NewClient(p.clientConfig())

	ctx, cancel := context.WithTimeoutCause(ctx, cfg.StartTimeout, errStartTimeout)
	defer cancel()
	started := make(chan error, 1)
	go func() { started <- p.connect(ctx) }()
	select {
	case err = <-started:
	case <-ctx.Done():
		// go-plugin waits without a context: the end of the process frees it.
		p.child.kill()
		err = <-started
	}
	if err != nil {
		p.child.never()
		return nil, errors.Join(p.explain(ctx, err), p.Kill())
	}
	return p, nil
}

var errStartTimeout = errors.New("it did not answer in time")

func (p *Process) clientConfig() *goplugin.ClientConfig {
	set := goplugin.PluginSet{handshake.Service: &goplugin.NetRPCUnsupportedPlugin{}} // the connection is used as it is
	versions := map[int]goplugin.PluginSet{}
	for _, v := range p.cfg.versions {
		versions[v] = set
	}
	stdio := p.child.log.stream("stdio")
	return &goplugin.ClientConfig{
		HandshakeConfig:  goplugin.HandshakeConfig{MagicCookieKey: handshake.CookieKey, MagicCookieValue: handshake.CookieValue},
		VersionedPlugins: versions,
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		RunnerFunc: func(_ hclog.Logger, spec *exec.Cmd, _ string) (runner.Runner, error) {
			p.child.env = append(environment(p.cfg.Env, p.cfg.Logger), spec.Env...)
			if p.shared != nil {
				p.child.env = append(p.child.env, p.shared.Env())
			}
			return p.child, nil
		},
		SkipHostEnv:      true,
		AutoMTLS:         !p.cfg.Plaintext,
		StartTimeout:     p.cfg.StartTimeout,
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: p.dir.path},
		GRPCDialOptions:  append(wire.DialOptions(), grpc.WithChainStreamInterceptor(p.remember)),
		SyncStdout:       stdio, SyncStderr: stdio,
		// What go-plugin logs of a stderr line can panic (a message that is no
		// string), so that it gets neither the lines nor a logger.
		Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Off}),
	}
}

// remember keeps the connection of every stream. go-plugin opens one on each
// connection that it makes, and leaves the connection open when that fails.
func (p *Process) remember(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	p.mu.Lock()
	if !slices.Contains(p.mu.conns, conn) {
		p.mu.conns = append(p.mu.conns, conn)
	}
	p.mu.Unlock()
	return streamer(ctx, desc, conn, method, opts...)
}

func (p *Process) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.mu.conns {
		_ = c.Close() // closed already, as a rule
	}
}

func (p *Process) connect(ctx context.Context) error {
	proto, err := p.client.Client()
	if err != nil {
		return err
	}
	g, ok := proto.(*goplugin.GRPCClient)
	if !ok {
		return fmt.Errorf("it does not speak gRPC but %T", proto)
	}
	p.conn = g.Conn
	data, err := wire.Describe(ctx, p.conn)
	if err != nil {
		return err
	}
	if p.manifest, err = plugin.ParseManifest(data); err != nil {
		return err
	}
	if p.cfg.Kind != "" && p.manifest.Kind != p.cfg.Kind {
		return &KindError{Name: p.manifest.Name, Is: p.manifest.Kind, Want: p.cfg.Kind}
	}
	return nil
}

// KindError is the error of a plugin that is of another kind than what it is
// wanted for.
type KindError struct{ Name, Is, Want string }

func (e *KindError) Error() string {
	return fmt.Sprintf("%.80s is a plugin of the kind %q; one of the kind %q is wanted here", e.Name, e.Is, e.Want)
}

// Manifest is what the process says of itself.
func (p *Process) Manifest() plugin.Manifest { return p.manifest }

// PID is the process's id, also after its end.
func (p *Process) PID() int { return p.child.pid() }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.child.exited }

// Err says how the process ended, nil while it runs.
func (p *Process) Err() error {
	select {
	case <-p.child.exited:
		return p.child.ending()
	default:
		return nil
	}
}

// OpenStore opens an object store in the plugin. The store is an
// objstore.Multiparter too. When the process ends, calls in progress fail with
// ErrUnavailable, writes among them with ErrUnknownOutcome as well, and so do
// later ones.
func (p *Process) OpenStore(ctx context.Context, uri string, options map[string]string) (objstore.Store, error) {
	if p.manifest.Kind != plugin.KindObjectStore {
		return nil, fmt.Errorf("%w: %w", objstore.ErrInvalid, &KindError{Name: p.manifest.Name, Is: p.manifest.Kind, Want: plugin.KindObjectStore})
	}
	return wire.OpenObjectStore(ctx, p.conn, uri, options, p.shared)
}

// OpenSink opens a tiering sink in the plugin. The sink is a sink.Reader too. When
// the process ends, calls in progress fail with ErrUnavailable, Commit among them
// with ErrUnknownOutcome as well, and so do later ones.
func (p *Process) OpenSink(ctx context.Context, options map[string]string) (sink.Sink, error) {
	if p.manifest.Kind != plugin.KindSink {
		return nil, fmt.Errorf("%w: %w", sink.ErrInvalid, &KindError{Name: p.manifest.Name, Is: p.manifest.Kind, Want: plugin.KindSink})
	}
	return wire.OpenTieringSink(ctx, p.conn, options)
}

// OpenCatalog opens a lake catalog in the plugin. It has the companion that it declares.
// When the process ends, calls in progress fail with ErrUnavailable, changes among them
// with ErrUnknownOutcome as well, and so do later ones.
func (p *Process) OpenCatalog(ctx context.Context, options map[string]string) (catalog.Catalog, error) {
	if p.manifest.Kind != plugin.KindCatalog {
		return nil, fmt.Errorf("%w: %w", catalog.ErrInvalid, &KindError{Name: p.manifest.Name, Is: p.manifest.Kind, Want: plugin.KindCatalog})
	}
	return wire.OpenCatalog(ctx, p.conn, options)
}

// SharedLost counts the slots of the shared memory that calls without an answer left
// behind: each makes less room for objects until the process ends.
func (p *Process) SharedLost() int { return p.shared.Lost() }

// Check asks the plugin whether it serves. It fails when ctx ends first: a
// stopped process does not answer.
func (p *Process) Check(ctx context.Context) error {
	resp, err := grpc_health_v1.NewHealthClient(p.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: goplugin.GRPCServiceName})
	if err != nil {
		return fmt.Errorf("plugin %s: no answer to a health check: %w", p.manifest.Name, err)
	}
	if s := resp.GetStatus(); s != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("plugin %s: its health is %v", p.manifest.Name, s)
	}
	return nil
}

// Close asks the plugin to end, kills it after StopTimeout, and waits until it is
// gone. An error means that it is not: the kernel did not end it in time.
func (p *Process) Close() error {
	p.child.letGo()
	select {
	case <-p.child.exited:
	case <-time.After(p.cfg.StopTimeout):
		p.cfg.Logger.Warn("the plugin did not end when asked to and is killed", "pid", p.PID(), "limit", p.cfg.StopTimeout)
	}
	return p.Kill()
}

// Kill ends the plugin and what it started at once, and waits as Close does.
func (p *Process) Kill() error {
	p.child.kill()
	p.clean.Do(func() {
		go func() {
			defer close(p.cleaned)
			<-p.child.exited
			p.client.Kill() // go-plugin's own goroutines
			p.forget()
			p.dir.remove()
			p.shared.Close()
		}()
	})
	select {
	case <-p.cleaned:
		return nil
	case <-time.After(killWait):
		return fmt.Errorf("plugin %s: process %d was killed and is not gone after %v", p.cfg.Path, p.PID(), killWait)
	}
}
