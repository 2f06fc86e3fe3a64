package memnet

import (
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// link is one connection with its two ends.
type link struct {
	net  *Network
	ends [2]Conn // that of who dialled, that of who was dialled
}

// pipe is one direction of a connection.
type pipe struct {
	net      *Network
	from, to *Host
	dialled  bool // from is who dialled

	mu struct {
		sync.Mutex
		chunks []chunk
		bytes  int
		last   time.Time     // when the newest chunk arrives
		fin    bool          // the writer has closed
		rst    bool          // the connection broke: nothing arrives any more
		dead   bool          // the other host is gone without a word: bytes go nowhere
		torn   bool          // half of a write was the last that arrives
		closed bool          // the reader has closed
		held   bool          // counted as held back
		wake   chan struct{} // closed and replaced at every change
	}
}

type chunk struct {
	at   time.Time
	data []byte
}

func newPipe(n *Network, from, to *Host, dialled bool) *pipe {
	p := &pipe{net: n, from: from, to: to, dialled: dialled}
	p.mu.wake = make(chan struct{})
	return p
}

// changed is called with mu held.
func (p *pipe) changed() {
	close(p.mu.wake)
	p.mu.wake = make(chan struct{})
}

func (p *pipe) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.changed()
}

func newLink(n *Network, from, to *Host, a, b addr) *link {
	l := &link{net: n}
	there, back := newPipe(n, from, to, true), newPipe(n, to, from, false)
	l.ends[0] = Conn{link: l, host: from, in: back, out: there, local: a, remote: b, reads: newDeadline(), writes: newDeadline()}
	l.ends[1] = Conn{link: l, host: to, in: there, out: back, local: b, remote: a, reads: newDeadline(), writes: newDeadline()}
	return l
}

// reset breaks the connection for both ends.
func (l *link) reset() {
	for i := range l.ends {
		l.ends[i].in.set(func() { l.ends[i].in.mu.rst = true })
	}
	l.forget()
}

func (l *link) forget() {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	delete(l.net.mu.conns, l)
}

// die is the end of one of the hosts.
func (l *link) die(h *Host, silent bool) {
	for i := range l.ends {
		e := &l.ends[i]
		if e.host == h { // what is left of the process hears at once
			e.in.set(func() { e.in.mu.closed = true })
		}
		if !silent {
			e.in.set(func() { e.in.mu.rst = true })
			continue
		}
		e.in.set(func() { e.in.mu.dead, e.in.mu.chunks, e.in.mu.bytes = true, nil, 0 })
	}
}

// Conn is one end of a connection. Safe for concurrent use.
type Conn struct {
	link          *link
	host          *Host
	in, out       *pipe
	local, remote addr
	reads, writes deadline
	once          sync.Once
}

var _ net.Conn = (*Conn)(nil)

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	for {
		over := c.reads.wait()
		select {
		case <-over:
			return 0, opError("read", c.remote, errDeadline)
		default:
		}
		n, wait, cut, arrives, err := c.in.take(b)
		if n > 0 || err != nil || len(b) == 0 {
			if err != nil && err != io.EOF { //nolint:errorlint // take's own
				err = opError("read", c.remote, err)
			}
			return n, err
		}
		if arrives > 0 {
			t := time.NewTimer(arrives)
			select {
			case <-t.C:
			case <-wait:
			case <-over:
			}
			t.Stop()
			continue
		}
		select {
		case <-wait:
		case <-cut:
		case <-over:
		}
	}
}

// take reads what has arrived; with nothing it answers what to wait for: a change of the
// pipe, or of the cuts (nil: nothing is cut), and how long the next chunk is on its way.
func (p *pipe) take(b []byte) (n int, wait, cut <-chan struct{}, arrives time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return 0, nil, nil, 0, net.ErrClosed
	}
	if len(p.mu.chunks) == 0 && !p.mu.fin && !p.mu.rst {
		return 0, p.mu.wake, nil, 0, nil
	}
	if cut := p.net.passes(p.from, p.to); cut != nil {
		if !p.mu.held {
			p.mu.held = true
			p.net.count(HeldBack)
		}
		return 0, p.mu.wake, cut, 0, nil
	}
	p.mu.held = false
	if p.mu.rst {
		return 0, nil, nil, 0, syscall.ECONNRESET
	}
	if len(p.mu.chunks) == 0 {
		return 0, nil, nil, 0, io.EOF
	}
	head := &p.mu.chunks[0]
	if d := time.Until(head.at); d > 0 {
		return 0, p.mu.wake, nil, d, nil
	}
	full := p.mu.bytes >= window
	n = copy(b, head.data)
	head.data = head.data[n:]
	p.mu.bytes -= n
	if len(head.data) == 0 {
		p.mu.chunks[0] = chunk{}
		p.mu.chunks = p.mu.chunks[1:]
	}
	if full && p.mu.bytes < window {
		p.changed()
	}
	return n, nil, nil, 0, nil
}

// Write implements net.Conn. It waits while the other end has much to read.
func (c *Conn) Write(b []byte) (int, error) {
	for {
		over := c.writes.wait()
		select {
		case <-over:
			return 0, opError("write", c.remote, errDeadline)
		default:
		}
		wait, err := c.put(b)
		if err != nil {
			return 0, opError("write", c.remote, err)
		}
		if wait == nil {
			return len(b), nil
		}
		select {
		case <-wait:
		case <-over:
		}
	}
}

// put sends b at once, or answers what to wait for.
func (c *Conn) put(b []byte) (wait <-chan struct{}, err error) {
	if err := c.heard(); err != nil {
		return nil, err
	}
	p := c.out
	p.mu.Lock()
	if p.mu.fin || p.mu.closed {
		defer p.mu.Unlock()
		switch {
		case p.mu.fin:
			return nil, net.ErrClosed
		case p.mu.dead && p.mu.bytes >= window:
			return p.mu.wake, nil
		case p.mu.dead:
			p.mu.bytes += len(b) // in the sender's buffer, for ever
			return nil, nil
		}
		if p.net.passes(p.to, p.from) != nil {
			return nil, nil // the reader has closed, and nothing says so
		}
		return nil, syscall.EPIPE
	}
	if p.mu.torn {
		p.mu.Unlock()
		return nil, nil // the sender hears of it later
	}
	if p.mu.bytes >= window {
		defer p.mu.Unlock()
		return p.mu.wake, nil
	}
	p.mu.Unlock()
	d, fault := p.net.trip(p.from, p.to, p.dialled, len(b))
	switch fault {
	case LostRequest, LostResponse:
		c.link.reset()
		return nil, nil // the sender hears of it later
	case Torn:
		b = b[:len(b)/2]
	}
	data := append([]byte(nil), b...)
	p.set(func() {
		if p.mu.torn {
			return
		}
		p.mu.torn = fault == Torn
		at := time.Now().Add(d)
		if at.Before(p.mu.last) {
			at = p.mu.last
		}
		p.mu.last = at
		p.mu.chunks, p.mu.bytes = append(p.mu.chunks, chunk{at, data}), p.mu.bytes+len(data)
	})
	if fault == Torn {
		time.AfterFunc(d, c.link.reset)
	}
	return nil, nil
}

// heard is what a writer knows of the connection's end.
func (c *Conn) heard() error {
	p := c.in
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.mu.closed:
		return net.ErrClosed
	case p.mu.rst && p.net.passes(p.from, p.to) == nil:
		return syscall.EPIPE
	}
	return nil
}

// Close implements net.Conn: what was written still arrives, then the other end reads EOF.
func (c *Conn) Close() (err error) {
	err = net.ErrClosed
	c.once.Do(func() {
		err = nil
		c.out.set(func() { c.out.mu.fin = true })
		c.in.set(func() { c.in.mu.closed, c.in.mu.chunks = true, nil })
		c.link.forgetClosed()
	})
	return err
}

// forgetClosed forgets a connection that both ends have closed.
func (l *link) forgetClosed() {
	for i := range l.ends {
		p := l.ends[i].in
		p.mu.Lock()
		open := !p.mu.closed
		p.mu.Unlock()
		if open {
			return
		}
	}
	l.forget()
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	c.reads.set(t)
	c.writes.set(t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.reads.set(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.writes.set(t)
	return nil
}
