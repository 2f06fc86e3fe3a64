package group

import "time"

// Heartbeat keeps a member's session; RebalanceInProgress asks it to join again.
func (g *Group) Heartbeat(now time.Time, memberID, instanceID string, generation int32) Error {
	m, err := g.findAt(now, memberID, instanceID)
	if err != None {
		return err
	}
	if generation != g.generation {
		return IllegalGeneration
	}
	g.alive(m, now)
	if g.state == Preparing {
		return RebalanceInProgress
	}
	return None
}

// alive is a sign of life. The first wait of a member has its own end.
func (g *Group) alive(m *member, now time.Time) {
	if !m.fresh || m.join == 0 {
		g.touch(m, now)
	}
}

// Leave removes members; the errors are in the order of the names.
func (g *Group) Leave(now time.Time, names []Leaving) ([]Error, []Reply) {
	errs := make([]Error, len(names))
	left, pending := false, false
	for i, n := range names {
		if n.MemberID == "" {
			// An administrator knows the instance id only.
			m := g.statics[n.InstanceID]
			if m == nil {
				errs[i] = UnknownMember
				continue
			}
			n.MemberID = m.id
		}
		if _, ok := g.pending[n.MemberID]; ok {
			g.dropPending(n.MemberID)
			pending = true
			continue
		}
		m, err := g.find(n.MemberID, n.InstanceID)
		if errs[i] = err; err == None {
			g.remove(m, UnknownMember)
			left = true
		}
	}
	if left {
		g.membersLeft(now)
	} else if pending {
		g.pendingLeft(now)
	}
	return errs, g.take()
}

// CheckCommit tells whether a commit of offsets is the group's. Without a member
// and a generation (-1) it is an outsider's, which only an empty group admits. It
// is taken while a rebalance is prepared: cooperative members commit what they
// give up.
func (g *Group) CheckCommit(now time.Time, generation int32, memberID, instanceID string) Error {
	if generation < 0 && g.state == Empty {
		return None
	}
	if generation < 0 && memberID == "" && instanceID == "" {
		return UnknownMember
	}
	m, err := g.findAt(now, memberID, instanceID)
	switch {
	case err != None:
		return err
	case generation != g.generation:
		return IllegalGeneration
	case g.state == Completing:
		return RebalanceInProgress
	}
	g.alive(m, now)
	return None
}

// Abandon forgets a request whose client is gone; it gets no answer. Its member
// has a session's time to come again, and none if it could not: it never learnt
// its id.
func (g *Group) Abandon(now time.Time, t Token) []Reply {
	for _, m := range g.members {
		switch t {
		case m.join:
			m.join = 0
			if m.anonymous {
				g.remove(m, UnknownMember)
				g.membersLeft(now)
			} else {
				g.touch(m, now)
			}
			return g.take()
		case m.sync:
			m.sync, m.synced = 0, false
			g.touch(m, now)
			return g.take()
		}
	}
	return nil
}

// Tick does what is due. To be called at Deadline; earlier is harmless.
func (g *Group) Tick(now time.Time) []Reply {
	due := func(t time.Time) bool { return !t.After(now) }
	if g.removeIf(func(m *member) bool { return m.mayExpire() && due(m.expires) }) {
		g.membersLeft(now)
	}
	for id, end := range g.pending {
		if due(end) {
			g.dropPending(id)
		}
	}
	g.pendingLeft(now)
	if !g.timer.IsZero() && due(g.timer) {
		g.timeUp(now)
	}
	g.deadline = time.Time{}
	if !g.timer.IsZero() {
		g.arm(g.timer)
	}
	for _, m := range g.members {
		if m.mayExpire() {
			g.arm(m.expires)
		}
	}
	for _, end := range g.pending {
		g.arm(end)
	}
	return g.take()
}

// timeUp is the end of the phase's timer.
func (g *Group) timeUp(now time.Time) {
	g.timer = time.Time{}
	switch {
	case g.state == Preparing && g.first && g.newcomers && g.left > 0:
		g.newcomers = false
		d := min(g.cfg.InitialDelay, g.left)
		g.left -= d
		g.setTimer(now.Add(d))
	case g.state == Preparing:
		g.completeJoin(now)
	case g.state != Empty:
		// Who did not ask for its assignment is gone; the leader among them ends the
		// wait of the others.
		if g.removeIf(func(m *member) bool { return !m.synced }) {
			g.membersLeft(now)
		}
	}
}
