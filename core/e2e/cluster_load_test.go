package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/sdk/client"
)

// What the load of a cluster writes. Buckets are many enough that each node leads
// some of every kind.
const (
	busyTopic, busyPartitions   = "busy", 6
	cleanTopic, cleanPartitions = "clean", 3
	cleanKeys                   = 40
	busyRows, busyParts         = "busy.rows", 8
	busyStock, busyKeys         = "busy.stock", 24
	busyGroup, busyMembers      = "busy", 2
	typedTopic, typedPartitions = "typed", 2 // JSON, each record a row
)

// pulse is the acknowledgements of one writer: how long it went without one.
type pulse struct {
	name string

	mu     sync.Mutex
	last   time.Time
	gap    time.Duration // longest since reset
	begun  time.Time     // of gap
	failed error
}

func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if gap := now.Sub(p.last); gap > p.gap {
		p.gap, p.begun = gap, p.last
	}
	p.last = now
}

func (p *pulse) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil && err != nil {
		p.failed = fmt.Errorf("%s: %w", p.name, err)
	}
}

// reset begins to look for the longest gap.
func (p *pulse) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gap, p.last = 0, time.Now()
}

func (p *pulse) longest() (gap time.Duration, begun time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Since(p.last); now > p.gap {
		return now, p.last
	}
	return p.gap, p.begun
}

// since reports whether an acknowledgement came after at, and the first error.
func (p *pulse) since(at time.Time) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last.After(at), p.failed
}

// series is what one writer of numbered records was promised.
type series struct {
	pulse
	acks
}

func (s *series) done(seq, offset int64, err error) {
	if err != nil {
		s.pulse.fail(fmt.Errorf("record %d: %w", seq, err))
		return
	}
	s.acks.ack(seq, offset)
	s.pulse.beat()
}

// load is writers and readers of a cluster that go on whatever happens to it.
type load struct {
	c    *trio
	t    *testing.T
	cl   *client.Client
	stop context.Context
	end  context.CancelFunc
	g    errgroup.Group
	// Writers hold gate while a write is on its way; who locks it, after a flush of the
	// producers, has a cluster that nobody writes.
	gate      sync.RWMutex
	producers []*kgo.Client
	began     time.Time // of the fault of now

	kafka   map[string][]*series // producer -> partition
	clean   []*series            // partition
	typed   []*series            // partition
	rows    []*series            // part
	stock   []*counter           // key
	seen    groupSeen
	members []*groupMember
	lake    lakeLoad
}

// counter is one row of the primary-key table, which only its own goroutine moves.
type counter struct {
	pulse
	key     counterKey
	changes int64 // acknowledged: write i is i; every fifth deletes
}

type counterKey struct {
	Region string `mink:"region"`
	ID     int64  `mink:"id"`
}

func newSeries(name string, n int) []*series {
	out := make([]*series, n)
	for i := range out {
		out[i] = &series{pulse: pulse{name: writerOf(name, i), last: time.Now()}}
	}
	return out
}

// startLoad makes the tables and begins to write and read.
func startLoad(c *trio) *load {
	c.t.Helper()
	l := &load{c: c, t: c.t, cl: c.client(), kafka: map[string][]*series{}}
	l.stop, l.end = context.WithCancel(c.t.Context())
	c.t.Cleanup(func() { l.end(); _ = l.g.Wait() })
	lake := c.lakeOptions("--option", "")
	c.mink(append([]string{"topic", "create", busyTopic, "--partitions", fmt.Sprint(busyPartitions)}, c.lakeOptions("--config", "mink.")...)...)
	c.mink("topic", "create", cleanTopic, "--partitions", fmt.Sprint(cleanPartitions),
		"--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=0.01")
	c.mink("db", "create", "busy")
	c.mink(append([]string{"table", "create", busyRows, "--bucket-key", "part", "--bucket-count", "6", "-C", "part INT NOT NULL", "-C", "seq BIGINT NOT NULL", "-C", "text STRING"}, lake...)...)
	c.mink(append([]string{"table", "create", busyStock, "--primary-key", "region,id", "--bucket-count", "6",
		"-C", "region STRING NOT NULL", "-C", "id BIGINT NOT NULL", "-C", "n BIGINT", "-C", "kept BIGINT"}, lake...)...)
	c.mink(append([]string{"table", "create", "kafka." + typedTopic, "--bucket-count", fmt.Sprint(typedPartitions), "--option", "kafka.value.format=json",
		"-C", "part INT NOT NULL", "-C", "seq BIGINT NOT NULL", "-C", "tags ARRAY<STRING>"}, lake...)...)
	l.known("kafka."+busyTopic, "kafka."+cleanTopic, "kafka."+typedTopic, busyRows, busyStock)
	l.produce()
	l.append()
	l.upsert()
	l.consume()
	return l
}

// known waits until every node has heard of the tables: a node that has not says that
// they do not exist.
func (l *load) known(tables ...string) {
	l.t.Helper()
	for _, m := range l.c.nodes {
		one := m.node.client()
		for _, table := range tables {
			eventually(l.t, fmt.Sprintf("node %d knows %s", m.id, table), func() bool {
				_, err := one.DescribeTable(l.t.Context(), table)
				return err == nil
			})
		}
	}
}

// pulses are all writers, and the members of the group.
func (l *load) pulses() []*pulse {
	out := l.writers()
	for _, m := range l.members {
		out = append(out, &m.pulse)
	}
	return out
}

// writers are what availability is measured by: members of a group also wait for one
// another.
func (l *load) writers() []*pulse {
	var out []*pulse
	for _, list := range l.kafka {
		for _, s := range list {
			out = append(out, &s.pulse)
		}
	}
	for _, s := range l.clean {
		out = append(out, &s.pulse)
	}
	for _, s := range slices.Concat(l.typed, l.rows) {
		out = append(out, &s.pulse)
	}
	for _, s := range l.stock {
		out = append(out, &s.pulse)
	}
	return out
}

func (l *load) produce() {
	for i, name := range chaosProducers {
		list := newSeries("producer "+name, busyPartitions)
		l.kafka[name] = list
		k := l.c.franz(kgo.ProducerBatchCompression([]kgo.CompressionCodec{kgo.NoCompression(), kgo.ZstdCompression()}[i]),
			kgo.StopProducerOnDataLossDetected(), kgo.MaxBufferedRecords(5000))
		l.send(k, list, busyTopic, func(partition int, seq int64) (key, value []byte) {
			return []byte(name), fmt.Appendf(nil, "%s/%d/%d", name, partition, seq)
		})
	}
	l.clean = newSeries(cleanTopic, cleanPartitions)
	k := l.c.franz(kgo.StopProducerOnDataLossDetected(), kgo.MaxBufferedRecords(5000))
	l.send(k, l.clean, cleanTopic, func(_ int, seq int64) (key, value []byte) {
		return fmt.Appendf(nil, "key-%d", cleanKey(seq)), fmt.Appendf(nil, "%d", seq)
	})
	l.typed = newSeries(typedTopic, typedPartitions)
	k = l.c.franz(kgo.StopProducerOnDataLossDetected(), kgo.MaxBufferedRecords(5000))
	l.send(k, l.typed, typedTopic, func(partition int, seq int64) (key, value []byte) {
		return nil, fmt.Appendf(nil, `{"part":%d,"seq":%d,"tags":["a",null]}`, partition, seq)
	})
}

// cleanKey is the key of a record of the compacted topic.
func cleanKey(seq int64) int64 { return seq * seq % cleanKeys }

// send produces numbered records to every partition until the load ends, then waits for
// all of them.
func (l *load) send(k *kgo.Client, list []*series, topic string, record func(partition int, seq int64) (key, value []byte)) {
	l.producers = append(l.producers, k)
	l.g.Go(func() error {
		seqs := make([]int64, len(list))
		for l.stop.Err() == nil {
			l.sendSome(k, list, seqs, topic, record)
			pause(l.stop, 30*time.Millisecond)
		}
		return k.Flush(l.t.Context())
	})
}

func (l *load) sendSome(k *kgo.Client, list []*series, seqs []int64, topic string, record func(partition int, seq int64) (key, value []byte)) {
	l.gate.RLock()
	defer l.gate.RUnlock()
	for p, s := range list {
		for range 3 {
			seq := seqs[p]
			seqs[p]++
			key, value := record(p, seq)
			k.Produce(l.t.Context(), &kgo.Record{Topic: topic, Partition: int32(p), Key: key, Value: value}, func(r *kgo.Record, err error) {
				s.done(seq, r.Offset, err)
			})
		}
	}
}

// rest runs do while everything that was sent is acknowledged and nothing is written.
func (l *load) rest(do func()) {
	l.t.Helper()
	l.gate.Lock()
	defer l.gate.Unlock()
	ctx, cancel := context.WithTimeout(l.t.Context(), soon)
	defer cancel()
	for _, k := range l.producers {
		if err := k.Flush(ctx); err != nil {
			l.t.Fatalf("records are not acknowledged within %s: %v", soon, err)
		}
	}
	do()
}

func (l *load) append() {
	l.t.Helper()
	w, err := l.cl.NewWriter(l.t.Context(), busyRows, client.DefaultWriter())
	if err != nil {
		l.t.Fatal(err)
	}
	l.rows = newSeries(busyRows, busyParts)
	for part, s := range l.rows {
		l.g.Go(func() error {
			for seq := int64(0); l.stop.Err() == nil; {
				n, err := l.appendSome(w, s, int32(part), seq)
				if err != nil {
					return err
				}
				seq += n
				pause(l.stop, 20*time.Millisecond)
			}
			return nil
		})
	}
}

func (l *load) appendSome(w *client.Writer, s *series, part int32, seq int64) (int64, error) {
	l.gate.RLock()
	defer l.gate.RUnlock()
	rec := numbered(w.Schema(), part, seq, 1+seq%5)
	defer rec.Release()
	a, err := w.Append(l.t.Context(), rec)
	if err == nil {
		err = a.Wait(l.t.Context())
	}
	for i := range rec.NumRows() {
		s.done(seq+i, -1, err)
	}
	return rec.NumRows(), err
}

// upsert moves counters, and looks each up behind every write that was acknowledged.
func (l *load) upsert() {
	l.t.Helper()
	ctx := l.t.Context()
	whole, err := client.NewTypedUpsertWriter[counted](ctx, l.cl, busyStock, client.DefaultUpsert())
	if err != nil {
		l.t.Fatal(err)
	}
	some := client.DefaultUpsert()
	some.Columns = []string{"region", "id", "n"}
	part, err := client.NewTypedUpsertWriter[counted](ctx, l.cl, busyStock, some)
	if err != nil {
		l.t.Fatal(err)
	}
	find, err := client.NewTypedLookuper[counterKey, counted](ctx, l.cl, busyStock, client.DefaultLookup())
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = find.Close() })
	for id := range int64(busyKeys) {
		k := &counter{key: counterKey{[]string{"eu", "us", "moon"}[id%3], id}}
		k.name, k.last = fmt.Sprintf("%s, key %v", busyStock, k.key), time.Now()
		l.stock = append(l.stock, k)
		l.g.Go(func() error {
			for l.stop.Err() == nil {
				l.gate.RLock()
				err := k.move(ctx, whole, part, find)
				l.gate.RUnlock()
				if err != nil {
					k.fail(err)
					return err
				}
				k.beat()
				pause(l.stop, 20*time.Millisecond)
			}
			return nil
		})
	}
}

// want is what the row is after the acknowledged writes.
func (k *counter) want() (n, kept int64, there bool) {
	i := k.changes - 1
	return i, i / 5 * 5, i >= 0 && i%5 != 4
}

func (k *counter) move(ctx context.Context, whole, part *client.TypedUpsertWriter[counted], find *client.TypedLookuper[counterKey, counted]) error {
	i := k.changes
	row := counted{Region: k.key.Region, ID: k.key.ID, N: i}
	var a *client.Append
	var err error
	switch i % 5 {
	case 0:
		row.Kept = &i
		a, err = whole.UpsertRows(ctx, row)
	case 4:
		a, err = whole.DeleteRows(ctx, row)
	default:
		a, err = part.UpsertRows(ctx, row)
	}
	if err == nil {
		err = a.Wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("write %d: %w", i, err)
	}
	k.changes++
	got, ok, err := find.Find(ctx, k.key)
	if err != nil {
		return fmt.Errorf("lookup after write %d: %w", i, err)
	}
	if n, kept, there := k.want(); ok != there || there && (got.N != n || got.Kept == nil || *got.Kept != kept) {
		return fmt.Errorf("after write %d: found %v, %+v", i, ok, got)
	}
	return nil
}

// groupSeen is what the members of the group were given of each partition.
type groupSeen struct {
	mu        sync.Mutex
	values    map[int32][]string // offset -> value
	committed map[int32]int64    // as acknowledged to members, by the last commit, the least of those side by side
	last      map[int32]told     // by partition
}

// told is the newest acknowledgement of a commit.
type told struct {
	at         time.Time
	generation int32
}

// commit notes an acknowledged commit of one partition that was begun at a time. It may
// be below the one before: franz-go holds a commit back during a rebalance, and sends it
// as a member of the new generation, in which somebody else has read on. An older
// generation's is refused.
func (s *groupSeen) commit(p int32, offset int64, generation int32, begun time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.last[p]
	switch {
	case begun.Before(before.at):
		offset = min(offset, s.committed[p])
		generation = max(generation, before.generation)
	case generation < before.generation:
		return fmt.Errorf("partition %d: offset %d was committed in generation %d, after generation %d had committed", p, offset, generation, before.generation)
	}
	s.committed[p], s.last[p] = offset, told{time.Now(), generation}
	return nil
}

// take notes records of one poll: any may come again, none may be passed over, and what
// comes again is the same. From is where the group stood when the member got the
// partition, -1 when it has read of it since.
func (s *groupSeen) take(p int32, records []*kgo.Record, from int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range records {
		have := s.values[p]
		switch end := int64(len(have)); {
		case i == 0 && r.Offset < from:
			return fmt.Errorf("partition %d was assigned when offset %d was committed, and begins at %d", p, from, r.Offset)
		case r.Offset > end:
			return fmt.Errorf("partition %d: offset %d was given, %d to %d never", p, r.Offset, end, r.Offset-1)
		case r.Offset == end:
			s.values[p] = append(have, string(r.Value))
		case have[r.Offset] != string(r.Value):
			return fmt.Errorf("partition %d: offset %d was %q and is %q", p, r.Offset, have[r.Offset], r.Value)
		}
	}
	return nil
}

// groupMember is one consumer of the group; it commits what it was given.
type groupMember struct {
	pulse
	seen *groupSeen
	k    *kgo.Client

	mu   sync.Mutex
	from map[int32]int64 // committed when a partition was assigned, until it is read
}

func (m *groupMember) assigned(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
	m.seen.mu.Lock()
	defer m.seen.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range topics[busyTopic] {
		m.from[p] = m.seen.committed[p]
	}
}

func (m *groupMember) takeFrom(p int32) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	from, ok := m.from[p]
	if !ok {
		return -1
	}
	delete(m.from, p)
	return from
}

// consume reads the topic in a group.
func (l *load) consume() {
	l.seen.values, l.seen.committed, l.seen.last = map[int32][]string{}, map[int32]int64{}, map[int32]told{}
	for i := range busyMembers {
		m := &groupMember{pulse: pulse{name: fmt.Sprintf("member %d of group %s", i, busyGroup), last: time.Now()}, seen: &l.seen, from: map[int32]int64{}}
		l.members = append(l.members, m)
		m.k = l.c.franz(kgo.ConsumeTopics(busyTopic), kgo.ConsumerGroup(busyGroup), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.DisableAutoCommit(), kgo.SessionTimeout(20*time.Second), kgo.HeartbeatInterval(time.Second), kgo.RebalanceTimeout(20*time.Second),
			kgo.OnPartitionsAssigned(m.assigned), kgo.BlockRebalanceOnPoll())
		l.g.Go(func() error {
			for l.stop.Err() == nil {
				m.poll(l.stop)
			}
			m.k.CloseAllowingRebalance()
			return nil
		})
	}
}

// poll reads and commits between two rebalances: what is uncommitted before a commit
// would else not be what the commit holds, when partitions are lost between the two.
func (m *groupMember) poll(stop context.Context) {
	ctx, cancel := context.WithTimeout(stop, 2*time.Second)
	defer cancel()
	fetches := m.k.PollFetches(ctx)
	defer m.k.AllowRebalance()
	fetches.EachError(func(topic string, partition int32, err error) {
		// Without a topic it is news of the group, which the client joins again.
		if topic != "" && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			m.fail(fmt.Errorf("fetch of %s/%d: %w", topic, partition, err))
		}
	})
	if fetches.NumRecords() == 0 {
		return
	}
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		if len(f.Records) > 0 {
			m.fail(m.seen.take(f.Partition, f.Records, m.takeFrom(f.Partition)))
		}
	})
	commit, cancelCommit := context.WithTimeout(context.WithoutCancel(stop), 10*time.Second)
	defer cancelCommit()
	begun := time.Now()
	m.k.CommitOffsetsSync(commit, m.k.UncommittedOffsets(), func(_ *kgo.Client, req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if err == nil { // a rebalance may refuse it, as it does everywhere
			m.committed(begun, req, resp)
		}
	})
}

// committed notes what a commit was told, partition by partition.
func (m *groupMember) committed(begun time.Time, req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse) {
	refused := map[int32]bool{}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			refused[p.Partition] = p.ErrorCode != 0
		}
	}
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			if no, told := refused[p.Partition]; told && !no {
				m.fail(m.seen.commit(p.Partition, p.Offset, req.Generation, begun))
				m.beat()
			}
		}
	}
}

// goesOn waits until every writer has had an acknowledgement after now, and fails the
// test when one has failed.
func (l *load) goesOn(what string) {
	l.t.Helper()
	at := time.Now()
	for deadline := at.Add(soon); ; time.Sleep(20 * time.Millisecond) {
		var late []string
		for _, p := range l.pulses() {
			ok, err := p.since(at)
			if err != nil {
				l.c.keep(what, l.began)
				l.t.Fatalf("%s: a client sees a failure: %v", what, err)
			}
			if !ok {
				late = append(late, p.name)
			}
		}
		if len(late) == 0 {
			return
		}
		if time.Now().After(deadline) {
			l.c.keep(what, l.began)
			l.t.Fatalf("%s: no acknowledgement for %s: %s", what, soon, strings.Join(late, "; "))
		}
	}
}

// during measures the longest time that a writer went without an acknowledgement while
// fault ran and until all go on.
func (l *load) during(what string, fault func()) time.Duration {
	l.t.Helper()
	for _, p := range l.pulses() {
		p.reset()
	}
	l.began = time.Now()
	fault()
	l.goesOn(what)
	var worst time.Duration
	var since time.Time
	var who *pulse
	for _, p := range l.writers() {
		if gap, begun := p.longest(); gap > worst {
			worst, since, who = gap, begun, p
		}
	}
	l.t.Logf("%s: unavailable for at most %.1f s (%s)", what, worst.Seconds(), who.name)
	l.c.explain(what, who, worst, since)
	return worst
}

// finish ends the load: everything that was sent is acknowledged.
func (l *load) finish() {
	l.t.Helper()
	l.end()
	if err := l.g.Wait(); err != nil {
		l.t.Fatalf("the load: %v", err)
	}
	for _, p := range l.pulses() {
		if _, err := p.since(time.Now()); err != nil {
			l.t.Fatalf("a client saw a failure: %v", err)
		}
	}
}
