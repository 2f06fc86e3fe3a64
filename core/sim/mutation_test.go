package sim

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/internal/codefault"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/stream/object"
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
