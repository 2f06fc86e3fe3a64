package sim

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/internal/codefault"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// The tests of the test: each takes one protection out of the world and expects
// the simulation to notice within a few seeds.

// mutants are how many seeds a mutation may survive.
const mutants = 40

func mustNotice(t *testing.T, nodes int, mutate func(*Config)) {
	t.Helper()
	for seed := uint64(1); seed <= mutants; seed++ {
		var broken []string
		synctest.Test(t, func(t *testing.T) {
			cfg := Default(seed)
			mutate(&cfg)
			r := newRun(t, cfg, nodes)
			r.chaos(time.Minute)
			if len(r.Violations()) == 0 {
				r.settle(t)
			}
			r.Close()
			broken = r.Violations()
		})
		if len(broken) > 0 {
			t.Logf("noticed by seed %d: %s", seed, broken[0])
			return
		}
	}
	t.Errorf("%d seeds did not notice", mutants)
}

func isSlot(key string) bool { return strings.HasPrefix(key, "wal/") }

// overwriting is a store that does not keep create-only for log slots; the probe
// sees nothing of it.
type overwriting struct{ objstore.Store }

func (s overwriting) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	if isSlot(req.Key) {
		req.CreateOnly = false
	}
	return s.Store.Put(ctx, req)
}

func TestNoticesAStoreThatOverwrites(t *testing.T) {
	mustNotice(t, 1, func(c *Config) { c.Store = func(s objstore.Store) objstore.Store { return overwriting{s} } })
}

// forgetting is a store that acknowledges some log slots and does not keep them.
type forgetting struct{ objstore.Store }

func (s forgetting) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	if isSlot(req.Key) && strings.HasSuffix(req.Key, "7") {
		return objstore.PutResponse{}, nil
	}
	return s.Store.Put(ctx, req)
}

func TestNoticesAStoreThatForgets(t *testing.T) {
	mustNotice(t, 1, func(c *Config) { c.Store = func(s objstore.Store) objstore.Store { return forgetting{s} } })
}

// untombed is a store on which recoverers find that their tombstones are written
// when they are not.
type untombed struct{ objstore.Store }

func (s untombed) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	if isSlot(req.Key) && objstore.SizeOf(req.Chunks) == object.HeaderLen {
		if _, err := s.Head(ctx, req.Key); err == nil {
			return s.Store.Put(ctx, req) // taken: says so
		}
		return objstore.PutResponse{}, nil
	}
	return s.Store.Put(ctx, req)
}

func TestNoticesMissingTombstones(t *testing.T) {
	mustNotice(t, 1, func(c *Config) { c.Store = func(s objstore.Store) objstore.Store { return untombed{s} } })
}

// sweeping is a store whose sweep of late slots takes the tombstone before them, too.
type sweeping struct{ objstore.Store }

func (s sweeping) DeleteBatch(ctx context.Context, keys []string) (objstore.DeleteResponse, error) {
	more := append([]string(nil), keys...)
	for _, k := range keys {
		seq, err := strconv.ParseUint(k[strings.LastIndexByte(k, '/')+1:], 10, 64)
		if !isSlot(k) || err != nil || seq == 0 {
			continue
		}
		before := fmt.Sprintf("%s%020d", k[:strings.LastIndexByte(k, '/')+1], seq-1)
		if info, err := s.Head(ctx, before); err == nil && info.Size == object.HeaderLen {
			more = append(more, before)
		}
	}
	resp, err := s.Store.DeleteBatch(ctx, more)
	if err == nil {
		resp.Errors = resp.Errors[:len(keys)]
	}
	return resp, err
}

func TestNoticesASweptTombstone(t *testing.T) {
	mustNotice(t, 1, func(c *Config) { c.Store = func(s objstore.Store) objstore.Store { return sweeping{s} } })
}

// overtrimming trims each log one slot further than what is uploaded.
type overtrimming struct{ metalog.Log }

func (l overtrimming) Append(ctx context.Context, a metalog.Append) ([]metalog.Entry, error) {
	for i, payload := range a.Payloads {
		var b clusterpb.Batch
		if err := proto.Unmarshal(payload, &b); err != nil {
			return nil, err
		}
		for _, c := range b.Commands {
			if o := c.GetCommitObjects(); o != nil && o.WalTrim > 0 {
				o.WalTrim++
			}
		}
		changed, err := proto.Marshal(&b)
		if err != nil {
			return nil, err
		}
		a.Payloads[i] = changed
	}
	return l.Log.Append(ctx, a)
}

func TestNoticesALogTrimmedOneSlotTooFar(t *testing.T) {
	mustNotice(t, 1, func(c *Config) { c.Log = func(l metalog.Log) metalog.Log { return overtrimming{l} } })
}

// eager is a store that deletes one object more than it is told to.
type eager struct{ objstore.Store }

func (s eager) DeleteBatch(ctx context.Context, keys []string) (objstore.DeleteResponse, error) {
	more := append([]string(nil), keys...)
	for _, k := range keys {
		prefix := k[:strings.LastIndexByte(k, '/')+1]
		page, err := s.List(ctx, objstore.ListRequest{Prefix: prefix, StartAfter: k, Limit: 1})
		if err == nil && len(page.Objects) > 0 && strings.HasPrefix(k, "data/") {
			more = append(more, page.Objects[0].Key)
		}
	}
	resp, err := s.Store.DeleteBatch(ctx, more)
	if err == nil {
		resp.Errors = resp.Errors[:len(keys)]
	}
	return resp, err
}

func TestNoticesDeletedObjects(t *testing.T) {
	mustNotice(t, 1, func(c *Config) { c.Store = func(s objstore.Store) objstore.Store { return eager{s} } })
}

// TestNoticesFaultsOfCode: changes of the code that lose records of a compacted topic.
func TestNoticesFaultsOfCode(t *testing.T) {
	codefault.MustNotice(t, "../..", []codefault.Fault{
		{
			Name: "a cleaning drops the latest record of a key, too", File: "core/tablet/cleanpass.go",
			Old: "ok && last > base+mink.Offset(rec.Delta) {\n", New: "ok && last >= base+mink.Offset(rec.Delta) {\n",
		},
		{
			Name: "tombstones go at once", File: "core/tablet/cleanpass.go",
			Old: "\tgone := known && at <= p.nowMs\n", New: "\tgone := known || at <= p.nowMs\n",
		},
	}, "^TestOneNode$")
}

// openHanded is a leader that releases a bucket and goes on taking appends, as one does
// that admits again because no verdict came in time.
func openHanded(ctx context.Context, leader *Process, ref mink.BucketRef, to mink.NodeID) error {
	n := leader.Node()
	view := n.View()
	_, epoch := n.Self()
	id, _ := view.StreamOf(ref)
	s, ok := view.Stream(id)
	l, ok2 := view.WAL(epoch)
	if !ok || !ok2 || s.Owner.NodeEpoch != epoch || to == leader.ID {
		return mink.ErrUnavailable
	}
	_, err := n.Propose(ctx, cluster.ReleaseCommand(plan.Release{WAL: l.ID, Stream: id, LeaderEpoch: s.Owner.LeaderEpoch, End: s.End, To: to}))
	return err
}

func TestNoticesAReleaseWithoutAVerdict(t *testing.T) {
	mustNotice(t, 3, func(c *Config) { c.Mover = openHanded })
}

// hasty lets a bucket go without the last append that was admitted.
type hasty struct{ metalog.Log }

func (l hasty) Append(ctx context.Context, a metalog.Append) ([]metalog.Entry, error) {
	for i, payload := range a.Payloads {
		var b clusterpb.Batch
		if err := proto.Unmarshal(payload, &b); err != nil {
			return nil, err
		}
		for _, c := range b.Commands {
			r := c.GetRelease()
			if n := len(r.GetObjects()) - 1; n >= 0 { // one item each
				x := r.Items
				r.Objects, r.End = r.Objects[:n], x.Start[n]
				x.Stream, x.LeaderEpoch, x.Object, x.Start, x.Span = x.Stream[:n], x.LeaderEpoch[:n], x.Object[:n], x.Start[:n], x.Span[:n]
				x.Checkpoint = x.Checkpoint[:min(n, len(x.Checkpoint))]
			}
		}
		changed, err := proto.Marshal(&b)
		if err != nil {
			return nil, err
		}
		a.Payloads[i] = changed
	}
	return l.Log.Append(ctx, a)
}

func TestNoticesAReleaseBeforeTheLastAcknowledgement(t *testing.T) {
	mustNotice(t, 3, func(c *Config) { c.Log = func(l metalog.Log) metalog.Log { return hasty{l} } })
}

// reckless deletes a log's slots when they are trimmed, whoever names them.
type reckless struct {
	metalog.Log
	store func() objstore.Store
}

func (l reckless) Append(ctx context.Context, a metalog.Append) ([]metalog.Entry, error) {
	entries, err := l.Log.Append(ctx, a)
	if err != nil {
		return entries, err
	}
	for _, payload := range a.Payloads {
		var b clusterpb.Batch
		if err := proto.Unmarshal(payload, &b); err != nil {
			return nil, err
		}
		for _, c := range b.Commands {
			o := c.GetCommitObjects()
			if o == nil {
				continue
			}
			w := plan.WALID{Node: mink.NodeID(o.Wal.Node), Epoch: mink.NodeEpoch(o.Wal.Epoch), Nonce: o.Wal.Nonce}
			var keys []string
			for seq := uint64(max(int64(o.WalTrim)-100, 0)); seq < o.WalTrim; seq++ {
				keys = append(keys, plan.Key(w, plan.KindWAL, seq))
			}
			if len(keys) > 0 {
				_, _ = l.store().DeleteBatch(ctx, keys)
			}
		}
	}
	return entries, nil
}

func TestNoticesTheTrimOfAReferencedSlot(t *testing.T) {
	mustNotice(t, 3, func(c *Config) {
		var store atomic.Value
		c.Store = func(s objstore.Store) objstore.Store { store.Store(&s); return s }
		c.Log = func(l metalog.Log) metalog.Log {
			return reckless{l, func() objstore.Store { return *store.Load().(*objstore.Store) }}
		}
	})
}
