package flight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/peers"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// What this node does not lead it asks of the leader, for clients that do not look
// where a bucket is. Who was asked by a node never asks another one: that ends in
// NotLeader, and the first node looks again.

// onwardPause is how long is waited before a leader is looked for again, when the
// answer did not say what to wait for.
const onwardPause = 50 * time.Millisecond

// leaderElsewhere answers the node to ask when err says that another one leads.
func (s *service) leaderElsewhere(ctx context.Context, err error) (cluster.Node, bool) {
	var moved *mink.NotLeaderError
	if s.peers == nil || !errors.As(err, &moved) || peers.Forwarded(ctx) {
		return cluster.Node{}, false
	}
	n, ok := s.backend.View().Node(moved.Leader)
	self, _ := s.backend.Self()
	return n, ok && n.ID != self
}

// passing reports that the same request may find its leader in a moment.
func passing(err error) bool {
	var moved *mink.NotLeaderError
	return errors.As(err, &moved) || errors.Is(err, mink.ErrUnavailable)
}

// lookAgain waits before a leader is looked for again: for the metadata that the
// peer knew when it refused, else for a moment. Also while the node stops: rows that
// it has read are still sent on then.
func (s *service) lookAgain(ctx context.Context, err error) {
	var answered *peers.Error
	if errors.As(err, &answered) && answered.Applied > s.backend.View().Index() {
		wait, cancel := context.WithTimeout(ctx, s.cfg.AppliedWait)
		defer cancel()
		if s.backend.WaitApplied(wait, answered.Applied) == nil {
			return
		}
	}
	t := time.NewTimer(onwardPause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// atLeader runs a request of one bucket here, or at its leader when here says that
// it is led elsewhere. While the leader moves or does not answer it tries again, for
// as long as ThrottleWait, unless there has begun: then the client has a part of the
// answer.
func (s *service) atLeader(ctx context.Context, here func() error, there func(ctx context.Context, n cluster.Node) (begun bool, err error)) error {
	for since := time.Now(); ; {
		err := here()
		n, ok := s.leaderElsewhere(ctx, err)
		if !ok {
			return err
		}
		begun, err := there(s.peers.Onward(ctx), n)
		if err == nil || begun || !passing(err) || ctx.Err() != nil || time.Since(since) >= s.cfg.ThrottleWait {
			return err
		}
		s.lookAgain(ctx, err)
		select {
		case <-s.stopping:
			return errStopping
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
	}
}

// bucketsAtOnce is how many buckets one request looks at side by side: each may read
// from the store.
const bucketsAtOnce = 16

// atLeaders runs a request about several buckets: each here, or, those that another
// node leads, at that node in one call. It answers an error per bucket. there
// answers one for each of at, or nil when err is theirs. While leaders move it tries
// again, as atLeader does.
func (s *service) atLeaders(ctx context.Context, refs []mink.BucketRef, here func(i int) error, there func(ctx context.Context, n cluster.Node, at []int) ([]error, error)) []error {
	out := make([]error, len(refs))
	left := make([]int, len(refs))
	for i := range left {
		left[i] = i
	}
	for since := time.Now(); ; {
		var g errgroup.Group
		g.SetLimit(bucketsAtOnce)
		for _, i := range left {
			g.Go(func() error {
				out[i] = s.leaderError(refs[i], here(i))
				return nil
			})
		}
		_ = g.Wait() // no member fails
		led := map[mink.NodeID][]int{}
		nodes := map[mink.NodeID]cluster.Node{}
		for _, i := range left {
			if n, ok := s.leaderElsewhere(ctx, out[i]); ok {
				nodes[n.ID], led[n.ID] = n, append(led[n.ID], i)
			}
		}
		again, why := s.askLeaders(ctx, out, nodes, led, there)
		if len(again) == 0 || ctx.Err() != nil || time.Since(since) >= s.cfg.ThrottleWait {
			return out
		}
		left = again
		s.lookAgain(ctx, why)
	}
}

// askLeaders asks each node for its buckets, and answers those to try again.
func (s *service) askLeaders(ctx context.Context, out []error, nodes map[mink.NodeID]cluster.Node, led map[mink.NodeID][]int,
	there func(context.Context, cluster.Node, []int) ([]error, error),
) (again []int, why error) {
	var g errgroup.Group
	g.SetLimit(bucketsAtOnce)
	for id, at := range led {
		g.Go(func() error {
			errs, err := there(ctx, nodes[id], at)
			for k, i := range at {
				out[i] = err
				if err == nil {
					out[i] = errs[k]
				}
			}
			return nil
		})
	}
	_ = g.Wait() // no member fails
	for _, at := range led {
		for _, i := range at {
			if out[i] != nil && passing(out[i]) {
				again, why = append(again, i), out[i]
			}
		}
	}
	return again, why
}

// answeredError is a bucket's error in a peer's answer, which has its text and its
// reason.
type answeredError struct {
	text  string
	class error
}

func (e *answeredError) Error() string { return e.text }
func (e *answeredError) Unwrap() error { return e.class }

func bucketError(b mink.BucketRef, text, reason string) error {
	if text == "" && reason == "" {
		return nil
	}
	e := &answeredError{text: text, class: fmt.Errorf("bucket %s: %s", b, reason)}
	if reason == api.ReasonNotLeader {
		e.class = &mink.NotLeaderError{Bucket: b}
	}
	for _, c := range classes {
		if c.reason == reason && c.err != nil {
			e.class = c.err
			break
		}
	}
	return e
}

// relays counts the calls of clients that are sent on, by the node that they are sent
// to. All calls between two nodes share a connection, which has StreamsMax: clients that
// leave theirs open must not keep the others, and this node's own, waiting for a free one.
type relays struct {
	mu sync.Mutex
	of map[mink.NodeID]int
}

// begin takes a place among at most `most`; done gives it back. mink.ErrThrottled: there
// is none.
func (r *relays) begin(n cluster.Node, most int) (done func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of[n.ID] >= most {
		return nil, fmt.Errorf("%d calls are sent on to node %d from here already: ask it at %s, or again later: %w", most, n.ID, n.FlightAddress, mink.ErrThrottled)
	}
	if r.of == nil {
		r.of = map[mink.NodeID]int{}
	}
	r.of[n.ID]++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.of[n.ID]--; r.of[n.ID] == 0 {
			delete(r.of, n.ID)
		}
	}, nil
}

// relayGet reads at the leader for the client. A message is taken when the client
// took the one before: its flow control is the leader's.
func (s *service) relayGet(ctx context.Context, n cluster.Node, t *flight.Ticket, send func(*flight.FlightData) error) (begun bool, err error) {
	conn, err := s.peers.At(n)
	if err != nil {
		return false, err
	}
	done, err := s.calls.begin(n, s.cfg.RelaysMax)
	if err != nil {
		return false, err
	}
	defer done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, err := conn.DoGet(ctx, t)
	if err != nil {
		return false, peers.FromStatus(n, nil, err)
	}
	for {
		m, err := from.Recv()
		if errors.Is(err, io.EOF) {
			return begun, nil
		}
		if err != nil {
			return begun, peers.FromStatus(n, from, err)
		}
		begun = true
		s.metrics.RecordBytes(0, len(m.DataHeader)+len(m.DataBody))
		if err := send(m); err != nil {
			return begun, err
		}
	}
}

// sentOn is what comes of a client's stream that a leader answers.
type sentOn[M any] interface {
	peers.Stream
	Send(*flight.FlightData) error
	Recv() (M, error)
	CloseSend() error
}

// relay joins a client's stream with one to the leader, until either ends. first was
// read already, the rest comes from in. Nothing is held but one message each way.
func relay[M any](ctx context.Context, s *service, n cluster.Node, open func(context.Context, flight.Client) (sentOn[M], error),
	first []*flight.FlightData, in <-chan received, send func(M) error,
) error {
	conn, err := s.peers.At(n)
	if err != nil {
		return err
	}
	done, err := s.calls.begin(n, s.cfg.RelaysMax)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithCancel(s.peers.Onward(ctx))
	to, err := open(ctx, conn)
	if err != nil {
		cancel()
		return peers.FromStatus(n, nil, err)
	}
	var up sync.WaitGroup
	defer up.Wait()
	defer cancel()
	var broken error // of the client's side; read after up.Wait or when the leader ended
	up.Go(func() {
		broken = pour(ctx, s, to.Send, first, in)
		if broken == nil {
			_ = to.CloseSend() // a broken stream says so at Recv
			return
		}
		cancel()
	})
	for {
		m, err := to.Recv()
		if err == nil {
			err = send(m)
			if err == nil {
				continue
			}
			return err
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		cancelled := ctx.Err() != nil
		cancel()
		up.Wait()
		if cancelled && broken != nil && !errors.Is(broken, io.EOF) {
			return broken
		}
		return peers.FromStatus(n, to, err)
	}
}

// pour moves a client's messages to the leader until the client is done (nil).
func pour(ctx context.Context, s *service, send func(*flight.FlightData) error, first []*flight.FlightData, in <-chan received) error {
	for _, m := range first {
		if err := send(m); err != nil {
			return err
		}
	}
	for {
		select {
		case m := <-in:
			if errors.Is(m.err, io.EOF) {
				return nil
			}
			if m.err != nil {
				return m.err
			}
			if err := send(m.data); err != nil {
				return err // io.EOF: the leader ended the call, and Recv says why
			}
		case <-s.stopping:
			return errStopping
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// relayExchange lets the leader answer a tail or a stream of lookups of one bucket.
func (s *service) relayExchange(ctx context.Context, n cluster.Node, first *flight.FlightData, in <-chan received, send func(*flight.FlightData) error) error {
	return relay(ctx, s, n, func(ctx context.Context, c flight.Client) (sentOn[*flight.FlightData], error) {
		return c.DoExchange(ctx)
	},
		[]*flight.FlightData{first}, in, send)
}

// countedPut counts the batches that were sent on.
type countedPut struct {
	flight.FlightService_DoPutClient
	batches atomic.Int64
}

func (p *countedPut) Send(m *flight.FlightData) error {
	if len(m.DataBody) > 0 {
		p.batches.Add(1)
	}
	return p.FlightService_DoPutClient.Send(m)
}

// relayPut lets the leader take an append or a put of one bucket. When the call to it
// breaks, what it did not acknowledge may be written: that is not for the client to send
// again as if it were not, unless the leader knows it by its writer and sequence.
func (s *service) relayPut(ctx context.Context, n cluster.Node, idempotent bool, first []*flight.FlightData, in <-chan received, send func(*flight.PutResult) error) error {
	var to countedPut
	acknowledged := int64(0)
	err := relay(ctx, s, n, func(ctx context.Context, c flight.Client) (_ sentOn[*flight.PutResult], err error) {
		to.FlightService_DoPutClient, err = c.DoPut(ctx)
		return &to, err
	}, first, in, func(r *flight.PutResult) error {
		acknowledged++
		return send(r)
	})
	var said *peers.Error
	if err == nil || errors.As(err, &said) && said.GRPCStatus() != nil || to.batches.Load() <= acknowledged {
		return err
	}
	return outcome(err, idempotent)
}

// leads answers NotLeader for a bucket that another node leads, before a stream of
// it begins.
func (s *service) leads(bucket mink.BucketRef) error {
	var moved *mink.NotLeaderError
	if _, err := s.backend.Log(bucket); errors.As(err, &moved) {
		return fmt.Errorf("bucket %s: %w", bucket, err)
	}
	return nil
}
