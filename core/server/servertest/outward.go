package servertest

import (
	"context"
	"net"
	"sync"
	"syscall"
)

// outward is how one process reaches other nodes. Held, no byte moves on its
// connections, either way; cut, they are closed and no new one is made.
type outward struct {
	mu struct {
		sync.Mutex
		held, over bool
		changed    chan struct{} // closed and replaced at every change
		conns      map[*outConn]struct{}
	}
}

func newOutward() *outward {
	o := &outward{}
	o.mu.changed = make(chan struct{})
	o.mu.conns = map[*outConn]struct{}{}
	return o
}

func (o *outward) change(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
	close(o.mu.changed)
	o.mu.changed = make(chan struct{})
}

func (o *outward) hold() { o.change(func() { o.mu.held = true }) }

func (o *outward) release() { o.change(func() { o.mu.held = false }) }

func (o *outward) cut() {
	o.change(func() {
		o.mu.over = true
		for c := range o.mu.conns {
			_ = c.Conn.Close()
		}
	})
}

// pass waits while bytes are held; an error when the process is dead or stopped
// waiting.
func (o *outward) pass(gone <-chan struct{}) error {
	for {
		o.mu.Lock()
		held, over, changed := o.mu.held, o.mu.over, o.mu.changed
		o.mu.Unlock()
		switch {
		case over:
			return net.ErrClosed
		case !held:
			return nil
		}
		select {
		case <-changed:
		case <-gone:
			return net.ErrClosed
		}
	}
}

func (o *outward) dial(ctx context.Context, address string) (net.Conn, error) {
	if err := o.pass(ctx.Done()); err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &outConn{Conn: conn, of: o, gone: make(chan struct{})}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.over {
		_ = conn.Close()
		return nil, syscall.ECONNREFUSED
	}
	o.mu.conns[c] = struct{}{}
	return c, nil
}

// outConn is one connection of a process. It implements net.Conn.
type outConn struct {
	net.Conn
	of   *outward
	once sync.Once
	gone chan struct{} // closed by Close
}

// Read implements net.Conn. What came while bytes were held is handed over afterwards.
func (c *outConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if werr := c.of.pass(c.gone); werr != nil {
		return 0, werr
	}
	return n, err
}

// Write implements net.Conn.
func (c *outConn) Write(b []byte) (int, error) {
	if err := c.of.pass(c.gone); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *outConn) Close() error {
	c.once.Do(func() {
		close(c.gone)
		c.of.mu.Lock()
		delete(c.of.mu.conns, c)
		c.of.mu.Unlock()
	})
	return c.Conn.Close()
}
