package kafka

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// The timestamps of ListOffsets that are questions, with the version that
// brought each.
const (
	askLatest       int64 = -1
	askEarliest     int64 = -2
	askMaxTimestamp int64 = -3 // v7
	askLocalStart   int64 = -4 // v8: what is not tiered away; all of it is here
	askTiered       int64 = -5 // v9: the last tiered offset; nothing is tiered
)

// lookupsAtOnce is how many partitions of one request are looked up side by
// side: by timestamp each may read from the store.
const lookupsAtOnce = 16

func (b *broker) listOffsets(ctx context.Context, r *kmsg.ListOffsetsRequest) (*kmsg.ListOffsetsResponse, error) {
	tctx, cancel := b.timeout(ctx, r.TimeoutMillis)
	defer cancel()
	resp := kmsg.NewPtrListOffsetsResponse()
	resp.Topics = make([]kmsg.ListOffsetsResponseTopic, len(r.Topics))
	topics := b.lookup(ctx)
	var group errgroup.Group
	group.SetLimit(lookupsAtOnce)
	for i := range r.Topics {
		in, out := &r.Topics[i], &resp.Topics[i]
		*out = kmsg.NewListOffsetsResponseTopic()
		out.Topic = in.Topic
		out.Partitions = make([]kmsg.ListOffsetsResponseTopicPartition, len(in.Partitions))
		t := topics.byName(in.Topic, partitionsNamed(in.Partitions, func(p *kmsg.ListOffsetsRequestTopicPartition) int32 { return p.Partition }))
		for j := range in.Partitions {
			ask, p := &in.Partitions[j], &out.Partitions[j]
			*p = kmsg.NewListOffsetsResponseTopicPartition()
			p.Partition = ask.Partition
			p.Timestamp, p.Offset, p.LeaderEpoch = -1, -1, -1
			if ask.Timestamp >= 0 || ask.Timestamp == askMaxTimestamp {
				group.Go(func() error { b.listOne(tctx, r.Version, t, ask, p); return nil })
			} else {
				b.listOne(tctx, r.Version, t, ask, p)
			}
		}
	}
	_ = group.Wait() // no member fails
	return resp, ctx.Err()
}

func (b *broker) listOne(ctx context.Context, version int16, t *topic, ask *kmsg.ListOffsetsRequestTopicPartition, p *kmsg.ListOffsetsResponseTopicPartition) {
	fail := func(c code) { p.ErrorCode = b.fail("ListOffsets", c) }
	log, c := b.openFor(t, ask.Partition, ask.CurrentLeaderEpoch)
	if c != codeNone {
		fail(c)
		return
	}
	bucket, _ := t.bucket(ask.Partition)
	var found tablet.TimestampResult
	var ok bool
	var err error
	switch at := ask.Timestamp; {
	case at == askLatest:
		// Read after the epoch's owner is known: never below what was served.
		latest := log.HighWatermark()
		if c := b.vouch(bucket, log); c != codeNone {
			fail(c)
			return
		}
		p.Offset, p.LeaderEpoch = int64(latest), int32(log.LeaderEpoch())
		return
	case at == askEarliest, at == askLocalStart && version >= 8:
		start := log.LogStart()
		p.Offset, p.LeaderEpoch = int64(start), -1
		if start < log.HighWatermark() {
			p.LeaderEpoch = int32(log.EpochAt(start))
		}
		return
	case at == askTiered && version >= 9:
		return
	case at == askMaxTimestamp && version >= 7:
		found, ok, err = log.MaxTimestamp(ctx)
	case at >= 0:
		found, ok, err = log.OffsetForTimestamp(ctx, at, tablet.ByRecord)
	default:
		fail(codeUnsupportedVersion)
		return
	}
	if err != nil {
		if bucketCode(err) == codeUnknownServerError || errors.Is(err, mink.ErrCorrupt) {
			b.report("look up an offset by timestamp", "topic", t.name, "partition", ask.Partition, "timestamp", ask.Timestamp, "error", err)
		}
		fail(lookupCode(err))
		return
	}
	if ok {
		p.Offset, p.Timestamp, p.LeaderEpoch = int64(found.Offset), found.Timestamp, int32(found.LeaderEpoch)
	}
	if !ok || ask.Timestamp == askMaxTimestamp { // the next leader's records could answer it
		if c := b.vouch(bucket, log); c != codeNone {
			p.Offset, p.Timestamp, p.LeaderEpoch = -1, -1, -1
			fail(c)
		}
	}
}

// vouch is asked once something was read off a bucket's log that only its leader
// can know: where it ends, what it does not hold. codeNotLeader when this node may
// have ceased to be it before: whoever leads now may have more, and a client that
// believed the shorter end would read again, or skip.
func (b *broker) vouch(bucket mink.BucketRef, log Log) code {
	now, err := b.backend.Log(bucket)
	if err != nil {
		return bucketCode(err)
	}
	if now.LeaderEpoch() != log.LeaderEpoch() {
		return codeNotLeader
	}
	if _, err := b.backend.Lease(); err != nil {
		return codeNotLeader
	}
	return codeNone
}

// lookupCode is bucketCode for a read that waits: a store that is down is a
// timeout, not another leader.
func lookupCode(err error) code {
	if errors.Is(err, mink.ErrUnavailable) || errors.Is(err, mink.ErrThrottled) {
		return codeRequestTimedOut
	}
	return bucketCode(err)
}

// openFor finds a partition's log and checks the epoch that the client knows.
func (b *broker) openFor(t *topic, partition, epoch int32) (Log, code) {
	if t == nil {
		return nil, codeUnknownTopicOrPartition
	}
	bucket, ok := t.bucket(partition)
	if !ok {
		return nil, codeUnknownTopicOrPartition
	}
	log, err := b.backend.Log(bucket)
	if err != nil {
		return nil, b.notHere(bucket, epoch, err)
	}
	return log, checkEpoch(epoch, log.LeaderEpoch())
}

// notHere is bucketCode for an error of finding a bucket's log, towards a client
// that knows a leader epoch (-1: none). One that knows a newer one than this node is
// ahead of it: what this node would say of the leader is of before.
func (b *broker) notHere(bucket mink.BucketRef, epoch int32, err error) code {
	c := bucketCode(err)
	if c != codeNotLeader {
		return c
	}
	v := b.backend.View()
	if id, ok := v.StreamOf(bucket); ok {
		if st, ok := v.Stream(id); ok && checkEpoch(epoch, st.Owner.LeaderEpoch) == codeUnknownLeaderEpoch {
			return codeUnknownLeaderEpoch
		}
	}
	return c
}

// epochEnds is OffsetForLeaderEpoch: where an epoch that a consumer has read in
// ended, so that it notices a log that was cut below its position.
func (b *broker) epochEnds(ctx context.Context, r *kmsg.OffsetForLeaderEpochRequest) (*kmsg.OffsetForLeaderEpochResponse, error) {
	resp := kmsg.NewPtrOffsetForLeaderEpochResponse()
	resp.Topics = make([]kmsg.OffsetForLeaderEpochResponseTopic, len(r.Topics))
	topics := b.lookup(ctx)
	for i := range r.Topics {
		in, out := &r.Topics[i], &resp.Topics[i]
		*out = kmsg.NewOffsetForLeaderEpochResponseTopic()
		out.Topic = in.Topic
		out.Partitions = make([]kmsg.OffsetForLeaderEpochResponseTopicPartition, len(in.Partitions))
		t := topics.byName(in.Topic, partitionsNamed(in.Partitions, func(p *kmsg.OffsetForLeaderEpochRequestTopicPartition) int32 { return p.Partition }))
		for j := range in.Partitions {
			out.Partitions[j] = b.epochEnd(t, &in.Partitions[j])
		}
	}
	return resp, nil
}

func (b *broker) epochEnd(t *topic, ask *kmsg.OffsetForLeaderEpochRequestTopicPartition) kmsg.OffsetForLeaderEpochResponseTopicPartition {
	p := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
	p.Partition, p.LeaderEpoch, p.EndOffset = ask.Partition, -1, -1
	log, c := b.openFor(t, ask.Partition, ask.CurrentLeaderEpoch)
	if c != codeNone {
		p.ErrorCode = b.fail("OffsetForLeaderEpoch", c)
		return p
	}
	epoch, end := log.EpochEnd(mink.LeaderEpoch(ask.LeaderEpoch))
	if epoch == log.LeaderEpoch() || epoch < 0 { // earlier ones have ended for good
		bucket, _ := t.bucket(ask.Partition)
		if c := b.vouch(bucket, log); c != codeNone {
			p.ErrorCode = b.fail("OffsetForLeaderEpoch", c)
			return p
		}
	}
	p.LeaderEpoch, p.EndOffset = int32(epoch), int64(end)
	return p
}
