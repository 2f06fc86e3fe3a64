package kafka

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// conn is one client connection: a reader and a writer with a bounded queue
// between them. Only the reader touches in, produce and barrier; only the
// writer touches out.
type conn struct {
	srv  *Server
	nc   net.Conn
	log  *slog.Logger
	once sync.Once // closes nc

	in      *bufio.Reader
	produce kmsg.ProduceRequest // reused: the reader is done with it before the next
	barrier <-chan struct{}     // closed once the last topic-changing request is answered

	queue      chan *call
	held       *semaphore.Weighted // bytes of unanswered requests
	unanswered holder              // the memory that they take
	evicted    atomic.Pointer[error]
	inFlight   atomic.Int32
	answered   atomic.Bool
	muted      atomic.Int64 // unix ns: read no request before, it was told to wait

	out []byte
}

// call is a request that was read; the writer answers calls in order.
type call struct {
	header        header
	api           string
	size          int             // of the frame, length included
	held          int64           // of conn.held
	memory, share int64           // of conn.unanswered
	hurry         <-chan struct{} // closed when a long wait should end; set before answer is called
	read          time.Time
	done          chan struct{} // closed when answered; nil unless it is a barrier
	// answer may wait. It is called once, by the writer.
	answer func(ctx context.Context) (reply, error)
}

// reply is what goes back: one of the fields body and fetch, or silence.
type reply struct {
	body     kmsg.Response
	fetch    *fetchAnswer
	silent   bool          // acks=0
	throttle time.Duration // read nothing for so long
}

// closing ends a connection, with its reason.
type closing struct {
	why   string
	level slog.Level
}

func (c *closing) Error() string { return c.why }

func closef(level slog.Level, format string, args ...any) error {
	return &closing{fmt.Sprintf(format, args...), level}
}

var errStopping = errors.New("the listener is stopping")

func newConn(s *Server, nc net.Conn) *conn {
	return &conn{srv: s, nc: nc, log: s.log.With("client", nc.RemoteAddr().String())}
}

// closeSocket ends the connection. A client that got no answer yet of a listener that
// stops hears a reset: at an orderly end before the first answer some take it that the
// port is no Kafka's, and tell their application instead of trying another node.
func (c *conn) closeSocket() {
	c.once.Do(func() {
		if tc, ok := c.nc.(*net.TCPConn); ok && c.stopping() && !c.answered.Load() {
			_ = tc.SetLinger(0) // it closes all the same
		}
		if err := c.nc.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			c.log.Debug("close a client's socket", "error", err)
		}
	})
}

// interruptRead wakes a reader that waits for a request; see setReadDeadline.
func (c *conn) interruptRead() { _ = c.nc.SetReadDeadline(time.Unix(1, 0)) }

// setReadDeadline never undoes interruptRead: stopping is closed before it.
func (c *conn) setReadDeadline(d time.Duration) error {
	if err := c.nc.SetReadDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	if c.stopping() {
		c.interruptRead()
	}
	return nil
}

func (c *conn) stopping() bool {
	select {
	case <-c.srv.stopping:
		return true
	default:
		return false
	}
}

// serve runs the connection to its end.
func (c *conn) serve(base context.Context) {
	ctx, cancel := context.WithCancel(withClientHost(base, c.nc.RemoteAddr()))
	defer cancel()
	cfg := &c.srv.cfg
	c.in = bufio.NewReaderSize(c.nc, 16<<10)
	c.queue = make(chan *call, cfg.InFlightMax)
	c.held = semaphore.NewWeighted(int64(cfg.InFlightBytesMax))
	c.unanswered.hurry = make(chan struct{})
	c.unanswered.evict = func(why error) {
		c.evicted.CompareAndSwap(nil, &why)
		cancel()
		c.closeSocket()
	}

	written := make(chan error, 1)
	go func() {
		err := guard(func() error { return c.writeLoop(ctx) })
		if err != nil {
			cancel()
			c.closeSocket() // the reader may be in a read
		}
		for cl := range c.queue { // after an error: nobody answers these
			c.finish(cl)
		}
		written <- err
	}()
	rerr := guard(func() error { return c.readLoop(ctx) })
	close(c.queue)
	if !errors.Is(rerr, errStopping) {
		cancel()
	}
	werr := <-written
	c.closeSocket()
	c.logEnd(rerr, werr)
}

// guard turns a panic into the end of this connection alone.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = closef(slog.LevelError, "a bug in this listener: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// logEnd logs why the connection ended, once. The writer's reason counts when it
// came first: then the reader only saw a closed socket.
func (c *conn) logEnd(rerr, werr error) {
	err := rerr
	if werr != nil && !errors.Is(werr, context.Canceled) {
		err = werr
	}
	if why := c.evicted.Load(); why != nil {
		err = *why
	}
	level := slog.LevelWarn
	var end *closing
	switch {
	case errors.As(err, &end):
		level = end.level
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, errStopping),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, context.Canceled):
		level = slog.LevelDebug
	}
	c.log.Log(context.Background(), level, "connection closed", "reason", err)
	if level > slog.LevelInfo {
		c.srv.metrics.Error("connection", -1)
	}
}

// readLoop reads requests until the client leaves, breaks a rule, or the
// listener stops.
func (c *conn) readLoop(ctx context.Context) error {
	for {
		size, err := c.readLength()
		if err != nil {
			if c.stopping() {
				return errStopping
			}
			return err
		}
		if err := c.readRequest(ctx, size); err != nil {
			if c.stopping() && errors.Is(err, os.ErrDeadlineExceeded) {
				return errStopping
			}
			return err
		}
	}
}

// readLength waits for the next request. A connection is idle only when nothing
// of it is in flight.
func (c *conn) readLength() (int, error) {
	for {
		if err := c.setReadDeadline(c.srv.cfg.IdleTimeout); err != nil {
			return 0, err
		}
		_, err := c.in.Peek(1)
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || c.stopping() {
			return 0, err
		}
		if c.inFlight.Load() == 0 {
			return 0, closef(slog.LevelDebug, "idle for %v", c.srv.cfg.IdleTimeout)
		}
	}
	if err := c.setReadDeadline(c.srv.cfg.TransferTimeout); err != nil {
		return 0, err
	}
	var b [4]byte
	if _, err := io.ReadFull(c.in, b[:]); err != nil {
		return 0, fmt.Errorf("read the length of a request: %w", err)
	}
	size := int32(binary.BigEndian.Uint32(b[:]))
	if size < headerFixed || int64(size) > int64(c.srv.cfg.FrameBytesMax) {
		if who := stranger(b); who != "" {
			return 0, closef(slog.LevelWarn, "%s: this port speaks Kafka only", who)
		}
		return 0, closef(slog.LevelWarn, "a request of %d bytes is outside of [%d, %d]: not a Kafka client on the other end, or a message above the limit", size, headerFixed, c.srv.cfg.FrameBytesMax)
	}
	return int(size), nil
}

// stranger names a client of another protocol by the first bytes that it sends,
// "" when they tell nothing. None of them is the length of a frame that is taken.
func stranger(b [4]byte) string {
	switch s := string(b[:]); {
	case b[0] == 0x16 && b[1] == 3:
		return "a TLS handshake, and TLS is not supported"
	case s == "PRI ":
		return "an HTTP/2 client, such as one of Arrow Flight"
	case slices.Contains([]string{"GET ", "HEAD", "POST", "PUT ", "PATC", "DELE", "OPTI", "CONN"}, s):
		return "an HTTP client"
	}
	return ""
}

// transferTime bounds the moving of n bytes.
func (c *conn) transferTime(n int) time.Duration {
	return c.srv.cfg.TransferTimeout + time.Duration(n>>20)*time.Second
}

// readRequest reads one frame, and appends or queues it.
func (c *conn) readRequest(ctx context.Context, size int) error {
	if err := c.setReadDeadline(c.transferTime(size)); err != nil {
		return err
	}
	k, err := c.in.Peek(2)
	if err != nil {
		return fmt.Errorf("read a request: %w", err)
	}
	key := int16(binary.BigEndian.Uint16(k))
	if key != keyProduce && size > c.srv.cfg.SmallFrameBytesMax {
		return closef(slog.LevelWarn, "a request of %d bytes with api key %d is above the limit of %d", size, key, c.srv.cfg.SmallFrameBytesMax)
	}
	var admitted int64
	defer func() {
		if admitted > 0 {
			c.srv.receive.Release(admitted)
		}
	}()
	frame, err := c.srv.buffers.readFrame(c.in, size, func() error {
		if err := c.srv.receive.Acquire(ctx, int64(size)); err != nil {
			return err
		}
		admitted = int64(size)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read a request of %d bytes with api key %d: %w", size, key, err)
	}
	// Nothing that outlives this call refers to the frame: appends copy, and
	// decoded requests own their strings.
	defer c.srv.buffers.put(frame)
	if err := c.waitMuted(ctx); err != nil {
		return err
	}
	if key == keyProduce && c.barrier != nil {
		select {
		case <-c.barrier:
			c.barrier = nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	cl, err := c.accept(ctx, key, frame)
	if err != nil {
		return err
	}
	return c.enqueue(ctx, cl)
}

// A decoder makes an array of as many items as its frame claims and has bytes,
// before it finds out that they are not there: decodeGrowth bytes of memory per
// byte of the frame at most. Frames up to decodeFree are not counted.
const (
	decodeGrowth = 128
	decodeFree   = 64 << 10
)

// accept parses the frame. The reader of a connection decodes one at a time;
// over all connections larger ones share a budget. Produce counts its items first.
func (c *conn) accept(ctx context.Context, key int16, frame []byte) (*call, error) {
	if key != keyProduce && len(frame) > decodeFree {
		n := int64(len(frame)) * decodeGrowth
		if err := c.srv.decode.Acquire(ctx, n); err != nil {
			return nil, err
		}
		defer c.srv.decode.Release(n)
	}
	return c.srv.broker.accept(ctx, frame, &c.produce)
}

// waitMuted obeys the throttle that the client was told; it should have waited
// by itself.
func (c *conn) waitMuted(ctx context.Context) error {
	until := c.muted.Load()
	if until == 0 {
		return nil
	}
	c.muted.CompareAndSwap(until, 0)
	d := time.Until(time.Unix(0, until))
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.srv.stopping:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (c *conn) enqueue(ctx context.Context, cl *call) error {
	cl.held = min(cl.held, int64(c.srv.cfg.InFlightBytesMax))
	if err := c.held.Acquire(ctx, cl.held); err != nil {
		return err
	}
	cl.memory = cl.held
	if cl.header.key != keyProduce { // which counted what it keeps, and let go of the frame
		cl.memory *= heldGrowth
	}
	var err error
	if cl.share, err = c.srv.unanswered.acquire(ctx, &c.unanswered, cl.memory); err != nil {
		c.held.Release(cl.held)
		return err
	}
	if cl.done != nil {
		c.barrier = cl.done
	}
	c.inFlight.Add(1)
	c.srv.metrics.InFlight(1)
	select {
	case c.queue <- cl:
		return nil
	case <-ctx.Done():
		c.finish(cl)
		return ctx.Err()
	}
}

// finish is called once for every enqueued call.
func (c *conn) finish(cl *call) {
	if cl.done != nil {
		close(cl.done)
	}
	c.srv.unanswered.release(&c.unanswered, cl.memory, cl.share)
	c.held.Release(cl.held)
	c.inFlight.Add(-1)
	c.srv.metrics.InFlight(-1)
}

// writeLoop answers calls in order until the reader closes the queue.
func (c *conn) writeLoop(ctx context.Context) error {
	for cl := range c.queue {
		err := c.answer(ctx, cl)
		c.finish(cl)
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) answer(ctx context.Context, cl *call) error {
	cl.hurry = c.srv.unanswered.hurry(&c.unanswered)
	rep, err := cl.answer(ctx)
	if err != nil {
		return err
	}
	if rep.throttle > 0 {
		c.muted.Store(time.Now().Add(rep.throttle).UnixNano())
	}
	sent := 0
	if !rep.silent {
		if sent, err = c.write(cl, &rep); err != nil {
			return fmt.Errorf("answer %s v%d: %w", cl.api, cl.header.version, err)
		}
		c.answered.Store(true)
	}
	c.srv.metrics.Request(cl.api, cl.size, sent, time.Since(cl.read))
	return nil
}

// A response on the wire: length i32 | correlation i32 | [tags] | body. The
// tagged section is there when the version is flexible, never for ApiVersions.
func appendResponseHeader(dst []byte, h *header) []byte {
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.correlation))
	if h.flexible && h.key != keyAPIVersions {
		dst = append(dst, 0)
	}
	return dst
}

// keepOut is how large an output buffer a connection keeps for its next answer.
const keepOut = 1 << 20

func (c *conn) write(cl *call, rep *reply) (int, error) {
	c.out = appendResponseHeader(c.out[:0], &cl.header)
	var parts net.Buffers
	if rep.fetch != nil {
		c.out, parts = rep.fetch.encode(c.out, len(c.out))
	} else {
		c.out = rep.body.AppendTo(c.out)
	}
	total := len(c.out)
	if parts != nil {
		total = 0
		for _, p := range parts {
			total += len(p)
		}
	}
	binary.BigEndian.PutUint32(c.out, uint32(total-4))
	if err := c.nc.SetWriteDeadline(time.Now().Add(c.transferTime(total))); err != nil {
		return 0, err
	}
	var err error
	if parts != nil {
		_, err = parts.WriteTo(c.nc)
	} else {
		_, err = c.nc.Write(c.out)
	}
	if cap(c.out) > keepOut {
		c.out = nil
	}
	return total, err
}
