package kafka

import (
	"context"
	"errors"
	"math"
	"reflect"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// The first versions of Fetch that can say something.
const (
	fetchTopicIDs = 13
	fetchNodes    = 16 // KIP-951
)

// fetchRun is one Fetch request at work. It answers when MinBytes are there,
// when any partition has an error, or at the deadline, whatever comes first. A
// partition is read again only after something about it changed.
//
// Limits are Kafka's: the first batch of the response is sent whatever its
// size; beyond it a batch is taken only if it fits in its partition's and in
// the response's rest.
type fetchRun struct {
	broker *broker
	req    *kmsg.FetchRequest
	parts  []fetchPart // in the order of the request
	bytes  int         // of batches so far
	some   bool        // one of them has a record
	limit  int         // of the response, record bytes
	errs   int
	hops   []endpoint // leaders named by errors
}

// fetchPart is one partition of a fetch.
type fetchPart struct {
	topic  int // index in the request
	req    *kmsg.FetchRequestTopicPartition
	bucket mink.BucketRef
	log    Log

	code    code
	leader  mink.NodeID // beside codeNotLeader and codeFencedLeaderEpoch; -1: not said
	epoch   mink.LeaderEpoch
	hwm     mink.Offset // -1 with an error
	start   mink.Offset
	next    mink.Offset
	batches [][]byte
	bytes   int

	opening error         // why the log, which is led here, is not open yet
	pause   time.Duration // until it is looked for again

	// What to wait for before the next read; all nil: nothing more to come.
	changed <-chan struct{} // caught up
	cold    *coldRead       // on its way from the store
	room    <-chan struct{} // no room for another read from the store
	look    <-chan struct{} // the log is opening
}

func (p *fetchPart) waits() <-chan struct{} {
	switch {
	case p.cold != nil:
		return p.cold.done
	case p.room != nil:
		return p.room
	case p.look != nil:
		return p.look
	default:
		return p.changed
	}
}

// fetchAnswer is a finished fetch; see encode.
type fetchAnswer struct {
	version int16
	code    code
	topics  []kmsg.FetchRequestTopic
	parts   []fetchPart
	brokers []endpoint
}

// fetch serves one request that arrived at `arrived`. It waits no longer once
// hurry is closed.
func (b *broker) fetch(ctx context.Context, r *kmsg.FetchRequest, arrived time.Time, hurry <-chan struct{}) (reply, error) {
	if r.SessionID != 0 && r.SessionEpoch > 0 {
		// We never gave out a session: the client falls back to full fetches.
		c := code(b.fail("Fetch", codeFetchSessionNotFound))
		return reply{fetch: &fetchAnswer{version: r.Version, code: c}}, nil
	}
	f := newFetchRun(ctx, b, r)
	for i := range f.parts {
		f.read(ctx, &f.parts[i])
	}
	if err := f.wait(ctx, arrived.Add(time.Duration(r.MaxWaitMillis)*time.Millisecond), hurry); err != nil {
		return reply{}, err
	}
	for i := range f.parts {
		if p := &f.parts[i]; p.opening != nil {
			f.failWith(p, p.opening)
		}
	}
	b.metrics.RecordBytes(0, f.bytes)
	return reply{fetch: &fetchAnswer{version: r.Version, topics: r.Topics, parts: f.parts, brokers: f.hops}}, nil
}

func newFetchRun(ctx context.Context, b *broker, r *kmsg.FetchRequest) *fetchRun {
	f := &fetchRun{broker: b, req: r, limit: min(int(max(r.MaxBytes, 0)), b.cfg.FetchBytesMax)}
	n := 0
	for i := range r.Topics {
		n += len(r.Topics[i].Partitions)
	}
	f.parts = make([]fetchPart, 0, n)
	topics := b.lookup(ctx)
	for i := range r.Topics {
		in := &r.Topics[i]
		named := partitionsNamed(in.Partitions, func(p *kmsg.FetchRequestTopicPartition) int32 { return p.Partition })
		missing := codeUnknownTopicOrPartition
		var t *topic
		if r.Version >= fetchTopicIDs {
			missing = codeUnknownTopicID
			t = topics.byID(in.TopicID, named)
		} else {
			t = topics.byName(in.Topic, named)
		}
		for j := range in.Partitions {
			f.parts = append(f.parts, fetchPart{topic: i, req: &in.Partitions[j], leader: -1, epoch: -1, hwm: -1, start: -1})
			f.open(topics.view, &f.parts[len(f.parts)-1], t, missing)
		}
	}
	return f
}

// open finds the partition's log and checks what the client knows of it.
func (f *fetchRun) open(v *cluster.State, p *fetchPart, t *topic, missing code) {
	if t == nil {
		f.fail(p, missing)
		return
	}
	var ok bool
	if p.bucket, ok = t.bucket(p.req.Partition); !ok {
		f.fail(p, codeUnknownTopicOrPartition)
		return
	}
	f.openLog(v, p)
}

// openingPauseMax bounds the pauses between looks for a log that opens.
const openingPauseMax = 50 * time.Millisecond

// openLog waits for a log that is led here and is opening: "not leader" would send the
// client to the metadata, which name this node again, and some wait for seconds before
// they ask for those.
func (f *fetchRun) openLog(v *cluster.State, p *fetchPart) {
	p.opening, p.look = nil, nil
	log, err := f.broker.backend.Log(p.bucket)
	if err != nil {
		var moved *mink.NotLeaderError
		switch c := f.broker.notHere(p.bucket, p.req.CurrentLeaderEpoch, err); {
		case c == codeUnknownLeaderEpoch:
			f.fail(p, c)
		case errors.Is(err, mink.ErrUnavailable) && !errors.As(err, &moved):
			p.opening = err
			p.pause = min(max(2*p.pause, time.Millisecond), openingPauseMax)
			look := make(chan struct{})
			time.AfterFunc(p.pause, func() { close(look) })
			p.look = look
		default:
			f.failWith(p, err)
		}
		return
	}
	if c := checkEpoch(p.req.CurrentLeaderEpoch, log.LeaderEpoch()); c != codeNone {
		f.fail(p, c)
		if c == codeFencedLeaderEpoch {
			p.leader, p.epoch = f.broker.backend.Self(), log.LeaderEpoch()
			if n, ok := v.Node(p.leader); ok {
				f.hop(endpointOf(n))
			}
		}
		return
	}
	p.log, p.next = log, mink.Offset(p.req.FetchOffset)
}

// checkEpoch compares the leader epoch that a client knows (-1: none) with ours.
func checkEpoch(client int32, ours mink.LeaderEpoch) code {
	switch {
	case client < 0 || client == int32(ours):
		return codeNone
	case client < int32(ours):
		return codeFencedLeaderEpoch
	default:
		return codeUnknownLeaderEpoch
	}
}

func (f *fetchRun) fail(p *fetchPart, c code) {
	p.code = code(f.broker.fail("Fetch", c))
	p.hwm, p.start = -1, -1
	f.bytes -= p.bytes
	p.batches, p.bytes = nil, 0
	p.log, p.opening, p.changed, p.cold, p.room, p.look = nil, nil, nil, nil, nil, nil
	f.errs++
}

func (f *fetchRun) failWith(p *fetchPart, err error) {
	c := bucketCode(err)
	var beyond *mink.OutOfRangeError
	if p.log != nil && errors.As(err, &beyond) && beyond.Asked > beyond.End {
		if v := f.broker.vouch(p.bucket, p.log); v != codeNone {
			c = v // the client may have read on at the next leader; it would begin again somewhere
		}
	}
	f.fail(p, c)
	switch c {
	case codeNotLeader:
		if e, epoch, ok := f.broker.newLeader(f.broker.backend.View(), p.bucket, err); ok {
			p.leader, p.epoch = e.id, epoch
			f.hop(e, true)
		}
	case codeUnknownServerError, codeStorageError:
		f.broker.report("read for a Kafka fetch failed", "bucket", p.bucket, "offset", p.next, "error", err)
	}
}

func (f *fetchRun) hop(e endpoint, ok bool) {
	for _, h := range f.hops {
		if h.id == e.id {
			return
		}
	}
	if ok {
		f.hops = append(f.hops, e)
	}
}

// rest is how many more record bytes p may take; 0 or less: none.
func (f *fetchRun) rest(p *fetchPart) int {
	if !f.some && f.bytes < f.limit || f.bytes == 0 {
		// The first batch with a record is taken whatever the limits.
		return max(min(int(p.req.PartitionMaxBytes), f.limit), 1)
	}
	return min(int(p.req.PartitionMaxBytes)-p.bytes, f.limit-f.bytes)
}

// read takes what is in memory for p, and finds out what to wait for.
func (f *fetchRun) read(ctx context.Context, p *fetchPart) {
	if p.look != nil {
		select {
		case <-p.look:
			f.openLog(f.broker.backend.View(), p)
		default:
		}
	}
	if p.log == nil {
		return
	}
	p.changed, p.room = nil, nil
	if p.cold == nil {
		p.cold = f.broker.cold.finished(coldKey{p.bucket, p.next})
	}
	if p.cold != nil {
		res, err := f.broker.cold.claim(p.cold)
		p.cold = nil
		if transient(err) {
			// Not the client's business: it gets an empty answer at MaxWait and comes
			// again. Trying at once would hammer a store that is down.
			p.changed = p.log.Changed()
			f.know(p)
			return
		}
		if !f.take(p, res, err) {
			return
		}
	}
	for {
		rest := f.rest(p)
		if rest <= 0 {
			f.know(p)
			return
		}
		// Before the read: a change between the two wakes us for nothing, not never.
		changed := p.log.Changed()
		res, err := p.log.Read(ctx, tablet.ReadRequest{From: p.next, MaxBytes: rest, Cached: true})
		if errors.Is(err, mink.ErrNotCached) {
			f.know(p)
			f.readCold(p, rest)
			return
		}
		if err == nil && res.Next <= p.next {
			p.hwm, p.start = res.HighWatermark, res.LogStart
			p.changed = changed
			return
		}
		if !f.take(p, res, err) {
			return
		}
	}
}

// know fills in the offsets of a partition that was not read.
func (f *fetchRun) know(p *fetchPart) {
	if p.hwm < 0 {
		p.hwm, p.start = p.log.HighWatermark(), p.log.LogStart()
	}
}

func (f *fetchRun) readCold(p *fetchPart, rest int) {
	key := coldKey{p.bucket, p.next}
	p.cold, p.room = f.broker.cold.start(p.log, key, min(rest, f.broker.cfg.ColdReadBytesMax))
}

// transient errors of the store pass by themselves.
func transient(err error) bool {
	return errors.Is(err, mink.ErrUnavailable) || errors.Is(err, mink.ErrThrottled) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// take adds what was read, as far as the limits allow. false: p is finished.
func (f *fetchRun) take(p *fetchPart, res tablet.ReadResult, err error) bool {
	if err != nil {
		f.failWith(p, err)
		return false
	}
	p.hwm, p.start = max(p.hwm, res.HighWatermark), res.LogStart
	for _, b := range res.Batches {
		if b.NextOffset() <= p.next {
			continue
		}
		k, err := p.log.KafkaBatch(b)
		if err != nil {
			return f.undecodable(p, err)
		}
		some := kafkabatch.View(k).Count() > 0
		if (f.some || !some) && f.bytes > 0 && len(k) > f.rest(p) {
			return false
		}
		f.some = f.some || some
		p.batches = append(p.batches, k)
		p.bytes += len(k)
		f.bytes += len(k)
		p.next = b.NextOffset()
	}
	if res.Next > p.next {
		// Offsets that hold nothing: an empty batch moves the client over them.
		k := emptyBatch(p.next, res.Next, p.log.EpochAt(p.next))
		p.batches = append(p.batches, k)
		p.bytes += len(k)
		f.bytes += len(k)
		p.next = min(res.Next, p.next+math.MaxInt32)
	}
	return true
}

// undecodable stops p at a batch that is not Kafka's; what came before it is
// sent first, the error with the fetch that begins there.
func (f *fetchRun) undecodable(p *fetchPart, err error) bool {
	if p.bytes == 0 {
		f.failWith(p, err)
	}
	return false
}

// selectMax is reflect.Select's limit. Partitions beyond it do not wake a fetch.
const selectMax = 1 << 16

// wait reads on until the response is complete.
func (f *fetchRun) wait(ctx context.Context, deadline time.Time, hurry <-chan struct{}) error {
	d := time.Until(deadline)
	if f.complete() || d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	// Four cases of our own, then one per partition.
	cases := []reflect.SelectCase{
		{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(timer.C)},
		{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(f.broker.stopping)},
		{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(hurry)},
		{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())},
	}
	const own = 4
	for i := range min(len(f.parts), selectMax-own) {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(f.parts[i].waits())})
	}
	for {
		switch n, _, _ := reflect.Select(cases); n {
		case 0, 1, 2:
			return nil
		case 3:
			return ctx.Err()
		}
		for i := range cases[own:] {
			p := &f.parts[i]
			select {
			case <-p.waits():
				f.read(ctx, p)
				cases[own+i].Chan = reflect.ValueOf(p.waits())
			default:
			}
		}
		if f.complete() {
			return nil
		}
	}
}

// complete: batches without records (a cleaning has taken them) are no reason to answer
// before the end of the client's time. There are clients, kafkajs for one, that do not
// move on after an answer of nothing else, and would ask for the same again and again.
func (f *fetchRun) complete() bool {
	return f.errs > 0 || f.req.MinBytes <= 0 || f.some && f.bytes >= int(f.req.MinBytes) || f.bytes >= f.limit && f.bytes > 0
}
