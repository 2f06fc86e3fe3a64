package servertest

import (
	"errors"
	"io"
	"net"
	"sync"
)

// port is the address by which the world reaches one listener of a node: it stays
// the same over restarts, where the node itself binds another one each time.
// Bytes pass unchanged; a cut port closes its connections, a held one moves no
// byte and opens none through.
type port struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu struct {
		sync.Mutex
		target  string        // "" while nothing listens behind it
		held    bool          // bytes wait
		waiting bool          // connections wait for a target; else they are closed
		changed chan struct{} // closed and replaced at every change
		conns   map[net.Conn]struct{}
		closed  bool
	}
}

func newPort() (*port, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &port{listener: l}
	p.mu.changed = make(chan struct{})
	p.mu.conns = map[net.Conn]struct{}{}
	p.wg.Go(p.accept)
	return p, nil
}

func (p *port) addr() string { return p.listener.Addr().String() }

func (p *port) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.mu.changed)
	p.mu.changed = make(chan struct{})
}

// starting lets connections wait for the listener, as a backlog does.
func (p *port) starting() { p.change(func() { p.mu.waiting = true }) }

// serve names the listener.
func (p *port) serve(target string) { p.change(func() { p.mu.target = target }) }

// hold and release stop and start the bytes.
func (p *port) hold() { p.change(func() { p.mu.held = true }) }

func (p *port) release() { p.change(func() { p.mu.held = false }) }

func (p *port) disconnect() {
	p.change(func() {
		for c := range p.mu.conns {
			_ = c.Close()
		}
	})
}

// cut closes every connection and those to come, until starting.
func (p *port) cut() {
	p.change(func() {
		p.mu.target, p.mu.waiting, p.mu.held = "", false, false
		for c := range p.mu.conns {
			_ = c.Close()
		}
	})
}

func (p *port) close() {
	p.change(func() { p.mu.closed = true })
	p.cut()
	_ = p.listener.Close()
	p.wg.Wait()
}

// open waits while bytes are held; it answers the target and whether the port
// still carries anything.
func (p *port) open() (target string, ok bool) {
	for {
		p.mu.Lock()
		target, changed := p.mu.target, p.mu.changed
		wait := p.mu.held || target == "" && p.mu.waiting
		over := p.mu.closed || !wait && target == ""
		p.mu.Unlock()
		if over {
			return "", false
		}
		if !wait {
			return target, true
		}
		<-changed
	}
}

// own takes a connection under the port's care; false when the port is closed.
func (p *port) own(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed || p.mu.target == "" && !p.mu.waiting {
		_ = c.Close()
		return false
	}
	p.mu.conns[c] = struct{}{}
	return true
}

func (p *port) disown(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.conns, c)
}

func (p *port) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		if p.own(c) {
			p.wg.Go(func() { p.carry(c) })
		}
	}
}

func (p *port) carry(client net.Conn) {
	defer p.disown(client)
	target, ok := p.open()
	if !ok {
		return
	}
	server, err := net.Dial("tcp", target)
	if err != nil || !p.own(server) {
		return
	}
	defer p.disown(server)
	var both sync.WaitGroup
	both.Go(func() { p.pipe(server, client) })
	both.Go(func() { p.pipe(client, server) })
	both.Wait()
}

// pipe moves bytes one way until the source ends, then ends the other's side.
func (p *port) pipe(to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if _, ok := p.open(); !ok {
			break
		}
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				break
			}
		}
		if errors.Is(err, io.EOF) {
			if half, ok := to.(*net.TCPConn); ok && half.CloseWrite() == nil {
				return
			}
		}
		if err != nil {
			break
		}
	}
	_ = to.Close()
	_ = from.Close()
}
