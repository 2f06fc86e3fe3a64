package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/sdk/mink"
)

// CommitGroupOffsets stores offsets of a consumer group that this node
// coordinates, and whether it has members. It returns once this node has applied
// them and the state has accepted them. Commits are gathered for
// Config.GroupCommitInterval, all groups in one command, the latest offset of a
// bucket only; the first one after a pause goes at once, and a consumer that waits for
// each commit before the next one waits for less, see groupCommits. Offsets of buckets that do
// not exist are dropped. Calls of one group that follow one another keep their
// order.
//
// Errors: mink.ErrInvalid, mink.ErrTooLarge (the client's metadata, or more groups
// or offsets than Config allows);
// cluster.ErrNotCoordinator and mink.ErrFenced: another node coordinates the group,
// or did since c.LoadedIndex; mink.ErrUnavailable and mink.ErrThrottled: not now,
// certainly not stored; mink.ErrUnknownOutcome: ctx ended, it may be stored later.
// Blocks while Config.GroupCommitBytesMax of commits wait.
func (n *Node) CommitGroupOffsets(ctx context.Context, c cluster.GroupCommit) error {
	wait, err := n.StartGroupCommit(ctx, c)
	if err != nil {
		return err
	}
	return wait(ctx)
}

// StartGroupCommit is the first half of CommitGroupOffsets: it returns once the
// commit has its place among those of its group, so that a caller with several
// commits keeps their order without waiting for each. wait is the other half; not
// calling it leaks nothing.
func (n *Node) StartGroupCommit(ctx context.Context, c cluster.GroupCommit) (wait func(context.Context) error, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	inc := n.incarnation()
	if inc == nil {
		return nil, fmt.Errorf("commit offsets of group %q: this node is not registered at the moment: %w", c.Group, mink.ErrUnavailable)
	}
	if err := n.roomForGroup(n.View(), c); err != nil {
		n.groupsFull.Do(func() {
			n.logger.Warn("a consumer group's offsets are refused; mink group delete makes room, group_offsets_retention does later", "group", c.Group, "error", err)
		})
		return nil, err
	}
	p, err := inc.groups.start(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("commit offsets of group %q: %w", c.Group, err)
	}
	return func(ctx context.Context) error {
		if err := p.wait(ctx); err != nil {
			return fmt.Errorf("commit offsets of group %q: %w", c.Group, err)
		}
		return nil
	}, nil
}

// SettleGroup waits until every commit of the group that has its place, from
// StartGroupCommit or CommitGroupOffsets, has its verdict, and this node's view has what
// was accepted. It answers at once when there is none. A view read after it is one that
// nothing checked earlier comes behind.
//
// Errors: mink.ErrUnavailable: the node is not registered; mink.ErrUnknownOutcome: ctx
// ended, or nobody knows whether a commit is stored.
func (n *Node) SettleGroup(ctx context.Context, group string) error {
	inc := n.incarnation()
	if inc == nil {
		return fmt.Errorf("settle the commits of group %q: this node is not registered at the moment: %w", group, mink.ErrUnavailable)
	}
	if err := inc.groups.settle(ctx, group); err != nil {
		return fmt.Errorf("settle the commits of group %q: %w", group, err)
	}
	return nil
}

// roomForGroup refuses, with mink.ErrTooLarge, a commit that adds a group or
// offsets beyond what the metadata are to keep.
func (n *Node) roomForGroup(view *cluster.State, c cluster.GroupCommit) error {
	if len(c.Offsets) == 0 {
		return nil // makes no group, and frees one
	}
	full := func(what string, limit int) error {
		return fmt.Errorf("commit offsets of group %q: there are %d %s, which is the most that are kept: %w", c.Group, limit, what, mink.ErrTooLarge)
	}
	g, found := view.Group(c.Group)
	if !found && view.GroupCount() >= n.cfg.GroupsMax {
		return full("consumer groups", n.cfg.GroupsMax)
	}
	room := min(n.cfg.GroupOffsetsMax-g.Offsets, n.cfg.GroupOffsetsTotalMax-view.GroupOffsetCount())
	if len(c.Offsets) <= room {
		return nil // the usual case
	}
	more := 0
	for _, o := range c.Offsets {
		if _, has := view.GroupOffset(c.Group, o.Bucket); !has {
			more++
		}
	}
	switch {
	case more <= room || more == 0:
		return nil
	case g.Offsets+more > n.cfg.GroupOffsetsMax:
		return full("committed offsets in one group", n.cfg.GroupOffsetsMax)
	default:
		return full("committed offsets of all groups", n.cfg.GroupOffsetsTotalMax)
	}
}

// MarkGroup records that a consumer group got its first member or lost its last
// one; its offsets outlive that by the retention. A group without offsets is not
// created. protocolType "" keeps what is known. It is a CommitGroupOffsets without
// offsets, in order with the others and with the same errors.
func (n *Node) MarkGroup(ctx context.Context, name, protocolType string, occupied bool) error {
	return n.CommitGroupOffsets(ctx, cluster.GroupCommit{Group: name, ProtocolType: protocolType, Occupied: occupied})
}

// DeleteGroups drops consumer groups that this node coordinates, with all their
// offsets, each or not. That a group has no members is for the caller to know.
// errs has one verdict per name, in order: nil, mink.ErrNotExist (no offsets),
// mink.ErrInvalid, cluster.ErrNotCoordinator. err says that nothing is known of any
// of them.
func (n *Node) DeleteGroups(ctx context.Context, names []string) (errs []error, err error) {
	errs = make([]error, len(names))
	var valid []string
	var at []int
	for i, name := range names {
		if errs[i] = cluster.CheckGroupName(name); errs[i] == nil {
			valid, at = append(valid, name), append(at, i)
		}
	}
	for len(valid) > 0 {
		k := min(len(valid), groupsPerDelete)
		results, err := n.Propose(ctx, cluster.DeleteGroupsCommand(valid[:k]))
		if err != nil {
			return nil, fmt.Errorf("delete %d groups: %w", len(names), err)
		}
		for part, i := range at[:k] {
			errs[i] = cluster.PartError(results[0], part)
		}
		valid, at = valid[k:], at[k:]
	}
	return errs, nil
}

// groupsPerDelete keeps a DeleteGroups command below 5 MB, whatever the names.
const groupsPerDelete = 4096

// DeleteGroupOffsets drops a consumer group's offsets of some buckets; those that
// have none are skipped. That no member reads them is for the caller to know.
// Errors: mink.ErrNotExist (the group has no offsets at all), mink.ErrInvalid,
// cluster.ErrNotCoordinator, and those of Propose.
func (n *Node) DeleteGroupOffsets(ctx context.Context, group string, buckets []mink.BucketRef) error {
	if err := cluster.CheckGroupName(group); err != nil {
		return err
	}
	if len(buckets) == 0 {
		return nil
	}
	_, err := n.one(ctx, cluster.DeleteGroupOffsetsCommand(group, buckets))
	return err
}

// groupCommandBytes is about the size of one CommitGroupOffsets command: 40,000
// offsets without metadata.
const groupCommandBytes = 1 << 20

// groupCommits gathers the commits of one node epoch, so that the metadata log
// has a few commands a second whatever the clients do. Commits never outlive the
// epoch: another node may have coordinated the group by the next one.
//
//	commit: room (bounded) -> pending, merged -> wait
//	run:    pending -> commands, one in flight -> verdicts, room back
//
// From the start of one command to the next it is the interval, which most commits do
// not mind: clients send them every few seconds and go on meanwhile. A client that commits
// each record and waits for the answer gets as many records a second as there are
// commands. So a commit of a bucket that its group committed a moment ago is in a
// hurry, and the next command comes earlier, but never
//
//	before a tenth of the interval: ten times as many commands at most;
//	before twice the time that the last command took: the log is at most half busy with this;
//	before a hurryShare-th of the interval for each commit in it: many of them are gathered as ever.
type groupCommits struct {
	propose  func(context.Context, ...*clusterpb.Command) ([]*clusterpb.Result, error)
	interval time.Duration
	bytesMax int64
	drain    time.Duration // after the epoch's end
	room     *semaphore.Weighted
	kick     chan struct{} // something is pending

	mu struct {
		sync.Mutex
		pending []*pendingGroup          // in order
		newest  map[string]*pendingGroup // of each group
		last    map[string]*pendingGroup // of each group, until its verdict: pending, or in flight
		calls   int                      // that pending was merged from
		hurry   bool                     // one of them is of recent or before
		closed  bool

		// Whose commits were answered lately: within recentIntervals, or twice that.
		recent, before map[committer]struct{}
		turned         time.Time // when recent was empty
	}
}

// committer is who may be waiting for its commit before it sends the next.
type committer struct {
	group  string
	bucket mink.BucketRef // the first of its commit
}

const (
	recentIntervals = 4
	hurryShare      = 32
)

// pendingGroup is one commit to propose, merged from those of its waiters.
type pendingGroup struct {
	commit cluster.GroupCommit
	at     map[mink.BucketRef]int // in commit.Offsets
	first  []mink.BucketRef       // of each call with offsets
	cost   int64
	done   chan struct{} // closed when err is known
	err    error
}

func newGroupCommits(cfg Config, propose func(context.Context, ...*clusterpb.Command) ([]*clusterpb.Result, error)) *groupCommits {
	g := &groupCommits{
		propose: propose, interval: cfg.GroupCommitInterval, bytesMax: cfg.GroupCommitBytesMax, drain: resignTimeout,
		room: semaphore.NewWeighted(cfg.GroupCommitBytesMax), kick: make(chan struct{}, 1),
	}
	g.mu.newest, g.mu.last = map[string]*pendingGroup{}, map[string]*pendingGroup{}
	return g
}

func (g *groupCommits) commit(ctx context.Context, c cluster.GroupCommit) error {
	p, err := g.start(ctx, c)
	if err != nil {
		return err
	}
	return p.wait(ctx)
}

// start returns what will have the commit's verdict.
func (g *groupCommits) start(ctx context.Context, c cluster.GroupCommit) (*pendingGroup, error) {
	cost := min(commitCost(c), g.bytesMax) // one that is larger than all room goes alone
	if err := g.room.Acquire(ctx, cost); err != nil {
		return nil, fmt.Errorf("%d bytes of commits wait already: %w: %w", g.bytesMax, mink.ErrThrottled, err)
	}
	p, wake := g.add(c, cost)
	if p == nil {
		g.room.Release(cost)
		return nil, errEpochOver
	}
	if wake {
		select {
		case g.kick <- struct{}{}:
		default:
		}
	}
	return p, nil
}

func (p *pendingGroup) wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", mink.ErrUnknownOutcome, context.Cause(ctx))
	}
}

var errEpochOver = fmt.Errorf("this node's epoch is over: %w", mink.ErrUnavailable)

// commitCost is about the memory that a commit takes while it waits, bytes.
func commitCost(c cluster.GroupCommit) int64 {
	cost := 256 + len(c.Group) + len(c.ProtocolType)
	for _, o := range c.Offsets {
		cost += 128 + len(o.Metadata)
	}
	return int64(cost)
}

// add merges the commit into the group's newest pending one, or queues it; nil
// when the epoch is over. Commits of two loads of a group stay apart: the state may
// accept only the later. wake: run does not know that something waits, or how soon.
func (g *groupCommits) add(c cluster.GroupCommit, cost int64) (p *pendingGroup, wake bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.closed {
		return nil, false
	}
	before := g.mu.hurry
	wake = len(g.mu.pending) == 0
	p = g.mu.newest[c.Group]
	if p == nil || p.commit.LoadedIndex != c.LoadedIndex && p.commit.LoadedIndex != 0 && c.LoadedIndex != 0 {
		p = &pendingGroup{at: map[mink.BucketRef]int{}, done: make(chan struct{})}
		p.commit.Group = c.Group
		g.mu.pending = append(g.mu.pending, p)
		g.mu.newest[c.Group], g.mu.last[c.Group] = p, p
	}
	p.merge(c)
	p.cost += cost
	g.mu.calls++
	if len(c.Offsets) > 0 {
		who := committer{c.Group, c.Offsets[0].Bucket}
		_, lately := g.mu.recent[who]
		_, earlier := g.mu.before[who]
		g.mu.hurry = g.mu.hurry || lately || earlier
		delete(g.mu.recent, who) // until this one is answered
		delete(g.mu.before, who)
		p.first = append(p.first, who.bucket)
	}
	return p, wake || g.mu.hurry && !before
}

func (p *pendingGroup) merge(c cluster.GroupCommit) {
	p.commit.Occupied = c.Occupied
	p.commit.LoadedIndex = max(p.commit.LoadedIndex, c.LoadedIndex)
	if c.ProtocolType != "" {
		p.commit.ProtocolType = c.ProtocolType
	}
	for _, o := range c.Offsets {
		i, again := p.at[o.Bucket]
		if !again {
			i = len(p.commit.Offsets)
			p.at[o.Bucket] = i
			p.commit.Offsets = append(p.commit.Offsets, o)
		}
		p.commit.Offsets[i] = o
	}
}

// take empties the queue; last: for ever.
func (g *groupCommits) take(last bool) (pending []*pendingGroup, calls int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	pending, calls = g.mu.pending, g.mu.calls
	g.mu.pending, g.mu.newest, g.mu.calls, g.mu.hurry = nil, map[string]*pendingGroup{}, 0, false
	g.mu.closed = g.mu.closed || last
	return pending, calls
}

// lastCommand is what the time of the next one goes by.
type lastCommand struct {
	began time.Time
	took  time.Duration
	calls int
}

// due is when the next command may begin.
func (g *groupCommits) due(last lastCommand) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	gap := g.interval
	if g.mu.hurry {
		gap = min(gap, max(g.interval/10, 2*last.took, time.Duration(last.calls)*g.interval/hurryShare))
	}
	return last.began.Add(gap)
}

// answered notes whose commits were and have sent no other meanwhile: the next one of
// the same bucket, if it comes soon, is of a client that waited for this one.
func (g *groupCommits) answered(pending []*pendingGroup) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); now.Sub(g.mu.turned) >= recentIntervals*g.interval {
		g.mu.before = g.mu.recent
		if now.Sub(g.mu.turned) >= 2*recentIntervals*g.interval {
			g.mu.before = nil
		}
		g.mu.recent, g.mu.turned = map[committer]struct{}{}, now
	}
	for _, p := range pending {
		if g.mu.last[p.commit.Group] == p {
			delete(g.mu.last, p.commit.Group)
		}
		next := g.mu.newest[p.commit.Group]
		for _, b := range p.first {
			if next != nil {
				if _, more := next.at[b]; more {
					continue
				}
			}
			g.mu.recent[committer{p.commit.Group, b}] = struct{}{}
		}
	}
}

// run proposes what waits until ctx is done, which is the end of the epoch. What
// waits then is proposed still, as far as the epoch is not sealed, within a short
// time.
func (g *groupCommits) run(ctx context.Context) error {
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(g.drain, stop) })()
	var last lastCommand
	for {
		select {
		case <-ctx.Done():
			pending, _ := g.take(true)
			g.send(sending, pending)
			return nil
		case <-g.kick:
		}
		g.pace(ctx, last)
		if pending, calls := g.take(false); len(pending) > 0 {
			last = lastCommand{began: time.Now(), calls: calls}
			g.send(sending, pending)
			last.took = time.Since(last.began)
		}
	}
}

// pace waits until the next command is due.
func (g *groupCommits) pace(ctx context.Context, last lastCommand) {
	for {
		wait := time.Until(g.due(last))
		if wait <= 0 {
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			return
		case <-g.kick: // it may be somebody in a hurry
			timer.Stop()
		}
	}
}

// send proposes the commits in order, and answers their waiters.
func (g *groupCommits) send(ctx context.Context, pending []*pendingGroup) {
	commits := make([]cluster.GroupCommit, len(pending))
	for i, p := range pending {
		commits[i] = p.commit
	}
	commands, of := cluster.CommitGroupOffsetsCommands(commits, groupCommandBytes)
	for c, command := range commands {
		results, err := g.propose(ctx, command)
		if err != nil && (ctx.Err() != nil || errors.Is(err, mink.ErrClosed)) && !errors.Is(err, mink.ErrUnknownOutcome) {
			err = errEpochOver // it was never sent
		}
		for part, i := range of[c] {
			e := err
			if e == nil {
				e = cluster.PartError(results[0], part)
			}
			if pending[i].err == nil {
				pending[i].err = e
			}
		}
	}
	g.answered(pending)
	room := int64(0)
	for _, p := range pending {
		close(p.done)
		room += p.cost
	}
	g.room.Release(room)
}

// settle waits for the group's last commit, which has its verdict after all others. Only a
// verdict that nobody knows is an error: what was refused is in no view.
func (g *groupCommits) settle(ctx context.Context, group string) error {
	g.mu.Lock()
	p := g.mu.last[group]
	g.mu.Unlock()
	if p == nil {
		return nil
	}
	if err := p.wait(ctx); errors.Is(err, mink.ErrUnknownOutcome) {
		return err
	}
	return nil
}
