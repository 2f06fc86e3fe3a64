package kafka

import (
	"bytes"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/time/rate"
)

// broker answers requests; it knows no sockets. Safe for concurrent use.
type broker struct {
	cfg      Config
	backend  Backend
	metrics  Metrics
	log      *slog.Logger
	stopping <-chan struct{}
	topics   topicCache
	newest   *newest
	cold     *coldReads
	groups   *groups
	reports  rate.Sometimes // bounds the log lines of reads and writes that fail
	refusals struct {
		rate.Sometimes
		unsaid atomic.Int64 // since the last line
	}
}

func newBroker(cfg Config, backend Backend, metrics Metrics, log *slog.Logger, stopping <-chan struct{}) *broker {
	b := &broker{
		cfg: cfg, backend: backend, metrics: metrics, log: log, stopping: stopping,
		newest: newNewest(backend, cfg.LookupWait),
		cold:   newColdReads(cfg, log), groups: newGroups(cfg, backend, log, stopping), reports: rate.Sometimes{First: 10, Interval: time.Second},
	}
	b.refusals.Sometimes = rate.Sometimes{First: 10, Interval: 10 * time.Second}
	return b
}

// wait ends what goes on in the background: reads, questions to the metadata log.
func (b *broker) wait() {
	b.cold.close()
	b.newest.close()
}

// report logs a failure of a bucket. A client tries again at once and for long:
// one line a second is kept, the metrics count every one.
func (b *broker) report(what string, args ...any) {
	b.reports.Do(func() { b.log.Error(what, args...) })
}

// reportRefused logs that a batch failed its checks, which else only its sender
// knows: ten lines, then one in ten seconds that says how many had none.
func (b *broker) reportRefused(args ...any) {
	b.refusals.unsaid.Add(1)
	b.refusals.Do(func() {
		args = append(args, "refused_batches", b.refusals.unsaid.Swap(0))
		b.log.Warn("records refused", args...)
	})
}

// fail counts an error and gives its number for a response.
func (b *broker) fail(api string, c code) int16 {
	if c != codeNone {
		b.metrics.Error(api, int16(c))
	}
	return int16(c)
}

// accept parses one frame. A Produce request is appended here, and an OffsetCommit
// handed in, so that they keep the order of the frames and are gathered; everything
// else happens in call.answer. The
// frame is free again when accept returns. The error closes the connection.
func (b *broker) accept(ctx context.Context, frame []byte, produce *kmsg.ProduceRequest) (*call, error) {
	h, err := parseFixed(frame)
	if err != nil {
		return nil, closef(slog.LevelWarn, "%v", err)
	}
	cl := &call{header: h, size: len(frame) + 4, held: int64(len(frame)), read: time.Now()}
	api, known := findAPI(h.key)
	if known {
		cl.api = api.Name
	}
	if known && h.key == keyAPIVersions && !api.serves(h.version) {
		return b.acceptNewerAPIVersions(cl), nil
	}
	if !known || !api.serves(h.version) {
		return b.acceptUnserved(cl)
	}
	cl.header.flexible = h.version >= api.Flexible
	body, err := cl.header.parseRest(frame)
	if err != nil {
		return nil, closef(slog.LevelWarn, "%s v%d: %v", api.Name, h.version, err)
	}
	switch h.key {
	case keyProduce:
		err = b.acceptProduce(ctx, cl, body, produce)
	case keyOffsetCommit:
		err = b.acceptOffsetCommit(ctx, cl, body)
	default:
		err = b.acceptOther(cl, body)
	}
	cl.header.clientID = nil
	return cl, err
}

// decode reads the body into r, which then owns its strings; byte fields alias
// the body.
func decode(cl *call, r kmsg.Request, body []byte) error {
	r.SetVersion(cl.header.version)
	if err := r.ReadFrom(body); err != nil {
		return closef(slog.LevelWarn, "%s v%d cannot be decoded: %v", cl.api, cl.header.version, err)
	}
	return nil
}

// acceptOther decodes the body and sets cl.answer.
func (b *broker) acceptOther(cl *call, body []byte) error {
	switch cl.header.key {
	case keyAPIVersions:
		b.acceptAPIVersions(cl, body)
		return nil
	case keyFetch:
		r := kmsg.NewPtrFetchRequest()
		if err := decode(cl, r, body); err != nil {
			return err
		}
		cl.answer = func(ctx context.Context) (reply, error) { return b.fetch(ctx, r, cl.read, cl.hurry) }
		return nil
	case keyListOffsets:
		return accept(cl, kmsg.NewPtrListOffsetsRequest(), body, b.listOffsets)
	case keyMetadata:
		r := kmsg.NewPtrMetadataRequest()
		if err := accept(cl, r, body, b.metadata); err != nil {
			return err
		}
		if b.mayCreate(r) {
			cl.done = make(chan struct{})
		}
		return nil
	case keyCreateTopics:
		cl.done = make(chan struct{})
		return accept(cl, kmsg.NewPtrCreateTopicsRequest(), body, b.createTopics)
	case keyDeleteTopics:
		cl.done = make(chan struct{})
		return accept(cl, kmsg.NewPtrDeleteTopicsRequest(), body, b.deleteTopics)
	case keyInitProducerID:
		return accept(cl, kmsg.NewPtrInitProducerIDRequest(), body, b.initProducerID)
	case keyEpochEnd:
		return accept(cl, kmsg.NewPtrOffsetForLeaderEpochRequest(), body, b.epochEnds)
	default:
		return b.acceptGroup(cl, body)
	}
}

// acceptGroup is acceptOther for consumer groups.
func (b *broker) acceptGroup(cl *call, body []byte) error {
	switch cl.header.key {
	case keyFindCoordinator:
		return accept(cl, kmsg.NewPtrFindCoordinatorRequest(), body, b.findCoordinator)
	case keyJoinGroup:
		body = bytes.Clone(body) // the metadata alias it, and are read when it is answered
		clientID := string(cl.header.clientID)
		return accept(cl, kmsg.NewPtrJoinGroupRequest(), body, func(ctx context.Context, r *kmsg.JoinGroupRequest) (*kmsg.JoinGroupResponse, error) {
			return b.joinGroup(ctx, clientID, r)
		})
	case keySyncGroup: // as above, the assignments
		return accept(cl, kmsg.NewPtrSyncGroupRequest(), bytes.Clone(body), b.syncGroup)
	case keyHeartbeat:
		return accept(cl, kmsg.NewPtrHeartbeatRequest(), body, b.heartbeat)
	case keyLeaveGroup:
		return accept(cl, kmsg.NewPtrLeaveGroupRequest(), body, b.leaveGroup)
	case keyOffsetFetch:
		return accept(cl, kmsg.NewPtrOffsetFetchRequest(), body, b.offsetFetch)
	case keyDescribeGroups:
		return accept(cl, kmsg.NewPtrDescribeGroupsRequest(), body, b.describeGroups)
	case keyListGroups:
		return accept(cl, kmsg.NewPtrListGroupsRequest(), body, b.listGroups)
	case keyDeleteGroups:
		return accept(cl, kmsg.NewPtrDeleteGroupsRequest(), body, b.deleteGroups)
	case keyOffsetDelete:
		return accept(cl, kmsg.NewPtrOffsetDeleteRequest(), body, b.offsetDelete)
	default:
		return b.acceptAdmin(cl, body)
	}
}

// accept decodes the body and has it answered by serve.
func accept[R kmsg.Request, A kmsg.Response](cl *call, r R, body []byte, serve func(context.Context, R) (A, error)) error {
	if err := decode(cl, r, body); err != nil {
		return err
	}
	cl.answer = func(ctx context.Context) (reply, error) {
		resp, err := serve(ctx, r)
		if err != nil {
			return reply{}, err
		}
		resp.SetVersion(r.GetVersion())
		return reply{body: resp}, nil
	}
	return nil
}
