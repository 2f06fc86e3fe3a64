// Package memnet is a network in memory, with the faults of a real one: hosts that
// listen and dial, connections that carry bytes in order, and links between hosts that
// are slow, cut in one direction or both, or break in the middle of an answer.
//
//	Host.Dial --> Conn = pipe a->b, pipe b->a --> Listener.Accept
//	                       |
//	               chunks with the time of their arrival; nothing passes a link that is cut
//
// It has no goroutines and no clock of its own: in a testing/synctest bubble all of it
// happens in virtual time.
package memnet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Fault is a kind of fault.
type Fault string

// The faults. Those of the first group happen by chance, Config.Chaos; the others are
// done by the test, and counted when they had an effect: a connection broken, bytes or a
// connection held back.
const (
	LostRequest  Fault = "lost request"  // bytes of the side that dialled are lost, the connection breaks
	LostResponse Fault = "lost response" // bytes of the side that was dialled are lost, the connection breaks
	Torn         Fault = "torn message"  // half of a write arrives, then the connection breaks
	Late         Fault = "late bytes"    // they arrive up to Config.LateMax later, and what follows behind them

	Refused    Fault = "refused connection" // nobody listens
	Reset      Fault = "reset by a death"   // the other host ended
	Vanished   Fault = "vanished host"      // the other host is silent for ever
	HeldBack   Fault = "cut link"           // bytes wait for a link that is cut
	Unanswered Fault = "unanswered dial"    // a connection waits for a link that is cut
	Broken     Fault = "broken connection"  // by Break
	Slow       Fault = "slow link"
)

// ByChance are the faults of Config.Chaos.
var ByChance = []Fault{LostRequest, LostResponse, Torn, Late}

// Config of a network. The zero value is one without delay and faults.
type Config struct {
	Seed uint64
	// Latency of each write, one way: a uniform share between half of it and all.
	Latency time.Duration
	// Chaos is the probability of each fault of ByChance, per write.
	Chaos   float64
	LateMax time.Duration // of Late
}

// window is how many bytes one direction of a connection holds before writers wait.
const window = 256 << 10

// Network is what hosts are on. Safe for concurrent use.
type Network struct {
	cfg  Config
	cuts atomic.Int32 // how many rules there are: none is the common case

	mu struct {
		sync.Mutex
		rng       *rand.Rand
		quiet     bool
		listeners map[string]*listener // by address
		conns     map[*link]struct{}
		rules     map[*rule]struct{}
		changed   chan struct{}      // closed and replaced when a rule goes
		vanished  map[string][]*link // connections of vanished hosts, by their names
		counts    map[Fault]int
		ports     int
	}
}

// rule holds back or slows what goes from one host to another.
type rule struct {
	from, to func(*Host) bool
	delay    time.Duration // 0: nothing passes
}

// New makes a network without hosts.
func New(cfg Config) *Network {
	n := &Network{cfg: cfg}
	n.mu.rng = rand.New(rand.NewPCG(cfg.Seed, 7))
	n.mu.listeners = map[string]*listener{}
	n.mu.conns = map[*link]struct{}{}
	n.mu.rules = map[*rule]struct{}{}
	n.mu.changed = make(chan struct{})
	n.mu.vanished = map[string][]*link{}
	n.mu.counts = map[Fault]int{}
	return n
}

// Counts is how often each fault happened.
func (n *Network) Counts() map[Fault]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make(map[Fault]int, len(n.mu.counts))
	for f, c := range n.mu.counts {
		out[f] = c
	}
	return out
}

func (n *Network) count(f Fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.counts[f]++
}

// Quiet ends the faults by chance, and removes every cut and delay.
func (n *Network) Quiet() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.quiet = true
	clear(n.mu.rules)
	n.rulesChanged()
}

// Conns is how many connections there are.
func (n *Network) Conns() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.mu.conns)
}

// rulesChanged is called with mu held.
func (n *Network) rulesChanged() {
	n.cuts.Store(int32(len(n.mu.rules)))
	close(n.mu.changed)
	n.mu.changed = make(chan struct{})
}

// Cut holds back everything that goes from hosts of one kind to those of the other, until
// heal: then it arrives, as what TCP sends again does. One direction only; a host's bytes
// to itself pass.
func (n *Network) Cut(from, to func(*Host) bool) (heal func()) {
	return n.add(&rule{from: from, to: to})
}

// Delay makes everything from hosts of one kind to those of the other take d longer, until
// heal.
func (n *Network) Delay(from, to func(*Host) bool, d time.Duration) (heal func()) {
	return n.add(&rule{from: from, to: to, delay: d})
}

func (n *Network) add(r *rule) (heal func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.rules[r] = struct{}{}
	n.rulesChanged()
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if _, ok := n.mu.rules[r]; ok {
			delete(n.mu.rules, r)
			n.rulesChanged()
		}
	}
}

// passes reports whether anything gets from one host to the other now; changed is closed
// when to ask again, nil when it does.
func (n *Network) passes(from, to *Host) (changed <-chan struct{}) {
	if n.cuts.Load() == 0 {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for r := range n.mu.rules {
		if r.delay == 0 && from != to && r.from(from) && r.to(to) {
			return n.mu.changed
		}
	}
	return nil
}

// way is how long a packet is on its way.
func (n *Network) way(from, to *Host) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.wayLocked(from, to)
}

func (n *Network) wayLocked(from, to *Host) (d time.Duration) {
	if l := n.cfg.Latency; l > 0 {
		d = l/2 + time.Duration(n.mu.rng.Int64N(int64(l/2)+1))
	}
	for r := range n.mu.rules {
		if r.delay > 0 && from != to && r.from(from) && r.to(to) {
			d += r.delay
			n.mu.counts[Slow]++
		}
	}
	return d
}

// trip is how long a write is on its way, and what becomes of it.
func (n *Network) trip(from, to *Host, dialled bool, bytes int) (d time.Duration, f Fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d = n.wayLocked(from, to)
	if n.cfg.Chaos <= 0 || n.mu.quiet {
		return d, ""
	}
	switch x := n.mu.rng.Float64() / n.cfg.Chaos; {
	case x < 1 && dialled:
		f = LostRequest
	case x < 1:
		f = LostResponse
	case x < 2 && bytes > 1:
		f = Torn
	case x >= 2 && x < 3 && n.cfg.LateMax > 0:
		f = Late
		d += time.Duration(n.mu.rng.Int64N(int64(n.cfg.LateMax)))
	default:
		return d, ""
	}
	n.mu.counts[f]++
	return d, f
}

// Host is one machine's, or one process's, place on the network.
type Host struct {
	net  *Network
	name string
	mu   struct {
		sync.Mutex
		gone  bool
		ended chan struct{} // closed with gone
	}
}

// Host adds a host. Several may have one name: processes that follow each other.
func (n *Network) Host(name string) *Host {
	n.mu.Lock()
	lost := n.mu.vanished[name]
	delete(n.mu.vanished, name)
	n.mu.Unlock()
	for _, l := range lost {
		l.reset()
	}
	h := &Host{net: n, name: name}
	h.mu.ended = make(chan struct{})
	return h
}

// Name is the host's.
func (h *Host) Name() string { return h.name }

// Is matches this host in a rule.
func (h *Host) Is(o *Host) bool { return h == o }

// Not matches every other host in a rule.
func (h *Host) Not(o *Host) bool { return h != o }

func (h *Host) isGone() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.gone
}

// End ends the host as a killed process's ends: its listeners close and its connections
// are reset; the other ends learn it when they can be reached.
func (h *Host) End() { h.end(false) }

// Vanish ends the host as a machine without power ends: nobody hears of it, and bytes to it
// go nowhere, until another host of its name comes.
func (h *Host) Vanish() { h.end(true) }

// Break resets every connection of the host, which lives on.
func (h *Host) Break() {
	n := h.net
	n.mu.Lock()
	var links []*link
	for l := range n.mu.conns {
		if (l.ends[0].host == h) != (l.ends[1].host == h) {
			links = append(links, l)
			n.mu.counts[Broken]++
		}
	}
	n.mu.Unlock()
	for _, l := range links {
		l.reset()
	}
}

func (h *Host) end(silent bool) {
	h.mu.Lock()
	if h.mu.gone {
		h.mu.Unlock()
		return
	}
	h.mu.gone = true
	close(h.mu.ended)
	h.mu.Unlock()
	for _, l := range h.net.leave(h, silent) {
		l.die(h, silent)
	}
}

// leave closes the host's listeners and answers its connections.
func (n *Network) leave(h *Host, silent bool) (out []*link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for address, l := range n.mu.listeners {
		if l.host == h {
			delete(n.mu.listeners, address)
			l.closeLocked()
		}
	}
	for l := range n.mu.conns {
		if l.ends[0].host == h || l.ends[1].host == h {
			out = append(out, l)
			delete(n.mu.conns, l)
			if silent {
				n.mu.vanished[h.name] = append(n.mu.vanished[h.name], l)
			}
			if l.ends[0].host != l.ends[1].host {
				n.mu.counts[map[bool]Fault{false: Reset, true: Vanished}[silent]]++
			}
		}
	}
	return out
}

// addr is a net.Addr.
type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }

func opError(op string, a addr, err error) error {
	return &net.OpError{Op: op, Net: "memory", Addr: a, Err: err}
}

// Listen listens on port of the host: its address is "name:port". An address that another
// host of the name holds is in use.
func (h *Host) Listen(port int) (net.Listener, error) {
	a := addr(fmt.Sprintf("%s:%d", h.name, port))
	n := h.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.isGone() {
		return nil, opError("listen", a, net.ErrClosed)
	}
	if _, ok := n.mu.listeners[string(a)]; ok {
		return nil, opError("listen", a, syscall.EADDRINUSE)
	}
	l := &listener{host: h, addr: a, backlog: make(chan *Conn, 128), done: make(chan struct{})}
	n.mu.listeners[string(a)] = l
	return l, nil
}

// Listens reports whether somebody listens at "name:port".
func (n *Network) Listens(address string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.listeners[address] != nil
}

// Dial connects to "name:port". While a link to it or back is cut it waits.
func (h *Host) Dial(ctx context.Context, address string) (net.Conn, error) {
	n := h.net
	counted := false
	for {
		if h.isGone() {
			return nil, opError("dial", addr(address), net.ErrClosed)
		}
		n.mu.Lock()
		l := n.mu.listeners[address]
		n.mu.Unlock()
		if l == nil {
			n.count(Refused)
			return nil, opError("dial", addr(address), syscall.ECONNREFUSED)
		}
		changed := n.passes(h, l.host)
		if changed == nil {
			changed = n.passes(l.host, h)
		}
		if changed != nil && !counted {
			counted = true
			n.count(Unanswered)
		}
		if changed == nil {
			t := time.NewTimer(n.way(h, l.host) + n.way(l.host, h))
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return nil, opError("dial", addr(address), ctx.Err())
			}
			c, err := n.connect(h, l)
			if err == nil || !errors.Is(err, errTryAgain) {
				return c, err
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, opError("dial", addr(address), ctx.Err())
		case <-h.mu.ended:
		}
	}
}

var errTryAgain = errors.New("the listener has changed")

func (n *Network) connect(h *Host, l *listener) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.ports++
	if n.mu.listeners[string(l.addr)] != l || h.isGone() {
		return nil, errTryAgain
	}
	k := newLink(n, h, l.host, addr(fmt.Sprintf("%s:%d", h.name, 20000+n.mu.ports)), l.addr)
	select {
	case l.backlog <- &k.ends[1]:
	default:
		n.mu.counts[Refused]++
		return nil, opError("dial", l.addr, syscall.ECONNREFUSED)
	}
	n.mu.conns[k] = struct{}{}
	return &k.ends[0], nil
}

type listener struct {
	host    *Host
	addr    addr
	backlog chan *Conn
	done    chan struct{}
	once    sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
		return nil, opError("accept", l.addr, net.ErrClosed)
	default:
	}
	select {
	case c := <-l.backlog:
		return c, nil
	case <-l.done:
		return nil, opError("accept", l.addr, net.ErrClosed)
	}
}

// closeLocked is Close with the network's lock held.
func (l *listener) closeLocked() { l.once.Do(func() { close(l.done) }) }

// Close closes the listener; connections that were not accepted are reset.
func (l *listener) Close() error {
	n := l.host.net
	n.mu.Lock()
	if n.mu.listeners[string(l.addr)] == l {
		delete(n.mu.listeners, string(l.addr))
	}
	l.closeLocked()
	n.mu.Unlock()
	for {
		select {
		case c := <-l.backlog:
			c.link.reset()
		default:
			return nil
		}
	}
}

func (l *listener) Addr() net.Addr { return l.addr }

// deadline is when reads or writes end: done is closed then.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	done  chan struct{}
}

func newDeadline() deadline { return deadline{done: make(chan struct{})} }

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.done // its function closes it
	}
	d.timer = nil
	over := false
	select {
	case <-d.done:
		over = true
	default:
	}
	switch wait := time.Until(t); {
	case t.IsZero():
		if over {
			d.done = make(chan struct{})
		}
	case wait > 0:
		if over {
			d.done = make(chan struct{})
		}
		done := d.done
		d.timer = time.AfterFunc(wait, func() { close(done) })
	case !over:
		close(d.done)
	}
}

func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

var errDeadline = os.ErrDeadlineExceeded
