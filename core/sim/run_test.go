package sim

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/internal/units"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

var (
	seedFlag = flag.Uint64("sim.seed", 0, "run this seed only")
	runsFlag = flag.Int("sim.runs", 0, "how many seeds to run; 0: a few")
	logFlag  = flag.String("sim.log", "", "write the processes' log to this file")
)

// run is one seeded simulation.
type run struct {
	*World
	truth *Truth
	model *Model
	keyed *Compacted
	nodes []mink.NodeID

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
	w := NewWorld(t, cfg)
	r := &run{World: w, truth: w.NewTruth()}
	r.model = w.NewModel(r.truth)
	r.keyed = w.NewCompacted(r.truth, 15*time.Second)
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

func (r *run) createTable(buckets int32, options map[string]string, partitionKeys ...string) {
	r.number++
	name := fmt.Sprintf("t%d", r.number)
	var id mink.TableID
	r.ensure("create table", func(ctx context.Context, p *Process) error {
		if err := p.Node().CreateDatabase(ctx, "sim", true); err != nil {
			return err
		}
		d, err := schema.KafkaTopic("sim", name, buckets, nil)
		if err != nil {
			return err
		}
		d = d.Clone()
		for k, v := range options {
			if d.Options == nil {
				d.Options = map[string]string{}
			}
			d.Options[k] = v
		}
		d.PartitionKeys = append(d.PartitionKeys, partitionKeys...)
		t, err := p.Node().CreateTable(ctx, d, true)
		if err == nil {
			id = t.ID
		}
		return err
	})
	r.truth.Look()
	tab := table{id: id, name: name, partitioned: len(partitionKeys) > 0}
	for p := range r.truth.State().Partitions(id) {
		tab.refs = append(tab.refs, bucketsOf(p)...)
	}
	for _, ref := range tab.refs {
		if ttl := options["log_ttl"]; ttl != "" {
			d, err := units.ParseDuration(ttl)
			if err != nil {
				r.Broken("%v", err)
			}
			r.model.Expire(ref, d)
		}
		r.produce(ref, true)
		if r.rng.IntN(2) == 0 {
			r.produce(ref, false)
		}
	}
	r.tables = append(r.tables, tab)
}

// createCompacted makes a compacted topic, which stays.
func (r *run) createCompacted() {
	var id mink.TableID
	r.ensure("create compacted topic", func(ctx context.Context, p *Process) error {
		if err := p.Node().CreateDatabase(ctx, "sim", true); err != nil {
			return err
		}
		d, err := schema.KafkaTopic("sim", "keyed", 1, nil)
		if err != nil {
			return err
		}
		d = d.Clone()
		if d.Options == nil {
			d.Options = map[string]string{}
		}
		maps.Copy(d.Options, r.keyed.Options())
		t, err := p.Node().CreateTable(ctx, d, true)
		if err == nil {
			id = t.ID
		}
		return err
	})
	r.truth.Look()
	for p := range r.truth.State().Partitions(id) {
		for _, ref := range bucketsOf(p) {
			for range 2 {
				r.number++
				name, seed := fmt.Sprint("keyed", r.number), r.rng.Uint64()
				r.clients.Go(func() { r.keyed.Write(r.ctx, ref, name, seed) })
			}
		}
	}
}

func bucketsOf(p *cluster.Partition) (refs []mink.BucketRef) {
	for i := range p.Streams {
		refs = append(refs, mink.BucketRef{Table: p.Table, Partition: p.ID, Index: int32(i)})
	}
	return refs
}

// partitionedTable is one that still exists, nil when none does.
func (r *run) partitionedTable() *table {
	for i := range r.tables {
		if r.tables[i].partitioned {
			return &r.tables[i]
		}
	}
	return nil
}

// createPartition makes one more partition of the partitioned table.
func (r *run) createPartition() {
	t := r.partitionedTable()
	if t == nil {
		return
	}
	r.number++
	values := []string{fmt.Sprintf("p%d", r.number)}
	var made *cluster.Partition
	r.ensure("create partition", func(ctx context.Context, p *Process) (err error) {
		made, err = p.Node().EnsurePartition(ctx, t.id, values)
		return err
	})
	if made == nil {
		return // said so
	}
	t.partitions = append(t.partitions, made.ID)
	for _, ref := range bucketsOf(made) {
		t.refs = append(t.refs, ref)
		r.produce(ref, true)
	}
}

// dropPartition drops the oldest partition of the partitioned table, at once or
// closed first, as the coordinator does, and a while later.
func (r *run) dropPartition() {
	t := r.partitionedTable()
	if t == nil || len(t.partitions) < 2 {
		return
	}
	table, id := t.id, t.partitions[0]
	t.partitions = t.partitions[1:]
	t.refs = slices.DeleteFunc(t.refs, func(ref mink.BucketRef) bool {
		if ref.Partition == id {
			r.model.Dropped(ref)
		}
		return ref.Partition == id
	})
	if r.rng.IntN(2) == 0 {
		r.ensure("close partition", func(ctx context.Context, p *Process) error {
			results, err := p.Node().Propose(ctx, &clusterpb.Command{Kind: &clusterpb.Command_ClosePartition{
				ClosePartition: &clusterpb.ClosePartition{Table: int64(table), Partition: int64(id)},
			}})
			if err != nil {
				return err
			}
			return cluster.ResultError(results[0])
		})
		r.truth.Look()
		if p, ok := r.truth.State().Partition(id); !ok || !p.Closed {
			r.Broken("partition %d was closed and is not", id)
		}
		time.Sleep(time.Duration(r.rng.Int64N(int64(3 * time.Second))))
	}
	r.ensure("drop partition", func(ctx context.Context, p *Process) error {
		return p.Node().DropPartition(ctx, table, id, true)
	})
	r.truth.Look()
	if _, ok := r.truth.State().Partition(id); ok {
		r.Broken("partition %d was dropped and is still there", id)
	}
}

func (r *run) produce(ref mink.BucketRef, idempotent bool) {
	r.number++
	kind := "plain"
	if idempotent {
		kind = "idem"
	}
	p := &Producer{
		Name: fmt.Sprintf("%s%d", kind, r.number), Bucket: ref, Idempotent: idempotent,
		Depth: 1 + r.rng.IntN(5), Pause: time.Duration(50+r.rng.IntN(300)) * time.Millisecond, Patience: 4 * time.Second,
	}
	seed := r.rng.Uint64()
	r.clients.Go(func() { r.model.Produce(r.ctx, p, seed) })
}

func (r *run) dropTable() {
	if len(r.tables) < 4 { // those of the beginning stay
		return
	}
	t := r.tables[len(r.tables)-1]
	r.tables = r.tables[:len(r.tables)-1]
	for _, ref := range t.refs {
		r.model.Dropped(ref)
	}
	r.ensure("drop table", func(ctx context.Context, p *Process) error { return p.Node().DropTable(ctx, t.id, true) })
}

func (r *run) alterTable() {
	t := r.tables[r.rng.IntN(len(r.tables))]
	ttl := 20 + r.rng.IntN(20)
	if t.id == r.tables[0].id || t.partitioned {
		return // keeps everything
	}
	for _, ref := range t.refs {
		r.model.Expire(ref, time.Duration(ttl)*time.Second)
	}
	change := schema.Change{Op: schema.SetOptions, Options: map[string]string{"log_ttl": fmt.Sprintf("%ds", ttl)}}
	r.ensure("alter table", func(ctx context.Context, p *Process) error {
		_, err := p.Node().AlterTable(ctx, t.id, []schema.Change{change}, 0)
		return err
	})
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
	}
}

// breakSomething is one step of the chaos.
func (r *run) breakSomething() {
	procs := r.Processes()
	if len(procs) == 0 {
		return
	}
	p := procs[r.rng.IntN(len(procs))]
	delay := time.Duration(r.rng.Int64N(int64(2 * time.Second)))
	step := r.rng.IntN(16)
	r.cfg.Logger.Info("chaos", "step", step, "node", p.ID)
	switch step {
	case 0, 1, 2:
		p.Crash()
		r.later(delay, func() { r.Start(p.ID) })
	case 3: // a zombie: its successor starts beside it
		p.Pause()
		r.later(delay, func() { r.Start(p.ID) })
		r.later(delay+time.Duration(r.rng.Int64N(int64(15*time.Second))), p.Resume)
	case 4: // it stands still for a while, perhaps long enough to be sealed
		p.Pause()
		r.later(time.Duration(r.rng.Int64N(int64(3*r.cfg.LeaseTTL))), p.Resume)
	case 5:
		r.later(0, func() {
			if err := p.Stop(); err != nil && p.Running() {
				r.Broken("node %d does not stop in order: %v", p.ID, err)
			}
			r.Start(p.ID)
		})
	case 6: // the store does not answer, or only to reads
		release := p.Faults.Pause([]fault.Op{fault.AnyOp, fault.Writes, fault.Get}[r.rng.IntN(3)], "")
		r.later(delay*3, release)
	case 7:
		in := p.Faults.Inject(fault.Rule{Probability: 0.7, Do: fault.Throttle(100 * time.Millisecond)})
		r.later(delay*2, in.Remove)
	case 8:
		[]func(bool){r.StallMetadata, r.StallMetadataWrites}[r.rng.IntN(2)](true)
		r.later(delay*2, func() { r.StallMetadata(false) })
	case 9:
		r.createTable(1+r.rng.Int32N(2), [](map[string]string){nil, {"log_ttl": "25s"}}[r.rng.IntN(2)])
	case 10:
		r.dropTable()
	case 11:
		r.alterTable()
	case 12: // it writes on while others have long replaced it
		p.PauseMetadata()
		r.later(delay, func() { r.Start(p.ID) })
		r.later(delay+time.Duration(r.rng.Int64N(int64(10*time.Second))), p.Resume)
	case 13:
		r.createPartition()
	case 14:
		r.dropPartition()
	case 15:
		r.rebalance()
	}
}

// moveBucket asks some bucket's leader for a planned move; whoever asks may lose
// patience long before it ends.
func (r *run) moveBucket() {
	refs := r.model.Buckets()
	ref, to := refs[r.rng.IntN(len(refs))], r.nodes[r.rng.IntN(len(r.nodes))]
	patience := time.Duration(r.rng.Int64N(int64(5 * time.Second)))
	leader := r.Leader(ref)
	if leader == nil {
		return
	}
	r.later(0, func() {
		ctx, cancel := context.WithTimeout(r.ctx, patience)
		defer cancel()
		_ = r.move(ctx, leader, ref, to) // refused, late, or done: the truth says which
	})
}

// rebalance asks whoever coordinates.
func (r *run) rebalance() {
	for _, p := range r.Processes() {
		c := p.Coordinator()
		if c == nil || p.Paused() || !c.Leading() {
			continue
		}
		r.later(0, func() {
			ctx, cancel := context.WithTimeout(r.ctx, 15*time.Second)
			defer cancel()
			_, _ = c.Rebalance(ctx, false, nil) // it may lose its lease meanwhile, or its life
		})
		return
	}
}

func (r *run) later(d time.Duration, f func()) {
	r.clients.Go(func() {
		time.Sleep(d)
		f()
	})
}

// chaos runs for d; it looks at everything again and again.
func (r *run) chaos(d time.Duration) {
	for _, id := range r.nodes {
		r.Start(id)
	}
	r.createTable(2, nil)
	r.createTable(1, map[string]string{"log_ttl": "30s"})
	r.createTable(2, nil, schema.KafkaTimestampColumn)
	r.createCompacted()
	r.createPartition()
	r.createPartition()
	end := time.Now().Add(d)
	next := time.Now().Add(2 * time.Second)
	for time.Now().Before(end) && len(r.Violations()) == 0 {
		time.Sleep(500 * time.Millisecond)
		r.truth.Look()
		if time.Now().After(next) {
			r.breakSomething()
			next = time.Now().Add(500*time.Millisecond + time.Duration(r.rng.Int64N(int64(4*time.Second))))
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
		case <-time.After(time.Second):
		}
	}
}

// rest lets time pass, and looks often enough to miss no entry of the log.
func (r *run) rest(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
		r.truth.Look()
	}
	r.truth.Look()
}

// settle ends the chaos: nothing fails any more, one fresh process per node.
func (r *run) settle(t testing.TB) {
	r.StallMetadata(false)
	for _, p := range r.Processes() {
		p.Crash()
		_ = p.Wait()
	}
	r.landing.Wait()
	r.cfg.Chaos, r.cfg.MetaFaults = 0, 0
	r.ctx, r.stop = context.WithTimeout(context.Background(), time.Minute)
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
	r.rest(90 * time.Second) // grace, orphan age, sweeps, cleanings
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

func simulate(t *testing.T, seed uint64, nodes int, d time.Duration) {
	t.Logf("seed %d", seed)
	cfg := Default(seed)
	cfg.Logger = logger(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRun(t, cfg, nodes)
		r.chaos(d)
		if len(r.Violations()) == 0 {
			r.settle(t)
		}
		r.Close()
		report(t, seed, r.Violations())
		t.Logf("%d records acknowledged, %d metadata entries, %d tables and clients, %d buckets moved, %d records cleaned away", r.model.Acks(), r.truth.State().Index(), r.number, r.truth.Moves(), r.keyed.Cleaned())
	})
}

func seeds(few, short int) []uint64 {
	if *seedFlag != 0 {
		return []uint64{*seedFlag}
	}
	n := few
	switch {
	case *runsFlag > 0:
		n = *runsFlag
	case testing.Short():
		n = short
	}
	first := uint64(1)
	if *runsFlag > 0 {
		first = rand.Uint64N(1 << 40)
	}
	out := make([]uint64, n)
	for i := range out {
		out[i] = first + uint64(i)
	}
	return out
}

func TestOneNode(t *testing.T) {
	for _, seed := range seeds(8, 2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { simulate(t, seed, 1, time.Minute) })
	}
}

func TestTwoNodes(t *testing.T) {
	for _, seed := range seeds(3, 1) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { simulate(t, seed, 2, time.Minute) })
	}
}

func TestThreeNodes(t *testing.T) {
	for _, seed := range seeds(3, 1) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { simulate(t, seed, 3, time.Minute) })
	}
}
