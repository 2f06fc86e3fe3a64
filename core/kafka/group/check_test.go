package group

import (
	"fmt"
	"iter"
	"maps"
)

func keys[K comparable, V any](m map[K]V) iter.Seq[K] { return maps.Keys(m) }

// check finds what can never be right in a group between two events.
func check(g *Group) error {
	bytes, speak, statics := 0, map[string]int{}, 0
	tokens := map[Token]bool{}
	for _, m := range g.members {
		bytes += m.size()
		for _, p := range m.protocols {
			speak[p.Name]++
		}
		if m.instance != "" {
			if statics++; g.statics[m.instance] != m {
				return fmt.Errorf("instance %s is not member %s", m.instance, m.id)
			}
		}
		if g.byID[m.id] != m {
			return fmt.Errorf("member %s is not found by its id", m.id)
		}
		if _, pending := g.pending[m.id]; pending {
			return fmt.Errorf("member %s is pending too", m.id)
		}
		if m.join != 0 && g.state != Preparing {
			return fmt.Errorf("a join of %s waits in %v", m.id, g.state)
		}
		if m.sync != 0 && (g.state != Completing || m.id == g.leader) {
			return fmt.Errorf("a sync of %s waits in %v, led by %s", m.id, g.state, g.leader)
		}
		for _, t := range []Token{m.join, m.sync} {
			if t != 0 && tokens[t] {
				return fmt.Errorf("token %d waits twice", t)
			}
			tokens[t] = true
		}
		if m.mayExpire() && (g.deadline.IsZero() || m.expires.Before(g.deadline)) {
			return fmt.Errorf("member %s expires before the deadline", m.id)
		}
		if !m.synced && (g.state == Completing || g.state == Stable) && g.timer.IsZero() {
			return fmt.Errorf("nothing ends the wait for the sync of %s", m.id)
		}
	}
	for id, end := range g.pending {
		bytes += pendingSize(id)
		if g.deadline.IsZero() || end.Before(g.deadline) {
			return fmt.Errorf("pending id %s ends before the deadline", id)
		}
	}
	switch {
	case bytes != g.bytes:
		return fmt.Errorf("%d bytes are kept, %d counted", bytes, g.bytes)
	case !maps.Equal(speak, g.speak):
		return fmt.Errorf("protocols %v, counted %v", speak, g.speak)
	case len(g.byID) != len(g.members) || len(g.statics) != statics:
		return fmt.Errorf("%d members, %d by id; %d static, %d by instance", len(g.members), len(g.byID), statics, len(g.statics))
	case len(g.members) > 0 && g.byID[g.leader] == nil:
		return fmt.Errorf("leader %q is no member", g.leader)
	case len(g.members) == 0 && g.leader != "":
		return fmt.Errorf("%s leads nobody", g.leader)
	case g.state == Empty && len(g.members) > 0:
		return fmt.Errorf("an empty group of %d members", len(g.members))
	case (g.state == Completing || g.state == Stable) && len(g.members) == 0:
		return fmt.Errorf("no members in %v", g.state)
	case (g.state == Completing || g.state == Stable) && g.speak[g.protocol] != len(g.members):
		return fmt.Errorf("not all of %d members speak %q", len(g.members), g.protocol)
	case g.state == Preparing && g.timer.IsZero():
		return fmt.Errorf("nothing ends the join phase")
	case g.state == Preparing && !g.first && len(g.members) > 0 && g.allJoined():
		return fmt.Errorf("all joined and wait")
	case !g.timer.IsZero() && (g.deadline.IsZero() || g.timer.Before(g.deadline)):
		return fmt.Errorf("the timer is before the deadline")
	case len(g.out) > 0:
		return fmt.Errorf("%d replies were not taken", len(g.out))
	}
	return nil
}
