package sim

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/fault/memnet"
	"github.com/mink-project/mink/core/peers"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

var (
	seedFlag = flag.Uint64("sim.seed", 0, "run this seed only")
	logFlag  = flag.String("sim.log", "", "write the processes' log to this file")
)

// run is one seeded simulation.
type run struct {
	*World
	truth *Truth
	model *Model
	keyed *Compacted
	nodes []mink.NodeID

	members *Members

	rows *Rows
	deck []int          // steps to come
	done map[string]int // steps by name

	operator     *peers.Pool
	operatorHost *memnet.Host

	clients sync.WaitGroup
	stop    context.CancelFunc
	ctx     context.Context
	tables  []table
	number  int
}

type table struct {
	id          mink.TableID
	name        string
	refs        []mink.BucketRef
	partitioned bool
	partitions  []mink.PartitionID // oldest first, of a partitioned table
}

func newRun(t testing.TB, cfg Config, nodes int) *run {
	cfg.Kafka = kafkaOn
	w := NewWorld(t, cfg)
	r := &run{World: w, truth: w.NewTruth(), done: map[string]int{}}
	r.rows = w.NewRows(r.truth)
	r.newOperator()
	r.model = w.NewModel(r.truth)
	r.members = w.NewMembers()
	r.keyed = w.NewCompacted(r.truth, time.Duration(cfg.Pace)*15*time.Second)
	for i := range nodes {
		r.nodes = append(r.nodes, mink.NodeID(i+1))
	}
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

// any is some process that answers, nil when none does.
func (r *run) any() *Process {
	procs := r.Processes()
	r.rng.Shuffle(len(procs), func(i, j int) { procs[i], procs[j] = procs[j], procs[i] })
	for _, p := range procs {
		if p.Node() != nil && !p.Paused() {
			return p
		}
	}
	return nil
}

// ensure keeps trying f on some process until it succeeds.
func (r *run) ensure(what string, f func(context.Context, *Process) error) {
	var last error
	for range 400 {
		if p := r.any(); p != nil {
			ctx, cancel := context.WithTimeout(r.ctx, 3*time.Second)
			last = f(ctx, p)
			cancel()
			if last == nil {
				return
			}
		}
		time.Sleep(100 * time.Millisecond)
		r.truth.Look()
	}
	var states []string
	for _, p := range r.Processes() {
		s := fmt.Sprintf("node %d: read metadata %t, paused %t", p.ID, p.Node() != nil, p.Paused())
		if n := p.Node(); n != nil {
			_, epoch := n.Self()
			s += fmt.Sprintf(", epoch %d, at index %d", epoch, n.View().Index())
		}
		states = append(states, s)
	}
	r.Broken("%s does not succeed: %v; processes: %v", what, last, states)
}

// read reads every bucket from every process, zombies too.
func (r *run) read() {
	for _, p := range r.Processes() {
		n := p.Node()
		if n == nil || p.Paused() {
			continue
		}
		for _, ref := range r.model.Buckets() {
			log, err := n.Log(ref)
			if err != nil {
				continue
			}
			ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
			_ = r.model.Read(ctx, log, r.truth.Leads(p, ref)) // the store fails now and then
			cancel()
		}
		for _, ref := range r.keyed.Buckets() {
			log, err := n.Log(ref)
			if err != nil {
				continue
			}
			ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
			_ = r.keyed.Read(ctx, log, r.truth.Leads(p, ref))
			cancel()
		}
		for _, ref := range r.rows.Buckets() {
			log, err := n.Log(ref)
			if err != nil {
				continue
			}
			ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
			_ = r.rows.Read(ctx, log, 0)
			cancel()
		}
	}
}

// chaos runs for d; it looks at everything again and again.
func (r *run) chaos(d time.Duration) {
	pace := time.Duration(r.cfg.Pace)
	for _, id := range r.nodes {
		r.Start(id)
	}
	r.createTable(2, nil)
	r.createMembers(3)
	r.createTable(1, map[string]string{"log_ttl": r.seconds(30)})
	r.createTable(2, nil, schema.KafkaTimestampColumn)
	r.createCompacted()
	r.createRows()
	r.createPartition()
	r.createPartition()
	end := time.Now().Add(d)
	next := time.Now().Add(2 * pace * time.Second)
	for time.Now().Before(end) && len(r.Violations()) == 0 {
		time.Sleep(pace * 500 * time.Millisecond)
		r.truth.Look()
		if time.Now().After(next) {
			r.breakSomething()
			next = time.Now().Add(pace*500*time.Millisecond + r.upTo(pace*4*time.Second))
		}
		if r.rng.IntN(4) == 0 {
			r.read()
		}
		if len(r.nodes) > 1 && r.rng.IntN(2) == 0 {
			r.moveBucket()
		}
	}
	r.stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.clients.Wait()
	}()
	for waiting := true; waiting; r.truth.Look() {
		select {
		case <-ended:
			waiting = false
		case <-time.After(pace * time.Second):
		}
	}
	_ = r.operator.Close()
	r.operatorHost.End()
}

// rest lets time pass, and looks often enough to miss no entry of the log.
func (r *run) rest(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Duration(r.cfg.Pace) * time.Second) {
		r.truth.Look()
	}
	r.truth.Look()
}

// settle ends the chaos: nothing fails any more, one fresh process per node.
func (r *run) settle(t testing.TB) {
	r.StallMetadata(false)
	r.net.Quiet()
	pace := time.Duration(r.cfg.Pace)
	for _, p := range r.Processes() {
		p.Crash()
		_ = p.Wait()
	}
	r.landing.Wait()
	r.cfg.Chaos, r.cfg.MetaFaults = 0, 0
	r.ctx, r.stop = context.WithTimeout(context.Background(), pace*time.Minute)
	defer r.stop()
	var last []*Process
	for _, id := range r.nodes {
		last = append(last, r.Start(id))
	}
	for _, p := range last {
		if err := p.WaitReady(r.ctx); err != nil {
			r.Broken("node %d is not ready in a world without faults: %v", p.ID, err)
			return
		}
	}
	r.rest(3 * r.cfg.LeaseTTL) // every epoch that ended is recovered, and its buckets led
	r.truth.Look()
	r.readAll(last)
	r.model.Finish()
	r.rows.Finish()
	r.members.Check(r.truth.State(), groupName, r.tables[0].refs)
	r.rows.Scan(r.ctx)
	r.rest(pace * 90 * time.Second) // grace, orphan age, sweeps, cleanings
	r.readKeyed(last)
	if len(r.keyed.Buckets()) > 0 && r.keyed.Cleaned() == 0 {
		r.Broken("no record of the compacted topic was ever cleaned away")
	}
	for _, key := range r.truth.Garbage() {
		r.Broken("garbage is left: %s", key)
	}
	for _, p := range last {
		report, err := p.Node().Check(context.Background(), true)
		if err != nil || !report.Clean {
			r.Broken("node %d: check: %v %+v", p.ID, err, report.Problems)
		}
		r.truth.Same(p)
	}
	r.truth.Replay()
	for _, p := range last {
		if err := p.Stop(); err != nil {
			r.Broken("node %d stops with %v", p.ID, err)
		}
	}
}

// readAll reads every bucket from its leader.
func (r *run) readAll(procs []*Process) {
	for _, ref := range r.model.Buckets() {
		read := false
		var last error
		for _, p := range procs {
			log, err := p.Node().Log(ref)
			if err == nil {
				err = r.model.Read(context.Background(), log, true)
				read = read || err == nil
			}
			if err != nil {
				last = err
			}
		}
		if !read {
			r.model.broken(ref, "nobody serves it in a world without faults: %v", last)
		}
	}
	r.readKeyed(procs)
	for _, ref := range r.rows.Buckets() {
		read := false
		var last error
		for _, p := range procs {
			log, err := p.Node().Log(ref)
			if err == nil {
				err = r.rows.Read(context.Background(), log, 0)
				read = read || err == nil
			}
			if err != nil {
				last = err
			}
		}
		if !read {
			r.Broken("bucket %s: nobody serves it in a world without faults: %v", ref, last)
		}
	}
}

// readKeyed reads every bucket of compacted topics from its leader.
func (r *run) readKeyed(procs []*Process) {
	for _, ref := range r.keyed.Buckets() {
		read := false
		var last error
		for _, p := range procs {
			log, err := p.Node().Log(ref)
			if err == nil {
				err = r.keyed.Read(context.Background(), log, true)
				read = read || err == nil
			}
			if err != nil {
				last = err
			}
		}
		if !read {
			r.Broken("bucket %s: nobody serves it in a world without faults: %v", ref, last)
		}
	}
}

func logger(t testing.TB) *slog.Logger {
	if *logFlag == "" {
		return slog.New(slog.DiscardHandler)
	}
	f, err := os.Create(*logFlag)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return slog.New(slog.NewTextHandler(io.Writer(f), nil))
}

func report(t testing.TB, seed uint64, broken []string) {
	t.Helper()
	for _, b := range broken {
		t.Errorf("seed %d: %s", seed, b)
	}
	if len(broken) > 0 {
		t.Logf("again: go test ./core/sim -run '%s' -sim.seed=%d", t.Name(), seed)
	}
}

// result is what one simulation did.
type result struct {
	lived   time.Duration // of all processes together
	faults  map[string]int
	acks    int // records and rows
	entries uint64
	moves   int
}

func (a *result) add(b result) {
	a.lived, a.acks, a.entries, a.moves = a.lived+b.lived, a.acks+b.acks, a.entries+b.entries, a.moves+b.moves
}

func simulate(t *testing.T, cfg Config, nodes int, d time.Duration) (out result) {
	t.Logf("seed %d", cfg.Seed)
	cfg.Logger = logger(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRun(t, cfg, nodes)
		r.chaos(d)
		if len(r.Violations()) == 0 {
			r.settle(t)
		}
		r.Close()
		report(t, cfg.Seed, r.Violations())
		out = result{r.Lived(), r.faults(), r.model.Acks() + r.rows.Acks(), r.truth.State().Index(), r.truth.Moves()}
		commits, generations := r.members.Commits()
		t.Logf("%d records and rows acknowledged, %d commits of a group by %d generations of members, %d metadata entries, %d tables and clients, %d buckets moved, %d records cleaned away, %.2f node-hours",
			out.acks, commits, generations, out.entries, r.number, out.moves, r.keyed.Cleaned(), out.lived.Hours())
	})
	return out
}

func seeds(few, short int) []uint64 {
	if *seedFlag != 0 {
		return []uint64{*seedFlag}
	}
	n := few
	if testing.Short() {
		n = short
	}
	out := make([]uint64, n)
	for i := range out {
		out[i] = 1 + uint64(i)
	}
	return out
}

func clusters(t *testing.T, nodes, few, short int) {
	for _, seed := range seeds(few, short) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { simulate(t, Default(seed), nodes, time.Minute) })
	}
}

func TestOneNode(t *testing.T) { clusters(t, 1, 8, 2) }

func TestTwoNodes(t *testing.T) { clusters(t, 2, 3, 1) }

func TestThreeNodes(t *testing.T) { clusters(t, 3, 3, 1) }
