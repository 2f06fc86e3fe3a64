package fault

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mink-project/mink/sdk/objstore"
)

// Config of a faulty store. The zero value adds nothing.
type Config struct {
	// Seed of every random decision.
	Seed uint64
	// Latency added to every call; zero: none. With one, the capabilities say that
	// the store is remote and as slow as that.
	Latency Latency
	// PageMax cuts List pages; 0: the inner store's.
	PageMax int
	// Rules to start with; Inject adds more.
	Rules []Rule
	// Shared: Close leaves the inner store open, because others use it. A process
	// that is killed in a simulation closes its wrapper; the store lives on.
	Shared bool
	// Observe is told of every call after it ended (a held one: when its caller got
	// its answer), from the caller's goroutine; nil: nobody. Must not block.
	Observe func(Call, error)
}

// Stats counts the calls received and the bytes of those that succeeded.
type Stats struct {
	Puts, Gets, Heads, Lists, Deletes int64 // Deletes: batches
	Parts, Uploads                    int64 // Uploads: starts, completions and aborts
	DeletedKeys                       int64
	PutBytes, GetBytes                int64 // PutBytes: parts as well
	Faults                            int64 // calls that a rule changed
}

// Store is a faulty objstore.Store and objstore.Multiparter. It is safe for
// concurrent use, as are its controls.
type Store struct {
	inner objstore.Store
	cfg   Config

	mu struct {
		sync.Mutex
		rules   []*Injection
		calls   map[callKey]int
		stats   Stats
		kinds   map[string]int
		pending []*Pending
		changed chan struct{} // closed and replaced when pending grows
	}
	late sync.WaitGroup // landings by the clock
}

type callKey struct {
	op  Op
	key string
}

// callsMax bounds the memory of the call counters; a seeded run that makes more
// distinct calls starts to count anew.
const callsMax = 1 << 16

var (
	_ objstore.Store       = (*Store)(nil)
	_ objstore.Multiparter = (*Store)(nil)
)

// New wraps inner.
func New(inner objstore.Store, cfg Config) *Store {
	s := &Store{inner: inner, cfg: cfg}
	s.mu.calls = map[callKey]int{}
	s.mu.kinds = map[string]int{}
	s.mu.changed = make(chan struct{})
	s.Inject(cfg.Rules...)
	return s
}

// Injection is a rule at work.
type Injection struct {
	store *Store
	rule  Rule
	seen  int
	fired int
}

// Inject adds rules, behind those that are there. The answer is the first's.
func (s *Store) Inject(rules ...Rule) *Injection {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first *Injection
	for _, r := range rules {
		in := &Injection{store: s, rule: r}
		if first == nil {
			first = in
		}
		s.mu.rules = append(s.mu.rules, in)
	}
	return first
}

// Remove ends the rule; what it holds stays held.
func (in *Injection) Remove() {
	s := in.store
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range s.mu.rules {
		if r == in {
			s.mu.rules = append(s.mu.rules[:i:i], s.mu.rules[i+1:]...)
			return
		}
	}
}

// Fired is how many calls the rule acted on.
func (in *Injection) Fired() int {
	in.store.mu.Lock()
	defer in.store.mu.Unlock()
	return in.fired
}

// ClearRules removes every rule.
func (s *Store) ClearRules() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.rules = nil
}

// Stats is a snapshot of the counters.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.stats
}

// Counts is how often each action was taken, by its name.
func (s *Store) Counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.mu.kinds)
}

// plan is what will happen to one call.
type plan struct {
	call   Call
	action Action
	by     *Injection
	delay  time.Duration
	rng    *rand.Rand
	read   atomic.Int64 // bytes that a Get answered
}

func (s *Store) plan(c Call) *plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.calls) >= callsMax {
		clear(s.mu.calls)
	}
	k := callKey{c.Op, c.Key}
	s.mu.calls[k]++
	c.N = s.mu.calls[k]
	s.count(c)
	p := &plan{call: c, rng: s.random(c)}
	p.delay = s.cfg.Latency.of(c.Op).sample(p.rng) + s.cfg.Latency.perByte(c.Bytes)
	for _, in := range s.mu.rules {
		if !in.wants(p, c) {
			continue
		}
		in.fired++
		s.mu.kinds[in.rule.Do.String()]++
		if in.rule.Do.kind == actDelay {
			p.delay += in.rule.Do.delay
		} else {
			p.action, p.by = in.rule.Do, in
			s.mu.stats.Faults++
		}
	}
	return p
}

// wants needs the lock; it counts.
func (in *Injection) wants(p *plan, c Call) bool {
	r := &in.rule
	if p.by != nil && r.Do.kind != actDelay || !r.matches(c) {
		return false
	}
	// The draw comes before every other condition: a rule's coin for a call does
	// not depend on what happened before.
	if r.Probability > 0 && p.rng.Float64() >= r.Probability {
		return false
	}
	in.seen++
	return in.seen > r.Skip && (r.Times == 0 || in.fired < r.Times)
}

func (s *Store) random(c Call) *rand.Rand {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d %d %s", c.Op, c.N, c.Key)
	return rand.New(rand.NewPCG(s.cfg.Seed, h.Sum64()))
}

func (s *Store) count(c Call) {
	st := &s.mu.stats
	switch c.Op {
	case Put:
		st.Puts++
	case Get:
		st.Gets++
	case Head:
		st.Heads++
	case List:
		st.Lists++
	case Delete:
		st.Deletes++
		st.DeletedKeys += int64(len(c.Keys))
	case PutPart:
		st.Parts++
	default:
		st.Uploads++
	}
}

// carry takes the planned call to its end. run does the operation on the inner
// store; it may run in another goroutine, even after carry returned an error.
func (s *Store) carry(ctx context.Context, p *plan, run func(context.Context) error) error {
	err := s.carryOut(ctx, p, run)
	call := p.call
	if call.Op == Get {
		call.Bytes = p.read.Load()
	}
	if err == nil {
		s.mu.Lock()
		switch call.Op {
		case Put, PutPart:
			s.mu.stats.PutBytes += call.Bytes
		case Get:
			s.mu.stats.GetBytes += call.Bytes
		}
		s.mu.Unlock()
	}
	if s.cfg.Observe != nil {
		s.cfg.Observe(call, err)
	}
	return err
}

func (s *Store) carryOut(ctx context.Context, p *plan, run func(context.Context) error) error {
	c := p.call
	if err := objstore.ContextError(ctx, c.Op.String(), c.Key); err != nil {
		return err
	}
	before, after := p.delay, time.Duration(0)
	if c.Op.mutates() {
		before, after = p.delay/2, p.delay-p.delay/2
	}
	if err := sleep(ctx, before); err != nil {
		return gaveUp(c, err)
	}
	err := s.act(ctx, p, run)
	if serr := sleep(ctx, after); serr != nil {
		return gaveUp(c, serr)
	}
	if c.Op == Get && err == nil { // how much it is was not known before
		if serr := sleep(ctx, s.cfg.Latency.perByte(p.read.Load())); serr != nil {
			return gaveUp(c, serr)
		}
	}
	return err
}

func (s *Store) act(ctx context.Context, p *plan, run func(context.Context) error) error {
	switch a := p.action; a.kind {
	case actFailBefore:
		return injected(p.call, a.err)
	case actFailAfter:
		_ = run(ctx) // its answer is what gets lost
		return injected(p.call, a.err)
	case actOwnConflict:
		if err := run(ctx); err != nil {
			return err
		}
		if p.call.CreateOnly {
			return injected(p.call, objstore.ErrAlreadyExists)
		}
		return injected(p.call, objstore.ErrConflict)
	case actHold:
		return s.hold(ctx, p, run).wait(ctx)
	case actLate:
		if p.call.Op.mutates() {
			s.landLate(s.hold(ctx, p, run), a.delay)
			return injected(p.call, objstore.ErrUnknownOutcome)
		}
	}
	return run(ctx)
}

func injected(c Call, err error) error {
	return fmt.Errorf("%s %q: %w (injected)", c.Op, c.Key, err)
}

// gaveUp is the error of a call that its context ended.
func gaveUp(c Call, cause error) error {
	if c.Op.mutates() {
		return objstore.UnknownOutcome(c.Op.String(), c.Key, cause)
	}
	return fmt.Errorf("%s %q: %w", c.Op, c.Key, cause)
}

// Close answers every held caller with ErrUnknownOutcome, leaves the held writes
// to the test (they are on their way), and closes the inner store unless Shared.
func (s *Store) Close() error {
	for _, p := range s.Pending() {
		p.abandon()
	}
	if s.cfg.Shared {
		return nil
	}
	return s.inner.Close()
}

var errClosed = errors.New("the store was closed meanwhile")
