package peers_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/peers"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer answers action "echo" with its body and headers; "fail" as a node does that
// does not lead; "hang" never.
type peer struct {
	flight.BaseFlightServer
	hangs chan struct{} // one value per call that hangs
}

func (p *peer) DoAction(a *flight.Action, s flight.FlightService_DoActionServer) error {
	md, _ := metadata.FromIncomingContext(s.Context())
	switch a.Type {
	case "echo":
		return s.Send(&flight.Result{Body: api.JSON(map[string]any{
			"body": string(a.Body), "forwarded": peers.Forwarded(s.Context()), "index": md.Get(api.HeaderMinAppliedIndex)[0],
		})})
	case "fail":
		s.SetTrailer(metadata.Pairs(api.HeaderAppliedIndex, "77"))
		st, err := status.New(codes.FailedPrecondition, "moved").WithDetails(&errdetails.ErrorInfo{
			Domain: api.ErrorDomain, Reason: api.ReasonNotLeader, Metadata: map[string]string{"bucket": "1/2/3", "leader": "9"},
		})
		if err != nil {
			return err
		}
		return st.Err()
	default:
		p.hangs <- struct{}{}
		<-s.Context().Done()
		return s.Context().Err()
	}
}

func listen(t *testing.T, p *peer) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	flight.RegisterFlightServiceServer(s, p)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-served
	})
	return l.Addr().String()
}

// with is a state with these live nodes, by their ids from 1.
func with(t *testing.T, addresses ...string) *cluster.State {
	t.Helper()
	s := cluster.NewState()
	for i, a := range addresses {
		next, results, err := s.Apply(uint64(i+1), int64(i+1), &clusterpb.Batch{Commands: []*clusterpb.Command{{Kind: &clusterpb.Command_RegisterNode{
			RegisterNode: &clusterpb.RegisterNode{Node: int32(i + 1), Nonce: uint64(i + 1), FlightAddress: a, FeatureLevel: cluster.FeatureLevel},
		}}}})
		if err == nil {
			err = cluster.ResultError(results[0])
		}
		if err != nil {
			t.Fatal(err)
		}
		s = next
	}
	return s
}

func TestActionsOnPeers(t *testing.T) {
	address := listen(t, &peer{})
	view := with(t, address)
	p := peers.New(peers.Default(), func() *cluster.State { return view })
	defer p.Close()
	n, _ := view.Node(1)
	var out struct {
		Body      string
		Forwarded bool
		Index     string
	}
	if err := p.Action(t.Context(), n, "echo", "hello", &out); err != nil || out.Body != `"hello"` || !out.Forwarded || out.Index != "1" {
		t.Errorf("answer %+v, %v", out, err)
	}
	err := p.Action(t.Context(), n, "fail", "", nil)
	var moved *mink.NotLeaderError
	var answered *peers.Error
	if !errors.As(err, &moved) || moved.Leader != 9 || !errors.As(err, &answered) || answered.Applied != 77 || answered.Node != 1 {
		t.Errorf("error %v", err)
	}
	gone, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	if err := p.Action(t.Context(), cluster.Node{ID: 2, FlightAddress: gone.Addr().String()}, "echo", "", nil); !errors.Is(err, mink.ErrUnavailable) {
		t.Errorf("a node that is away: %v", err)
	}
}

// A connection goes with its node: calls on it end, and later ones make another.
func TestConnectionsGoWithTheirNodes(t *testing.T) {
	one, two := &peer{hangs: make(chan struct{}, 1)}, &peer{}
	addresses := []string{listen(t, one), listen(t, two)}
	var mu sync.Mutex
	view, changed := with(t, addresses...), make(chan struct{})
	p := peers.New(peers.Default(), func() *cluster.State {
		mu.Lock()
		defer mu.Unlock()
		return view
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- p.Run(ctx, func(uint64) <-chan struct{} {
			mu.Lock()
			defer mu.Unlock()
			return changed
		})
	}()
	first, _ := view.Node(1)
	second, _ := view.Node(2)
	hung := make(chan error, 1)
	go func() { hung <- p.Action(ctx, first, "hang", "", nil) }()
	<-one.hangs
	if err := p.Action(ctx, second, "echo", "", nil); err != nil || p.Size() != 2 {
		t.Fatalf("%d connections, %v", p.Size(), err)
	}
	mu.Lock()
	view = with(t, listen(t, &peer{}), addresses[1])
	close(changed)
	changed = make(chan struct{})
	mu.Unlock()
	select {
	case err := <-hung:
		if !errors.Is(err, mink.ErrUnavailable) {
			t.Errorf("a call to a node that left: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a call to a node that left goes on")
	}
	if p.Size() != 1 {
		t.Errorf("%d connections, one node is left", p.Size())
	}
	if err := p.Action(ctx, second, "echo", "", nil); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil || p.Size() != 0 {
		t.Errorf("%d connections are left, %v", p.Size(), err)
	}
	if err := p.Action(t.Context(), second, "echo", "", nil); !errors.Is(err, mink.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}
