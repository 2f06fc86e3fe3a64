package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mink-project/mink/core/metalog/pgtest"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
)

// sinkSteps are the steps of a round at which something is killed.
var sinkSteps = []string{"open", "recover", "begin", "write", "prepare", "commit", "record"}

// sinkChaos is two nodes that share metadata and store, and the Postgres that their sink
// writes to.
type sinkChaos struct {
	t      *testing.T
	nodes  []*node
	meta   *pgtest.Server
	target *pgtest.Server
	c      *client.Client
	asks   []*client.Client // one for each node, that asks no other
	hits   map[string]int
	random *rand.Rand
}

// TestSinkChaos kills nodes, the sink's process and its Postgres at the steps of rounds, and
// pauses the node that tiers, so that two workers believe that a table is theirs. In the end the
// tables in Postgres are those of Mink, row by row. ROUNDS=200 make chaos-sink.
func TestSinkChaos(t *testing.T) {
	minkBinary(t)
	rounds := number(t, "MINK_TEST_CHAOS_ROUNDS", 5)
	seed := uint64(number(t, "MINK_TEST_CHAOS_SEED", int(time.Now().UnixNano()&0xffffff)))
	t.Logf("%d rounds, seed %d", rounds, seed)
	x := &sinkChaos{t: t, meta: pgtest.Start(t), target: pgtest.Start(t), hits: map[string]int{}, random: rand.New(rand.NewPCG(seed, 1))}
	plugins, objects, meta := installSink(t, "postgres"), t.TempDir(), x.meta.Schema(t)
	for id := range 2 {
		n := newNode(t, "--node-id", fmt.Sprint(id+1), "--meta-url", meta, "--storage-uri", "file://"+objects, "--plugin-dir", plugins, "--lake-catalog", "off",
			"--lease-ttl", "3s", "--coordinator-tick", "500ms", "--wal-upload-interval", "100ms", "--kv-snapshot-interval", "5s",
			"--sinks", "warehouse.plugin=postgres,warehouse.options.url="+x.target.URL())
		n.start()
		x.nodes = append(x.nodes, n)
	}
	cfg := client.Default()
	cfg.RetryWait, cfg.RetryWaitMax = 20*time.Millisecond, 200*time.Millisecond
	for _, n := range x.nodes {
		cfg.Bootstrap = append(cfg.Bootstrap, "grpc://"+n.flight)
		x.asks = append(x.asks, n.client())
	}
	var err error
	if x.c, err = client.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.c.Close() })
	x.nodes[0].createTable("db.log", sinkColumns, "--bucket-count", "3", "--sink", "warehouse,freshness=1s")
	x.nodes[0].createTable("db.keyed", sinkColumns, "--primary-key", "id", "--bucket-key", "id", "--bucket-count", "2", "--sink", "warehouse,freshness=1s")

	stop, halt := context.WithCancel(t.Context())
	defer halt()
	done := make(chan error, 1)
	go func() { done <- sinkLoad(t.Context(), stop, x.c, "db.log", "db.keyed") }()
	for round := range rounds {
		x.round(round)
		if round%10 == 9 {
			x.noDuplicates()
			t.Logf("%d rounds are over", round+1)
		}
	}
	halt()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	x.finish()
	t.Logf("killed or paused at: %v", x.hits)
}

// round waits for a step of a round, and ends something at it.
func (x *sinkChaos) round(round int) {
	x.t.Helper()
	victim := []string{"node", "plugin", "postgres", "pause"}[round%4]
	step := sinkSteps[x.random.IntN(len(sinkSteps))]
	at, n := x.await(step, 3*time.Second)
	key := victim + " at " + at
	switch victim {
	case "node":
		n.kill()
		n.start()
	case "plugin":
		if p, serves := x.plugin(n); serves {
			if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				x.t.Fatal(err)
			}
		} else {
			key = "no plugin"
		}
	case "postgres":
		if err := errors.Join(x.target.Down("QUIT"), x.target.Up(x.t.Context())); err != nil {
			x.t.Fatal(err)
		}
	case "pause": // for longer than its lease: the other node goes on while this one is in a round
		if err := n.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			x.t.Fatal(err)
		}
		pause(x.t.Context(), time.Duration(4000+x.random.IntN(3000))*time.Millisecond)
		if err := n.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			x.t.Fatal(err)
		}
		pause(x.t.Context(), time.Second)
		select {
		case err := <-n.exited: // replaced, or its log was fenced
			x.t.Logf("the paused node ended: %v", err)
			n.cmd = nil
			n.start()
		default:
		}
	}
	x.hits[key]++
}

// await waits until some node is at a step of a round; after a while whatever it does.
func (x *sinkChaos) await(step string, limit time.Duration) (at string, n *node) {
	deadline := time.Now().Add(limit)
	holder := x.nodes[x.random.IntN(2)]
	at = "idle"
	for time.Now().Before(deadline) {
		for i, c := range x.asks {
			ctx, cancel := context.WithTimeout(x.t.Context(), 500*time.Millisecond)
			stats, err := c.Stats(ctx)
			cancel()
			if err != nil {
				continue
			}
			for _, s := range stats.Tiering {
				holder = x.nodes[i]
				if s.Step == step {
					return step, holder
				}
			}
		}
		pause(x.t.Context(), time.Millisecond)
	}
	return at, holder
}

func (x *sinkChaos) plugin(n *node) (api.PluginStats, bool) {
	stats, err := x.asks[slices.Index(x.nodes, n)].Stats(x.t.Context())
	if err != nil {
		return api.PluginStats{}, false
	}
	i := slices.IndexFunc(stats.Plugins, func(p api.PluginStats) bool { return p.Kind == "sink" && p.PID != 0 })
	if i < 0 {
		return api.PluginStats{}, false
	}
	return stats.Plugins[i], true
}

func (x *sinkChaos) connect() *pgx.Conn {
	x.t.Helper()
	conn, err := pgx.Connect(x.t.Context(), x.target.URL())
	if err != nil {
		x.t.Fatal(err)
	}
	return conn
}

// noDuplicates: the load gives each row of the log table an id of its own.
func (x *sinkChaos) noDuplicates() {
	x.t.Helper()
	conn := x.connect()
	defer func() { _ = conn.Close(x.t.Context()) }()
	var rows, ids int64
	if err := conn.QueryRow(x.t.Context(), `SELECT count(*), count(DISTINCT id) FROM db.log`).Scan(&rows, &ids); err != nil {
		x.t.Fatal(err)
	}
	if rows != ids {
		x.t.Fatalf("%d rows of %d ids", rows, ids)
	}
}

// finish lets the sink have everything, and compares.
func (x *sinkChaos) finish() {
	x.t.Helper()
	for _, table := range []string{"db.log", "db.keyed"} {
		eventually(x.t, table+" is tiered", func() bool {
			r, err := x.c.TierTable(x.t.Context(), api.TierTable{Table: table, Sink: "warehouse", Wait: true})
			return err == nil && r.Tiered
		})
	}
	inLog, inKeyed := sourceRows(x.t.Context(), x.t, x.c, "db.log", "db.keyed")
	if len(inLog) < 50 || len(inKeyed) < 20 {
		x.t.Fatalf("the load wrote %d and %d rows only", len(inLog), len(inKeyed))
	}
	conn := x.connect()
	defer func() { _ = conn.Close(x.t.Context()) }()
	for table, want := range map[string]map[string]int{"db.log": inLog, "db.keyed": inKeyed} {
		rows, err := conn.Query(x.t.Context(), `SELECT id, part, note FROM `+table)
		if err != nil {
			x.t.Fatal(err)
		}
		list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[sinkRow])
		if err != nil {
			x.t.Fatal(err)
		}
		got := map[string]int{}
		for _, r := range list {
			got[r.String()]++
		}
		compareRows(x.t, table+" in Postgres", got, want)
		x.t.Logf("%s: %d rows, the same in Postgres", table, len(list))
	}
}

// Sinks that are slow, down, full, or answer nonsense hold their own tables, and say why; the
// good sink of the same tables, and other tables, go on.
func TestBadSinksHoldOnlyTheirTables(t *testing.T) {
	t.Parallel()
	good, plugins := t.TempDir(), installSink(t, "jsonl")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), badSinkFile)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	run(t, nil, minkBinary(t), "plugin", "install", path, "--plugin-dir", plugins)
	modes := []string{"slow", "down", "full", "garbage"}
	sinks := "good.plugin=jsonl,good.options.dir=" + good
	for _, m := range modes {
		sinks += fmt.Sprintf(",%s.plugin=bad,%s.options.mode=%s", m, m, m)
	}
	n := newNode(t, "--plugin-dir", plugins, "--wal-upload-interval", "100ms", "--lake-catalog", "off", "--tiering-timeout", "3s", "--sinks", sinks)
	n.start()
	for _, m := range append(modes, "none") {
		flags := []string{"--sink", "good,freshness=1s"}
		if m != "none" {
			flags = append(flags, "--sink", m+",freshness=1s")
		}
		n.createTable("db."+m, sinkColumns, flags...)
	}
	for i := range 3 { // they go on while the others fail
		for _, m := range append(modes, "none") {
			n.mink([]byte(fmt.Sprintf(`{"id":%d,"part":%d,"note":"a"}`+"\n", i, i)), "write", "db."+m)
		}
		pause(t.Context(), time.Second)
	}
	want := map[string]int{"0|0|a": 1, "1|1|a": 1, "2|2|a": 1}
	for _, m := range append(modes, "none") {
		n.sinkHasAll("db."+m, "good")
		compareRows(t, m+" at the good sink", jsonlRows(t, good, "db", m, false), want)
	}
	why := map[string]string{"slow": "no progress", "down": "the target is away", "full": "disk is full", "garbage": "rows that the log has not"}
	for _, m := range modes {
		eventually(t, m+" says why it waits", func() bool {
			stats, err := n.client().Stats(t.Context())
			if err != nil {
				return false
			}
			i := slices.IndexFunc(stats.Tiering, func(s api.TieringStats) bool { return s.Sink == m })
			return i >= 0 && strings.Contains(stats.Tiering[i].LastError, why[m]) && stats.Tiering[i].LagOffsets == 3
		})
	}
	n.stop()
}
