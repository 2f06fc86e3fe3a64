package group

import "time"

// rebalance goes on with the join phase, or starts one.
func (g *Group) rebalance(now time.Time) {
	if g.state == Preparing {
		g.maybeCompleteJoin(now)
		return
	}
	if g.state == Completing {
		for _, m := range g.members {
			m.assignment = g.assign(m, nil)
			if m.sync != 0 {
				g.answerSync(m.sync, RebalanceInProgress, m)
				m.sync = 0
				g.touch(m, now)
			}
		}
	}
	g.first, g.newcomers = g.state == Empty, false
	g.state = Preparing
	g.timer = time.Time{}
	if g.first {
		g.left = max(g.rebalanceTimeout()-g.cfg.InitialDelay, 0)
		g.setTimer(now.Add(g.cfg.InitialDelay))
		return
	}
	if g.allJoined() {
		g.completeJoin(now)
		return
	}
	g.setTimer(now.Add(g.rebalanceTimeout()))
}

// maybeCompleteJoin ends the join phase when nobody is missing.
func (g *Group) maybeCompleteJoin(now time.Time) {
	if g.state == Preparing && !g.first && g.allJoined() {
		g.completeJoin(now)
	}
}

// membersLeft follows the removal of members.
func (g *Group) membersLeft(now time.Time) {
	if g.state != Empty {
		g.rebalance(now)
	}
}

// pendingLeft follows the end of pending ids, which a join phase waits for.
func (g *Group) pendingLeft(now time.Time) { g.maybeCompleteJoin(now) }

// completeJoin starts the next generation with the members that came again.
func (g *Group) completeJoin(now time.Time) {
	g.timer, g.first = time.Time{}, false
	if !g.electLeader() && len(g.members) > 0 {
		// Nobody came. The members' sessions end this.
		g.setTimer(now.Add(max(g.rebalanceTimeout(), time.Second)))
		return
	}
	// Static members stay, with their place, until their session ends.
	g.removeIf(func(m *member) bool { return m.join == 0 && m.instance == "" })
	g.generation++
	if len(g.members) == 0 {
		g.state, g.protocol = Empty, ""
		return
	}
	g.protocol = g.vote()
	g.state = Completing
	g.setTimer(now.Add(g.rebalanceTimeout()))
	for _, m := range g.members {
		m.fresh, m.synced = false, false
		if m.join != 0 {
			g.answerJoin(m.join, g.joined(m))
			m.join, m.anonymous = 0, false
			g.touch(m, now)
		}
	}
}

// electLeader keeps a leader that came again, or takes the first member that did.
func (g *Group) electLeader() bool {
	if m := g.byID[g.leader]; m != nil && m.join != 0 {
		return true
	}
	for _, m := range g.members {
		if m.join != 0 {
			g.leader = m.id
			return true
		}
	}
	return false
}

// vote chooses the protocol: every member votes for the first in its list that
// all speak; the leader's order breaks ties.
func (g *Group) vote() string {
	votes := map[string]int{}
	for _, m := range g.members {
		for _, p := range m.protocols {
			if g.speak[p.Name] == len(g.members) {
				votes[p.Name]++
				break
			}
		}
	}
	chosen := ""
	for _, p := range g.byID[g.leader].protocols {
		if votes[p.Name] > votes[chosen] {
			chosen = p.Name
		}
	}
	return chosen
}

// assign sets a member's assignment and keeps the sum.
func (g *Group) assign(m *member, a []byte) []byte {
	g.bytes += len(a) - len(m.assignment)
	return a
}

// Sync answers at once or makes t wait for the leader's.
func (g *Group) Sync(now time.Time, t Token, r *SyncRequest) []Reply {
	m, err := g.findAt(now, r.MemberID, r.InstanceID)
	switch {
	case err != None:
	case r.Generation != g.generation:
		err = IllegalGeneration
	case differs(r.ProtocolType, g.protocolType) || differs(r.Protocol, g.protocol):
		err = InconsistentProtocol
	case g.state == Preparing:
		err = RebalanceInProgress
	}
	if err != None {
		g.answerSync(t, err, m)
		return g.take()
	}
	m.synced = true
	if g.state == Stable {
		g.touch(m, now)
		g.answerSync(t, None, m)
	} else {
		if m.sync != 0 { // its client is gone
			g.answerSync(m.sync, RebalanceInProgress, m)
		}
		m.sync = t
		if m.id == g.leader {
			g.stabilize(now, r.Assignments)
		}
	}
	g.maybeEndSync()
	return g.take()
}

func differs(said, is string) bool { return said != "" && said != is }

// stabilize hands out the leader's assignments; a member that it left out gets
// an empty one, one that is not a member is nobody's.
func (g *Group) stabilize(now time.Time, all map[string][]byte) {
	g.state = Stable
	for _, m := range g.members {
		m.assignment = g.assign(m, all[m.id])
		if m.sync != 0 {
			g.answerSync(m.sync, None, m)
			m.sync = 0
			g.touch(m, now)
		}
	}
}

// maybeEndSync stops the timer of members that do not sync.
func (g *Group) maybeEndSync() {
	for _, m := range g.members {
		if !m.synced {
			return
		}
	}
	g.timer = time.Time{}
}
