package servertest_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/mink"
)

// Faults that other Kafka brokers had, with several nodes: each case by its name.

// wire asks one node after the other, and tries nothing again by itself.
type wire struct {
	c  *kafkaCluster
	cl *kgo.Client
}

func (c *kafkaCluster) wire() *wire {
	cl := c.kgo()
	c.t.Cleanup(cl.Close)
	if err := cl.Ping(c.ctx); err != nil {
		c.t.Fatal(err)
	}
	return &wire{c, cl}
}

// ask sends one request to one node.
func ask[R kmsg.Response](w *wire, node int, r kmsg.Request) (out R, err error) {
	resp, err := w.cl.Broker(node).Request(w.c.ctx, r)
	if err != nil {
		return out, err
	}
	return resp.(R), nil
}

// session is one producer's sequence in partition 0 of topic t; pid -1: not idempotent.
type session struct {
	pid      int64
	sequence int32
}

// batch is a record batch of one record.
func (s session) batch(value string) []byte {
	rec := kmsg.Record{Value: []byte(value)}
	rec.Length = int32(len(rec.AppendTo(nil)) - 1)
	rb := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, FirstTimestamp: 1, MaxTimestamp: 1, NumRecords: 1,
		ProducerID: s.pid, FirstSequence: s.sequence, Records: rec.AppendTo(nil),
	}
	if s.pid < 0 {
		rb.ProducerEpoch, rb.FirstSequence = -1, -1
	}
	out := rb.AppendTo(nil)
	binary.BigEndian.PutUint32(out[8:], uint32(len(out)-12))
	binary.BigEndian.PutUint32(out[17:], crc32.Checksum(out[21:], crc32.MakeTable(crc32.Castagnoli)))
	return out
}

// produce sends one record to a node, whether it leads or not.
func (w *wire) produce(node int, s session, value string) (kmsg.ProduceResponseTopicPartition, error) {
	r := kmsg.NewPtrProduceRequest()
	r.Acks, r.TimeoutMillis = -1, 30_000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = "t"
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Records = s.batch(value)
	rt.Partitions = append(rt.Partitions, rp)
	r.Topics = append(r.Topics, rt)
	r.SetVersion(11) // topics by their names
	out, err := ask[*kmsg.ProduceResponse](w, node, r)
	if err != nil {
		return kmsg.ProduceResponseTopicPartition{}, err
	}
	return out.Topics[0].Partitions[0], nil
}

// produced sends one record until a node takes it, from one node to the leader that it
// names. It answers the record's offset and how often it was sent on.
func (w *wire) produced(node int, s session, value string) (offset int64, moved int) {
	w.c.t.Helper()
	if !servertest.Wait(w.c.ctx, func() bool {
		p, err := w.produce(node, s, value)
		switch {
		case err != nil:
			node = node%w.c.Nodes() + 1
			return false
		case p.ErrorCode == 0:
			offset = p.BaseOffset
			return true
		case p.ErrorCode == kerr.NotLeaderForPartition.Code:
			if p.CurrentLeader.LeaderID > 0 {
				node = int(p.CurrentLeader.LeaderID)
				moved++
			}
			return false
		case kerr.IsRetriable(kerr.ErrorForCode(p.ErrorCode)):
			return false
		}
		w.c.t.Errorf("record %q at node %d: %v", value, node, kerr.ErrorForCode(p.ErrorCode))
		return true
	}) {
		w.c.t.Errorf("record %q is not taken by any node", value)
	}
	return offset, moved
}

// move moves a bucket to another node, and waits until that one leads.
func (c *kafkaCluster) move(b mink.BucketRef) (from, to int) {
	c.t.Helper()
	c.WaitServing(c.t)
	from = c.Leader(b)
	to = from%c.Nodes() + 1
	release(c.t, c.Cluster, b, to)
	c.WaitServing(c.t)
	if now := c.Leader(b); now != to {
		c.t.Fatalf("bucket %s was moved from node %d to %d, and node %d leads it", b, from, to, now)
	}
	return from, to
}

// values reads partition 0 of topic t up to its end.
func (c *kafkaCluster) values() []string {
	c.t.Helper()
	cl := c.kgo(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"t": {0: kgo.NewOffset().AtStart()}}))
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(c.ctx, "t")
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	end, _ := ends.Lookup("t", 0)
	var out []string
	for int64(len(out)) < end.Offset {
		fetches := cl.PollFetches(c.ctx)
		if err := fetches.Err(); err != nil {
			c.t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) { out = append(out, string(r.Value)) })
	}
	return out
}

// Case dual_writer_unique_offsets: two producers, each at a node of its own whatever the
// metadata say, while the partition moves between the two. Who does not lead says who
// does, and no offset is given twice.
func TestDualWriterUniqueOffsets(t *testing.T) {
	c := startKafka(t, 2, steady())
	bucket := c.topic("t", 1)[0]
	w := c.wire()
	wrong := c.Leader(bucket)%2 + 1
	if p, err := w.produce(wrong, session{pid: -1}, "to the wrong node"); err != nil || p.ErrorCode != 6 || int(p.CurrentLeader.LeaderID) != c.Leader(bucket) || p.CurrentLeader.LeaderEpoch != 1 {
		t.Errorf("node %d does not lead: error %d, leader %+v (%v); want 6 and node %d, epoch 1", wrong, p.ErrorCode, p.CurrentLeader, err, c.Leader(bucket))
	}
	const records = 500 // of each
	var mu sync.Mutex
	at := map[int64]string{}
	var sent, moved atomic.Int64
	var wg sync.WaitGroup
	for node := 1; node <= 2; node++ {
		wg.Go(func() {
			for i := range records {
				value := fmt.Sprintf("node %d, %d", node, i)
				offset, n := w.produced(node, session{pid: -1}, value)
				sent.Add(1)
				moved.Add(int64(n))
				mu.Lock()
				if other, twice := at[offset]; twice {
					t.Errorf("offset %d was given to %q and %q", offset, other, value)
				}
				at[offset] = value
				mu.Unlock()
			}
		})
	}
	for sent.Load() < 2*records*9/10 {
		before := sent.Load()
		c.move(bucket)
		c.eventually("both go on after a move", func() bool { return sent.Load() > min(before+20, 2*records-1) })
	}
	wg.Wait()
	got := c.values()
	if len(got) != len(at) || len(at) != 2*records {
		t.Errorf("%d records were acknowledged at %d offsets, %d are there", 2*records, len(at), len(got))
	}
	for i, value := range got {
		if at[int64(i)] != value {
			t.Errorf("offset %d has %q, acknowledged there was %q", i, value, at[int64(i)])
		}
	}
	if moved.Load() < 2 {
		t.Errorf("%d times a node named another leader: the test shows nothing", moved.Load())
	}
}

// Case idem_failover_reorder, and duplicates at a new leader: after a move, and after the
// death of the leader, the new one knows what the producer has sent. A batch that comes
// again is acknowledged where it is, one that overtook another is refused.
func TestIdempotentReorderAtANewLeader(t *testing.T) {
	for how, leave := range map[string]func(c *kafkaCluster, b mink.BucketRef){
		"move":     func(c *kafkaCluster, b mink.BucketRef) { c.move(b) },
		"failover": func(c *kafkaCluster, b mink.BucketRef) { c.Kill(c.Leader(b)); c.WaitServing(c.t) },
	} {
		t.Run(how, func(t *testing.T) {
			c := startKafka(t, 3)
			bucket := c.topic("t", 1)[0]
			w := c.wire()
			const pid = 4711
			for i := range int32(5) {
				if at, _ := w.produced(c.Leader(bucket), session{pid, i}, fmt.Sprint(i)); at != int64(i) {
					t.Errorf("sequence %d is at offset %d", i, at)
				}
			}
			leave(c, bucket)
			want := func(s session, code int16, offset int64) {
				t.Helper()
				var p kmsg.ProduceResponseTopicPartition
				c.eventually("the new leader answers", func() (ok bool) {
					var err error
					p, err = w.produce(c.Leader(bucket), s, fmt.Sprint(s.sequence))
					return err == nil && p.ErrorCode != kerr.NotLeaderForPartition.Code && p.ErrorCode != kerr.CoordinatorLoadInProgress.Code
				})
				if p.ErrorCode != code || code == 0 && p.BaseOffset != offset {
					t.Errorf("sequence %d of producer %d at the new leader: error %d, offset %d, want %d, %d", s.sequence, s.pid, p.ErrorCode, p.BaseOffset, code, offset)
				}
			}
			want(session{pid, 6}, 45, 0) // the second of two in flight comes first
			want(session{pid, 4}, 0, 4)  // its answer was lost
			want(session{pid, 2}, 0, 2)
			want(session{pid, 5}, 0, 5)
			want(session{pid, 6}, 0, 6)
			// A producer that this leader knows nothing of: its first batch may be behind.
			want(session{pid + 1, 5}, 45, 0)
			want(session{pid + 1, 0}, 0, 7)
			if got := c.values(); !slices.Equal(got, []string{"0", "1", "2", "3", "4", "5", "6", "0"}) {
				t.Errorf("the log has %q", got)
			}
		})
	}
}

// Case move_kafka_go: while a partition moves, metadata name a leader all the time, and a
// writer that goes by them loses nothing.
func TestMetadataNameALeaderDuringMoves(t *testing.T) {
	c := startKafka(t, 3, steady())
	bucket := c.topic("t", 1)[0]
	w := c.wire()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var asked, sent atomic.Int64
	for node := 1; node <= c.Nodes(); node++ {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := kmsg.NewPtrMetadataRequest()
				rt := kmsg.NewMetadataRequestTopic()
				rt.Topic = kmsg.StringPtr("t")
				r.Topics = append(r.Topics, rt)
				m, err := ask[*kmsg.MetadataResponse](w, node, r)
				if err != nil {
					t.Errorf("metadata of node %d: %v", node, err)
					return
				}
				p := m.Topics[0].Partitions[0]
				named := slices.ContainsFunc(m.Brokers, func(b kmsg.MetadataResponseBroker) bool { return b.NodeID == p.Leader })
				if p.ErrorCode != 0 || p.Leader < 1 || !named {
					t.Errorf("node %d: leader %d, error %d, among the brokers: %v", node, p.Leader, p.ErrorCode, named)
				}
				asked.Add(1)
			}
		})
	}
	wg.Go(func() {
		// As a client without retries of its own between the two: ask who leads, send there.
		cl := c.kgo(kgo.DefaultProduceTopic("t"), kgo.ProducerLinger(0), kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(1), kgo.RecordRetries(10))
		defer cl.Close()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := cl.ProduceSync(c.ctx, kgo.StringRecord(strconv.Itoa(i))).FirstErr(); err != nil {
				t.Errorf("record %d: %v", i, err)
				return
			}
			sent.Add(1)
		}
	})
	for range 6 {
		s, a := sent.Load(), asked.Load()
		c.move(bucket)
		c.eventually("the writer and those who ask go on", func() bool { return t.Failed() || sent.Load() > s+5 && asked.Load() > a+5 })
	}
	close(stop)
	wg.Wait()
	got := c.values()
	next := 0
	for _, v := range got { // without idempotence a record may be there twice
		if v == strconv.Itoa(next) {
			next++
		}
	}
	if int64(next) != sent.Load() {
		t.Errorf("%d records were acknowledged, %d of them are there in order", sent.Load(), next)
	}
}

// epochs asks the leader of partition 0 where a leader epoch ended.
func (w *wire) epochEnd(bucket mink.BucketRef, epoch int32) (code int16, of int32, end int64) {
	w.c.t.Helper()
	r := kmsg.NewPtrOffsetForLeaderEpochRequest()
	r.ReplicaID = -1
	rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
	rt.Topic = "t"
	rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	rp.CurrentLeaderEpoch, rp.LeaderEpoch = -1, epoch
	rt.Partitions = append(rt.Partitions, rp)
	r.Topics = append(r.Topics, rt)
	out, err := ask[*kmsg.OffsetForLeaderEpochResponse](w, w.c.Leader(bucket), r)
	if err != nil {
		w.c.t.Fatal(err)
	}
	p := out.Topics[0].Partitions[0]
	return p.ErrorCode, p.LeaderEpoch, p.EndOffset
}

// listed asks the leader for the earliest (-2) or latest (-1) offset.
func (w *wire) listed(topic string, node int, at int64) (offset int64, epoch int32) {
	w.c.t.Helper()
	r := kmsg.NewPtrListOffsetsRequest()
	r.ReplicaID = -1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Timestamp = at
	rt.Partitions = append(rt.Partitions, rp)
	r.Topics = append(r.Topics, rt)
	out, err := ask[*kmsg.ListOffsetsResponse](w, node, r)
	if err != nil {
		w.c.t.Fatal(err)
	}
	if p := out.Topics[0].Partitions[0]; p.ErrorCode == 0 {
		return p.Offset, p.LeaderEpoch
	}
	return -1, -1
}

// Case epoch_history: where each leadership ended is known to every later leader, after
// moves and after the death of one in the middle of a write. No new leader answers an end
// below what was acknowledged.
func TestEpochHistoryOverMovesAndFailover(t *testing.T) {
	c := startKafka(t, 3)
	bucket := c.topic("t", 1)[0]
	empty := c.topic("empty", 1)[0]
	w := c.wire()
	ten := func() {
		for i := range 10 {
			w.produced(c.Leader(bucket), session{pid: -1}, fmt.Sprint(i))
		}
	}
	check := func(when string, want map[int32][2]int64) {
		t.Helper()
		for epoch, e := range want {
			if code, of, end := w.epochEnd(bucket, epoch); code != 0 || int64(of) != e[0] || end != e[1] {
				t.Errorf("%s: epoch %d: error %d, (%d, %d), want %v", when, epoch, code, of, end, e)
			}
		}
	}
	ten()
	c.move(bucket)
	check("moved, nothing written", map[int32][2]int64{1: {1, 10}, 2: {2, 10}, 3: {-1, -1}})
	ten()
	check("moved", map[int32][2]int64{1: {1, 10}, 2: {2, 20}, 3: {-1, -1}})
	if offset, epoch := w.listed("t", c.Leader(bucket), -2); offset != 0 || epoch != 1 {
		t.Errorf("earliest: offset %d, epoch %d, want 0 of epoch 1", offset, epoch)
	}
	if offset, epoch := w.listed("t", c.Leader(bucket), -1); offset != 20 || epoch != 2 {
		t.Errorf("latest: offset %d, epoch %d, want 20 of epoch 2", offset, epoch)
	}
	if offset, epoch := w.listed("empty", c.Leader(empty), -2); offset != 0 || epoch != -1 {
		t.Errorf("earliest of an empty partition: offset %d, epoch %d, want 0 of none", offset, epoch)
	}
	// The leader dies while it writes.
	var acked atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				at, _ := w.produced(c.Leader(bucket)+0, session{pid: -1}, "x")
				for have := acked.Load(); at+1 > have && !acked.CompareAndSwap(have, at+1); have = acked.Load() {
				}
			}
		})
	}
	c.eventually("records are acknowledged", func() bool { return acked.Load() > 40 })
	promised := acked.Load()
	c.Kill(c.Leader(bucket))
	c.WaitServing(t)
	if end, epoch := w.listed("t", c.Leader(bucket), -1); end < promised || epoch != 3 && epoch != 2 {
		t.Errorf("the new leader's end is %d, epoch %d; offsets up to %d were acknowledged before the death of the old one", end, epoch, promised)
	}
	close(stop)
	wg.Wait()
	_, of, second := w.epochEnd(bucket, 2)
	if of != 2 || second < promised {
		t.Errorf("epoch 2 ended at %d (%d), %d were acknowledged in it", second, of, promised)
	}
	w.produced(c.Leader(bucket), session{pid: -1}, "last")
	end, _ := w.listed("t", c.Leader(bucket), -1)
	check("after a failover", map[int32][2]int64{1: {1, 10}, 2: {2, second}, 3: {3, end}, 4: {-1, -1}})
	if got := c.values(); int64(len(got)) != end {
		t.Errorf("%d records are there, the log ends at %d", len(got), end)
	}
}

// A node that has not heard of a topic yet, which a client made at another one, looks into
// the metadata log before it says that there is none.
func TestATopicThatTheNodeHasNotHeardOf(t *testing.T) {
	c := startKafka(t, 2, steady())
	w := c.wire()
	c.PauseMetadata(2)
	r := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "t", 2, 1
	r.Topics, r.TimeoutMillis = append(r.Topics, topic), 10_000
	if resp, err := ask[*kmsg.CreateTopicsResponse](w, 1, r); err != nil || resp.Topics[0].ErrorCode != 0 {
		t.Fatal(err, resp)
	}
	asked := make(chan *kmsg.OffsetForLeaderEpochResponse, 1)
	go func() {
		r := kmsg.NewPtrOffsetForLeaderEpochRequest()
		r.ReplicaID = -1
		rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
		rt.Topic = "t"
		for i := range int32(2) {
			rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			rp.Partition, rp.CurrentLeaderEpoch, rp.LeaderEpoch = i, -1, 1
			rt.Partitions = append(rt.Partitions, rp)
		}
		r.Topics = append(r.Topics, rt)
		out, err := ask[*kmsg.OffsetForLeaderEpochResponse](w, 2, r)
		if err != nil {
			t.Error(err)
		}
		asked <- out
	}()
	select {
	case out := <-asked: // it does not know better, and has asked
		for _, p := range out.Topics[0].Partitions {
			t.Logf("node 2, cut off from the metadata, says %v", kerr.ErrorForCode(p.ErrorCode))
		}
		t.Error("a node that has not heard of a topic answers without having asked")
	case <-time.After(200 * time.Millisecond):
	}
	c.ResumeMetadata(2)
	for _, p := range (<-asked).Topics[0].Partitions {
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil && !errors.Is(err, kerr.NotLeaderForPartition) {
			t.Errorf("partition %d: %v", p.Partition, err)
		}
	}
}

// Groups, configurations and partitions are the same at whichever node an admin client
// asks, also when it knows no other and the node that coordinates the group is gone.
func TestAdminAtEveryNode(t *testing.T) {
	c := startKafka(t, 3)
	c.topic("t", 3)
	const group = "g"
	producer := c.kgo(kgo.DefaultProduceTopic("t"), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	for i := range 30 {
		if err := producer.ProduceSync(c.ctx, kgo.StringRecord(fmt.Sprint(i))).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	producer.Close()
	member := c.kgo(kgo.ConsumerGroup(group), kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	for read := 0; read < 30; {
		read += len(member.PollFetches(c.ctx).Records())
	}
	if err := member.CommitUncommittedOffsets(c.ctx); err != nil {
		t.Fatal(err)
	}
	only := func(id int) *kadm.Client {
		cl := c.kgo(kgo.SeedBrokers(c.Node(id).Kafka))
		t.Cleanup(cl.Close)
		return kadm.NewClient(cl)
	}
	check := func(when string, ids ...int) {
		t.Helper()
		for _, id := range ids {
			adm := only(id)
			listed, err := adm.ListGroups(c.ctx)
			if _, ok := listed[group]; err != nil || !ok {
				t.Errorf("%s: groups at node %d: %v (%v)", when, id, listed.Groups(), err)
			}
			lags, err := adm.Lag(c.ctx, group)
			if err != nil || lagErr(lags[group]) != nil || lags[group].Lag.Total() != 0 || len(lags[group].Lag["t"]) != 3 {
				t.Errorf("%s: lag at node %d: %+v (%v)", when, id, lags[group], err)
			}
		}
	}
	check("with a member", 1, 2, 3)
	member.Close()
	for id := 1; id <= 3; id++ {
		value := strconv.Itoa(3600_000 + id)
		r, err := only(id).AlterTopicConfigs(c.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}}, "t")
		if err == nil {
			_, err = r.On("t", func(r *kadm.AlterConfigsResponse) error { return r.Err })
		}
		if err != nil {
			t.Fatalf("alter at node %d: %v", id, err)
		}
		index := c.View().Index()
		for other := 1; other <= 3; other++ {
			var got string
			c.eventually(fmt.Sprintf("node %d knows what node %d was told (metadata index %d)", other, id, index), func() bool {
				d, err := only(other).DescribeTopicConfigs(c.ctx, "t")
				if err != nil {
					t.Fatal(err)
				}
				rc, err := d.On("t", nil)
				if err != nil || rc.Err != nil {
					t.Fatal(err, rc.Err)
				}
				for _, kv := range rc.Configs {
					if kv.Key == "retention.ms" {
						got = kv.MaybeValue()
					}
				}
				return got == value
			})
		}
		if d, err := only(id).DescribeBrokerConfigs(c.ctx, 1, 2, 3); err != nil || len(d) != 3 {
			t.Errorf("broker configs at node %d: %d (%v)", id, len(d), err)
		} else {
			for _, b := range d {
				if b.Err != nil || len(b.Configs) == 0 {
					t.Errorf("configs of broker %s by way of node %d: %d (%v)", b.Name, id, len(b.Configs), b.Err)
				}
			}
		}
	}
	if r, err := only(2).CreatePartitions(c.ctx, 1, "t"); err != nil || r.Error() != nil {
		t.Errorf("one more partition: %v, %v", err, r.Error())
	}
	gone := c.coordinator(group)
	c.Kill(gone)
	c.WaitServing(t)
	var left []int
	for id := 1; id <= 3; id++ {
		if id != gone {
			left = append(left, id)
		}
	}
	for _, id := range left {
		var lags kadm.DescribedGroupLags
		c.eventually("the group is coordinated again", func() bool {
			ctx, cancel := context.WithTimeout(c.ctx, waitLong)
			defer cancel()
			var err error
			lags, err = only(id).Lag(ctx, group)
			return err == nil && lagErr(lags[group]) == nil
		})
		if lag := lags[group].Lag; lag.Total() != 0 || len(lag["t"]) < 3 {
			t.Errorf("lag at node %d after the coordinator's death: %+v", id, lag)
		}
	}
	if r, err := only(left[0]).DeleteGroups(c.ctx, group); err != nil || r.Error() != nil {
		t.Errorf("delete at node %d: %v, %v", left[0], err, r.Error())
	}
	for _, id := range left {
		c.eventually("the group is gone everywhere", func() bool {
			listed, err := only(id).ListGroups(c.ctx)
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				return false
			}
			_, there := listed[group]
			return !there
		})
	}
}

func lagErr(l kadm.DescribedGroupLag) error { return l.Error() }
