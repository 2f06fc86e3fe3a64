package flight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/flight/wire"
	"github.com/mink-project/mink/core/peers"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// forwards is this node as a writer to buckets that others lead: what table-addressed
// puts have for them. Safe for concurrent use.
//
//	puts -> lane, one per bucket and kind of rows -> a native DoPut to the leader, which stays open
//
// A lane is an idempotent writer with an id of its own. What was sent and not
// acknowledged is sent again, to whoever leads the bucket then: no row is written
// twice by that, and batches of one put stay in order.
type forwards struct {
	service *service
	ctx     context.Context
	stop    context.CancelFunc
	wg      sync.WaitGroup // of lanes

	mu struct {
		sync.Mutex
		lanes  map[laneKey]*lane
		bytes  int // of parts without an outcome
		closed bool
	}
}

// laneKey is what rows must have in common to go on one stream.
type laneKey struct {
	bucket  mink.BucketRef
	schema  mink.SchemaID
	columns string // names of the targets; "": all
	keyed   bool
}

// laneWindow is how many batches of a writer and bucket the leader remembers.
const laneWindow = 5

// errForwardFull is the back-pressure: the put waits before it takes more.
var errForwardFull = fmt.Errorf("too much waits for other nodes: %w", mink.ErrThrottled)

func newForwards(s *service) *forwards {
	f := &forwards{service: s}
	f.ctx, f.stop = context.WithCancel(context.Background())
	f.mu.lanes = map[laneKey]*lane{}
	return f
}

// close ends every lane; what has no outcome yet fails.
func (f *forwards) close() {
	f.mu.Lock()
	f.mu.closed = true
	f.mu.Unlock()
	f.stop()
	f.wg.Wait()
}

// busy reports that parts of this kind are on their way to the bucket's leader.
func (f *forwards) busy(k laneKey) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.mu.lanes[k]
	return l != nil && l.held > 0
}

// push hands a part over; limit bounds a batch of the table. mink.ErrThrottled: nothing
// was taken, there is no room.
func (f *forwards) push(k laneKey, rows *rowPlan, limit int, p *farPart) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	cfg := &f.service.cfg
	if f.mu.closed {
		return errStopping
	}
	l := f.mu.lanes[k]
	if size := p.size(); f.mu.bytes > 0 && f.mu.bytes+size > cfg.ForwardBytesMax || l != nil && l.bytes > 0 && l.bytes+size > cfg.ForwardBytesMax/4 {
		return errForwardFull
	}
	if l == nil {
		if len(f.mu.lanes) >= cfg.ForwardStreamsMax && !f.dropIdleLocked() {
			return errForwardFull
		}
		l = newLane(f, k, rows, limit)
		f.mu.lanes[k] = l
		f.wg.Go(l.run)
	}
	l.held++
	l.bytes += p.size()
	f.mu.bytes += p.size()
	p.lane, p.since = l, time.Now()
	l.push(p)
	return nil
}

// dropIdleLocked ends a lane without work, to make room for another.
func (f *forwards) dropIdleLocked() bool {
	for k, l := range f.mu.lanes {
		if l.held == 0 {
			delete(f.mu.lanes, k)
			l.end()
			return true
		}
	}
	return false
}

// leave takes a lane out that was idle for long; false when it has work after all.
func (f *forwards) leave(l *lane) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l.held > 0 {
		return false
	}
	if f.mu.lanes[l.key] == l {
		delete(f.mu.lanes, l.key)
	}
	return true
}

func (f *forwards) freed(l *lane, size int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l.held--
	l.bytes -= size
	f.mu.bytes -= size
}

// farPart is rows of one bucket on their way to its leader. It implements Pending;
// its errors say by their class whether the rows may have been written.
type farPart struct {
	rows         int64
	header, body []byte
	deletes      bool
	// halves cuts it in two, when its changes do not fit into one batch of the
	// changelog; nil: it cannot be cut.
	halves cutter
	done   chan struct{}
	lane   *lane
	since  time.Time

	// The lane's own.
	sequence int32
	doubt    bool       // it was sent once, and what came of it is not known
	of       *farPart   // it is a half of it
	left     int        // halves without an outcome
	give     func()     // gives back the room of the halves; nil: there are none
	joined   []*farPart // it is these, in one batch

	result tablet.AppendResult // after done
	err    error
}

func (p *farPart) Done() <-chan struct{}                { return p.done }
func (p *farPart) Result() (tablet.AppendResult, error) { return p.result, p.err }
func (p *farPart) size() int                            { return len(p.header) + len(p.body) }

// finish gives the part its outcome.
func (p *farPart) finish(res tablet.AppendResult, err error) {
	if p.joined != nil {
		p.share(res, err)
		return
	}
	if p.of == nil {
		if p.give != nil {
			p.give()
		}
		p.lane.of.freed(p.lane, p.size())
		p.result, p.err, p.header, p.body = res, err, nil, nil
		close(p.done)
		return
	}
	whole := p.of
	if whole.left--; whole.err == nil {
		whole.err = err
	}
	if whole.result.First < 0 {
		whole.result = res
	}
	whole.result.Last = max(whole.result.Last, res.Last)
	if whole.left == 0 {
		whole.finish(whole.result, whole.err)
	}
}

// lane sends one kind of rows to one bucket: in order, laneWindow batches at a time.
type lane struct {
	of      *forwards
	key     laneKey
	columns []string // targets of a put; nil: all
	arrow   *arrow.Schema
	kick    chan struct{}
	over    chan struct{} // closed by end
	join    *joiner       // of a log table's rows; else nil

	held, bytes int // guarded by forwards.mu: parts without an outcome

	mu    sync.Mutex
	queue []*farPart

	// Below: run's own.
	writer  mink.WriterID // 0: take a fresh one before anything is sent
	next    int32         // number of the next batch
	acked   int32         // number behind the last one that was acknowledged
	unacked []*farPart
}

func newLane(f *forwards, k laneKey, rows *rowPlan, limit int) *lane {
	l := &lane{of: f, key: k, arrow: rows.arrow, kick: make(chan struct{}, 1), over: make(chan struct{})}
	if !k.keyed {
		l.join = newJoiner(rows.arrow, limit)
	}
	if k.columns != "" {
		for _, c := range rows.schema.Columns {
			l.columns = append(l.columns, c.Name)
		}
	}
	return l
}

// laneOf is where a put's rows of a bucket go.
func (t *tablePut) laneOf(bucket mink.BucketRef) laneKey {
	k := laneKey{bucket: bucket, schema: t.rows.schema.ID, keyed: t.rows.put != nil}
	if k.keyed && t.rows.put.columns != nil {
		names := make([]string, len(t.rows.schema.Columns))
		for i, c := range t.rows.schema.Columns {
			names[i] = c.Name
		}
		k.columns = strings.Join(names, "\x00")
	}
	return k
}

func (l *lane) push(p *farPart) {
	l.mu.Lock()
	l.queue = append(l.queue, p)
	l.mu.Unlock()
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

func (l *lane) end() { close(l.over) }

func (l *lane) waiting() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) > 0
}

// run sends until the lane is idle for long, ended, or the node stops.
func (l *lane) run() {
	ctx := l.of.ctx
	defer func() { l.failAll(errStopping) }()
	for ctx.Err() == nil {
		if len(l.unacked) == 0 && !l.waiting() {
			idle := time.NewTimer(l.of.service.cfg.ForwardIdle)
			select {
			case <-l.kick:
			case <-idle.C:
				if l.of.leave(l) {
					return
				}
			case <-l.over:
				return
			case <-ctx.Done():
			}
			idle.Stop()
			continue
		}
		err := l.session(ctx)
		if err == nil || ctx.Err() != nil {
			continue
		}
		l.settle(err)
		l.expire(err)
		if len(l.unacked) > 0 || l.waiting() {
			l.of.service.lookAgain(ctx, err)
		}
	}
}

// settle draws the consequences of a session's end. A leader that refused says so of
// the first part that it did not acknowledge; it takes none behind it.
func (l *lane) settle(err error) {
	var moved *mink.NotLeaderError
	switch {
	case errors.As(err, &moved), errors.Is(err, mink.ErrThrottled), len(l.unacked) == 0:
	case errors.Is(err, mink.ErrUnavailable), errors.Is(err, mink.ErrClosed), !classified(err):
		l.doubtAll()
	case errors.Is(err, mink.ErrCorrupt): // of rows that were on their way to the store, as those behind them may be
		l.doubtAll()
		l.failUnacked(err)
	default:
		l.refused(err)
	}
	for _, p := range l.unacked { // what was never sent gets its number when it is
		if !p.doubt {
			p.sequence = -1
		}
	}
	l.renumber()
}

// classified reports that a node answered with a class of its own; else the call broke.
func classified(err error) bool {
	_, _, ok := classOf(err)
	return ok
}

// refused fails the first part, or sends it in halves.
func (l *lane) refused(err error) {
	p := l.unacked[0]
	fenced := errors.Is(err, mink.ErrFenced) || errors.Is(err, mink.ErrOutOfOrder)
	l.writer = 0 // what follows has another number now
	if p.joined != nil && !p.doubt && !fenced {
		l.apart(p)
		return
	}
	if errors.Is(err, mink.ErrTooLarge) && !p.doubt && p.halves != nil && p.rows > 1 {
		cut, give, cerr := p.halves(l.of.ctx, p.header, p.body, p.rows)
		if cerr == nil {
			l.unacked = slices.Replace(l.unacked, 0, 1, p.cutInto(cut, give)...)
			return
		}
		if errors.Is(cerr, mink.ErrThrottled) {
			err = cerr
		}
	}
	if p.doubt || fenced {
		err = unknown(err)
	}
	l.unacked = slices.Delete(l.unacked, 0, 1)
	p.finish(tablet.AppendResult{First: -1, Last: -1}, err)
	// Under another writer id those that may have been written would be written again.
	l.unacked = slices.DeleteFunc(l.unacked, func(p *farPart) bool {
		if p.doubt {
			p.finish(tablet.AppendResult{First: -1, Last: -1}, unknown(fmt.Errorf("the batch before it was refused: %w", err)))
		}
		return p.doubt
	})
}

// unknown is the outcome of rows that may be written: only the text of err, whose own
// class must not win.
func unknown(err error) error {
	return fmt.Errorf("%w: %s", mink.ErrUnknownOutcome, err.Error())
}

func (p *farPart) cutInto(cut []putPart, give func()) []*farPart {
	whole := p
	if p.of != nil {
		whole = p.of
		whole.left--
		give() // halves of halves take none
	} else {
		whole.give = give
		whole.result = tablet.AppendResult{First: -1, Last: -1}
	}
	out := make([]*farPart, len(cut))
	for i, c := range cut {
		out[i] = &farPart{rows: c.rows, header: c.header, body: c.body, deletes: p.deletes, halves: p.halves, lane: p.lane, since: p.since, sequence: -1, of: whole}
	}
	whole.left += len(out)
	return out
}

// renumber lets the next number follow the last one that may be known to a leader.
func (l *lane) renumber() {
	n := int32(0)
	for _, p := range l.unacked {
		if p.sequence >= 0 {
			n++
		}
	}
	switch {
	case l.writer == 0:
		l.next = 0
	case n > 0:
		l.next = after(l.unacked[n-1].sequence)
	default:
		l.next = l.acked
	}
}

// expire fails what has waited for too long.
func (l *lane) expire(err error) {
	limit := l.of.service.cfg.ForwardWait
	old := func(p *farPart) bool { return time.Since(p.since) >= limit }
	if len(l.unacked) > 0 && old(l.unacked[0]) {
		l.failUnacked(fmt.Errorf("gave up after %s: %w", limit, err))
	}
	l.mu.Lock()
	n := 0
	for n < len(l.queue) && old(l.queue[n]) {
		n++
	}
	late := slices.Clone(l.queue[:n])
	l.queue = slices.Delete(l.queue, 0, n)
	l.mu.Unlock()
	for _, p := range late {
		p.finish(tablet.AppendResult{First: -1, Last: -1}, fmt.Errorf("gave up after %s: %w", limit, err))
	}
}

// failUnacked fails everything that has been sent or is about to be.
func (l *lane) failUnacked(err error) {
	for _, p := range l.unacked {
		why := err
		if p.doubt {
			why = unknown(err)
		}
		p.finish(tablet.AppendResult{First: -1, Last: -1}, why)
	}
	l.unacked, l.writer, l.next = nil, 0, 0
}

// doubtAll: what was sent may have been written.
func (l *lane) doubtAll() {
	for _, p := range l.unacked {
		p.doubt = p.doubt || p.sequence >= 0
	}
}

func (l *lane) failAll(err error) {
	l.doubtAll()
	l.failUnacked(err)
	l.mu.Lock()
	queue := l.queue
	l.queue = nil
	l.mu.Unlock()
	for _, p := range queue {
		p.finish(tablet.AppendResult{First: -1, Last: -1}, err)
	}
}

// leader answers the node to send to, this one too when it leads the bucket by now.
func (l *lane) leader() (cluster.Node, error) {
	s := l.of.service
	_, err := s.backend.Log(l.key.bucket)
	id, _ := s.backend.Self()
	var moved *mink.NotLeaderError
	switch {
	case errors.As(err, &moved):
		id = moved.Leader
	case err != nil:
		return cluster.Node{}, err
	}
	n, ok := s.backend.View().Node(id)
	if !ok {
		return cluster.Node{}, fmt.Errorf("bucket %s: its leader, node %d, is not known: %w", l.key.bucket, id, mink.ErrUnavailable)
	}
	return n, nil
}

// session keeps one stream to the leader until it breaks (error), or has nothing to
// do for long (nil).
func (l *lane) session(ctx context.Context) error {
	s := l.of.service
	n, err := l.leader()
	if err != nil {
		return err
	}
	if l.writer == 0 {
		if l.writer, err = s.backend.AllocateWriter(ctx); err != nil {
			return fmt.Errorf("%w: %w", mink.ErrUnavailable, err)
		}
		l.next, l.acked = 0, 0
	}
	conn, err := s.peers.At(n)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(s.peers.Onward(ctx))
	put, err := conn.DoPut(ctx)
	if err != nil {
		cancel()
		return peers.FromStatus(n, nil, err)
	}
	acks, broken := make(chan api.AppendResult), make(chan error, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { broken <- receiveAcks(ctx, n, put, acks) })
	first := &flight.FlightData{
		FlightDescriptor: &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: api.JSON(l.command())},
		DataHeader:       wire.SchemaMessage(l.arrow),
	}
	if err := put.Send(first); err != nil {
		return <-broken
	}
	return l.pump(ctx, put, acks, broken)
}

func (l *lane) command() api.Command {
	if l.key.keyed {
		return api.Command{Put: &api.Put{Bucket: l.key.bucket, SchemaID: l.key.schema, Columns: l.columns, WriterID: l.writer}}
	}
	return api.Command{Append: &api.Append{Bucket: l.key.bucket, SchemaID: l.key.schema, WriterID: l.writer}}
}

func (l *lane) metadata(p *farPart) []byte {
	if l.key.keyed {
		return api.JSON(api.PutMetadata{Sequence: p.sequence, Delete: p.deletes})
	}
	return api.JSON(api.AppendMetadata{Sequence: p.sequence})
}

// take moves parts from the queue to those that are being sent; what waits already goes
// as one batch.
func (l *lane) take() bool {
	l.mu.Lock()
	if len(l.queue) == 0 {
		l.mu.Unlock()
		return false
	}
	n := 1
	if l.join != nil {
		n = l.join.count(l.queue)
	}
	parts := slices.Clone(l.queue[:n])
	l.queue = slices.Delete(l.queue, 0, n)
	l.mu.Unlock()
	for _, p := range parts {
		p.sequence = -1
	}
	if n > 1 {
		if whole := l.join.join(parts); whole != nil {
			parts = []*farPart{whole}
		}
	}
	l.unacked = append(l.unacked, parts...)
	return true
}

func (l *lane) pump(ctx context.Context, put flight.FlightService_DoPutClient, acks <-chan api.AppendResult, broken <-chan error) error {
	idle := time.NewTimer(l.of.service.cfg.ForwardIdle)
	defer idle.Stop()
	sent := 0 // of unacked, on this stream
	for {
		for sent < laneWindow && (sent < len(l.unacked) || l.take()) {
			p := l.unacked[sent]
			if p.sequence < 0 {
				p.sequence = l.next
				l.next = after(l.next)
			}
			if err := put.Send(&flight.FlightData{DataHeader: p.header, DataBody: p.body, AppMetadata: l.metadata(p)}); err != nil {
				return l.drained(acks, broken, sent+1)
			}
			sent++
		}
		select {
		case a := <-acks:
			if err := l.acknowledge(a, &sent); err != nil {
				return err
			}
			idle.Reset(l.of.service.cfg.ForwardIdle)
		case err := <-broken:
			return err
		case <-l.kick:
		case <-idle.C:
			if len(l.unacked) == 0 && !l.waiting() {
				_ = put.CloseSend()
				return nil
			}
			idle.Reset(l.of.service.cfg.ForwardIdle)
		case <-l.over:
			if len(l.unacked) == 0 {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// drained takes the acknowledgements that came before a stream broke.
func (l *lane) drained(acks <-chan api.AppendResult, broken <-chan error, sent int) error {
	for {
		select {
		case a := <-acks:
			if err := l.acknowledge(a, &sent); err != nil {
				return err
			}
		case err := <-broken:
			return err
		}
	}
}

// after is the next sequence: 2^31-1 is followed by 0.
func after(sequence int32) int32 { return (sequence + 1) & (1<<31 - 1) }

// acknowledge ends the oldest of the batches that were sent on this stream.
func (l *lane) acknowledge(a api.AppendResult, sent *int) error {
	if *sent == 0 {
		return fmt.Errorf("bucket %s: its leader acknowledged a batch that was not sent: %w", l.key.bucket, mink.ErrUnavailable)
	}
	*sent--
	p := l.unacked[0]
	l.unacked = slices.Delete(l.unacked, 0, 1)
	l.acked = after(p.sequence)
	p.finish(tablet.AppendResult{First: a.First, Last: a.Last, CommitTimestamp: a.CommitTimestamp, Duplicate: a.Duplicated}, nil)
	return nil
}

// receiveAcks hands on each acknowledgement; it answers why the stream ended.
func receiveAcks(ctx context.Context, n cluster.Node, put flight.FlightService_DoPutClient, acks chan<- api.AppendResult) error {
	for {
		r, err := put.Recv()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("node %d ended the stream: %w", n.ID, mink.ErrUnavailable)
		}
		if err != nil {
			return peers.FromStatus(n, put, err)
		}
		var a api.AppendResult
		if err := json.Unmarshal(r.AppMetadata, &a); err != nil {
			return fmt.Errorf("node %d: an acknowledgement that this node cannot read: %w: %w", n.ID, mink.ErrUnavailable, err)
		}
		select {
		case acks <- a:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
