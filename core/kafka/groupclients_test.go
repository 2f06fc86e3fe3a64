package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mink-project/mink/core/kafka/group"
)

// groupReader is a group consumer that commits what it got before it polls again.
type groupReader struct {
	t    *testing.T
	cl   *kgo.Client
	stop func()

	mu struct {
		sync.Mutex
		assigned map[int32]bool
		revoked  int
		got      []string // values
		// forgotten: the group may have forgotten the reader, and refuse its commit.
		forgotten bool
	}
}

func readGroup(t *testing.T, addr, name string, opts ...kgo.Opt) *groupReader {
	t.Helper()
	r := &groupReader{t: t}
	r.mu.assigned = map[int32]bool{}
	forget := func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, p := range parts["t"] {
			delete(r.mu.assigned, p)
			r.mu.revoked++
		}
	}
	r.cl = kgoClient(t, addr, append([]kgo.Opt{
		kgo.ConsumerGroup(name), kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(), kgo.HeartbeatInterval(50 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }), kgo.MetadataMinAge(20 * time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, p := range parts["t"] {
				r.mu.assigned[p] = true
			}
		}),
		kgo.OnPartitionsRevoked(forget), kgo.OnPartitionsLost(forget),
	}, opts...)...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.poll(ctx) }()
	r.stop = sync.OnceFunc(func() { cancel(); <-done; r.cl.CloseAllowingRebalance() })
	t.Cleanup(r.stop)
	return r
}

func (r *groupReader) poll(ctx context.Context) {
	owed := false // a commit was refused: what it held is this member's still
	for ctx.Err() == nil {
		polling, cancel := ctx, context.CancelFunc(func() {})
		if owed {
			polling, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
		}
		fetches := r.cl.PollFetches(polling)
		cancel()
		var values []string
		fetches.EachRecord(func(rec *kgo.Record) { values = append(values, string(rec.Value)) })
		if len(values) > 0 || owed {
			err := r.cl.CommitUncommittedOffsets(context.WithoutCancel(ctx))
			owed = err != nil
			if err != nil && !(r.wasForgotten() && errors.Is(err, kerr.RebalanceInProgress)) {
				r.t.Errorf("commit: %v", err)
			}
		}
		r.mu.Lock()
		r.mu.got = append(r.mu.got, values...)
		r.mu.Unlock()
		r.cl.AllowRebalance()
	}
}

func (r *groupReader) values() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.mu.got)
}

func (r *groupReader) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.forgotten = true
}

func (r *groupReader) wasForgotten() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.forgotten
}

func (r *groupReader) owns() map[int32]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.mu.assigned)
}

func (r *groupReader) revoked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.revoked
}

// produceRound produces values round to every partition of "t".
func produceRound(t *testing.T, addr string, round int) []string {
	t.Helper()
	cl := kgoClient(t, addr, kgo.DefaultProduceTopic("t"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer cl.Close()
	var values []string
	var records []*kgo.Record
	for i := range 30 {
		values = append(values, fmt.Sprintf("%d-%02d", round, i))
		records = append(records, &kgo.Record{Partition: int32(i % 3), Value: []byte(values[i])})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := cl.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return values
}

// shared waits until the readers own every partition, each one.
func shared(t *testing.T, readers ...*groupReader) {
	t.Helper()
	until(t, "partitions for everyone", func() bool {
		n := 0
		for _, r := range readers {
			o := len(r.owns())
			if o == 0 {
				return false
			}
			n += o
		}
		return n == 3
	})
}

// readOnce waits until the readers together got want, and nothing twice, except
// what a forgotten reader could not commit.
func readOnce(t *testing.T, want []string, readers ...*groupReader) {
	t.Helper()
	var got []string
	until(t, "every record", func() bool {
		got = nil
		forgotten := false
		for _, r := range readers {
			got = append(got, r.values()...)
			forgotten = forgotten || r.wasForgotten()
		}
		slices.Sort(got)
		if forgotten {
			got = slices.Compact(got)
		}
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		t.Fatalf("read %d records %v, want %d", len(got), got, len(want))
	}
}

// committedIn sums a group's offsets.
func committedIn(s *testServer, name string) (sum int) {
	for _, o := range s.node.View().GroupOffsets(name) {
		sum += int(o.Offset)
	}
	return sum
}

// franz-go groups with eager and cooperative balancers: a second member, one that
// leaves, and a listener that starts again. Every record is read once.
func TestFranzGoGroups(t *testing.T) {
	for name, balancer := range map[string]kgo.GroupBalancer{
		"range": kgo.RangeBalancer(), "sticky": kgo.StickyBalancer(), "cooperative": kgo.CooperativeStickyBalancer(),
	} {
		t.Run(name, func(t *testing.T) {
			s := startGroups(t, nil)
			want := produceRound(t, s.addr, 1)
			a := readGroup(t, s.addr, "g", kgo.Balancers(balancer))
			readOnce(t, want, a)
			b := readGroup(t, s.addr, "g", kgo.Balancers(balancer))
			shared(t, a, b)
			if name == "cooperative" && a.revoked() > 2 {
				t.Errorf("a cooperative member gave up %d partitions", a.revoked())
			}
			want = append(want, produceRound(t, s.addr, 2)...)
			readOnce(t, want, a, b)
			a.stop()
			shared(t, b)
			want = append(want, produceRound(t, s.addr, 3)...)
			readOnce(t, want, a, b)
			// The members live in the memory of the listener, the offsets do not.
			b.forget()
			before := len(b.values())
			if err := s.stop(); err != nil {
				t.Fatal(err)
			}
			cfg := testConfig()
			cfg.Listen = s.addr
			s = startNode(t, cfg, s.node)
			want = append(want, produceRound(t, s.addr, 4)...)
			readOnce(t, want, a, b)
			for _, v := range b.values()[before:] {
				if v < "4" {
					t.Errorf("%s was committed and is read again", v)
				}
			}
			want = append(want, produceRound(t, s.addr, 5)...)
			readOnce(t, want, a, b)
			until(t, "the commit of what was read", func() bool { return committedIn(s, "g") == 150 })
			b.stop()
			until(t, "an empty group", func() bool { info, ok := s.node.View().Group("g"); return ok && !info.Occupied })
		})
	}
}

// A static member that comes back disturbs nobody.
func TestFranzGoStaticMembers(t *testing.T) {
	s := startGroups(t, nil)
	want := produceRound(t, s.addr, 1)
	a := readGroup(t, s.addr, "g", kgo.InstanceID("a"), kgo.Balancers(kgo.RangeBalancer()))
	b := readGroup(t, s.addr, "g", kgo.InstanceID("b"), kgo.Balancers(kgo.RangeBalancer()))
	shared(t, a, b)
	readOnce(t, want, a, b)
	generation := func() int32 {
		gs := s.broker.groups
		gs.mu.Lock()
		defer gs.mu.Unlock()
		return gs.mu.open["g"].Generation()
	}
	before, revoked, owned := generation(), a.revoked(), b.owns()
	b.stop() // a static member does not say that it leaves
	c := readGroup(t, s.addr, "g", kgo.InstanceID("b"), kgo.Balancers(kgo.RangeBalancer()))
	shared(t, a, c)
	want = append(want, produceRound(t, s.addr, 2)...)
	readOnce(t, want, a, b, c)
	if generation() != before || a.revoked() != revoked || !maps.Equal(c.owns(), owned) {
		t.Errorf("generation %d after %d, %d partitions revoked after %d, owns %v after %v", generation(), before, a.revoked(), revoked, c.owns(), owned)
	}
	if info, ok := s.broker.groups.describe("g"); !ok || info.State != group.Stable || len(info.Members) != 2 {
		t.Errorf("the group: %+v", info)
	}
}

// librdkafka's group consumer: it reads all, and what it committed not again.
func TestKcatGroup(t *testing.T) {
	s := startGroups(t, nil)
	want := produceRound(t, s.addr, 1)
	read := func() []string {
		out := kcat(t, s.addr, "", "-G", "kcat", "-q", "-e", "-X", "auto.offset.reset=earliest", "t")
		lines := strings.Fields(out)
		slices.Sort(lines)
		return lines
	}
	if got := read(); !slices.Equal(got, want) {
		t.Errorf("read %d records: %v", len(got), got)
	}
	more := produceRound(t, s.addr, 2)
	if got := read(); !slices.Equal(got, more) {
		t.Errorf("read %d records after the first commit: %v", len(got), got)
	}
}
