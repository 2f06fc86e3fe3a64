package e2e

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

// trouble is what a wire does to a connection.
type trouble int

const (
	passes trouble = iota
	holds          // takes bytes and forwards none, as a network that drops packets
	cuts           // resets, and refuses new connections
	mutes          // requests arrive, answers do not: a network that drops packets one way
	loses          // some answers are lost with their connection: what was asked has happened
)

// losesOneOf is how many answers arrive for one that is lost.
const losesOneOf = 20

// wire is a TCP proxy before one address of one process. Trouble is set by who
// dials: a client and a peer reach a node at the same advertised address.
type wire struct {
	address string
	target  string
	peers   func() map[int]int // node of each process that may dial; nil: none

	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{}        // closed and replaced at every change of trouble
	trouble map[int]trouble      // by who dials; absent: passes
	delay   time.Duration        // of what the dialing side sends
	conns   map[*net.TCPConn]int // both ends of each connection, by who dials
	limits  [2]*rate.Limiter     // bytes, of all connections together: of answers, of requests; nil: none
	closed  bool

	carried [2]atomic.Int64 // bytes: of answers, of requests
}

// pieceMax is the most that is sent on at a time, bytes.
const pieceMax = 64 << 10

// newWire listens on a free address until the test ends. Who dials and is none of
// the peers is -1.
func newWire(t *testing.T, target string, peers func() map[int]int) *wire {
	t.Helper()
	w := &wire{address: freeAddress(t), target: target, peers: peers, changed: make(chan struct{}), trouble: map[int]trouble{}, conns: map[*net.TCPConn]int{}}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", w.address)
	if err != nil {
		t.Fatal(err)
	}
	w.listener = l
	w.wg.Add(1)
	go w.accept()
	t.Cleanup(w.close)
	return w
}

func (w *wire) close() {
	_ = w.listener.Close()
	w.mu.Lock()
	w.closed = true
	close(w.changed)
	w.changed = make(chan struct{})
	for c := range w.conns {
		_ = c.Close()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

// set changes what happens to those who dial as from.
func (w *wire) set(from int, what trouble) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trouble[from] = what
	close(w.changed)
	w.changed = make(chan struct{})
	if what != cuts {
		return
	}
	for c, f := range w.conns {
		if f == from {
			_ = c.SetLinger(0)
			_ = c.Close()
		}
	}
}

// slow delays everything that is sent from now on.
func (w *wire) slow(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delay = d
}

// throttle lets this many bytes per second through from now on, in each direction. A
// quarter of a second's may come at once: a busy machine wakes late, and what it missed is
// made up for.
func (w *wire) throttle(bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for way := range w.limits {
		w.limits[way] = rate.NewLimiter(rate.Limit(bytes), max(bytes/4, pieceMax))
	}
}

// way is the index of a direction in limits and carried.
func way(request bool) int {
	if request {
		return 1
	}
	return 0
}

// admit waits until the wire has room for n bytes, at most pieceMax, of one direction.
func (w *wire) admit(request bool, n int) {
	w.mu.Lock()
	limit := w.limits[way(request)]
	w.mu.Unlock()
	if limit != nil {
		time.Sleep(limit.ReserveN(time.Now(), n).Delay())
	}
	w.carried[way(request)].Add(int64(n))
}

func (w *wire) accept() {
	defer w.wg.Done()
	for {
		c, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.wg.Add(1)
		go w.serve(c.(*net.TCPConn))
	}
}

// keep remembers a connection that trouble may cut; false: it is cut already.
func (w *wire) keep(c *net.TCPConn, from int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.trouble[from] == cuts {
		_ = c.SetLinger(0)
		return false
	}
	w.conns[c] = from
	return true
}

func (w *wire) forget(c *net.TCPConn) {
	_ = c.Close()
	w.mu.Lock()
	delete(w.conns, c)
	w.mu.Unlock()
}

func (w *wire) serve(in *net.TCPConn) {
	defer w.wg.Done()
	defer w.forget(in)
	from := w.dialer(in)
	if !w.keep(in, from) || !w.passing(from, false) {
		return
	}
	conn, err := net.DialTimeout("tcp", w.target, 10*time.Second)
	if err != nil {
		_ = in.SetLinger(0)
		return
	}
	out := conn.(*net.TCPConn)
	defer w.forget(out)
	if !w.keep(out, from) {
		return
	}
	var both sync.WaitGroup
	both.Add(2)
	go func() { defer both.Done(); w.pump(out, in, from, true) }()
	go func() { defer both.Done(); w.pump(in, out, from, false) }()
	both.Wait()
}

// passing waits while connections of from are held, in the direction of an answer or of
// a request; false: they are cut.
func (w *wire) passing(from int, answer bool) bool {
	for {
		w.mu.Lock()
		now, changed, closed := w.trouble[from], w.changed, w.closed
		w.mu.Unlock()
		switch {
		case closed, now == cuts, now == loses && answer && rand.IntN(losesOneOf) == 0:
			return false
		case now != holds && (now != mutes || !answer):
			return true
		}
		<-changed
	}
}

// piece is bytes that are sent on at a time.
type piece struct {
	bytes []byte
	at    time.Time
}

// pump copies one direction, requests or answers, in order, each piece of a request
// after the delay of its arrival.
func (w *wire) pump(to, from *net.TCPConn, who int, request bool) {
	pieces := make(chan piece, 64)
	var reading sync.WaitGroup
	reading.Add(1)
	go func() {
		defer reading.Done()
		defer close(pieces)
		for {
			b := make([]byte, pieceMax)
			n, err := from.Read(b)
			if n > 0 {
				w.mu.Lock()
				d := w.delay
				w.mu.Unlock()
				if !request {
					d = 0
				}
				pieces <- piece{b[:n], time.Now().Add(d)}
			}
			if err != nil {
				return
			}
		}
	}()
	failed := false
	for p := range pieces { // to the end: the reader must not hang on a full channel
		if failed {
			continue
		}
		time.Sleep(time.Until(p.at))
		w.admit(request, len(p.bytes))
		failed = !w.passing(who, !request)
		if !failed {
			_, err := to.Write(p.bytes)
			failed = err != nil
		}
		if failed {
			_ = from.SetLinger(0)
			_ = from.Close()
			_ = to.SetLinger(0)
			_ = to.Close()
		}
	}
	reading.Wait()
	_ = to.CloseWrite()
}

// dialer is which node is at the other end of a loopback connection, -1 when none.
func (w *wire) dialer(c *net.TCPConn) int {
	if w.peers == nil {
		return -1
	}
	socket := socketOf(c.RemoteAddr().(*net.TCPAddr))
	for pid, node := range w.peers() {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, link := range links {
			if to, err := os.Readlink(link); err == nil && to == socket {
				return node
			}
		}
	}
	return -1
}

// socketOf is how Linux names the socket that is bound to an IPv4 address of this
// machine.
func socketOf(a *net.TCPAddr) string {
	ip := a.IP.To4()
	want := fmt.Sprintf("%02X%02X%02X%02X:%04X", ip[3], ip[2], ip[1], ip[0], a.Port)
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 9 && fields[1] == want {
			return "socket:[" + fields[9] + "]"
		}
	}
	return ""
}
