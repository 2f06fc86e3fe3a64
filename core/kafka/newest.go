package kafka

import (
	"context"
	"sync"
	"time"

	"github.com/mink-project/mink/core/cluster"
)

// syncGap is between two questions: clients may ask all the time for what is not there.
const syncGap = 50 * time.Millisecond

// newest brings the view to what the metadata log has, for requests that name topics or
// partitions which the view lacks: a client that learned of them from another node may be
// ahead of this one. Requests share a question that began after they came.
type newest struct {
	backend Backend
	most    time.Duration   // Config.LookupWait
	ctx     context.Context // until close
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu struct {
		sync.Mutex
		next   chan struct{} // closed with the answer to the question that has not begun; nil: there is none
		last   chan struct{} // the same of the newest one that has begun
		ended  time.Time     // when that was
		closed bool
	}
}

func newNewest(backend Backend, most time.Duration) *newest {
	n := &newest{backend: backend, most: most}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.mu.last = make(chan struct{})
	close(n.mu.last)
	return n
}

// close ends the questions under way.
func (n *newest) close() {
	n.cancel()
	n.mu.Lock()
	n.mu.closed = true
	n.mu.Unlock()
	n.wg.Wait()
}

// wait returns when the view has what the metadata log had at the call, or nobody can
// tell in time.
func (n *newest) wait(ctx context.Context) {
	if n.most == 0 {
		return
	}
	n.mu.Lock()
	if n.mu.next == nil && !n.mu.closed {
		answered := make(chan struct{})
		n.mu.next = answered
		before := n.mu.last
		n.wg.Go(func() { n.ask(before, answered) })
	}
	answered := n.mu.next
	n.mu.Unlock()
	if answered == nil {
		return
	}
	patience := time.NewTimer(n.most)
	defer patience.Stop()
	select {
	case <-answered:
	case <-patience.C:
	case <-ctx.Done():
	}
}

// ask asks once the question before has its answer; syncGap later, when it comes soon.
func (n *newest) ask(before, answered chan struct{}) {
	defer close(answered)
	<-before
	n.mu.Lock()
	gap := time.NewTimer(syncGap - time.Since(n.mu.ended))
	n.mu.Unlock()
	select {
	case <-gap.C:
	case <-n.ctx.Done():
	}
	n.mu.Lock()
	n.mu.next, n.mu.last = nil, answered
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.mu.ended = time.Now()
		n.mu.Unlock()
	}()
	ctx, cancel := context.WithTimeout(n.ctx, n.most)
	defer cancel()
	_ = n.backend.Sync(ctx) // without an answer the view is what it is
}

// lookup finds the topics of one request in one view, which is brought up to date once,
// when it lacks something that the request names. Not safe for concurrent use.
type lookup struct {
	broker *broker
	ctx    context.Context
	view   *cluster.State
	asked  bool
}

func (b *broker) lookup(ctx context.Context) lookup {
	return lookup{broker: b, ctx: ctx, view: b.backend.View()}
}

// newer reports that there is a view that may have what is missing.
func (l *lookup) newer() bool {
	if l.asked {
		return false
	}
	l.asked = true
	l.broker.newest.wait(l.ctx)
	before := l.view.Index()
	l.view = l.broker.backend.View()
	return l.view.Index() > before
}

// byName finds a topic by its name, with at least so many partitions if it has them;
// nil: no such topic.
func (l *lookup) byName(name string, partitions int32) *topic {
	t := l.broker.topicByName(l.view, name)
	if (t == nil || int(partitions) > len(t.streams)) && l.newer() {
		t = l.broker.topicByName(l.view, name)
	}
	return t
}

// byID is byName by the topic's id.
func (l *lookup) byID(id [16]byte, partitions int32) *topic {
	t := l.broker.topicByID(l.view, id)
	if (t == nil || int(partitions) > len(t.streams)) && l.newer() {
		t = l.broker.topicByID(l.view, id)
	}
	return t
}

// partitionsNamed is how many partitions a topic has at least that has all of these.
func partitionsNamed[P any](named []P, number func(*P) int32) (n int32) {
	for i := range named {
		n = max(n, number(&named[i])+1)
	}
	return n
}
