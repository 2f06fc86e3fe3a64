package node_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/sqllog"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/sdk/mink"
)

// members is a commit of a group that has some.
func members(group string, ref mink.BucketRef, offset mink.Offset) cluster.GroupCommit {
	return cluster.GroupCommit{Group: group, ProtocolType: "consumer", Occupied: true,
		Offsets: []cluster.GroupOffset{{Bucket: ref, Offset: offset, LeaderEpoch: -1}}}
}

// coordinatedBy finds a group name that the node coordinates in the view.
func coordinatedBy(view *cluster.State, id mink.NodeID) string {
	for i := 0; ; i++ {
		name := fmt.Sprint("group-", i)
		if node, _, ok := view.GroupCoordinator(name); ok && node == id {
			return name
		}
	}
}

func at(view *cluster.State, group string, ref mink.BucketRef) mink.Offset {
	o, ok := view.GroupOffset(group, ref)
	if !ok {
		return -1
	}
	return o.Offset
}

func TestGroupOffsets(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		_, refs := p.Topic("t", 2, nil)
		n := p.Node()
		commit := members("g", refs[0], 7)
		commit.Offsets[0].Metadata = "note"
		if err := n.CommitGroupOffsets(ctx, commit); err != nil {
			t.Fatal(err)
		}
		if err := n.CommitGroupOffsets(ctx, cluster.GroupCommit{Group: "simple", Offsets: []cluster.GroupOffset{
			{Bucket: refs[1], Offset: 3, LeaderEpoch: -1}, {Bucket: mink.BucketRef{Table: 99, Partition: 99}, Offset: 1},
		}}); err != nil {
			t.Fatal(err)
		}
		if err := n.MarkGroup(ctx, "nobody", "consumer", true); err != nil {
			t.Fatal(err)
		}
		if g, ok := n.View().Group("g"); !ok || !g.Occupied || g.ProtocolType != "consumer" || g.Offsets != 1 {
			t.Errorf("the group is %+v", g)
		}
		if o, _ := n.View().GroupOffset("g", refs[0]); o.Offset != 7 || o.Metadata != "note" || o.CommittedMs == 0 {
			t.Errorf("the offset is %+v", o)
		}
		if _, ok := n.View().Group("nobody"); ok || at(n.View(), "g", refs[1]) != -1 || at(n.View(), "simple", refs[1]) != 3 {
			t.Error("a mark made a group, or an offset is not where it belongs")
		}
		if err := n.MarkGroup(ctx, "g", "", false); err != nil {
			t.Fatal(err)
		}
		if g, _ := n.View().Group("g"); g.Occupied || g.EmptiedMs == 0 || g.ProtocolType != "consumer" {
			t.Errorf("the empty group is %+v", g)
		}
		for _, c := range []cluster.GroupCommit{{}, {Group: "\xff"}, members("g", refs[0], -2)} {
			if err := n.CommitGroupOffsets(ctx, c); !errors.Is(err, mink.ErrInvalid) {
				t.Errorf("%+v: %v", c, err)
			}
		}
		if err := n.DeleteGroupOffsets(ctx, "g", refs); err != nil {
			t.Fatal(err)
		}
		if err := n.DeleteGroupOffsets(ctx, "g", refs); !errors.Is(err, mink.ErrNotExist) {
			t.Errorf("offsets of a group that is gone: %v", err)
		}
		errs, err := n.DeleteGroups(ctx, []string{"g", "\xff", "simple", ""})
		if err != nil || !errors.Is(errs[0], mink.ErrNotExist) || !errors.Is(errs[1], mink.ErrInvalid) || errs[2] != nil || !errors.Is(errs[3], mink.ErrInvalid) {
			t.Errorf("delete: %v, %v", errs, err)
		}
		for g := range n.View().Groups() {
			t.Errorf("left: %+v", g)
		}
	})
}

// A topic that is dropped and made anew has no offsets.
func TestADroppedTopicTakesItsOffsetsAlong(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		table, old := p.Topic("t", 1, nil)
		_, kept := p.Topic("kept", 1, nil)
		for _, ref := range []mink.BucketRef{old[0], kept[0]} {
			if err := p.Node().CommitGroupOffsets(ctx, members("g", ref, 5)); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Node().DropTable(ctx, table.ID, false); err != nil {
			t.Fatal(err)
		}
		_, fresh := p.Topic("t", 1, nil)
		if err := p.Node().CommitGroupOffsets(ctx, members("g", old[0], 6)); err != nil { // a consumer that has not noticed
			t.Fatal(err)
		}
		view := p.Node().View()
		if at(view, "g", old[0]) != -1 || at(view, "g", fresh[0]) != -1 || at(view, "g", kept[0]) != 5 {
			t.Errorf("the group is at %d of the dropped topic, %d of the new one and %d of the other", at(view, "g", old[0]), at(view, "g", fresh[0]), at(view, "g", kept[0]))
		}
	})
}

func TestBusyGroupsAreFewMetadataEntries(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, refs := p.Topic("t", 100, nil)
		before := p.Node().View().Index()
		const seconds = 5
		var all sync.WaitGroup
		for i, ref := range refs {
			all.Go(func() {
				for round := range seconds * 20 { // 2,000 a second of all
					all.Go(func() {
						if err := p.Node().CommitGroupOffsets(context.Background(), members("g", ref, mink.Offset(round))); err != nil {
							t.Errorf("bucket %d: %v", i, err)
						}
					})
					time.Sleep(50 * time.Millisecond)
				}
			})
		}
		all.Wait()
		if n := p.Node().View().Index() - before; n < seconds*8 || n > seconds*12 {
			t.Errorf("%d metadata entries in %d s", n, seconds)
		}
		for _, ref := range refs {
			if got := at(p.Node().View(), "g", ref); got != seconds*20-1 {
				t.Errorf("bucket %s is at %d", ref, got)
			}
		}
	})
}

// Node 2 stands still, is sealed, and comes back: what it still holds of a group's
// offsets must not overwrite what node 1 has accepted since.
func TestADeposedCoordinatorsCommitIsRefused(t *testing.T) {
	sim.InBubble(t, sim.Quiet(3), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		one := w.StartReady(1)
		_, refs := one.Topic("t", 1, nil)
		two := w.StartReady(2)
		w.Eventually(5*time.Second, "node 1 knows node 2", func() bool { return len(one.Node().View().LiveNodes()) == 2 })
		w.Eventually(5*time.Second, "node 1 coordinates", one.Coordinator().Leading)
		group := coordinatedBy(one.Node().View(), 2)
		if err := one.Node().CommitGroupOffsets(ctx, members(group, refs[0], 1)); !errors.Is(err, cluster.ErrNotCoordinator) {
			t.Errorf("a commit at another node: %v", err)
		}
		loaded := two.Node().View().Index()
		zombie := members(group, refs[0], 10)
		zombie.LoadedIndex = loaded
		if err := two.Node().CommitGroupOffsets(ctx, zombie); err != nil {
			t.Fatal(err)
		}

		_, old := two.Node().Self()
		two.PauseMetadata()
		late := make(chan error, 1)
		go func() {
			zombie := zombie
			zombie.Offsets = []cluster.GroupOffset{{Bucket: refs[0], Offset: 11}}
			late <- two.Node().CommitGroupOffsets(ctx, zombie)
		}()
		w.Eventually(time.Minute, "node 2 is sealed", func() bool {
			n, _ := one.Node().View().Node(2)
			return n.Epoch == old && n.Sealed
		})
		if g, _ := one.Node().View().Group(group); g.Occupied || g.EmptiedMs == 0 {
			t.Errorf("its members are gone with it: %+v", g)
		}
		if err := one.Node().CommitGroupOffsets(ctx, members(group, refs[0], 20)); err != nil {
			t.Fatal(err)
		}
		two.Resume()
		if err := <-late; err == nil {
			t.Error("the deposed coordinator's commit was accepted")
		}
		w.Eventually(time.Minute, "node 2 is back", func() bool {
			_, now := two.Node().Self()
			node, epoch, _ := two.Node().View().GroupCoordinator(group)
			return now != 0 && now != old && node == 2 && epoch == now
		})
		if got := at(two.Node().View(), group, refs[0]); got != 20 {
			t.Errorf("the group is at %d, node 1 had accepted 20", got)
		}
		// It coordinates again; what it remembers of before does not count.
		if err := two.Node().CommitGroupOffsets(ctx, zombie); !errors.Is(err, cluster.ErrNotCoordinator) {
			t.Errorf("a commit out of an old memory: %v", err)
		}
		zombie.LoadedIndex = two.Node().View().Index()
		zombie.Offsets[0].Offset = 21
		if err := two.Node().CommitGroupOffsets(ctx, zombie); err != nil {
			t.Errorf("after loading the group again: %v", err)
		}
	})
}

// Whatever fails, an accepted offset is never taken back, and what was accepted
// is in the view of who answered.
func TestAcknowledgedGroupOffsetsSurvive(t *testing.T) {
	for seed := range uint64(4) {
		sim.InBubble(t, sim.Default(seed), func(t *testing.T, w *sim.World) {
			_, refs := w.StartReady(1).Topic("t", 3, nil)
			w.StartReady(2)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			accepted := make([]mink.Offset, len(refs))
			acks := make([]int, len(refs))
			var all sync.WaitGroup
			for i, ref := range refs {
				all.Go(func() {
					for next := mink.Offset(1); ctx.Err() == nil; next++ {
						for _, p := range w.Processes() { // one of them coordinates
							if p.Node() == nil {
								continue
							}
							call, end := context.WithTimeout(ctx, 3*time.Second)
							err := p.Node().CommitGroupOffsets(call, members("g", ref, next))
							end()
							if err != nil {
								continue
							}
							accepted[i] = next
							acks[i]++
							if got := at(p.Node().View(), "g", ref); got < next {
								t.Errorf("node %d accepted %d of bucket %s, its view has %d", p.ID, next, ref, got)
							}
						}
						time.Sleep(10 * time.Millisecond)
					}
				})
			}
			for i := range 12 { // crashes in the middle of commits
				time.Sleep(3*time.Second + time.Duration(i)*7*time.Millisecond)
				id := mink.NodeID(1 + i%2)
				for _, p := range w.Processes() {
					if p.ID == id {
						p.Crash()
					}
				}
				w.Start(id)
			}
			cancel()
			all.Wait()
			p := w.StartReady(3)
			for i, ref := range refs {
				if got := at(p.Node().View(), "g", ref); got < accepted[i] || acks[i] < 20 {
					t.Errorf("bucket %s is at %d, %d was accepted, the last of %d", ref, got, accepted[i], acks[i])
				}
			}
		})
	}
}

// sqliteNode runs a node on a metadata database in a file until stop.
func sqliteNode(t *testing.T, path string, store *memstore.Store) (n *node.Node, stop func()) {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	log, err := sqllog.Open(ctx, "sqlite:"+path, sqllog.Default(), logger)
	if err != nil {
		t.Fatal(err)
	}
	replica, err := metalog.Open(ctx, log, metalog.Default(), logger)
	if err != nil {
		t.Fatal(err)
	}
	cfg := node.Default()
	cfg.FlightAddress, cfg.KafkaAddress = "n1:1", "n1:2"
	cfg.RecoveryWait = time.Millisecond // nobody coordinates the cluster here
	cfg.Stream = stream.Default(store.Capabilities(), 64<<20)
	if n, err = node.New(cfg, node.Deps{Meta: replica, Log: log, Objects: store, WALStore: store, Logger: logger}); err != nil {
		t.Fatal(err)
	}
	serving, stopServing := context.WithCancel(ctx)
	var inner, outer sync.WaitGroup
	inner.Go(func() {
		if err := replica.Run(ctx); err != nil {
			t.Errorf("replica: %v", err)
		}
	})
	outer.Go(func() {
		if err := n.Run(serving); err != nil {
			t.Errorf("node: %v", err)
		}
	})
	if err := n.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return n, sync.OnceFunc(func() {
		stopServing()
		outer.Wait()
		cancel()
		inner.Wait()
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestGroupOffsetsOnSQLite(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "meta.db")
	store := memstore.New(memstore.Config{PageMax: 1000})
	n, stop := sqliteNode(t, path, store)
	defer func() { stop() }()
	if err := n.CreateDatabase(ctx, "d", false); err != nil {
		t.Fatal(err)
	}
	d, err := schema.KafkaTopic("d", "t", 20, nil)
	if err != nil {
		t.Fatal(err)
	}
	table, err := n.CreateTable(ctx, d, false)
	if err != nil {
		t.Fatal(err)
	}
	var refs []mink.BucketRef
	for part := range n.View().Partitions(table.ID) {
		for i := range part.Streams {
			refs = append(refs, mink.BucketRef{Table: table.ID, Partition: part.ID, Index: int32(i)})
		}
	}
	loaded := n.View().Index()
	const rounds = 20
	var all sync.WaitGroup
	for i, ref := range refs {
		all.Go(func() {
			for round := range rounds {
				c := members(fmt.Sprint("g", i%4), ref, mink.Offset(round))
				c.LoadedIndex = loaded
				if err := n.CommitGroupOffsets(ctx, c); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	entries := n.View().Index() - loaded
	if entries > rounds*uint64(len(refs))/4 { // on an idle machine a round of all groups is one entry
		t.Errorf("%d commits became %d metadata entries", rounds*len(refs), entries)
	}
	stop()
	n, stop = sqliteNode(t, path, store)
	for i, ref := range refs {
		if got := at(n.View(), fmt.Sprint("g", i%4), ref); got != rounds-1 {
			t.Errorf("after a restart bucket %s is at %d", ref, got)
		}
	}
	stale, fresh := members("g0", refs[0], 50), members("g1", refs[1], 50)
	stale.LoadedIndex, fresh.LoadedIndex = loaded, n.View().Index()
	all.Go(func() {
		if err := n.CommitGroupOffsets(ctx, stale); !errors.Is(err, cluster.ErrNotCoordinator) {
			t.Errorf("a commit out of the memory of an earlier epoch: %v", err)
		}
	})
	all.Go(func() {
		if err := n.CommitGroupOffsets(ctx, fresh); err != nil {
			t.Error(err)
		}
	})
	all.Wait()
	if at(n.View(), "g0", refs[0]) != rounds-1 || at(n.View(), "g1", refs[1]) != 50 {
		t.Error("the refused group changed, or its neighbour did not")
	}
}

// The metadata keep no more groups and offsets than the node allows; what is there
// goes on, and what is dropped makes room.
func TestGroupsAreBounded(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.Node = func(c *node.Config) { c.GroupsMax, c.GroupOffsetsMax, c.GroupOffsetsTotalMax = 3, 4, 7 }
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		_, refs := p.Topic("t", 8, nil)
		n := p.Node()
		commit := func(group string, buckets ...int) error {
			c := cluster.GroupCommit{Group: group, ProtocolType: "consumer", Occupied: true}
			for _, b := range buckets {
				c.Offsets = append(c.Offsets, cluster.GroupOffset{Bucket: refs[b], Offset: 1, LeaderEpoch: -1})
			}
			return n.CommitGroupOffsets(ctx, c)
		}
		ok := func(err error) {
			t.Helper()
			if err != nil {
				t.Error(err)
			}
		}
		refused := func(err error, text string) {
			t.Helper()
			if !errors.Is(err, mink.ErrTooLarge) || !strings.Contains(err.Error(), text) {
				t.Errorf("%v, want %q", err, text)
			}
		}
		ok(commit("a", 0, 1, 2))
		refused(commit("a", 3, 4), "4 committed offsets in one group")
		ok(commit("a", 2, 3))
		ok(commit("a", 0, 1, 2, 3)) // none is new
		ok(commit("b", 0, 1))
		refused(commit("c", 0, 1), "7 committed offsets of all groups")
		ok(commit("c", 0))
		refused(commit("d", 0), "3 consumer groups")
		ok(commit("a", 0, 1, 2, 3))
		ok(n.MarkGroup(ctx, "d", "consumer", true))
		if errs, err := n.DeleteGroups(ctx, []string{"b"}); err != nil || errs[0] != nil {
			t.Fatal(errs, err)
		}
		ok(commit("d", 5))
		if groups, offsets := n.View().GroupCount(), n.View().GroupOffsetCount(); groups != 3 || offsets != 6 {
			t.Errorf("%d groups with %d offsets, want 3 with 6", groups, offsets)
		}
	})
}
