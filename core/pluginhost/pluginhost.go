// Package pluginhost runs a node's plugins: it finds them in their directories,
// keeps one process of each, starts it again when it ends, stops answering, or
// takes too much memory, and counts what goes through it.
//
//	Discover -> Installed -> supervisor (one process after the other) -> store (survives them)
//
// What a supervised store promises: a call never outlasts the process that it was
// given to. It fails with ErrUnavailable then, and a write among them with
// ErrUnknownOutcome as well; calls that come while no process serves wait for one,
// for a bounded time. Nothing is tried again here: who asked knows what is safe to
// repeat.
package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/plugin"
)

// Config is how plugins are run.
type Config struct {
	// Dirs are searched in this order. Required.
	Dirs []string
	// StartTimeout bounds one start, and opening a store in a started process.
	StartTimeout time.Duration
	// HealthInterval is how often a process is asked whether it serves, and its
	// memory is looked at.
	HealthInterval time.Duration
	// HealthTimeout is how long the answer may take before the process counts as
	// stopped and is killed. Calls without a deadline hang as long at most.
	HealthTimeout time.Duration
	// RestartWaitMin and RestartWaitMax bound the pause before a start, which doubles
	// with every failure in a row after the third; until then starts come at once.
	// Behind a process that did start it is four times the least at most. A process
	// that lived for StableAfter ends the row.
	RestartWaitMin, RestartWaitMax time.Duration
	StableAfter                    time.Duration
	// CallWait is how long a call waits for a process while none serves.
	CallWait time.Duration
	// MemoryMax is the resident memory, in bytes, above which a process is
	// replaced; 0: no limit.
	MemoryMax int64
	// Plaintext leaves out TLS between node and plugin; see package host.
	Plaintext bool
	// SharedMemory passes objects through memory that the processes share; see package
	// host.
	SharedMemory bool
}

// Default is the configuration of a node, but for Dirs and MemoryMax.
func Default() Config {
	return Config{
		StartTimeout: 15 * time.Second, HealthInterval: time.Second, HealthTimeout: 5 * time.Second,
		RestartWaitMin: 50 * time.Millisecond, RestartWaitMax: 5 * time.Second, StableAfter: 2 * time.Second,
		CallWait: 5 * time.Second, SharedMemory: true,
	}
}

// Validate refuses durations that are not positive, and a negative memory.
func (c Config) Validate() error {
	for _, d := range []time.Duration{c.StartTimeout, c.HealthInterval, c.HealthTimeout, c.RestartWaitMin, c.RestartWaitMax, c.StableAfter, c.CallWait} {
		if d <= 0 {
			return fmt.Errorf("plugin host: every duration must be positive: %+v", c)
		}
	}
	if c.MemoryMax < 0 {
		return fmt.Errorf("plugin host: memory limit of %d bytes", c.MemoryMax)
	}
	return nil
}

// Host keeps the processes. Safe for concurrent use.
type Host struct {
	cfg    Config
	logger *slog.Logger

	starting sync.Mutex // before mu
	mu       struct {
		sync.Mutex
		closed      bool
		supervisors map[string]*supervisor // by the executable's name
	}
}

// New makes a host that runs nothing yet.
func New(cfg Config, logger *slog.Logger) (*Host, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	h := &Host{cfg: cfg, logger: logger}
	h.mu.supervisors = map[string]*supervisor{}
	return h, nil
}

// FindStore finds the plugin that opens a store's URI, and checks the options
// against its manifest. It runs nothing. Errors: *NoPluginError, and others whose
// text says what to do.
func (h *Host) FindStore(uri string, options map[string]string) (Installed, error) {
	scheme, _, ok := strings.Cut(uri, "://")
	if !ok {
		return Installed{}, fmt.Errorf("want a URI such as s3://bucket/prefix")
	}
	installed, err := Discover(h.cfg.Dirs)
	if err != nil {
		return Installed{}, err
	}
	in, err := forScheme(installed, h.cfg.Dirs, plugin.KindObjectStore, scheme)
	if err != nil {
		return Installed{}, err
	}
	_, err = in.Manifest.Resolve(options)
	return in, err
}

// FindNamed finds the plugin of a kind by its name, and checks the options against
// its manifest. It runs nothing. Errors say what to do.
func (h *Host) FindNamed(kind, name string, options map[string]string) (Installed, error) {
	installed, err := Discover(h.cfg.Dirs)
	if err != nil {
		return Installed{}, err
	}
	in, err := named(installed, h.cfg.Dirs, kind, name)
	if err != nil {
		return Installed{}, err
	}
	_, err = in.Manifest.Resolve(options)
	return in, err
}

// OpenStore opens the store that a URI names in the plugin that serves its scheme,
// starting the plugin's process when it does not run. A plugin that cannot start,
// and a store that it cannot open, are errors now; later the store outlives its
// process. Closing the last store of a plugin ends its process.
func (h *Host) OpenStore(ctx context.Context, uri string, options map[string]string) (objstore.Store, error) {
	in, err := h.FindStore(uri, options)
	if err != nil {
		return nil, err
	}
	sup, err := h.acquire(ctx, in)
	if err != nil {
		return nil, err
	}
	s, err := openStore(ctx, sup, uri, options)
	if err != nil {
		return nil, errors.Join(err, h.release(sup))
	}
	s.released = func() error { return h.release(sup) }
	return s, nil
}

// acquire answers the plugin's supervisor with a process that was started.
func (h *Host) acquire(ctx context.Context, in Installed) (*supervisor, error) {
	h.starting.Lock() // two processes of one plugin would be one too many
	defer h.starting.Unlock()
	key := in.Manifest.FileName()
	h.mu.Lock()
	s, ok := h.mu.supervisors[key]
	closed := h.mu.closed
	if ok {
		s.users++
	}
	h.mu.Unlock()
	if closed {
		return nil, fmt.Errorf("plugin %s: %w", in.Manifest.Name, errClosing)
	}
	if ok {
		return s, nil
	}
	s = newSupervisor(h.cfg, h.logger, in)
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	s.users = 1
	h.mu.Lock()
	closed = h.mu.closed
	if !closed {
		h.mu.supervisors[key] = s
	}
	h.mu.Unlock()
	if closed {
		return nil, errors.Join(fmt.Errorf("plugin %s: %w", in.Manifest.Name, errClosing), s.stop())
	}
	return s, nil
}

var errClosing = fmt.Errorf("%w: the node is ending", objstore.ErrUnavailable)

func (h *Host) release(s *supervisor) error {
	h.mu.Lock()
	s.users--
	last := s.users == 0
	if last {
		delete(h.mu.supervisors, s.in.Manifest.FileName())
	}
	h.mu.Unlock()
	if !last {
		return nil
	}
	return s.stop()
}

// Close ends every process, whatever is still open in it.
func (h *Host) Close() error {
	h.mu.Lock()
	h.mu.closed = true
	all := slices.Collect(maps.Values(h.mu.supervisors))
	h.mu.Unlock()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() { errs[i] = s.stop() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Stats describes every plugin that is in use, sorted by name.
func (h *Host) Stats() []Stats {
	h.mu.Lock()
	all := slices.Collect(maps.Values(h.mu.supervisors))
	h.mu.Unlock()
	return statsOf(all)
}
