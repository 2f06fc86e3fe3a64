package group

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"
)

// driver sends events to a group and holds it to its promises.
type driver struct {
	cfg  Config
	g    *Group
	now  time.Time
	last Token
	ids  int

	waiting map[Token]wait
	// contact is the last time that each member did something, or was answered.
	contact    map[string]time.Time
	generation int32
	// assigned is what the leader of the generation assigned, by member; nil before.
	assigned map[string]string
}

type wait struct {
	since  time.Time
	member string
	join   bool
}

const (
	simSession   = 10 * time.Second
	simRebalance = 30 * time.Second
	simDelay     = 3 * time.Second
)

func newDriver() *driver {
	d := &driver{now: dawn, waiting: map[Token]wait{}, contact: map[string]time.Time{}}
	d.cfg = Config{InitialDelay: simDelay, SessionMin: time.Second, SessionMax: time.Minute, NewMemberTimeout: 5 * time.Minute, MembersMax: 6,
		NewMemberID: func(prefix string) string { d.ids++; return prefix + "-" + strconv.Itoa(d.ids) }}
	d.g = New(&d.cfg)
	return d
}

// after checks the group after every event. tick: the event was time alone;
// leaving are the members that the event may remove.
func (d *driver) after(before map[string]time.Duration, replies []Reply, tick bool, leaving ...string) error {
	for _, r := range replies {
		if err := d.reply(r); err != nil {
			return err
		}
	}
	if err := check(d.g); err != nil {
		return err
	}
	if d.g.generation < d.generation || d.g.generation > d.generation+1 {
		return fmt.Errorf("generation %d follows %d", d.g.generation, d.generation)
	}
	if d.g.generation != d.generation {
		d.generation, d.assigned = d.g.generation, nil
	}
	for id, session := range before {
		if _, still := d.g.byID[id]; still || slices.Contains(leaving, id) {
			continue
		}
		if quiet := d.now.Sub(d.contact[id]); !tick || quiet < session {
			return fmt.Errorf("member %s was lost %v after it did something", id, quiet)
		}
	}
	for t, w := range d.waiting {
		if waited := d.now.Sub(w.since); waited > simRebalance {
			return fmt.Errorf("request %d of %q waits since %v", t, w.member, waited)
		}
	}
	if len(d.g.pending) > 2*d.cfg.MembersMax {
		return fmt.Errorf("%d ids are pending", len(d.g.pending))
	}
	return nil
}

func (d *driver) reply(r Reply) error {
	w, ok := d.waiting[r.Token]
	if !ok {
		return fmt.Errorf("request %d was answered that does not wait", r.Token)
	}
	delete(d.waiting, r.Token)
	if w.join != (r.Join != nil) || w.join == (r.Sync != nil) {
		return fmt.Errorf("request %d got an answer of the other kind", r.Token)
	}
	if r.Join != nil {
		if r.Join.Err == None {
			d.contact[r.Join.MemberID] = d.now // its session begins
			if r.Join.Generation != d.g.generation {
				return fmt.Errorf("generation %d was handed out in %d", r.Join.Generation, d.g.generation)
			}
		}
		return nil
	}
	if r.Sync.Err != None {
		return nil
	}
	d.contact[w.member] = d.now
	if d.g.state != Stable {
		return fmt.Errorf("an assignment was handed out in %v", d.g.state)
	}
	if d.assigned == nil {
		return fmt.Errorf("an assignment without a leader's")
	}
	if got := string(r.Sync.Assignment); got != d.assigned[w.member] {
		return fmt.Errorf("member %s got %q, the leader gave %q", w.member, got, d.assigned[w.member])
	}
	return nil
}

// members are there, with their session time-outs.
func (d *driver) members() map[string]time.Duration {
	ids := map[string]time.Duration{}
	for id, m := range d.g.byID {
		ids[id] = m.session
	}
	return ids
}

func (d *driver) wait(member string, join bool) Token {
	d.last++
	d.waiting[d.last] = wait{d.now, member, join}
	return d.last
}

func (d *driver) seen(id string) {
	if _, ok := d.g.byID[id]; ok {
		d.contact[id] = d.now
	}
}

func (d *driver) join(r *JoinRequest) error {
	before := d.members()
	_, known := before[r.MemberID]
	var replaced []string
	if m := d.g.statics[r.InstanceID]; r.MemberID == "" && r.InstanceID != "" && m != nil {
		replaced = append(replaced, m.id)
		defer func(old string) {
			if now := d.g.statics[r.InstanceID]; now != nil && d.assigned != nil { // its place is the new one's
				d.assigned[now.id] = d.assigned[old]
			}
		}(m.id)
	}
	if known {
		replaced = append(replaced, r.MemberID) // turned away: the group is full
	}
	t := d.wait(r.MemberID, true)
	replies := d.g.Join(d.now, t, r)
	for _, m := range d.g.members {
		if m.join == t {
			d.contact[m.id] = d.now
		}
	}
	return d.after(before, replies, false, replaced...)
}

func (d *driver) sync(id, instance string, generation int32) error {
	before := d.members()
	r := &SyncRequest{MemberID: id, InstanceID: instance, Generation: generation, Assignments: map[string][]byte{"nobody": []byte("x")}}
	if id == d.g.leader && generation == d.g.generation && d.g.state == Completing {
		if m := d.g.byID[id]; instance == "" || d.g.statics[instance] == m {
			d.assigned = map[string]string{}
			for i, m := range d.g.members {
				d.assigned[m.id] = fmt.Sprint(generation, ":", i)
				r.Assignments[m.id] = []byte(d.assigned[m.id])
			}
		}
	}
	return d.after(before, d.g.Sync(d.now, d.wait(id, false), r), false)
}

func (d *driver) heartbeat(id, instance string, generation int32) error {
	before := d.members()
	if err := d.g.Heartbeat(d.now, id, instance, generation); err == None || err == RebalanceInProgress {
		if d.g.byID[id] == nil {
			return fmt.Errorf("%s, no member, may go on", id)
		}
		d.seen(id)
	}
	return d.after(before, nil, false)
}

func (d *driver) commit(id, instance string, generation int32) error {
	before := d.members()
	if d.g.CheckCommit(d.now, generation, id, instance) == None {
		switch {
		case generation < 0 && d.g.state != Empty:
			return fmt.Errorf("an outsider commits in %v", d.g.state)
		case generation >= 0 && (d.g.byID[id] == nil || generation != d.g.generation || d.g.state == Completing):
			return fmt.Errorf("%s of generation %d commits in %v, %d", id, generation, d.g.state, d.g.generation)
		}
		d.seen(id)
	}
	return d.after(before, nil, false)
}

func (d *driver) leave(ids ...string) error {
	before := d.members()
	names := make([]Leaving, len(ids))
	for i, id := range ids {
		names[i] = Leaving{MemberID: id}
	}
	_, replies := d.g.Leave(d.now, names)
	return d.after(before, replies, false, ids...)
}

func (d *driver) abandon(t Token) error {
	before := d.members()
	var gone []string
	for _, m := range d.g.members {
		if m.join == t || m.sync == t {
			d.contact[m.id] = d.now
			if m.anonymous {
				gone = append(gone, m.id)
			}
		}
	}
	replies := d.g.Abandon(d.now, t)
	delete(d.waiting, t)
	return d.after(before, replies, false, gone...)
}

func (d *driver) advance(by time.Duration) error {
	end := d.now.Add(by)
	for range 10_000 {
		due, ok := d.g.Deadline()
		if !ok || due.After(end) {
			d.now = end
			return d.after(d.members(), nil, true)
		}
		if due.After(d.now) {
			d.now = due
		}
		before, late := d.members(), d.late()
		if err := d.after(before, d.g.Tick(d.now), true, late...); err != nil {
			return err
		}
	}
	return fmt.Errorf("the deadline does not move")
}

// late are the members that the end of the phase's time removes, alive or not.
func (d *driver) late() []string {
	if d.g.timer.IsZero() || d.g.timer.After(d.now) {
		return nil
	}
	var ids []string
	for _, m := range d.g.members {
		if d.g.state == Preparing && m.join == 0 && m.instance == "" || d.g.state > Preparing && !m.synced {
			ids = append(ids, m.id)
		}
	}
	return ids
}

// end lets everything run out: nothing may be left.
func (d *driver) end() error {
	if err := d.advance(time.Hour); err != nil {
		return err
	}
	if !d.g.Idle() || len(d.waiting) > 0 || d.g.Bytes() != 0 {
		return fmt.Errorf("left over: %v, %d members, %d pending, %d waiting, %d bytes", d.g.state, len(d.g.members), len(d.g.pending), len(d.waiting), d.g.Bytes())
	}
	return nil
}

// step is one event, chosen by pick(n) in [0, n).
func (d *driver) step(pick func(n int) int) error {
	known := slices.Sorted(maps.Keys(d.g.byID))
	known = append(known, slices.Sorted(maps.Keys(d.g.pending))...)
	known = append(known, "ghost")
	id := known[pick(len(known))]
	instance := ""
	if m := d.g.byID[id]; m != nil {
		instance = m.instance
	}
	if pick(20) == 0 {
		instance = "i" + strconv.Itoa(pick(4))
	}
	generation := d.g.generation
	if pick(10) == 0 {
		generation += int32(pick(3) - 1)
	}
	switch pick(12) {
	case 0, 1:
		r := simJoin(pick)
		if pick(3) == 0 {
			r.InstanceID = "i" + strconv.Itoa(pick(3))
		}
		return d.join(r)
	case 2, 3, 4:
		r := simJoin(pick)
		r.MemberID, r.InstanceID = id, instance
		return d.join(r)
	case 5, 6, 7:
		return d.sync(id, instance, generation)
	case 8:
		return d.heartbeat(id, instance, generation)
	case 9:
		switch pick(4) {
		case 0:
			return d.leave(id)
		case 1:
			return d.commit(id, instance, -1)
		}
		return d.commit(id, instance, generation)
	case 10:
		tokens := slices.Sorted(maps.Keys(d.waiting))
		if len(tokens) == 0 || pick(2) == 0 {
			return nil
		}
		return d.abandon(tokens[pick(len(tokens))])
	default:
		return d.advance([]time.Duration{0, time.Second, 3 * time.Second, simSession, simRebalance}[pick(5)])
	}
}

func simJoin(pick func(int) int) *JoinRequest {
	r := &JoinRequest{ClientID: "c", ProtocolType: "consumer", Session: simSession, Rebalance: simRebalance,
		RequireID: pick(2) == 0, CanSkip: pick(2) == 0}
	if pick(30) == 0 {
		r.ProtocolType = "connect"
	}
	names := []string{"range", "sticky", "roundrobin"}
	for i := range 1 + pick(3) {
		r.Protocols = append(r.Protocols, Protocol{names[(i+pick(2))%3], []byte{byte(pick(3))}})
	}
	switch pick(20) {
	case 0:
		r.Session = time.Hour // too long
	case 1, 2, 3, 4, 5, 6:
		r.Session = 50 * time.Second // longer than the rebalance
	}
	return r
}

// TestSimulation runs random lives of a group.
func TestSimulation(t *testing.T) {
	lives := 3000
	if testing.Short() {
		lives = 300
	}
	reached := map[State]int{}
	for seed := range lives {
		rng := rand.New(rand.NewPCG(uint64(seed), 1))
		d := newDriver()
		for i := range 150 {
			if err := d.step(rng.IntN); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, i, err)
			}
			reached[d.g.state]++
		}
		if err := d.end(); err != nil {
			t.Fatalf("seed %d, end: %v", seed, err)
		}
	}
	for s := Empty; s <= Stable; s++ {
		if reached[s] < lives {
			t.Errorf("%v was reached %d times only", s, reached[s])
		}
	}
}

// FuzzEvents is the simulation with the fuzzer's choices.
func FuzzEvents(f *testing.F) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		b := make([]byte, 400)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, choices []byte) {
		d := newDriver()
		pick := func(n int) int {
			if len(choices) == 0 {
				return 0
			}
			c := choices[0]
			choices = choices[1:]
			return int(c) % n
		}
		for steps := 0; len(choices) > 0 && steps < 2000; steps++ {
			if err := d.step(pick); err != nil {
				t.Fatalf("step %d: %v", steps, err)
			}
		}
		if err := d.end(); err != nil {
			t.Fatal(err)
		}
	})
}
