package kafka

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/kafka/group"
)

const (
	// groupLookAround is how soon a member that waits here hears that another node
	// has the group.
	groupLookAround = time.Second
	// groupRecount is how often the metadata is compared with what is here.
	groupRecount = 30 * time.Second
	// groupMarksAtOnce bounds the commands about members that are on their way.
	groupMarksAtOnce = 16
)

// run works until ctx is done: it fires deadlines, closes groups that moved away
// and marks groups in the metadata.
func (gs *groups) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { gs.markLoop(ctx) })
	around := time.NewTicker(groupLookAround)
	defer around.Stop()
	next := time.NewTimer(0)
	defer next.Stop()
	var seen *cluster.State
	for {
		select {
		case <-ctx.Done():
			return
		case <-gs.timers:
		case <-next.C:
		case <-around.C:
			if v := gs.backend.View(); v != seen {
				seen = v
				gs.lookAround(v)
			}
		}
		if due, ok := gs.tick(time.Now()); ok {
			next.Reset(time.Until(due))
		} else {
			next.Stop()
		}
	}
}

// tick fires what is due and answers the next deadline.
func (gs *groups) tick(now time.Time) (time.Time, bool) {
	var out delivery
	defer out.send()
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for len(gs.mu.deadline) > 0 {
		g := gs.mu.deadline[0]
		if g.due.After(now) {
			return g.due, true
		}
		occupied := g.Occupied()
		gs.collectLocked(g.Tick(now), &out)
		gs.settleLocked(g, occupied)
		if g.at >= 0 && !g.due.After(now) {
			return g.due, true // due again at once: let others have the lock
		}
	}
	return time.Time{}, false
}

// lookAround closes the groups that another node coordinates in v.
func (gs *groups) lookAround(v *cluster.State) {
	gs.nodesChanged(v)
	var out delivery
	defer out.send()
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for _, g := range gs.mu.open {
		if v.Index() < g.loaded {
			continue
		}
		if node, epoch, ok := v.GroupCoordinator(g.name); ok && node == gs.backend.Self() {
			gs.seatedLocked(g.name, seat{v, epoch}, &out)
		} else {
			gs.closeLocked(g, &out)
		}
	}
}

// mark has the metadata told whether the group has members, if it is wrong.
func (gs *groups) mark(name string) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.markLocked(name)
}

// markLocked: what does not fit is found by the next recount.
func (gs *groups) markLocked(name string) {
	if len(gs.mu.marked) <= 2*gs.cfg.GroupsMax {
		gs.mu.marked[name] = struct{}{}
		signal(gs.marks)
	}
}

// membership is what the metadata should know of a group.
func (gs *groups) membership(name string) (protocolType string, occupied bool) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if g := gs.mu.open[name]; g != nil {
		return g.ProtocolType(), g.Occupied()
	}
	return "", false
}

func (gs *groups) markLoop(ctx context.Context) {
	recount := time.NewTicker(groupRecount)
	defer recount.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-recount.C:
			for info := range gs.backend.View().Groups() {
				if _, occupied := gs.membership(info.Name); occupied != info.Occupied {
					gs.mark(info.Name)
				}
			}
		case <-gs.marks:
		}
		gs.mu.Lock()
		names := gs.mu.marked
		gs.mu.marked = map[string]struct{}{}
		gs.mu.Unlock()
		var work errgroup.Group
		work.SetLimit(groupMarksAtOnce)
		for name := range names {
			work.Go(func() error { gs.tell(ctx, name); return nil })
		}
		_ = work.Wait() // tell logs its errors
	}
}

// tell sends one mark. When it fails, the recount comes back to it.
func (gs *groups) tell(ctx context.Context, name string) {
	s, c := gs.seatOf(name)
	if c != codeNone {
		return
	}
	info, known := s.view.Group(name)
	protocolType, occupied := gs.membership(name)
	if !known || info.Occupied == occupied {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, gs.cfg.QueryTimeout)
	defer cancel()
	err := gs.backend.MarkGroup(ctx, name, protocolType, occupied)
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, cluster.ErrNotCoordinator) {
		gs.log.Warn("the metadata was not told whether a consumer group has members; its offsets may be kept too long", "group", name, "occupied", occupied, "error", err)
	}
}

// describe is the group's members; false when it has none here.
func (gs *groups) describe(name string) (group.Info, bool) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g := gs.mu.open[name]
	if g == nil {
		return group.Info{}, false
	}
	return g.Describe(), true
}
