package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mink-project/mink/sdk/api"
)

// leaderlessMax is for how long a broker may name no leader of a partition that moves.
const leaderlessMax = time.Second

// moved is what interop/go/moving prints of one thing that happened.
type moved struct {
	What      string `json:"what"`
	Broker    string `json:"broker"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Value     string `json:"value"`
	Ms        int64  `json:"ms"`
	Error     string `json:"error"`
}

// moving is kafka-go, which writes, reads and asks for the metadata.
type moving struct {
	t    *testing.T
	cmd  *exec.Cmd
	end  func() error // of what it does; it goes on until all is read
	read chan struct{}

	mu           sync.Mutex
	acknowledged map[int32]map[int64]string // by partition and offset
	seen         map[string]int             // how often a value was read
	wrong        []string
}

func startMoving(t *testing.T, brokers []string, topic string) *moving {
	t.Helper()
	program := os.Getenv("MINK_TEST_KAFKA_GO")
	if program == "" {
		t.Skip("MINK_TEST_KAFKA_GO is not set: run make chaos-cluster")
	}
	m := &moving{t: t, read: make(chan struct{}), acknowledged: map[int32]map[int64]string{}, seen: map[string]int{}}
	m.cmd = exec.CommandContext(t.Context(), program, strings.Join(brokers, ","), topic, "kafka-go")
	errOut := &tail{}
	m.cmd.Stderr = errOut
	in, err := m.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	m.end = in.Close
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = m.cmd.Process.Kill()
		<-m.read
		if t.Failed() {
			t.Logf("kafka-go: %s", errOut)
		}
	})
	go func() {
		defer close(m.read)
		for s := bufio.NewScanner(out); s.Scan(); {
			m.take(s.Bytes())
		}
	}()
	return m
}

func (m *moving) take(text []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var l moved
	if err := json.Unmarshal(text, &l); err != nil {
		m.wrong = append(m.wrong, fmt.Sprintf("%q is no line: %v", text, err))
		return
	}
	switch l.What {
	case "acknowledged":
		if m.acknowledged[l.Partition] == nil {
			m.acknowledged[l.Partition] = map[int64]string{}
		}
		if other, twice := m.acknowledged[l.Partition][l.Offset]; twice && other != l.Value {
			m.wrong = append(m.wrong, fmt.Sprintf("partition %d: offset %d was given to %s and to %s", l.Partition, l.Offset, other, l.Value))
		}
		m.acknowledged[l.Partition][l.Offset] = l.Value
	case "read":
		m.seen[l.Value]++
	case "leaderless":
		if d := time.Duration(l.Ms) * time.Millisecond; d > leaderlessMax {
			m.wrong = append(m.wrong, fmt.Sprintf("broker %s named no leader of partition %d for %s", l.Broker, l.Partition, d))
		}
	default:
		m.wrong = append(m.wrong, fmt.Sprintf("partition %d, %s: %s", l.Partition, l.Value, l.Error))
	}
}

// goesOn waits until every partition has more, or something is wrong.
func (m *moving) goesOn(what string, partitions int32) {
	m.t.Helper()
	counts := func() (out []int, wrong bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for p := range partitions {
			out = append(out, len(m.acknowledged[p]))
		}
		return append(out, len(m.seen)), len(m.wrong) > 0
	}
	before, _ := counts()
	eventually(m.t, "kafka-go goes on "+what, func() bool {
		now, wrong := counts()
		for i := range now {
			if now[i] < before[i]+5 {
				return wrong
			}
		}
		return true
	})
}

// Case move_kafka_go with kafka-go itself: partitions move over three nodes, each of which
// goes and comes back in turn, while a writer with ten attempts writes and a group reads.
// No broker names no leader for more than a second, no write fails or is lost.
func TestClusterKafkaGo(t *testing.T) {
	const topic, partitions = "moving", 6
	c := newCluster(t, 3, quiet...)
	c.start()
	c.mink("topic", "create", topic, "--partitions", fmt.Sprint(partitions))
	_, brokers := c.bootstrap()
	m := startMoving(t, brokers, topic)
	m.goesOn("at first", partitions)
	moves := 0
	for _, n := range c.nodes {
		n.terminate()
		n.awaitEnd()
		m.goesOn(fmt.Sprintf("without node %d", n.id), partitions)
		n.restart()
		for _, move := range c.even() {
			if move.Outcome == api.MoveMoved && move.From != 0 {
				moves++
			}
		}
		m.goesOn(fmt.Sprintf("with node %d", n.id), partitions)
	}
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.read:
	case <-time.After(soon):
		t.Fatalf("kafka-go has not read all that it wrote within %s", soon)
	}
	if err := m.cmd.Wait(); err != nil {
		t.Error(err)
	}
	for _, w := range m.wrong {
		t.Error(w)
	}
	rows := 0
	records, _ := (&load{c: c, t: t}).records(t.Context(), topic, "in the end")
	for p := range int32(partitions) {
		next := 0
		stored := map[int64]string{}
		for _, r := range records[p] { // without idempotence a message may be there twice
			if stored[r.Offset] = string(r.Value); stored[r.Offset] == fmt.Sprintf("%d-%d", p, next) {
				next++
			}
		}
		for at, value := range m.acknowledged[p] {
			rows++
			if stored[at] != value {
				t.Errorf("partition %d: %s was acknowledged at offset %d and is not there", p, value, at)
			}
			if m.seen[value] == 0 {
				t.Errorf("partition %d: %s was not read by the group", p, value)
			}
		}
		if next < len(m.acknowledged[p]) {
			t.Errorf("partition %d: %d messages were acknowledged, %d are there in their order", p, len(m.acknowledged[p]), next)
		}
	}
	if moves < partitions {
		t.Errorf("%d partitions moved: the test shows nothing", moves)
	}
	t.Logf("%d messages, %d moves by hand beside those of three nodes that stopped", rows, moves)
	c.stop()
}
