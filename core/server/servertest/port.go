package servertest

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// port is the address by which the world reaches one listener of a node: it stays
// the same over restarts, where the node itself binds another one each time.
// Bytes pass unchanged; a cut port closes its connections and refuses others, as
// that of a dead process does, a held one moves no byte and opens none through.
type port struct {
	address string
	keep    int // a socket that is bound and never listens: nobody else gets the port while it is cut
	wg      sync.WaitGroup

	mu struct {
		sync.Mutex
		listener net.Listener  // nil while cut
		target   string        // "" while nothing listens behind it
		held     bool          // bytes wait
		waiting  bool          // connections wait for a target; else they are closed
		changed  chan struct{} // closed and replaced at every change
		conns    map[net.Conn]struct{}
		closed   bool
	}
}

func newPort() (*port, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	p := &port{keep: fd}
	p.mu.changed = make(chan struct{})
	p.mu.conns = map[net.Conn]struct{}{}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	var bound unix.Sockaddr
	if err == nil {
		bound, err = unix.Getsockname(fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	p.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(bound.(*unix.SockaddrInet4).Port))
	return p, nil
}

func (p *port) addr() string { return p.address }

// listen opens the port, beside the socket that keeps it.
func (p *port) listen() error {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }); cerr != nil {
			return cerr
		}
		return err
	}}
	l, err := lc.Listen(context.Background(), "tcp", p.address)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.listener = l
	p.wg.Go(func() { p.accept(l) })
	return nil
}

func (p *port) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.mu.changed)
	p.mu.changed = make(chan struct{})
}

// starting lets connections wait for the listener, as a backlog does.
func (p *port) starting() error {
	p.change(func() { p.mu.waiting = true })
	return p.listen()
}

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

// cut closes every connection and refuses those to come, until starting.
func (p *port) cut() {
	p.change(func() {
		if p.mu.listener != nil {
			_ = p.mu.listener.Close()
			p.mu.listener = nil
		}
		p.mu.target, p.mu.waiting, p.mu.held = "", false, false
		for c := range p.mu.conns {
			_ = c.Close()
		}
	})
}

func (p *port) close() {
	p.change(func() { p.mu.closed = true })
	p.cut()
	p.wg.Wait()
	_ = unix.Close(p.keep)
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

func (p *port) accept(l net.Listener) {
	for {
		c, err := l.Accept()
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
	var d net.Dialer
	server, err := d.DialContext(context.Background(), "tcp", target)
	if err != nil {
		_ = client.(*net.TCPConn).SetLinger(0) // nobody listens: a reset
		return
	}
	if !p.own(server) {
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
