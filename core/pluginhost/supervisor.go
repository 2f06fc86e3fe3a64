package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/plugin"
)

// supervisor keeps one process of a plugin alive from start to stop.
type supervisor struct {
	cfg    Config
	logger *slog.Logger
	users  int // guarded by Host.mu

	meter  meter
	cancel context.CancelFunc
	ended  chan struct{} // run is over
	stopMu sync.Once
	stopEr error

	in Installed // as it was at the first start; a restart reads it again
	mu struct {
		sync.Mutex
		process    *host.Process // nil while none serves
		generation uint64        // of the process; counts starts
		version    string
		lastError  string
		nextTry    time.Time     // when process is nil and a start is waited for
		changed    chan struct{} // closed at the next change of process
		stopped    bool
		usage      host.Usage
		cpuBefore  time.Duration // of the processes that ended
	}
}

func newSupervisor(cfg Config, logger *slog.Logger, in Installed) *supervisor {
	s := &supervisor{cfg: cfg, logger: logger.With("plugin", in.Manifest.Name), in: in, ended: make(chan struct{}), meter: newMeter(in.Manifest.Kind)}
	s.mu.changed = make(chan struct{})
	return s
}

// start launches the first process and begins to watch. Its error fails whoever
// needs the plugin.
func (s *supervisor) start(ctx context.Context) error {
	p, err := s.launch(ctx, s.in)
	if err != nil {
		return err
	}
	s.publish(p)
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	go func() {
		defer close(s.ended)
		s.run(run, p)
	}()
	return nil
}

// stop ends the process and waits until it is gone.
func (s *supervisor) stop() error {
	s.stopMu.Do(func() {
		s.cancel()
		<-s.ended
	})
	return s.stopEr
}

func (s *supervisor) launch(ctx context.Context, in Installed) (*host.Process, error) {
	p, err := host.Launch(ctx, host.Config{
		Path: in.Path, Kind: in.Manifest.Kind, SHA256: in.Manifest.SHA256, Env: in.Manifest.Env,
		Logger: s.logger, StartTimeout: s.cfg.StartTimeout, Plaintext: s.cfg.Plaintext, SharedMemory: s.cfg.SharedMemory && in.Manifest.Kind == plugin.KindObjectStore,
	})
	if err != nil {
		return nil, err
	}
	if m := p.Manifest(); m.Name != in.Manifest.Name {
		return nil, errors.Join(fmt.Errorf("plugin %s: it says that its name is %q and its manifest file says %q: install it again", in.Path, m.Name, in.Manifest.Name), p.Kill())
	}
	return p, nil
}

// run watches processes, one after the other, until ctx is done.
func (s *supervisor) run(ctx context.Context, p *host.Process) {
	failures := 0
	for {
		began := time.Now()
		why := s.watch(ctx, p)
		if ctx.Err() != nil {
			s.retire(p, "the node is ending")
			s.mu.Lock()
			s.mu.stopped = true
			s.mu.Unlock()
			s.stopEr = p.Close()
			return
		}
		s.retire(p, why.Error())
		end := p.Kill
		if errors.Is(why, errMemory) { // it works, so that it may finish what it does
			end = p.Close
		}
		if err := end(); err != nil {
			s.logger.Error("a plugin's process cannot be ended", "error", err)
		}
		s.logger.Warn("the plugin's process is over and is started again", "pid", p.PID(), "reason", why)
		if failures = min(failures, diedMax); time.Since(began) >= s.cfg.StableAfter {
			failures = 0
		}
		if p, failures = s.restart(ctx, failures); p == nil {
			s.mu.Lock()
			s.mu.stopped = true
			s.mu.Unlock()
			return
		}
	}
}

const (
	// freeRestarts come without a pause: what dies now and then is to be back at once.
	freeRestarts = 3
	// diedMax is how far a row of processes counts that did start and died young: the
	// pause is four times the least. Only starts that fail go on doubling it.
	diedMax = freeRestarts + 2
)

// restart starts a process, as often as it takes; nil when ctx is done.
func (s *supervisor) restart(ctx context.Context, failures int) (*host.Process, int) {
	for {
		wait := time.Duration(0)
		if failures >= freeRestarts {
			wait = min(s.cfg.RestartWaitMin<<min(failures-freeRestarts, 20), s.cfg.RestartWaitMax)
		}
		failures++
		s.mu.Lock()
		s.mu.nextTry = time.Now().Add(wait)
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, 0
		case <-time.After(wait):
		}
		in := read(s.in.Path) // it may have been upgraded
		err := in.Problem
		var p *host.Process
		if err == nil {
			p, err = s.launch(ctx, in)
		}
		if err == nil {
			s.publish(p)
			s.logger.Info("the plugin serves again", "pid", p.PID(), "version", p.Manifest().Version)
			return p, failures
		}
		if ctx.Err() != nil {
			return nil, 0
		}
		s.logger.Error("the plugin cannot be started; it is tried again", "error", err)
		s.mu.Lock()
		s.mu.lastError = err.Error()
		s.mu.Unlock()
	}
}

var errMemory = errors.New("it uses too much memory")

// watch answers why the process has to be replaced; anything when ctx is done.
func (s *supervisor) watch(ctx context.Context, p *host.Process) error {
	tick := time.NewTicker(s.cfg.HealthInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.Done():
			return p.Err()
		case <-tick.C:
		}
		if u, err := p.Usage(); err == nil {
			s.mu.Lock()
			s.mu.usage = u
			s.mu.Unlock()
			if s.cfg.MemoryMax > 0 && u.RSS > s.cfg.MemoryMax {
				return fmt.Errorf("%w: %s, the limit is %s", errMemory, humanize.IBytes(uint64(u.RSS)), humanize.IBytes(uint64(s.cfg.MemoryMax)))
			}
		}
		check, cancel := context.WithTimeout(ctx, s.cfg.HealthTimeout)
		err := p.Check(check)
		cancel()
		if err != nil && ctx.Err() == nil {
			if ended := p.Err(); ended != nil {
				return ended
			}
			return fmt.Errorf("process %d: %w", p.PID(), err)
		}
	}
}

func (s *supervisor) publish(p *host.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.process, s.mu.version, s.mu.usage = p, p.Manifest().Version, host.Usage{}
	s.mu.generation++
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

// retire says that the process serves no more, before it is ended.
func (s *supervisor) retire(p *host.Process, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u, err := p.Usage(); err == nil {
		s.mu.usage = u
	}
	s.mu.cpuBefore += s.mu.usage.CPU
	s.mu.usage = host.Usage{}
	s.mu.process, s.mu.lastError = nil, why
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

// serving waits for a process, at most CallWait.
func (s *supervisor) serving(ctx context.Context) (*host.Process, uint64, error) {
	var limit <-chan time.Time
	for {
		s.mu.Lock()
		p, generation, changed, stopped := s.mu.process, s.mu.generation, s.mu.changed, s.mu.stopped
		s.mu.Unlock()
		switch {
		case p != nil:
			return p, generation, nil
		case stopped:
			return nil, 0, fmt.Errorf("plugin %s: %w", s.in.Manifest.Name, errClosing)
		}
		if limit == nil {
			limit = time.After(s.cfg.CallWait)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, fmt.Errorf("plugin %s: %w", s.in.Manifest.Name, ctx.Err())
		case <-limit:
			return nil, 0, fmt.Errorf("plugin %s: %w: no process of it serves: %s", s.in.Manifest.Name, objstore.ErrUnavailable, s.lastError())
		}
	}
}

func (s *supervisor) lastError() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.lastError
}
