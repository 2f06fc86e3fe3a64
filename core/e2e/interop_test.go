package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The interop matrix: nine Kafka clients, as people use them, against one node.
// interop/README.md says what each does, scripts/interop.sh builds them.

const (
	interopRecords    = 10_000
	interopPartitions = 4
)

// interopMatrix is a ring: each client reads the topic of the one before it,
// and knows that one's codec.
var interopMatrix = []struct{ name, codec string }{
	{"kcat", "zstd"},
	{"franz-go", "zstd"},
	{"sarama", "lz4"},
	{"kafka-go", "snappy"},
	{"confluent-kafka-go", "lz4"},
	{"platformatic", "lz4"},
	{"java", "snappy"},
	{"kafka-python", "gzip"},
	{"kafkajs", "gzip"},
}

// consumed is a record as a client printed it.
type consumed struct {
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	Key       *string  `json:"key"`
	Payload   *string  `json:"payload"`
	Headers   []string `json:"headers"`
}

// interopRecord is record i of a client, without partition and offset.
func interopRecord(client string, i int) consumed {
	key, payload := fmt.Sprintf("k%d", i%97), fmt.Sprintf("%d-%s", i, strings.Repeat("x", i%200))
	r := consumed{Key: &key, Payload: &payload, Headers: []string{"client", client}}
	if client != "kcat" { // it has one set of headers for a whole run
		r.Headers = append(r.Headers, "n", strconv.Itoa(i))
	}
	switch {
	case i%100 == 50:
		key, r.Payload = fmt.Sprintf("t%d", i), nil
	case i%10 == 9:
		r.Key = nil
	}
	return r
}

func (r consumed) String() string {
	text := func(s *string) string {
		if s == nil {
			return "null"
		}
		return strconv.Quote(*s)
	}
	return fmt.Sprintf("partition %d offset %d key %s value %s headers %q", r.Partition, r.Offset, text(r.Key), text(r.Payload), r.Headers)
}

// index answers which record of the client it must be.
func (r consumed) index() (int, error) {
	switch {
	case r.Payload != nil:
		head, _, _ := strings.Cut(*r.Payload, "-")
		return strconv.Atoi(head)
	case r.Key != nil:
		return strconv.Atoi(strings.TrimPrefix(*r.Key, "t"))
	}
	return 0, fmt.Errorf("neither key nor value")
}

// checkInterop checks that the records are exactly those from to from+n-1 of the
// client, each once, complete, in order within its partition, at the offsets
// that follow those of next, which it moves on.
func checkInterop(records []consumed, client string, from, n int, next map[int32]int64) error {
	seen := make([]bool, n)
	last, home := map[int32]int{}, map[string]int32{}
	for _, r := range records {
		i, err := r.index()
		if err != nil {
			return fmt.Errorf("%s: %w", r, err)
		}
		if i < from || i >= from+n {
			return fmt.Errorf("%s: not among the records %d to %d", r, from, from+n-1)
		}
		if seen[i-from] {
			return fmt.Errorf("%s: a second time", r)
		}
		seen[i-from] = true
		want := interopRecord(client, i)
		want.Partition, want.Offset = r.Partition, r.Offset
		if r.String() != want.String() {
			return fmt.Errorf("%s: want %s", r, want)
		}
		if r.Offset != next[r.Partition] {
			return fmt.Errorf("%s: want offset %d", r, next[r.Partition])
		}
		next[r.Partition]++
		if l, ok := last[r.Partition]; ok && l > i {
			return fmt.Errorf("%s: after record %d", r, l)
		}
		last[r.Partition] = i
		if r.Key == nil {
			continue
		}
		if p, ok := home[*r.Key]; ok && p != r.Partition {
			return fmt.Errorf("%s: its key is in partition %d as well", r, p)
		}
		home[*r.Key] = r.Partition
	}
	if i := slices.Index(seen, false); i >= 0 {
		return fmt.Errorf("%d of %d records; the first that is missing is %d", len(records), n, from+i)
	}
	if len(last) != interopPartitions {
		return fmt.Errorf("%d of %d partitions have records", len(last), interopPartitions)
	}
	return nil
}

// interopRun runs client programs against a broker and remembers the outcome.
type interopRun struct {
	broker   string
	commands map[string][]string // without those that could not be built

	mu      sync.Mutex
	results map[string]map[string]string // by client and step
}

func (m *interopRun) set(client, step, result string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.results[client] == nil {
		m.results[client] = map[string]string{}
	}
	m.results[client][step] = result
}

// step runs one step of a client and fails the test when it fails.
func (m *interopRun) step(t *testing.T, client, step string, do func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	start := time.Now()
	m.set(client, step, "FAILED")
	if err := do(ctx); err != nil {
		t.Fatalf("%s: %v", step, err)
	}
	m.set(client, step, fmt.Sprintf("%.1f s", time.Since(start).Seconds()))
}

func (m *interopRun) client(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
	command := append(slices.Clone(m.commands[name]), args...)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin = bytes.NewReader(stdin)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, tailOf(errOut.Bytes()))
	}
	return out.Bytes(), nil
}

func tailOf(b []byte) []byte { return b[max(0, len(b)-4000):] }

func (m *interopRun) produce(ctx context.Context, name string, from, n int, codec string) error {
	topic := "interop-" + name
	if name != "kcat" {
		_, err := m.client(ctx, nil, name, "produce", m.broker, topic, strconv.Itoa(from), strconv.Itoa(n), codec)
		return err
	}
	var in bytes.Buffer // a line without the delimiter has no key, with -Z an empty value is none
	for i := from; i < from+n; i++ {
		r := interopRecord(name, i)
		if r.Key != nil {
			in.WriteString(*r.Key + ":")
		}
		if r.Payload != nil {
			in.WriteString(*r.Payload)
		}
		in.WriteByte('\n')
	}
	args := []string{"-b", m.broker, "-P", "-t", topic, "-K:", "-Z", "-H", "client=kcat", "-X", "enable.idempotence=true"}
	if codec != "default" {
		args = append(args, "-z", codec)
	}
	_, err := m.client(ctx, in.Bytes(), name, args...)
	return err
}

// consume answers what a consumer of the group reads of the owner's topic.
func (m *interopRun) consume(ctx context.Context, name, owner, group string, n int) (records []consumed, err error) {
	topic := "interop-" + owner
	args := []string{"consume", m.broker, topic, group, strconv.Itoa(n)}
	if name == "kcat" {
		args = []string{"-b", m.broker, "-G", group, "-J", "-c", strconv.Itoa(n), "-X", "auto.offset.reset=earliest", "-X", "check.crcs=true", topic}
	}
	out, err := m.client(ctx, nil, name, args...)
	if err != nil {
		return nil, err
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var r consumed
		if err := dec.Decode(&r); err != nil {
			return nil, fmt.Errorf("%s printed what is no record: %w", name, err)
		}
		records = append(records, r)
	}
	return records, nil
}

// codecs answers the codecs of the batches that the client wrote when not asked
// and when asked.
func (m *interopRun) codecs(ctx context.Context, name string) (unasked, asked []string, err error) {
	c, err := kgo.NewClient(kgo.SeedBrokers(m.broker), kgo.ConsumeTopics("interop-"+name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	names := []string{"none", "gzip", "snappy", "lz4", "zstd"}
	for count := 0; count < 2*interopRecords; {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, nil, err
		}
		for r := range fetches.RecordsAll() {
			count++
			codec := names[r.Attrs.CompressionType()]
			i, err := (consumed{Key: stringOf(r.Key), Payload: stringOf(r.Value)}).index()
			if err != nil {
				return nil, nil, err
			}
			of := &unasked
			if i >= interopRecords {
				of = &asked
			}
			if !slices.Contains(*of, codec) {
				*of = append(*of, codec)
			}
		}
	}
	return unasked, asked, nil
}

func stringOf(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}

func interopCommands(t *testing.T) map[string][]string {
	t.Helper()
	path := os.Getenv("MINK_TEST_INTEROP")
	if path == "" {
		t.Skip("MINK_TEST_INTEROP is not set: run scripts/interop.sh")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	commands := map[string][]string{}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		name, command, ok := strings.Cut(s.Text(), "\t")
		if !ok {
			t.Fatalf("%s: %q is no NAME<tab>COMMAND", path, s.Text())
		}
		commands[name] = strings.Fields(command)
	}
	return commands
}

// Each client produces, reads back in a group, commits, produces with a codec,
// and a second consumer of the group gets only that; then each reads all that
// its neighbour wrote.
func TestInterop(t *testing.T) {
	m := &interopRun{commands: interopCommands(t), results: map[string]map[string]string{}}
	if m.broker = os.Getenv("MINK_TEST_INTEROP_BROKER"); m.broker == "" {
		n := newNode(t, "--default-partitions", strconv.Itoa(interopPartitions))
		n.start()
		m.broker = n.kafka
	}
	defer m.print()
	t.Run("own", func(t *testing.T) {
		for _, c := range interopMatrix {
			t.Run(c.name, func(t *testing.T) { m.own(t, c.name, c.codec) })
		}
	})
	ring := slices.DeleteFunc(slices.Clone(interopMatrix), func(c struct{ name, codec string }) bool { return m.commands[c.name] == nil })
	t.Run("ring", func(t *testing.T) {
		for i, c := range ring {
			owner := ring[(i+len(ring)-1)%len(ring)].name
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				m.step(t, c.name, "neighbour", func(ctx context.Context) error {
					records, err := m.consume(ctx, c.name, owner, "ring-"+c.name, 2*interopRecords)
					if err != nil {
						return err
					}
					return checkInterop(records, owner, 0, 2*interopRecords, map[int32]int64{})
				})
			})
		}
	})
}

func (m *interopRun) own(t *testing.T, name, codec string) {
	t.Parallel()
	if m.commands[name] == nil {
		m.set(name, "produce", "left out")
		t.Skip("not built: see what scripts/interop.sh printed")
	}
	next := map[int32]int64{}
	group := "group-" + name
	read := func(from int) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			records, err := m.consume(ctx, name, name, group, interopRecords)
			if err != nil {
				return err
			}
			return checkInterop(records, name, from, interopRecords, next)
		}
	}
	m.step(t, name, "produce", func(ctx context.Context) error { return m.produce(ctx, name, 0, interopRecords, "default") })
	m.step(t, name, "group", read(0))
	m.step(t, name, codec, func(ctx context.Context) error {
		return m.produce(ctx, name, interopRecords, interopRecords, codec)
	})
	m.step(t, name, "second consumer", read(interopRecords))
	m.step(t, name, "codecs", func(ctx context.Context) error {
		unasked, asked, err := m.codecs(ctx, name)
		if err != nil {
			return err
		}
		m.set(name, "default codec", strings.Join(unasked, ", "))
		// Some send a batch as it is when its compressed form is larger.
		others := slices.DeleteFunc(slices.Clone(asked), func(c string) bool { return c == codec || c == "none" })
		if !slices.Contains(asked, codec) || len(others) > 0 {
			return fmt.Errorf("codecs %v where %s was asked for", asked, codec)
		}
		return nil
	})
}

// print shows the table; "-" is a step that did not come to be.
func (m *interopRun) print() {
	w := table.NewWriter()
	w.SetStyle(table.StyleLight)
	w.AppendHeader(table.Row{"client", "produce", "default codec", "group", "codec", "produce", "second consumer", "neighbour's topic"})
	for _, c := range interopMatrix {
		row := table.Row{c.name}
		for _, step := range []string{"produce", "default codec", "group", "", c.codec, "second consumer", "neighbour"} {
			switch r, ok := m.results[c.name][step]; {
			case step == "":
				row = append(row, c.codec)
			case ok:
				row = append(row, r)
			default:
				row = append(row, "-")
			}
		}
		w.AppendRow(row)
	}
	fmt.Println(w.Render())
}

// The matrix shows what its check can see.
func TestInteropCheckSees(t *testing.T) {
	whole := func() (records []consumed) {
		next := map[int32]int64{}
		for i := range 1000 {
			r := interopRecord("c", i)
			if r.Key != nil {
				r.Partition = int32(len(*r.Key)+int((*r.Key)[len(*r.Key)-1])) % interopPartitions
			}
			r.Offset = next[r.Partition]
			next[r.Partition]++
			records = append(records, r)
		}
		return records
	}
	if err := checkInterop(whole(), "c", 0, 1000, map[int32]int64{}); err != nil {
		t.Fatal(err)
	}
	other := "other"
	for name, spoil := range map[string]func(r []consumed) []consumed{
		"a record is missing":         func(r []consumed) []consumed { return r[:len(r)-1] },
		"a record comes twice":        func(r []consumed) []consumed { return append(r, r[len(r)-1]) },
		"two records change places":   func(r []consumed) []consumed { r[3], r[100] = r[100], r[3]; return r },
		"contents change places":      func(r []consumed) []consumed { r[9].Payload, r[19].Payload = r[19].Payload, r[9].Payload; return r },
		"another key":                 func(r []consumed) []consumed { r[7].Key = &other; return r },
		"another value":               func(r []consumed) []consumed { *r[7].Payload += "y"; return r },
		"a header is lost":            func(r []consumed) []consumed { r[7].Headers = r[7].Headers[:2]; return r },
		"a tombstone is empty":        func(r []consumed) []consumed { r[50].Payload = new(string); return r },
		"an absent key is empty":      func(r []consumed) []consumed { r[9].Key = new(string); return r },
		"an offset is passed over":    func(r []consumed) []consumed { r[len(r)-1].Offset++; return r },
		"what was read before, again": func(r []consumed) []consumed { return append(r[:1:1], r...) },
	} {
		t.Run(name, func(t *testing.T) {
			if checkInterop(spoil(whole()), "c", 0, 1000, map[int32]int64{}) == nil {
				t.Error("not seen")
			}
		})
	}
}
