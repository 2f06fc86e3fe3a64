package flight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// How long a node has to answer what a person asks of every node.
const (
	askTimeout    = 5 * time.Second
	askTimeoutMax = time.Minute
	asksMax       = 32 // nodes that are asked at once
)

// askNodes asks every live node, or one, what it says of itself, all at once. A node that
// does not answer is in the report with the reason: it delays the answer by the timeout and
// never fails it.
func (s *service) askNodes(ctx context.Context, b api.AskNodes) (any, error) {
	switch b.About {
	case api.ActionHealth, api.ActionGetConfig, api.ActionNodeStats:
	default:
		return nil, fmt.Errorf("ask_nodes about %.50q: want %s, %s or %s: %w", b.About, api.ActionHealth, api.ActionGetConfig, api.ActionNodeStats, mink.ErrInvalid)
	}
	timeout := time.Duration(b.TimeoutMs) * time.Millisecond
	if timeout == 0 {
		timeout = askTimeout
	}
	if timeout < 0 || timeout > askTimeoutMax {
		return nil, fmt.Errorf("ask_nodes: timeout_ms is %d; it must be within 0..%d: %w", b.TimeoutMs, askTimeoutMax.Milliseconds(), mink.ErrInvalid)
	}
	view := s.backend.View()
	nodes := view.LiveNodes()
	self, epoch := s.backend.Self()
	if !slices.ContainsFunc(nodes, func(n cluster.Node) bool { return n.ID == self }) {
		nodes = append(nodes, cluster.Node{ID: self, Epoch: epoch}) // it can say why it is not among them
	}
	if b.Node != 0 && b.Node != self {
		n, ok := view.Node(b.Node)
		switch {
		case !ok:
			return nil, fmt.Errorf("node %d is not registered: mink cluster describe lists the nodes: %w", b.Node, mink.ErrNotExist)
		case n.Sealed:
			return nil, fmt.Errorf("node %d, epoch %d, has ended (%s): %w", b.Node, n.Epoch, view.SealReason(n.Epoch), mink.ErrConflict)
		}
	}
	if b.Node != 0 {
		nodes = slices.DeleteFunc(nodes, func(n cluster.Node) bool { return n.ID != b.Node })
	}
	out := api.NodeAnswers{Node: self, Nodes: make([]api.NodeAnswer, len(nodes))}
	var wg sync.WaitGroup
	free := make(chan struct{}, asksMax)
	for i, n := range nodes {
		wg.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			out.Nodes[i] = s.askNode(ctx, n, b.About, timeout)
		})
	}
	wg.Wait()
	out.Head = view.Index()
	for _, a := range out.Nodes {
		out.Head = max(out.Head, a.AppliedIndex)
	}
	for i := range out.Nodes {
		if a := &out.Nodes[i]; a.Error == "" {
			a.Lag = out.Head - a.AppliedIndex
		}
	}
	return out, ctx.Err()
}

func (s *service) askNode(ctx context.Context, n cluster.Node, about string, timeout time.Duration) api.NodeAnswer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out := api.NodeAnswer{Node: n.ID, Epoch: n.Epoch, Address: n.FlightAddress}
	began := time.Now()
	body, err := s.answerOf(ctx, n, about, &out)
	out.TookMs = float64(time.Since(began).Microseconds()) / 1000
	if err == nil {
		err = takeAnswer(&out, about, body)
	}
	switch {
	case err == nil:
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		out.Error = fmt.Sprintf("no answer within %s", timeout)
	default:
		out.Error = err.Error()
	}
	return out
}

// answerOf asks one node, this one without a call.
func (s *service) answerOf(ctx context.Context, n cluster.Node, about string, out *api.NodeAnswer) ([]byte, error) {
	if self, _ := s.backend.Self(); n.ID == self {
		for _, a := range s.actions {
			if a.name == about {
				answer, err := a.run(ctx, []byte("{}"))
				out.AppliedIndex = s.backend.View().Index()
				return api.JSON(answer), err
			}
		}
	}
	if s.peers == nil {
		return nil, fmt.Errorf("node %d cannot be asked from here: %w", n.ID, mink.ErrUnsupported)
	}
	body, applied, err := s.peers.Look(ctx, n, about, []byte("{}"))
	out.AppliedIndex = applied
	return body, err
}

func takeAnswer(out *api.NodeAnswer, about string, body []byte) error {
	var into any
	switch about {
	case api.ActionHealth:
		out.Health = &api.Health{}
		into = out.Health
	case api.ActionGetConfig:
		out.Config = &api.Config{}
		into = out.Config
	default:
		out.Stats = &api.Stats{}
		into = out.Stats
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("it answered what this node cannot read: %w", err)
	}
	return nil
}
