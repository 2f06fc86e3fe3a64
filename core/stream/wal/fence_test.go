package wal

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// The model of the fence: the writer's ledger and attempts and the recoverer's
// judgement, the very code that Writer and Recover run, against a store and a
// metadata log that do whatever an honest one may do, in random order:
//
//	writer       submits, retries, looks, acknowledges; is never told that it is
//	             dead (a zombie); proposes trims
//	network      lands Puts late, twice, after their sender has given up; loses answers
//	recoverers   two, that stop anywhere and start again; their view of the metadata
//	             lags, so that they go on after the log is recovered
//	metadata     seals, accepts trims of an unsealed epoch and one recovery
//	cleaning     deletes what plan.SlotDeletable allows; compacts recovered slots away;
//	             sweeps beyond the end
//
// Every schedule has its own weights for all that, so that rare combinations
// come up soon. It must never happen that something acknowledged is not in the
// recovered log, that a referenced slot is gone, or that an undamaged log is
// called corrupt.

var schedules = flag.Int("wal.schedules", 0, "schedules of the fence model to run, 0: a default")

// mutations are rules taken out, one at a time: the model must notice.
type mutations struct {
	noTombstones, ackInAnyOrder, trustExists                  bool // in the real code
	sweepTombstone, sweepByList, recoverTwice, trimUnaccepted bool // in what surrounds it
}

const (
	modelSlots   = 48                           // the writer submits no more
	modelTop     = modelSlots + 64*modelWindows // no tombstone goes beyond
	modelWindows = 8
)

var modelWAL = plan.WALID{Node: 1, Epoch: 2, Nonce: 3}

// modelObjects are real bulks and tombstones by window and slot, and what the
// real reader makes of them.
type modelObjects struct {
	keys   []string
	header [modelWindows + 1][][]byte
	size   [modelWindows + 1][]int64
	bulk   [modelWindows + 1][]content
	stones [][]byte
	stone  []content
}

func newModelObjects(t testing.TB) *modelObjects {
	m := &modelObjects{}
	for s := range uint64(modelTop) {
		m.keys = append(m.keys, plan.Key(modelWAL, plan.KindWAL, s))
		m.stones = append(m.stones, object.Tombstone(modelWAL, s, 9))
		m.stone = append(m.stone, mustRead(t, modelWAL, s, m.stones[s]))
	}
	for k := 1; k <= modelWindows; k++ {
		for s := range uint64(modelSlots) {
			b := bytes.Join(bulkChunks(t, modelWAL, s, uint16(k), s, 1), nil)
			m.header[k] = append(m.header[k], b[:object.HeaderLen])
			m.size[k] = append(m.size[k], int64(len(b)))
			m.bulk[k] = append(m.bulk[k], mustRead(t, modelWAL, s, b))
		}
	}
	return m
}

func mustRead(t testing.TB, id plan.WALID, slot uint64, b []byte) content {
	t.Helper()
	c, err := readContent(id, slot, int64(len(b)), func(offset, n int64) ([]byte, error) { return b[offset : offset+n], nil })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// bulkChunks is a bulk that holds n offsets from start of stream 1.
func bulkChunks(t testing.TB, id plan.WALID, slot uint64, window uint16, start uint64, n uint64) [][]byte {
	t.Helper()
	chunks, _ := buildBulk(t, id, slot, window, start, n)
	return chunks
}

func buildBulk(t testing.TB, id plan.WALID, slot uint64, window uint16, start uint64, n uint64) ([][]byte, object.Summary) {
	t.Helper()
	b := object.NewBuilder(1)
	f := object.Frame{Start: mink.Offset(start), Span: n, Count: uint32(n), LeaderEpoch: 1, Bytes: fmt.Appendf(nil, "slot %d", slot)}
	if err := b.AddFrame(1, &f); err != nil {
		t.Fatal(err)
	}
	chunks, sum, err := b.Finish(object.Header{Kind: plan.KindWAL, WAL: id, Seq: slot, Window: window, Nonce: 1000 + slot})
	if err != nil {
		t.Fatal(err)
	}
	return chunks, sum
}

// message is a create-only Put in the network.
type message struct {
	slot   uint64
	sender int // 0: the writer; 1, 2: a recoverer
	call   int // the answer is for this call only
}

type writerSlot struct {
	attempt
	next    step
	waiting int // call whose answer it waits for; 0: none
}

type recoverer struct {
	r        *recovery
	last     int // LIST position
	waiting  int
	proposed *Result
	over     bool
}

type schedule struct {
	*modelObjects
	rng *rand.Rand
	k   int
	mut mutations

	st    [modelTop]byte // 0, 'd', 'T'
	net   []message
	calls int

	ledger  *ledger
	open    []*writerSlot
	trimAsk uint64 // proposed trim; 0: none

	wal  plan.WAL // the metadata
	refs [modelTop]bool

	rec    [3]*recoverer // [0] unused
	broken string
}

func (m *schedule) breach(format string, args ...any) {
	if m.broken == "" {
		m.broken = fmt.Sprintf(format, args...)
	}
}

func newSchedule(objects *modelObjects, rng *rand.Rand, mut mutations) *schedule {
	m := &schedule{modelObjects: objects, rng: rng, mut: mut, k: 1 + rng.IntN(modelWindows), wal: plan.WAL{ID: modelWAL}}
	m.ledger = newLedger(m.k)
	m.ledger.ackInAnyOrder = mut.ackInAnyOrder
	m.rec[1], m.rec[2] = &recoverer{}, &recoverer{}
	return m
}

// run plays one schedule and reports whether the log was recovered.
func (m *schedule) run() bool {
	events := []func(){
		m.submit, m.writer, m.land, m.timeout, m.askTrim, m.verdict, m.clean, m.compact, m.sweep,
		func() { m.recover(1) }, func() { m.recover(2) }, func() { m.crash(1 + m.rng.IntN(2)) },
	}
	weights, sum := make([]int, len(events)), 0
	for i := range weights {
		weights[i] = 1 << m.rng.IntN(6)
		sum += weights[i]
	}
	const recover1 = 9
	from := m.rng.IntN(400) // recovery starts
	for i := range 700 {
		at := m.rng.IntN(sum)
		e := 0
		for at >= weights[e] {
			at -= weights[e]
			e++
		}
		if e >= recover1 && i < from {
			continue
		}
		events[e]()
		m.check()
		if m.broken != "" {
			break
		}
	}
	// Everybody gets to the end.
	for i := 0; i < 3000 && m.broken == "" && !m.wal.Recovered; i++ {
		m.land()
		m.recover(1)
		if len(m.net) == 0 {
			m.timeout()
		}
		m.check()
	}
	return m.wal.Recovered
}

func (m *schedule) check() {
	if m.wal.Recovered && m.ledger.acked > m.wal.End {
		m.breach("slot %d is acknowledged, the recovered log ends at %d", m.ledger.acked-1, m.wal.End)
	}
}

// checkRefs is for after deletions and recoveries.
func (m *schedule) checkRefs() {
	for s := range uint64(modelSlots) {
		if m.refs[s] && m.st[s] != 'd' {
			m.breach("slot %d is referenced and holds %q", s, m.st[s])
		}
	}
}

func (m *schedule) send(slot uint64, sender int) (call int) {
	m.calls++
	m.net = append(m.net, message{slot, sender, m.calls})
	return m.calls
}

func (m *schedule) submit() {
	if m.ledger.err != nil || m.ledger.outstanding() >= uint64(m.k) || m.ledger.next >= modelSlots {
		return
	}
	s := m.ledger.submit()
	m.open = append(m.open, &writerSlot{attempt: attempt{
		wal: modelWAL, slot: s, header: m.header[m.k][s], size: m.size[m.k][s], trustExists: m.mut.trustExists,
	}})
}

// writer lets one slot take its next step.
func (m *schedule) writer() {
	if len(m.open) == 0 || m.ledger.err != nil {
		return
	}
	i := m.rng.IntN(len(m.open))
	w := m.open[i]
	switch {
	case w.waiting != 0:
	case w.next == stepPut:
		w.waiting = m.send(w.slot, 0)
	case w.next == stepLook:
		var resp objstore.GetRangeResponse
		err := objstore.ErrNotExist
		switch m.st[w.slot] {
		case 'd':
			resp, err = objstore.GetRangeResponse{Data: w.header, Size: w.size}, nil
		case 'T':
			resp, err = objstore.GetRangeResponse{Data: m.stones[w.slot], Size: object.HeaderLen}, nil
		}
		if m.rng.IntN(8) == 0 {
			err = objstore.ErrUnavailable
		}
		m.took(w, w.afterLook(resp, err))
	}
}

func (m *schedule) took(w *writerSlot, s step) {
	w.next = s
	switch s {
	case stepLanded:
		m.ledger.land(w.slot)
	case stepFailed:
		_ = m.ledger.fail(w.err)
	default:
		return
	}
	for i := range m.open {
		if m.open[i] == w {
			m.open = append(m.open[:i], m.open[i+1:]...)
			return
		}
	}
}

// land lets one message arrive; now and then the network keeps a copy, or the
// answer is lost.
func (m *schedule) land() {
	if len(m.net) == 0 {
		return
	}
	i := m.rng.IntN(len(m.net))
	g := m.net[i]
	if m.rng.IntN(6) != 0 {
		m.net[i] = m.net[len(m.net)-1]
		m.net = m.net[:len(m.net)-1]
	}
	free := m.st[g.slot] == 0
	if free {
		m.st[g.slot] = 'T'
		if g.sender == 0 {
			m.st[g.slot] = 'd'
		}
		m.checkRefs()
	}
	if m.rng.IntN(4) == 0 {
		return
	}
	if g.sender == 0 {
		for _, w := range m.open {
			if w.waiting == g.call && m.ledger.err == nil {
				w.waiting = 0
				var err error
				if !free {
					err = objstore.ErrAlreadyExists
				}
				m.took(w, w.afterPut(err))
				return
			}
		}
		return
	}
	if x := m.rec[g.sender]; x.waiting == g.call {
		x.waiting = 0
		x.r.created(g.slot, free)
	}
}

// timeout makes somebody stop waiting for an answer.
func (m *schedule) timeout() {
	if len(m.open) > 0 && m.ledger.err == nil {
		if w := m.open[m.rng.IntN(len(m.open))]; w.waiting != 0 {
			w.waiting = 0
			m.took(w, w.afterPut(objstore.ErrUnknownOutcome))
		}
	}
	if x := m.rec[1+m.rng.IntN(2)]; x.waiting != 0 {
		x.waiting = m.send(x.r.next().slots[0], m.indexOf(x)) // as retry does
	}
}

func (m *schedule) indexOf(x *recoverer) int {
	if x == m.rec[1] {
		return 1
	}
	return 2
}

func (m *schedule) askTrim() {
	if m.trimAsk != 0 || m.ledger.acked <= m.wal.Trim {
		return
	}
	m.trimAsk = m.wal.Trim + 1 + m.rng.Uint64N(m.ledger.acked-m.wal.Trim)
	if m.mut.trimUnaccepted {
		clear(m.st[m.wal.Trim:m.trimAsk])
		m.checkRefs()
	}
}

func (m *schedule) verdict() {
	if m.trimAsk != 0 && !m.wal.Sealed {
		m.wal.Trim = m.trimAsk
	}
	m.trimAsk = 0
}

// clean deletes what metadata allows, by the rule that the engine uses.
func (m *schedule) clean() {
	for s := range uint64(modelTop) {
		if m.st[s] != 0 && plan.SlotDeletable(m.wal, s, m.refs[s]) && m.rng.IntN(2) == 0 {
			m.st[s] = 0
		}
	}
	m.checkRefs()
}

// compact moves recovered slots elsewhere.
func (m *schedule) compact() {
	if m.wal.Recovered {
		for s := m.wal.Trim; s < m.wal.End; s++ {
			if m.rng.IntN(3) == 0 {
				m.refs[s] = false
			}
		}
	}
}

// sweep removes garbage beyond the end.
func (m *schedule) sweep() {
	if !m.wal.Recovered {
		return
	}
	first := m.wal.End + 1
	if m.mut.sweepTombstone {
		first = m.wal.End
	}
	if m.mut.sweepByList {
		first = uint64(bytes.IndexByte(m.st[:], 'T') + 1)
	}
	for s := first; s < modelTop; s++ {
		if m.st[s] != 0 && m.rng.IntN(2) == 0 {
			m.st[s] = 0
		}
	}
	m.checkRefs()
}

func (m *schedule) crash(n int) {
	if m.rng.IntN(4) == 0 {
		m.rec[n] = &recoverer{}
	}
}

// recover lets one recoverer take its next step.
func (m *schedule) recover(n int) {
	x := m.rec[n]
	if x.over || x.waiting != 0 {
		return
	}
	if x.r == nil {
		m.wal.Sealed = true
		window := 1 + m.rng.IntN(modelWindows) // not always the writer's: somebody changed the setting
		x.r = newRecovery(modelWAL, m.wal.Trim, uint64(window), nil)
		x.r.noTombstones = m.mut.noTombstones
		return
	}
	if x.proposed != nil {
		x.over = true
		m.apply(*x.proposed)
		return
	}
	switch o := x.r.next(); o.kind {
	case opList:
		m.list(x)
	case opRead:
		contents := make([]content, len(o.slots))
		for i, s := range o.slots {
			contents[i] = m.content(s)
		}
		x.r.read(contents)
	case opNeeded:
		x.r.needed(!m.wal.Recovered || m.rng.IntN(3) == 0) // the view may lag
	case opTombstone:
		if o.slots[0] >= modelTop {
			m.breach("a tombstone in slot %d", o.slots[0])
			return
		}
		x.waiting = m.send(o.slots[0], n)
	case opDone:
		res := x.r.result()
		x.proposed = &res
	case opFail:
		if !m.wal.Recovered {
			m.breach("an undamaged log is called corrupt: %v", o.err)
		}
		x.over = true
	case opMoot:
		if !m.wal.Recovered {
			m.breach("a recovery that is needed stopped")
		}
		x.over = true
	}
}

func (m *schedule) content(s uint64) content {
	switch m.st[s] {
	case 'd':
		return m.bulk[m.k][s]
	case 'T':
		return m.stone[s]
	}
	return content{kind: slotGone}
}

func (m *schedule) list(x *recoverer) {
	p := page{last: x.r.after}
	s := max(x.last, int(m.wal.Trim))
	for ; s < modelTop && len(p.slots) < 3; s++ {
		if m.st[s] != 0 {
			p.slots = append(p.slots, Slot{Seq: uint64(s), Key: m.keys[s]})
		}
	}
	x.last, p.more = s, s < modelTop
	x.r.listedPage(p)
}

func (m *schedule) apply(res Result) {
	if m.wal.Recovered && !m.mut.recoverTwice {
		return // a no-op
	}
	m.wal.Recovered, m.wal.End = true, res.End
	clear(m.refs[:])
	next := m.wal.Trim
	for i, o := range res.Objects {
		if o.ID.Seq != next || res.Items[i].Start != mink.Offset(next) || res.Items[i].Object != o.ID {
			m.breach("slot %d is object %+v, item %+v", next, o, res.Items[i])
		}
		m.refs[o.ID.Seq] = true
		next++
	}
	if next != res.End || len(res.Items) != len(res.Objects) || res.Lost != nil || res.Gaps != nil {
		m.breach("the log [%d, %d) is %d objects", m.wal.Trim, res.End, len(res.Objects))
	}
	m.checkRefs()
}

// hunt plays n schedules, and returns the first that breaks something.
func hunt(objects *modelObjects, seed uint64, n int, mut mutations) (broken string, recovered int) {
	for i := range n {
		m := newSchedule(objects, rand.New(rand.NewPCG(seed, uint64(i))), mut)
		if m.run() {
			recovered++
		}
		if m.broken != "" {
			return fmt.Sprintf("seed %d schedule %d, window %d: %s", seed, i, m.k, m.broken), recovered
		}
	}
	return "", recovered
}

func TestFenceHolds(t *testing.T) {
	n := 15_000
	if testing.Short() {
		n = 3_000
	}
	if *schedules > 0 {
		n = *schedules
	}
	broken, recovered := hunt(newModelObjects(t), 11, n, mutations{})
	if broken != "" {
		t.Fatal(broken)
	}
	t.Logf("%d schedules, all clean", n)
	if recovered != n {
		t.Errorf("only %d of %d were recovered: the model has become too weak", recovered, n)
	}
}

// The test of the test: each rule taken out is noticed.
func TestFenceNeedsEveryRule(t *testing.T) {
	objects := newModelObjects(t)
	for name, c := range map[string]struct {
		mut  mutations
		want string
	}{
		"no tombstones":                     {mutations{noTombstones: true}, "is acknowledged"},
		"acknowledging in any order":        {mutations{ackInAnyOrder: true}, ""},
		"taking any taken slot for ours":    {mutations{trustExists: true}, "is acknowledged"},
		"sweeping the tombstone":            {mutations{sweepTombstone: true}, "is acknowledged"},
		"the sweep's boundary by a listing": {mutations{sweepByList: true}, ""},
		"accepting a second recovery":       {mutations{recoverTwice: true}, ""},
		"trimming on an unaccepted command": {mutations{trimUnaccepted: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			broken, _ := hunt(objects, 5, 50_000, c.mut)
			if broken == "" || !strings.Contains(broken, c.want) {
				t.Fatalf("not noticed, got %q", broken)
			}
			t.Log(broken)
		})
	}
}
