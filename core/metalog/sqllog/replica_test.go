package sqllog_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/pgtest"
)

// proxy stands between a client and a server, and cuts connections: after a
// request was forwarded its answer is dropped, or the request itself is.
type proxy struct {
	l      net.Listener
	server string
	armed  atomic.Bool
	cuts   atomic.Int64
	wg     sync.WaitGroup
	mu     struct {
		sync.Mutex
		rng   *rand.Rand
		conns []net.Conn
	}
}

func newProxy(t *testing.T, server string, seed uint64) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	p := &proxy{l: l, server: server}
	p.mu.rng = rand.New(rand.NewPCG(seed, 0))
	p.wg.Go(p.serve)
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for _, c := range p.mu.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) serve() {
	for {
		client, err := p.l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.mu.conns = append(p.mu.conns, client, server)
		p.mu.Unlock()
		p.wg.Go(func() { p.pump(server, client) })
		p.wg.Go(func() { p.pump(client, server) })
	}
}

func (p *proxy) pump(to, from net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err == nil && p.armed.Load() && p.cut() {
			p.cuts.Add(1)
			err = io.ErrClosedPipe
		}
		if err == nil {
			_, err = to.Write(buf[:n])
		}
		if err != nil {
			_ = to.Close()
			_ = from.Close()
			return
		}
	}
}

func (p *proxy) cut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.rng.Float64() < 0.03
}

// through is the URL by way of the proxy.
func (p *proxy) through(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	check(t, err)
	u.Host = p.l.Addr().String()
	return u.String()
}

// exactlyOnce runs one proposer over the log and checks that every id was given
// out once. arm turns the faults on and off.
func exactlyOnce(t *testing.T, log metalog.Log, arm func(bool), proposals int) {
	t.Helper()
	cfg := metalog.Default()
	cfg.RetryBackoff, cfg.RetryBackoffMax, cfg.PollInterval = time.Millisecond, 20*time.Millisecond, 50*time.Millisecond
	r, err := metalog.Open(t.Context(), log, cfg, quiet())
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() { cancel(); check(t, <-done) }()
	one := func() int64 {
		res, err := r.Propose(t.Context(), &clusterpb.Command{Kind: &clusterpb.Command_AllocateWriters{AllocateWriters: &clusterpb.AllocateWriters{Count: 1}}})
		check(t, err)
		return res[0].Id
	}
	arm(true)
	_, err = r.Register(t.Context(), &clusterpb.RegisterNode{Node: 1, Nonce: 77, FeatureLevel: 1, FlightAddress: "a:1"})
	check(t, err)
	_, err = r.TakeLease(t.Context(), time.Minute)
	check(t, err)
	first := one()
	for i := range proposals {
		if id := one(); id != first+int64(i)+1 {
			t.Fatalf("proposal %d was answered with id %d, want %d", i, id, first+int64(i)+1)
		}
	}
	arm(false)
	lease, live, err := log.ReadLease(t.Context())
	for err != nil { // a pooled connection that was cut
		lease, live, err = log.ReadLease(t.Context())
	}
	if have := r.View().Lease(); have.Epoch != lease.Epoch || !live {
		t.Fatalf("the lease row says %+v, the state %+v", lease, have)
	}
}

func testLostResponses(t *testing.T, pg *pgtest.Server) {
	for seed := range uint64(2) {
		p := newProxy(t, pg.Addr(), seed)
		log := openURL(t, p.through(t, pg.Schema(t)))
		exactlyOnce(t, log, p.armed.Store, 25)
		check(t, log.Close())
		if p.cuts.Load() == 0 {
			t.Fatalf("seed %d: nothing was cut", seed)
		}
		t.Logf("seed %d: %d connections cut", seed, p.cuts.Load())
	}
}

func TestReplicaOnSQLite(t *testing.T) {
	path := "sqlite:" + filepath.Join(t.TempDir(), "meta.db")
	log := openURL(t, path)
	exactlyOnce(t, log, func(bool) {}, 40)
	r, err := metalog.Open(t.Context(), log, metalog.Default(), quiet())
	check(t, err)
	lease, _, err := log.ReadLease(t.Context())
	check(t, err)
	at, err := r.SnapshotNow(t.Context(), lease)
	check(t, err)
	check(t, log.Close())
	log = openURL(t, path)
	again, err := metalog.Open(t.Context(), log, metalog.Default(), quiet())
	check(t, err)
	if again.Applied() != at || again.View().Lease().Epoch != lease.Epoch {
		t.Fatalf("reopened at %s, closed at %s", again.Applied(), at)
	}
	check(t, log.Close())
}
