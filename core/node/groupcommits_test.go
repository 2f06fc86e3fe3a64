package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/sdk/mink"
)

// metadata is a metadata log that takes a while for each command and keeps the
// latest of what it is told.
type metadata struct {
	latency time.Duration
	held    chan struct{} // nil, or: commands wait until it is closed
	refuse  map[string]clusterpb.Code

	mu struct {
		sync.Mutex
		commands []*clusterpb.CommitGroupOffsets
		offsets  map[string]int64 // group/bucket
		occupied map[string]bool
	}
}

func (m *metadata) propose(ctx context.Context, commands ...*clusterpb.Command) ([]*clusterpb.Result, error) {
	if m.held != nil {
		select {
		case <-m.held:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", mink.ErrUnknownOutcome, ctx.Err())
		}
	}
	time.Sleep(m.latency)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.offsets == nil {
		m.mu.offsets, m.mu.occupied = map[string]int64{}, map[string]bool{}
	}
	var results []*clusterpb.Result
	for _, command := range commands {
		c := command.GetCommitGroupOffsets()
		m.mu.commands = append(m.mu.commands, c)
		r := &clusterpb.Result{}
		for _, g := range c.Groups {
			code := m.refuse[g.Group]
			r.Parts = append(r.Parts, &clusterpb.Result{Code: code, Message: code.String()})
			if code != clusterpb.Code_OK {
				continue
			}
			m.mu.occupied[g.Group] = g.Occupied
			for _, o := range g.Offsets {
				m.mu.offsets[fmt.Sprint(g.Group, "/", o.Bucket)] = o.Offset
			}
		}
		results = append(results, r)
	}
	return results, nil
}

func (m *metadata) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.mu.commands)
}

// gathering runs f beside a running groupCommits in virtual time, and ends it.
func gathering(t *testing.T, m *metadata, change func(*Config), f func(t *testing.T, g *groupCommits, end func())) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Default()
		if change != nil {
			change(&cfg)
		}
		if m.held != nil {
			m.held = make(chan struct{}) // of the bubble
		}
		g := newGroupCommits(cfg, m.propose)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.run(ctx) }()
		end := sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		defer end()
		f(t, g, end)
	})
}

func offsetCommit(group string, bucket int32, offset mink.Offset) cluster.GroupCommit {
	return cluster.GroupCommit{Group: group, ProtocolType: "consumer", Occupied: true, Offsets: []cluster.GroupOffset{
		{Bucket: mink.BucketRef{Table: 1, Partition: 1, Index: bucket}, Offset: offset, LeaderEpoch: -1},
	}}
}

// 10,000 partitions with an auto-commit of 5 s are 2,000 commits a second.
func TestTwoThousandCommitsASecondAreTenCommands(t *testing.T) {
	m := &metadata{latency: 5 * time.Millisecond}
	gathering(t, m, nil, func(t *testing.T, g *groupCommits, _ func()) {
		const consumers, seconds = 200, 10
		var all sync.WaitGroup
		for i := range consumers {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond / consumers)
				for round := range seconds * 10 { // ten commits a second each, none waits for the one before
					all.Go(func() {
						if err := g.commit(t.Context(), offsetCommit(fmt.Sprint("g", i%20), int32(i), mink.Offset(round))); err != nil {
							t.Error(err)
						}
					})
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		all.Wait()
		if n := m.count(); n < seconds*9 || n > seconds*11+2 {
			t.Errorf("%d commits became %d commands in %d s, want about ten a second", consumers*seconds*10, n, seconds)
		}
		for i := range consumers {
			if got := m.mu.offsets[fmt.Sprintf("g%d/%d", i%20, i)]; got != seconds*10-1 {
				t.Errorf("consumer %d is at %d", i, got)
			}
		}
	})
}

// loopers commit one offset after the other for d, each when the last one is answered, and
// answer how many each got through.
func loopers(t *testing.T, g *groupCommits, n int, d time.Duration) []int {
	done := make([]int, n)
	end := time.Now().Add(d)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			for ; time.Now().Before(end); done[i]++ {
				if err := g.commit(t.Context(), offsetCommit(fmt.Sprint("looper", i), 0, mink.Offset(done[i]))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	return done
}

// Who commits every record waits for the metadata, not for others that are not there. Many
// of them share the commands; a slow log is left half of its time.
func TestAConsumerThatWaitsForEachCommit(t *testing.T) {
	for name, c := range map[string]struct {
		latency  time.Duration
		loopers  int
		from, to int // commits of each in ten seconds
		commands int // at most
	}{
		"alone":          {2 * time.Millisecond, 1, 980, 1001, 1001},
		"a few":          {2 * time.Millisecond, 5, 500, 1000, 1000},
		"many":           {2 * time.Millisecond, 100, 95, 105, 110},
		"on a slow log":  {20 * time.Millisecond, 1, 240, 251, 251},
		"on a dying log": {500 * time.Millisecond, 1, 18, 20, 20},
	} {
		t.Run(name, func(t *testing.T) {
			m := &metadata{latency: c.latency}
			gathering(t, m, nil, func(t *testing.T, g *groupCommits, _ func()) {
				for i, n := range loopers(t, g, c.loopers, 10*time.Second) {
					if n < c.from || n > c.to {
						t.Errorf("consumer %d: %d commits in ten seconds, want %d to %d", i, n, c.from, c.to)
					}
				}
				if n := m.count(); n > c.commands {
					t.Errorf("%d commands", n)
				}
			})
		})
	}
}

// 500 consumers that commit every five seconds are a hundred commits a second, and nobody
// waits for them: ten commands, also beside one who does, when they travel with its own.
func TestCommitsNowAndThenAreGathered(t *testing.T) {
	for _, looping := range []int{0, 1} {
		m := &metadata{latency: 2 * time.Millisecond}
		gathering(t, m, nil, func(t *testing.T, g *groupCommits, _ func()) {
			const consumers, seconds = 500, 20
			var all sync.WaitGroup
			for i := range consumers {
				all.Go(func() {
					time.Sleep(time.Duration(i) * 5 * time.Second / consumers)
					for range seconds / 5 {
						if err := g.commit(t.Context(), offsetCommit(fmt.Sprint("g", i%20), int32(i), 1)); err != nil {
							t.Error(err)
						}
						time.Sleep(5 * time.Second)
					}
				})
			}
			var got []int
			all.Go(func() { got = loopers(t, g, looping, seconds*time.Second) })
			all.Wait()
			switch n := m.count(); {
			case looping == 0 && n > seconds*11:
				t.Errorf("%d commands in %d s", n, seconds)
			case looping == 1 && (n > seconds*101 || got[0] < seconds*90):
				t.Errorf("%d commands in %d s, %d of them of the one who waits", n, seconds, got[0])
			}
		})
	}
}

// A client that commits every record without waiting for the answer.
func TestStartedCommitsAreGatheredInOrder(t *testing.T) {
	m := &metadata{latency: 5 * time.Millisecond}
	gathering(t, m, nil, func(t *testing.T, g *groupCommits, _ func()) {
		var started []*pendingGroup
		for offset := range mink.Offset(50) {
			p, err := g.start(t.Context(), offsetCommit("g", 0, offset))
			if err != nil {
				t.Fatal(err)
			}
			started = append(started, p)
			time.Sleep(time.Millisecond)
		}
		for _, p := range started {
			if err := p.wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := m.count(); n != 2 || m.mu.offsets["g/0"] != 49 {
			t.Errorf("%d commands, the group is at %d", n, m.mu.offsets["g/0"])
		}
	})
}

// Who settles a group waits for what has its place, pending or in flight, and for nothing
// that comes later or is another group's.
func TestSettleWaitsForWhatHasItsPlace(t *testing.T) {
	m := &metadata{latency: 50 * time.Millisecond, refuse: map[string]clusterpb.Code{"bad": clusterpb.Code_NOT_COORDINATOR}}
	gathering(t, m, nil, func(t *testing.T, g *groupCommits, end func()) {
		settle := func(group string, want time.Duration) {
			t.Helper()
			began := time.Now()
			if err := g.settle(t.Context(), group); err != nil {
				t.Errorf("group %s: %v", group, err)
			}
			if took := time.Since(began); took != want {
				t.Errorf("group %s took %v to settle, want %v", group, took, want)
			}
		}
		start := func(group string, offset mink.Offset) {
			t.Helper()
			if _, err := g.start(t.Context(), offsetCommit(group, 0, offset)); err != nil {
				t.Fatal(err)
			}
		}
		settle("g", 0)
		start("g", 1)
		synctest.Wait() // in flight
		start("g", 2)   // pending: the next command begins an interval after this one
		start("bad", 1)
		settle("other", 0)
		settle("g", Default().GroupCommitInterval+m.latency)
		if got := m.mu.offsets["g/0"]; got != 2 {
			t.Errorf("settled at %d, 2 was committed", got)
		}
		settle("bad", 0) // refused with the same command
		settle("g", 0)
		start("g", 3)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := g.settle(ctx, "g"); !errors.Is(err, mink.ErrUnknownOutcome) {
			t.Errorf("without patience: %v", err)
		}
		end()
		settle("g", 0)
		if n := len(g.mu.last); n != 0 {
			t.Errorf("%d groups are remembered", n)
		}
	})
}

func TestALoneCommitDoesNotWait(t *testing.T) {
	m := &metadata{latency: 3 * time.Millisecond}
	gathering(t, m, nil, func(t *testing.T, g *groupCommits, _ func()) {
		for range 3 {
			began := time.Now()
			if err := g.commit(t.Context(), offsetCommit("g", 0, 1)); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took != m.latency {
				t.Errorf("took %v, the metadata takes %v", took, m.latency)
			}
			time.Sleep(time.Second)
		}
	})
}

func TestARefusedGroupFailsNoOther(t *testing.T) {
	m := &metadata{refuse: map[string]clusterpb.Code{"bad": clusterpb.Code_NOT_COORDINATOR}}
	gathering(t, m, nil, func(t *testing.T, g *groupCommits, _ func()) {
		_ = g.commit(t.Context(), offsetCommit("first", 0, 1)) // the others are gathered behind it
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				group := []string{"good", "bad"}[i%2]
				err := g.commit(t.Context(), offsetCommit(group, int32(i), 1))
				if (group == "bad") != errors.Is(err, cluster.ErrNotCoordinator) || group == "good" && err != nil {
					t.Errorf("%s: %v", group, err)
				}
			})
		}
		all.Wait()
		if n := m.count(); n != 2 {
			t.Errorf("%d commands, want the others in one", n)
		}
	})
}

func TestAWaiterThatGivesUpFailsNoOther(t *testing.T) {
	m := &metadata{held: make(chan struct{})}
	gathering(t, m, nil, func(t *testing.T, g *groupCommits, _ func()) {
		var all sync.WaitGroup
		for i := range 6 { // the first in flight, the others pending, all of one group
			all.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if i%2 == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Second)
					defer cancel()
				}
				err := g.commit(ctx, offsetCommit("g", int32(i), 1))
				if i%2 == 0 && (!errors.Is(err, mink.ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded)) || i%2 == 1 && err != nil {
					t.Errorf("waiter %d: %v", i, err)
				}
			})
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		close(m.held)
		all.Wait()
		if len(m.mu.offsets) != 6 {
			t.Errorf("%d offsets were stored, those of waiters that gave up belong to them: %v", len(m.mu.offsets), m.mu.offsets)
		}
	})
}

func TestAFullQueueHoldsUpItsCallersOnly(t *testing.T) {
	m := &metadata{held: make(chan struct{})}
	gathering(t, m, func(c *Config) { c.GroupCommitBytesMax = 2000 }, func(t *testing.T, g *groupCommits, _ func()) {
		var all sync.WaitGroup
		for i := range 5 { // each costs about 400
			all.Go(func() {
				if err := g.commit(t.Context(), offsetCommit("g", int32(i), 1)); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := g.commit(ctx, offsetCommit("g", 9, 1))
		if !errors.Is(err, mink.ErrThrottled) || errors.Is(err, mink.ErrUnknownOutcome) {
			t.Errorf("a commit that found no room: %v", err)
		}
		all.Go(func() {
			huge := offsetCommit("huge", 0, 7)
			huge.Offsets[0].Metadata = strings.Repeat("x", 4000) // over all the room there is
			if err := g.commit(t.Context(), huge); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		close(m.held)
		all.Wait()
		if _, ok := m.mu.offsets["huge/0"]; !ok || len(m.mu.offsets) != 6 {
			t.Errorf("stored %v", m.mu.offsets)
		}
	})
}

func TestTheEndAnswersEverybody(t *testing.T) {
	for _, dead := range []bool{false, true} {
		m := &metadata{latency: 50 * time.Millisecond}
		if dead {
			m.held = make(chan struct{})
		}
		gathering(t, m, func(c *Config) { c.GroupCommitBytesMax = 1000 }, func(t *testing.T, g *groupCommits, end func()) {
			var all sync.WaitGroup
			var errs [4]error
			for i := range errs { // one in flight, one pending, two without room
				all.Go(func() { errs[i] = g.commit(t.Context(), offsetCommit("g", int32(i), 1)) })
				synctest.Wait()
			}
			end()
			all.Wait()
			for i, err := range errs {
				switch {
				case !dead && i < 2: // an orderly end sends what waits
					if err != nil {
						t.Errorf("commit %d: %v", i, err)
					}
				case !dead && err == nil: // found room in time
				case dead && i == 0:
					if !errors.Is(err, mink.ErrUnknownOutcome) {
						t.Errorf("in flight when the metadata died: %v", err)
					}
				default:
					if !errors.Is(err, mink.ErrUnavailable) && !errors.Is(err, mink.ErrUnknownOutcome) {
						t.Errorf("dead %t, commit %d: %v", dead, i, err)
					}
				}
			}
			if err := g.commit(t.Context(), offsetCommit("g", 0, 1)); !errors.Is(err, mink.ErrUnavailable) {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}

func TestOrderWithinAGroup(t *testing.T) {
	m := &metadata{}
	gathering(t, m, nil, func(t *testing.T, g *groupCommits, _ func()) {
		_ = g.commit(t.Context(), offsetCommit("other", 0, 1))
		var all sync.WaitGroup
		send := func(c cluster.GroupCommit) {
			all.Go(func() {
				if err := g.commit(t.Context(), c); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		loaded := func(at uint64, c cluster.GroupCommit) cluster.GroupCommit {
			c.LoadedIndex = at
			return c
		}
		send(loaded(5, offsetCommit("g", 0, 1)))
		send(loaded(5, offsetCommit("g", 0, 2)))
		send(cluster.GroupCommit{Group: "g"})    // the last member left
		send(loaded(9, offsetCommit("g", 0, 3))) // another load
		send(loaded(5, offsetCommit("g", 0, 4))) // not merged into what came before the other load
		send(cluster.GroupCommit{Group: "g"})
		all.Wait()
		last := m.mu.commands[len(m.mu.commands)-1]
		var got []string
		for _, c := range last.Groups {
			got = append(got, fmt.Sprintf("%d %t %d %s", c.LoadedIndex, c.Occupied, c.Offsets[0].Offset, c.ProtocolType))
		}
		if want := []string{"5 false 2 consumer", "9 true 3 consumer", "5 false 4 consumer"}; !slices.Equal(got, want) {
			t.Errorf("proposed %q, want %q", got, want)
		}
	})
}

func TestALongCommitIsAnsweredOnce(t *testing.T) {
	m := &metadata{}
	gathering(t, m, func(c *Config) { c.GroupCommitBytesMax = 64 << 20 }, func(t *testing.T, g *groupCommits, _ func()) {
		c := cluster.GroupCommit{Group: "g"}
		for i := range int32(1000) {
			o := offsetCommit("g", i, mink.Offset(i)).Offsets[0]
			o.Metadata = strings.Repeat("x", cluster.MaxOffsetMetadata)
			c.Offsets = append(c.Offsets, o)
		}
		if err := g.commit(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if n := m.count(); n != 4 && n != 5 || len(m.mu.offsets) != 1000 {
			t.Errorf("%d commands stored %d offsets", n, len(m.mu.offsets))
		}
	})
}
