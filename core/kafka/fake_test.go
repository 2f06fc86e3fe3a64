package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// fakeNode is a Backend in memory: real metadata, logs that keep batches in a
// slice.
type fakeNode struct {
	t    testing.TB
	self mink.NodeID

	mu struct {
		sync.Mutex
		state   *cluster.State
		epoch   mink.NodeEpoch
		logs    map[mink.BucketRef]*fakeLog
		logErr  error // of every Log call
		refused int   // Log calls that it was the answer to
		doubt   error // of every Lease call
		writers mink.WriterID
		// groups: errors of the next commands about consumer groups; marks counts
		// those that say whether one has members.
		groupErr error
		marks    int
		started  int // group commits
	}
	// onSync is what this node has not heard of yet; nil: nothing.
	onSync func()
	syncs  atomic.Int32
	// onLog prepares a new log before anybody sees it.
	onLog func(*fakeLog)
}

func newFakeNode(t testing.TB) *fakeNode {
	n := &fakeNode{t: t, self: 1}
	n.mu.state = cluster.NewState()
	n.mu.logs = map[mink.BucketRef]*fakeLog{}
	n.mu.writers = 1000
	return n
}

func (n *fakeNode) apply(epoch mink.NodeEpoch, c *clusterpb.Command) *clusterpb.Result {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, res, err := n.mu.state.Apply(n.mu.state.Index()+1, 1_700_000_000_000, &clusterpb.Batch{
		Epoch: int64(epoch), FeatureLevel: cluster.FeatureLevel, Commands: []*clusterpb.Command{c},
	})
	if err != nil {
		n.t.Errorf("apply: %v", err)
		return &clusterpb.Result{Code: clusterpb.Code_INVALID}
	}
	n.mu.state = s
	return res[0]
}

// register admits a node; the fake itself is node 1.
func (n *fakeNode) register(id mink.NodeID, address string) {
	res := n.apply(0, &clusterpb.Command{Kind: &clusterpb.Command_RegisterNode{RegisterNode: &clusterpb.RegisterNode{
		Node: int32(id), Nonce: n.View().Index() + 1, KafkaAddress: address, FeatureLevel: cluster.FeatureLevel, Rack: "r1",
	}}})
	if res.Code != clusterpb.Code_OK {
		n.t.Fatalf("register node %d: %v", id, res)
	}
	if id == n.self {
		n.mu.Lock()
		n.mu.epoch = mink.NodeEpoch(res.Id)
		n.mu.Unlock()
	}
}

func (n *fakeNode) View() *cluster.State {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.state
}

func (n *fakeNode) Sync(context.Context) error {
	n.syncs.Add(1)
	if n.onSync != nil {
		n.onSync()
	}
	return nil
}

func (n *fakeNode) Self() mink.NodeID { return n.self }

func (n *fakeNode) Lease() (mink.NodeEpoch, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.epoch, n.mu.doubt
}

// doubtLease makes the node's lease end, nil: begin again.
func (n *fakeNode) doubtLease(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.doubt = err
}

func (n *fakeNode) nodeEpoch() mink.NodeEpoch {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.epoch
}

func (n *fakeNode) Log(ref mink.BucketRef) (Log, error) {
	v := n.View()
	id, ok := v.StreamOf(ref)
	if !ok {
		return nil, fmt.Errorf("bucket %s: %w", ref, mink.ErrNotExist)
	}
	st, _ := v.Stream(id)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.logErr != nil {
		n.mu.refused++
		return nil, n.mu.logErr
	}
	if st.Owner.Node != n.self {
		return nil, &mink.NotLeaderError{Bucket: ref, Leader: st.Owner.Node, Epoch: st.Owner.LeaderEpoch}
	}
	l, ok := n.mu.logs[ref]
	if !ok {
		l = newFakeLog(st.Owner.LeaderEpoch)
		if n.onLog != nil {
			n.onLog(l)
		}
		n.mu.logs[ref] = l
	}
	return l, nil
}

func (n *fakeNode) logsRefused() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.refused
}

func (n *fakeNode) failLogs(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.logErr = err
}

func (n *fakeNode) CreateDatabase(_ context.Context, name string) error {
	return cluster.ResultError(n.apply(n.nodeEpoch(), &clusterpb.Command{Kind: &clusterpb.Command_CreateDatabase{
		CreateDatabase: &clusterpb.CreateDatabase{Name: name, IfNotExists: true}}}))
}

func (n *fakeNode) CreateTable(_ context.Context, d *schema.Descriptor, ifNotExists bool) (*cluster.Table, error) {
	id := uuid.New()
	res := n.apply(n.nodeEpoch(), &clusterpb.Command{Kind: &clusterpb.Command_CreateTable{
		CreateTable: &clusterpb.CreateTable{Descriptor_: d.Encode(), Uuid: id[:], IfNotExists: ifNotExists}}})
	if err := cluster.ResultError(res); err != nil {
		return nil, err
	}
	t, ok := n.View().Table(mink.TableID(res.Id))
	if !ok {
		return nil, mink.ErrNotExist
	}
	return t, nil
}

func (n *fakeNode) DropTable(_ context.Context, id mink.TableID) error {
	return cluster.ResultError(n.apply(n.nodeEpoch(), &clusterpb.Command{Kind: &clusterpb.Command_DropTable{
		DropTable: &clusterpb.DropTable{Table: int64(id)}}}))
}

func (n *fakeNode) AllocateWriter(context.Context) (mink.WriterID, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.writers++
	return n.mu.writers, nil
}

func (n *fakeNode) failGroups(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.groupErr = err
}

func (n *fakeNode) groupFailure() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.groupErr
}

func (n *fakeNode) markCount() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.marks
}

func (n *fakeNode) seal(epoch mink.NodeEpoch) {
	if res := n.apply(epoch, &clusterpb.Command{Kind: &clusterpb.Command_SealNode{SealNode: &clusterpb.SealNode{Epoch: int64(epoch), Reason: "test"}}}); res.Code != clusterpb.Code_OK {
		n.t.Fatalf("seal epoch %d: %v", epoch, res)
	}
}

// StartGroupCommit stores when it is waited for.
func (n *fakeNode) StartGroupCommit(_ context.Context, c cluster.GroupCommit) (func(context.Context) error, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.started++
	return func(ctx context.Context) error { return n.CommitGroupOffsets(ctx, c) }, nil
}

func (n *fakeNode) startedCommits() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.started
}

func (n *fakeNode) CommitGroupOffsets(_ context.Context, c cluster.GroupCommit) error {
	if err := errors.Join(n.groupFailure(), c.Validate()); err != nil {
		return err
	}
	commands, _ := cluster.CommitGroupOffsetsCommands([]cluster.GroupCommit{c}, 1<<20)
	for _, cmd := range commands {
		if err := cluster.PartError(n.apply(n.nodeEpoch(), cmd), 0); err != nil {
			return err
		}
	}
	return nil
}

// SettleGroup has nothing to wait for: commits are stored by who waits for them.
func (n *fakeNode) SettleGroup(context.Context, string) error { return n.groupFailure() }

func (n *fakeNode) MarkGroup(ctx context.Context, name, protocolType string, occupied bool) error {
	n.mu.Lock()
	n.mu.marks++
	n.mu.Unlock()
	return n.CommitGroupOffsets(ctx, cluster.GroupCommit{Group: name, ProtocolType: protocolType, Occupied: occupied})
}

func (n *fakeNode) DeleteGroups(_ context.Context, names []string) ([]error, error) {
	if err := n.groupFailure(); err != nil {
		return nil, err
	}
	res := n.apply(n.nodeEpoch(), cluster.DeleteGroupsCommand(names))
	errs := make([]error, len(names))
	for i := range names {
		errs[i] = cluster.PartError(res, i)
	}
	return errs, nil
}

func (n *fakeNode) DeleteGroupOffsets(_ context.Context, group string, buckets []mink.BucketRef) error {
	if err := n.groupFailure(); err != nil {
		return err
	}
	return cluster.ResultError(n.apply(n.nodeEpoch(), cluster.DeleteGroupOffsetsCommand(group, buckets)))
}

// topic creates a topic and answers its bucket logs.
func (n *fakeNode) topic(name string, partitions int32) []*fakeLog {
	n.t.Helper()
	d, err := schema.KafkaTopic("kafka", name, partitions, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := n.CreateDatabase(context.Background(), "kafka"); err != nil {
		n.t.Fatal(err)
	}
	t, err := n.CreateTable(context.Background(), d, false)
	if err != nil {
		n.t.Fatal(err)
	}
	var logs []*fakeLog
	for p := range n.View().Partitions(t.ID) {
		for i := range p.Streams {
			l, err := n.Log(mink.BucketRef{Table: t.ID, Partition: p.ID, Index: int32(i)})
			if err != nil {
				n.t.Fatal(err)
			}
			logs = append(logs, l.(*fakeLog))
		}
	}
	return logs
}

// fakeLog keeps batches in a slice. Durability can be held back, reads can be
// made cold and slow.
type fakeLog struct {
	epoch mink.LeaderEpoch
	opts  kafkabatch.Options

	mu struct {
		sync.Mutex
		batches []record.Batch
		start   mink.Offset
		end     mink.Offset
		hwm     mink.Offset
		held    []*fakePending // in order; appends complete at once unless hold
		hold    bool
		refuse  error // of appends
		refused int   // appends so far
		closed  bool
		changed chan struct{}
		writers map[mink.WriterID][]window
		epochs  map[mink.WriterID]int16
		cold    bool
		delay   time.Duration // of a read that is not Cached
		coldErr error
		reads   int // that were not Cached
		warms   bool
		warm    mink.Offset // a cold read makes what it read cached, when warms
	}
}

type window struct {
	first, last int32
	pending     *fakePending
}

func newFakeLog(epoch mink.LeaderEpoch) *fakeLog {
	l := &fakeLog{epoch: epoch, opts: kafkabatch.Options{MaxBytes: 1048588}}
	l.mu.changed = make(chan struct{})
	l.mu.writers = map[mink.WriterID][]window{}
	l.mu.epochs = map[mink.WriterID]int16{}
	return l
}

type fakePending struct {
	done chan struct{}
	res  tablet.AppendResult
	err  error
}

func (p *fakePending) Done() <-chan struct{} { return p.done }
func (p *fakePending) Result() (tablet.AppendResult, error) {
	return p.res, p.err
}

func (l *fakeLog) AppendKafka(batch []byte, a tablet.KafkaAppend) (Pending, error) {
	o := l.opts
	o.AllowZstd = a.AllowZstd
	var d *kafkabatch.Decoder
	if o.RequireKeys {
		d = kafkabatch.NewDecoder(kafkabatch.DefaultLimits())
	}
	h, err := kafkabatch.Header(batch, &o, d)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return nil, mink.ErrClosed
	}
	if l.mu.refuse != nil {
		// As a tablet may: the batch was patched before the engine refused it.
		binary.BigEndian.PutUint64(batch, 7)
		batch[22] |= 8 // log append time
		fixCRC(batch)
		l.mu.refused++
		return nil, l.mu.refuse
	}
	if p, err := l.window(&h); p != nil || err != nil {
		return p, err
	}
	body := append([]byte(nil), batch...)
	hdr := make([]byte, record.HeaderSize)
	record.PutHeader(hdr, &h, len(body))
	record.Seal(hdr, record.KafkaBodySum(body))
	record.SetServerFields(hdr, body, l.mu.end, 1_700_000_000_000, l.epoch)
	b, err := record.ParseBatch(append(hdr, body...))
	if err != nil {
		return nil, err
	}
	p := &fakePending{done: make(chan struct{}), res: tablet.AppendResult{First: b.BaseOffset(), Last: b.LastOffset(), CommitTimestamp: b.CommitTimestamp(), LogStart: l.mu.start}}
	l.mu.batches = append(l.mu.batches, b)
	l.mu.end = b.NextOffset()
	l.mu.held = append(l.mu.held, p)
	if h.WriterID != mink.NoWriter {
		w := append(l.mu.writers[h.WriterID], window{h.Sequence, h.LastSequence, p})
		l.mu.writers[h.WriterID] = w[max(0, len(w)-5):]
		l.mu.epochs[h.WriterID] = h.WriterEpoch
	}
	if !l.mu.hold {
		l.releaseLocked(nil)
	}
	return p, nil
}

// window is the idempotent writer's check: a pending for a duplicate.
func (l *fakeLog) window(h *record.Header) (Pending, error) {
	w := l.mu.writers[h.WriterID]
	if h.WriterID == mink.NoWriter {
		return nil, nil
	}
	if len(w) == 0 {
		if h.Sequence != 0 {
			return nil, mink.ErrOutOfOrder
		}
		return nil, nil
	}
	if h.WriterEpoch < l.mu.epochs[h.WriterID] {
		return nil, &tablet.WriterFencedError{}
	}
	for _, k := range w {
		if k.first == h.Sequence && k.last == h.LastSequence {
			return &dupPending{k.pending}, nil
		}
	}
	if h.Sequence != w[len(w)-1].last+1 {
		return nil, mink.ErrOutOfOrder
	}
	return nil, nil
}

type dupPending struct{ of *fakePending }

func (p *dupPending) Done() <-chan struct{} { return p.of.done }
func (p *dupPending) Result() (tablet.AppendResult, error) {
	r, err := p.of.Result()
	r.Duplicate = true
	return r, err
}

// release makes everything durable, or fails it.
func (l *fakeLog) release(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.releaseLocked(err)
}

func (l *fakeLog) releaseLocked(err error) {
	for _, p := range l.mu.held {
		p.err = err
		close(p.done)
	}
	l.mu.held = nil
	l.mu.hwm = l.mu.end
	l.wakeLocked()
}

func (l *fakeLog) wakeLocked() {
	close(l.mu.changed)
	l.mu.changed = make(chan struct{})
}

func (l *fakeLog) set(f func(l *fakeLog)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l)
}

func (l *fakeLog) close() {
	l.set(func(l *fakeLog) { l.mu.closed = true; l.wakeLocked() })
}

func (l *fakeLog) held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.mu.held)
}

// refusals counts the appends that were refused.
func (l *fakeLog) refusals() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.refused
}

// releaseOne makes the oldest held append durable.
func (l *fakeLog) releaseOne() {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.mu.held[0]
	l.mu.held = l.mu.held[1:]
	l.mu.hwm = p.res.Last + 1
	close(p.done)
	l.wakeLocked()
}

func (l *fakeLog) coldReads() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.reads
}

// trim drops batches that end at or below to.
func (l *fakeLog) trim(to mink.Offset) {
	l.set(func(l *fakeLog) {
		l.mu.start = to
		for len(l.mu.batches) > 0 && l.mu.batches[0].NextOffset() <= to {
			l.mu.batches = l.mu.batches[1:]
		}
	})
}

func (l *fakeLog) Read(ctx context.Context, r tablet.ReadRequest) (tablet.ReadResult, error) {
	l.mu.Lock()
	cold, delay, coldErr := l.mu.cold, l.mu.delay, l.mu.coldErr
	if !r.Cached {
		l.mu.reads++
	}
	l.mu.Unlock()
	if !r.Cached {
		if delay > 0 && !wait(ctx, delay) {
			return tablet.ReadResult{}, ctx.Err()
		}
		if coldErr != nil {
			return tablet.ReadResult{}, coldErr
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return tablet.ReadResult{}, mink.ErrClosed
	}
	if r.From < l.mu.start || r.From > l.mu.hwm {
		return tablet.ReadResult{}, &mink.OutOfRangeError{Asked: r.From, Start: l.mu.start, End: l.mu.hwm}
	}
	res := tablet.ReadResult{Next: r.From, LogStart: l.mu.start, HighWatermark: l.mu.hwm}
	size := 0
	for _, b := range l.mu.batches {
		if b.NextOffset() <= r.From || b.NextOffset() > l.mu.hwm {
			continue
		}
		if cold && r.Cached && b.NextOffset() > l.mu.warm {
			if len(res.Batches) > 0 {
				break
			}
			return tablet.ReadResult{}, mink.ErrNotCached
		}
		if len(res.Batches) > 0 && size+len(b) > r.MaxBytes {
			break
		}
		res.Batches = append(res.Batches, b)
		size += len(b)
		res.Next = b.NextOffset()
	}
	if len(res.Batches) == 0 && l.mu.hwm > r.From {
		res.Next = l.mu.hwm // a gap at the end
	}
	if l.mu.warms && !r.Cached {
		l.mu.warm = max(l.mu.warm, res.Next)
	}
	return res, nil
}

func (l *fakeLog) KafkaBatch(b record.Batch) ([]byte, error) { return b.Kafka(), nil }

func (l *fakeLog) LogStart() mink.Offset {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.start
}

func (l *fakeLog) HighWatermark() mink.Offset {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.hwm
}

func (l *fakeLog) LeaderEpoch() mink.LeaderEpoch { return l.epoch }

func (l *fakeLog) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.changed
}

func (l *fakeLog) OffsetForTimestamp(_ context.Context, ms int64, _ tablet.TimestampKind) (tablet.TimestampResult, bool, error) {
	return l.find(func(rec kafkabatch.Record, best int64) (bool, bool) { return rec.Timestamp >= ms, true })
}

func (l *fakeLog) MaxTimestamp(context.Context) (tablet.TimestampResult, bool, error) {
	return l.find(func(rec kafkabatch.Record, best int64) (bool, bool) { return rec.Timestamp > best, false })
}

func (l *fakeLog) find(match func(kafkabatch.Record, int64) (yes, stop bool)) (tablet.TimestampResult, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	res, ok := tablet.TimestampResult{Timestamp: -1}, false
	d := kafkabatch.NewDecoder(kafkabatch.DefaultLimits())
	for _, b := range l.mu.batches {
		v, err := kafkabatch.Parse(b.Kafka())
		if err != nil {
			return res, false, err
		}
		recs, err := d.Records(v)
		if err != nil {
			return res, false, err
		}
		r := kafkabatch.NewReader(v, recs)
		for rec := (kafkabatch.Record{}); r.Next(&rec); {
			if yes, stop := match(rec, res.Timestamp); yes {
				res = tablet.TimestampResult{Offset: b.BaseOffset() + mink.Offset(rec.Delta), Timestamp: rec.Timestamp, LeaderEpoch: b.LeaderEpoch()}
				ok = true
				if stop {
					return res, true, nil
				}
			}
		}
	}
	return res, ok, nil
}

func (l *fakeLog) EpochEnd(epoch mink.LeaderEpoch) (mink.LeaderEpoch, mink.Offset) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if epoch != l.epoch {
		return -1, -1
	}
	return l.epoch, l.mu.end
}

func (l *fakeLog) EpochAt(at mink.Offset) mink.LeaderEpoch {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.mu.batches {
		if b.BaseOffset() <= at && at < b.NextOffset() {
			return b.LeaderEpoch()
		}
	}
	return -1
}
