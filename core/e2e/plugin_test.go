package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/host/hosttest"
)

func TestMain(m *testing.M) {
	badSinkMain()   // this executable is also a sink
	hosttest.Main() // and the plugin of these tests
	code := m.Run()
	if err := engines.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "readers.py:", err)
		code = 1
	}
	os.Exit(code)
}

// newPluginNode makes a node whose objects, and log if wal is given, are below
// directories that a plugin's process writes; in S3, it answers no directories.
func newPluginNode(t *testing.T, wal bool, flags ...string) (n *node, objects, log string) {
	t.Helper()
	if onS3() {
		if wal {
			flags = append(flags, "--wal-uri", "s3://mink/log")
		}
		return newNode(t, flags...), "", ""
	}
	plugins := t.TempDir()
	hosttest.Install(t, plugins, "dir")
	objects = t.TempDir()
	flags = append(flags, "--plugin-dir", plugins, "--storage-uri", "dir://"+objects)
	if wal {
		log = t.TempDir()
		flags = append(flags, "--wal-uri", "dir://"+log)
	}
	return newNode(t, flags...), objects, log
}

func (n *node) plugin() api.PluginStats {
	n.t.Helper()
	var stats api.Stats
	if err := json.Unmarshal(n.mink(nil, "--json", "cluster", "stats", "--node", "1"), &stats); err != nil {
		n.t.Fatal(err)
	}
	if len(stats.Plugins) != 1 {
		n.t.Fatalf("%d plugins: %+v", len(stats.Plugins), stats.Plugins)
	}
	return stats.Plugins[0]
}

func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// Killing the plugin under load loses nothing, doubles nothing, and the node
// serves again soon: within two seconds, of which a busy machine may make more.
func TestPluginKilledUnderLoad(t *testing.T) {
	const kills, partitions = 30, 3
	n, _, _ := newPluginNode(t, false)
	n.start()
	n.mink(nil, "topic", "create", "load", "--partitions", fmt.Sprint(partitions))
	n.mink(nil, "topic", "create", "probe")
	ctx := t.Context()
	k, err := kgo.NewClient(kgo.SeedBrokers(n.kafka), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	stop, halt := context.WithCancel(ctx)
	defer halt()
	writers := []*acks{{}, {}, {}}
	done := make(chan error, 1)
	go func() { done <- produceLoad(ctx, stop, k, "load", "w", writers) }()
	var worst time.Duration
	for range kills {
		p := n.plugin()
		if p.PID == 0 {
			t.Fatal("no process of the plugin serves")
		}
		if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := k.ProduceSync(ctx, &kgo.Record{Topic: "probe", Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		worst = max(worst, time.Since(began))
		time.Sleep(150 * time.Millisecond)
	}
	halt()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	total := verifyLoad(t, n, "load", writers)
	p := n.plugin()
	t.Logf("%d kills: %d records, each once; an append right after a kill was acknowledged after at most %v; %d restarts", kills, total, worst, p.Restarts)
	if p.Restarts < kills || total == 0 {
		t.Errorf("%d restarts, %d records", p.Restarts, total)
	}
	n.deepCheck()
	n.stop()
	if !ended(p.PID) {
		t.Errorf("process %d of the plugin outlives the node's orderly end", p.PID)
	}
}

// verifyLoad checks that what produceLoad's writers were promised is there, each
// record once, and answers how many there are.
func verifyLoad(t *testing.T, n *node, topic string, writers []*acks) (total int) {
	t.Helper()
	for p, w := range writers {
		promised := w.snapshot(t)
		total += len(promised)
		got := consumePartition(t, n, topic, int32(p))
		if len(got) != len(promised) {
			t.Errorf("partition %d: %d records, %d were acknowledged", p, len(got), len(promised))
		}
		for i, r := range got {
			if want := fmt.Sprintf("w/%d/%d", p, i); string(r.Value) != want {
				t.Fatalf("partition %d, offset %d: %q, want %q", p, r.Offset, r.Value, want)
			}
		}
	}
	return total
}

// deepCheck wants a clean report.
func (n *node) deepCheck() {
	n.t.Helper()
	if out := n.mink(nil, "fsck", "--deep"); !strings.HasPrefix(string(out), "clean") {
		n.t.Errorf("fsck: %s", quote(out))
	}
}

// consumePartition reads a partition from its beginning to its end.
func consumePartition(t *testing.T, n *node, topic string, partition int32) []*kgo.Record {
	t.Helper()
	k, err := kgo.NewClient(kgo.SeedBrokers(n.kafka), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	var got []*kgo.Record
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		fetches := k.PollFetches(ctx)
		cancel()
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		high := int64(-1)
		fetches.EachPartition(func(p kgo.FetchTopicPartition) { high = p.HighWatermark; got = append(got, p.Records...) })
		if high >= 0 && (high == 0 || len(got) > 0 && got[len(got)-1].Offset >= high-1) {
			return got
		}
	}
}

// kill -9 of the node leaves no process of a plugin; the node comes back on it,
// with its log in a store of its own.
func TestNodeKilledOnPlugins(t *testing.T) {
	t.Parallel()
	n, objects, log := newPluginNode(t, true, "--wal-upload-interval", "200ms")
	n.start()
	for round := range 3 {
		n.kcat([]byte(fmt.Sprintf("line %d\n", round)), "-P", "-t", "lines")
		p := n.plugin()
		n.kill()
		eventually(t, "the plugin's process ends with its node", func() bool { return ended(p.PID) })
		n.start()
	}
	out := string(n.kcat(nil, "-C", "-t", "lines", "-o", "beginning", "-e", "-q"))
	if out != "line 0\nline 1\nline 2\n" {
		t.Errorf("%q", out)
	}
	n.deepCheck()
	for dir, want := range map[string]bool{objects: false, log: true} {
		if onS3() {
			dir = filepath.Join(n.s3.Dir, "mink", map[bool]string{false: "node", true: "log"}[want])
		}
		if _, err := os.Stat(filepath.Join(dir, "wal")); (err == nil) != want {
			t.Errorf("%s has the log: %v, want %v", dir, err == nil, want)
		}
	}
	n.stop()
}

// A stopped plugin is noticed and replaced; the node serves on.
func TestPluginStoppedUnderANode(t *testing.T) {
	t.Parallel()
	n, _, _ := newPluginNode(t, false)
	n.start()
	n.kcat([]byte("before\n"), "-P", "-t", "lines")
	p := n.plugin()
	if err := syscall.Kill(p.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	n.kcat([]byte("after\n"), "-P", "-t", "lines")
	if out := string(n.kcat(nil, "-C", "-t", "lines", "-o", "beginning", "-e", "-q")); out != "before\nafter\n" {
		t.Errorf("%q", out)
	}
	if now := n.plugin(); now.PID == p.PID || now.Restarts != 1 || !strings.Contains(now.LastError, "health check") {
		t.Errorf("%+v", now)
	}
	text := string(n.mink(nil, "cluster", "stats"))
	for _, want := range []string{"plugin", "restarts", "health check", "put", "p99"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in the statistics:\n%s", want, text)
		}
	}
	n.stop()
}

func TestDemoOnAPlugin(t *testing.T) {
	t.Parallel()
	plugins := t.TempDir()
	hosttest.Install(t, plugins, "dir")
	uri := "dir://" + t.TempDir()
	out := string(run(t, nil, minkBinary(t), "demo", "--dir", t.TempDir(), "--plugin-dir", plugins, "--storage-uri", uri, "--storage-options", "token=hunter2"))
	if strings.Contains(out, "hunter2") {
		t.Errorf("the demo's output shows a secret:\n%s", out)
	}
	for _, w := range []string{"objects in " + uri, "all 1461 rows are there", "all 1462 lines equal"} {
		if !strings.Contains(out, w) {
			t.Errorf("the demo's output lacks %q:\n%s", w, out)
		}
	}
}

func TestCheckConfig(t *testing.T) {
	t.Parallel()
	n, objects, _ := newPluginNode(t, false)
	check := func(flags ...string) (string, error) {
		cmd := n.command(append([]string{"--check-config"}, flags...)...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := check()
	if err != nil || !strings.Contains(out, "storage_uri dir://"+objects+": opened and read (plugin dir 1.0.0") {
		t.Errorf("%v: %s", err, out)
	}
	out, err = check("--wal-uri", "s3://bucket")
	if err == nil || !strings.Contains(out, "no plugin opens s3://") || !strings.Contains(out, "mink plugin install") {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(n.dir, "data")); err == nil {
		t.Error("a check makes the data directory")
	}
}
