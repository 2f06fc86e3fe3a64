package sqllog_test

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/pgtest"
	"github.com/mink-project/mink/core/metalog/sqllog"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// scaled is a registered node's replica of a benchmark.
type scaled struct {
	*metalog.Replica
	wal plan.WALID
}

// startScaled opens a log, a replica on it and registers a node; stop ends them.
func startScaled(b *testing.B, url string, id mink.NodeID, cfg metalog.Config) (n scaled, stop func()) {
	b.Helper()
	l, err := sqllog.Open(b.Context(), url, sqllog.Default(), quiet())
	if err != nil {
		b.Fatal(err)
	}
	r, err := metalog.Open(b.Context(), l, cfg, quiet())
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	nonce := 1000 + uint64(id)
	epoch, err := r.Register(b.Context(), &clusterpb.RegisterNode{Node: int32(id), Nonce: nonce, FeatureLevel: 1, FlightAddress: fmt.Sprintf("n%d:1", id)})
	if err != nil {
		b.Fatal(err)
	}
	return scaled{r, plan.WALID{Node: id, Epoch: epoch, Nonce: nonce}}, func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
		_ = l.Close()
	}
}

func (n scaled) propose(b *testing.B, c *clusterpb.Command) {
	b.Helper()
	results, err := n.Propose(b.Context(), c)
	if err == nil {
		err = cluster.ResultError(results[0])
	}
	if err != nil {
		b.Fatal(err)
	}
}

// heap is what is alive, in MB of 10^6 bytes.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / 1e6
}

func allocated() float64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.TotalAlloc) / 1e6
}

// peak is the largest heap while f runs, in MB, looked at every 5 ms.
func peak(f func()) (mb float64) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			mb = max(mb, float64(m.HeapAlloc)/1e6)
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	f()
	close(stop)
	<-done
	return mb
}

// 100,000 buckets of four nodes in 1,000,000 objects: how long the uploads take to apply, a
// snapshot to write, a fresh process to start, and what memory each needs. Once:
//
//	go test ./core/metalog/sqllog -run xxx -bench Metadata1M -benchtime 1x
func BenchmarkMetadata1MObjects(b *testing.B) {
	for name, url := range map[string]func(*testing.B) string{
		"sqlite":   func(b *testing.B) string { return "sqlite:" + filepath.Join(b.TempDir(), "meta.db") },
		"postgres": func(b *testing.B) string { return pgtest.Start(b).Schema(b) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				metadata(b, url(b))
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func metadata(b *testing.B, url string) {
	cfg := metalog.Default()
	empty := heap()
	var nodes []scaled
	var stops []func() // they hold their replicas
	for id := range mink.NodeID(4) {
		n, stop := startScaled(b, url, id+1, cfg)
		nodes, stops = append(nodes, n), append(stops, stop)
	}
	nodes[0].propose(b, &clusterpb.Command{Kind: &clusterpb.Command_CreateDatabase{CreateDatabase: &clusterpb.CreateDatabase{Name: "d"}}})
	for i := range 25 {
		d := &schema.Descriptor{Database: "d", Table: fmt.Sprintf("t%d", i), BucketCount: 4000, Schema: schema.Schema{Columns: []schema.Column{{Name: "a", Type: schema.MustParseType("INT")}}}}
		d, err := d.Normalize()
		if err != nil {
			b.Fatal(err)
		}
		nodes[0].propose(b, &clusterpb.Command{Kind: &clusterpb.Command_CreateTable{CreateTable: &clusterpb.CreateTable{Descriptor_: d.Encode(), Uuid: append(make([]byte, 15), byte(i+1))}}})
	}
	for _, n := range nodes {
		if err := n.WaitApplied(b.Context(), nodes[0].Applied().Index); err != nil {
			b.Fatal(err)
		}
	}
	// Each upload names 2,500 streams in as many objects: 400 of them make 1,000,000.
	start, uploads := time.Now(), 0
	seqs := make([]uint64, len(nodes))
	for range 10 {
		for i, n := range nodes {
			var ids []mink.StreamID
			for st := range n.View().StreamsLedBy(n.wal.Epoch) {
				ids = append(ids, st.ID)
			}
			for part := range slices.Chunk(ids, 2500) {
				uploads++
				seqs[i]++
				n.propose(b, upload(n, part, seqs[i]))
			}
		}
	}
	for _, n := range nodes {
		if err := nodes[0].WaitApplied(b.Context(), n.Applied().Index); err != nil {
			b.Fatal(err)
		}
	}
	took := time.Since(start)
	view := nodes[0].View()
	count, buckets := 0, 0
	for range view.Objects() {
		count++
	}
	for range view.Streams() {
		buckets++
	}
	if count != 1_000_000 || buckets != 100_000 {
		b.Fatalf("%d objects, %d buckets", count, buckets)
	}
	b.ReportMetric(float64(uploads)/took.Seconds(), "uploads/s")
	b.ReportMetric(float64(count)/took.Seconds(), "objects/s")
	for _, stop := range stops[1:] {
		stop()
	}
	nodes, stops = []scaled{nodes[0]}, []func(){stops[0]}
	full := heap()
	b.ReportMetric(full-empty, "MB-state")

	lease, err := nodes[0].TakeLease(b.Context(), time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	before := allocated()
	var snapshot time.Duration
	most := peak(func() {
		start = time.Now()
		if _, err := nodes[0].SnapshotNow(b.Context(), lease); err != nil {
			b.Fatal(err)
		}
		snapshot = time.Since(start)
	})
	b.ReportMetric(snapshot.Seconds(), "s-snapshot")
	b.ReportMetric(most-full, "MB-snapshot-peak")
	b.ReportMetric(allocated()-before, "MB-snapshot-allocated")

	start = time.Now()
	l, err := sqllog.Open(b.Context(), url, sqllog.Default(), quiet())
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	infos, err := l.Snapshots(b.Context())
	if err != nil || len(infos) == 0 {
		b.Fatalf("snapshots %v, %v", infos, err)
	}
	b.ReportMetric(float64(infos[0].Bytes)/1e6, "MB-snapshot")
	r, err := metalog.Open(b.Context(), l, cfg, quiet())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(time.Since(start).Seconds(), "s-start")
	if r.Applied().Index < infos[0].Index {
		b.Fatalf("started at %d, the snapshot is of %d", r.Applied().Index, infos[0].Index)
	}
	runtime.KeepAlive(view)
	stops[0]()
}

// upload is a node's seq'th commit: an object for each stream.
func upload(n scaled, ids []mink.StreamID, seq uint64) *clusterpb.Command {
	c := plan.CommitObjects{WAL: n.wal, Seq: seq, WALTrim: seq}
	view := n.View()
	for i, id := range ids {
		o := plan.ObjectID{Epoch: n.wal.Epoch, Kind: plan.KindStreamSet, Seq: seq*2500 + uint64(i)}
		c.Objects = append(c.Objects, plan.Object{ID: o, WAL: n.wal, Size: 1 << 28, IndexPos: 1 << 27, IndexLen: 1 << 12, IndexCRC: 1 << 31, CreatedMs: 1 << 40})
		st, _ := view.Stream(id)
		c.Items = append(c.Items, plan.Item{Stream: id, LeaderEpoch: st.Owner.LeaderEpoch, Object: o, Start: st.End, End: st.End + 100, Checkpoint: true})
	}
	return cluster.CommitObjectsCommand(c)
}

// Twenty nodes at 50 commands/s each on one Postgres, each command sent on its own schedule
// whether or not the one before it was answered; latency is from when a command was due to
// when its node has applied it. Once:
//
//	go test ./core/metalog/sqllog -run xxx -bench TwentyNodes -benchtime 1x
func BenchmarkTwentyNodes(b *testing.B) {
	pg := pgtest.Start(b)
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			twentyNodes(b, pg.Schema(b))
		}
		b.ReportMetric(0, "ns/op")
	})
	b.Run("one-node", func(b *testing.B) { // one command at a time: the machine's own limit
		for b.Loop() {
			n, stop := startScaled(b, pg.Schema(b), 1, metalog.Default())
			var took []time.Duration
			for range 200 {
				start := time.Now()
				n.propose(b, &clusterpb.Command{Kind: &clusterpb.Command_AllocateWriters{AllocateWriters: &clusterpb.AllocateWriters{Count: 1}}})
				took = append(took, time.Since(start))
			}
			stop()
			percentiles(b, took)
		}
		b.ReportMetric(0, "ns/op")
	})
}

func percentiles(b *testing.B, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	for name, p := range map[string]float64{"ms-p50": 0.5, "ms-p99": 0.99, "ms-max": 1} {
		b.ReportMetric(float64(took[int(p*float64(len(took)-1))].Microseconds())/1e3, name)
	}
}

func twentyNodes(b *testing.B, url string) {
	const nodes, each, seconds = 20, 50, 20
	var all []scaled
	for id := range mink.NodeID(nodes) {
		n, stop := startScaled(b, url, id+1, metalog.Default())
		defer stop()
		all = append(all, n)
	}
	before := all[0].Applied().Index
	var mu sync.Mutex
	var took []time.Duration
	var wg sync.WaitGroup
	start := time.Now()
	for i, n := range all {
		wg.Go(func() {
			tick := time.Second / each
			var calls sync.WaitGroup
			for k := range each * seconds {
				due := start.Add(time.Duration(k)*tick + time.Duration(i)*tick/nodes)
				time.Sleep(time.Until(due))
				calls.Go(func() {
					_, err := n.Propose(b.Context(), &clusterpb.Command{Kind: &clusterpb.Command_AllocateWriters{AllocateWriters: &clusterpb.AllocateWriters{Count: 1}}})
					if err != nil {
						b.Error(err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					took = append(took, time.Since(due))
				})
			}
			calls.Wait()
		})
	}
	wg.Wait()
	ran := time.Since(start)
	percentiles(b, took)
	b.ReportMetric(float64(len(took))/ran.Seconds(), "commands/s")
	b.ReportMetric(float64(all[0].Applied().Index-before)/ran.Seconds(), "entries/s")
}
