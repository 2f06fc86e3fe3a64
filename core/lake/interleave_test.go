package lake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
)

// stepStore calls step before each request.
type stepStore struct {
	objstore.Store
	step func()
}

func (s *stepStore) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	s.step()
	return s.Store.Put(ctx, req)
}

func (s *stepStore) GetRange(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	s.step()
	return s.Store.GetRange(ctx, req)
}

func (s *stepStore) Head(ctx context.Context, key string) (objstore.ObjectInfo, error) {
	s.step()
	return s.Store.Head(ctx, key)
}

func (s *stepStore) List(ctx context.Context, req objstore.ListRequest) (objstore.ListResponse, error) {
	s.step()
	return s.Store.List(ctx, req)
}

func (s *stepStore) DeleteBatch(ctx context.Context, keys []string) (objstore.DeleteResponse, error) {
	s.step()
	return s.Store.DeleteBatch(ctx, keys)
}

// TestEveryInterleavingOfCommitAndCleanup stops one worker before each of its
// requests to store and catalog and lets the other one run meanwhile: whatever is
// committed can be read, whoever was first, and a round is there once or not at all.
func TestEveryInterleavingOfCommitAndCleanup(t *testing.T) {
	for _, c := range []struct{ name, first, second string }{
		{"a commit is stopped, the heir begins", "prepare-commit", "begin"},
		{"a commit is stopped, the heir commits", "prepare-commit", "begin-commit"},
		{"the heir's begin is stopped, the commit runs", "begin-commit", "commit"},
		{"an abort is stopped, the commit runs", "abort", "commit"},
		{"a commit is stopped, the abort runs", "commit", "abort"},
	} {
		t.Run(c.name, func(t *testing.T) {
			outcomes := map[string]int{}
			for stop := 1; ; stop++ {
				outcome, reached := interleave(t, c.first, c.second, stop)
				if !reached {
					break
				}
				outcomes[outcome]++
			}
			t.Logf("outcomes: %v", outcomes)
			if len(outcomes) < 2 && c.first != "begin-commit" {
				t.Errorf("the order never mattered: %v", outcomes)
			}
		})
	}
}

// interleave runs first until its request number stop, then second as a whole,
// then the rest of first.
func interleave(t *testing.T, first, second string, stop int) (outcome string, reached bool) {
	o := newOne(t, sink.TableSpec{}, SinkConfig{}, "k", "INT")
	const never = -1 << 30
	var requests atomic.Int64 // the library writes manifests at once
	var stopped atomic.Bool
	requests.Store(never)
	var meanwhile func()
	step := func() {
		if requests.Add(1) == int64(stop) {
			stopped.Store(true)
			meanwhile()
		}
	}
	o.w.store = &stepStore{Store: memstore.New(memstore.Default()), step: step}
	o.s = newSink(o.w, SinkConfig{})
	o.w.before = func([]table.Requirement, []table.Update) error { step(); return nil }
	o.open()
	o.round(row{"", `{"k":1}`})
	zombie, heir := *o, *o
	heir.rounds += 100
	heir.open()
	var req sink.CommitRequest
	if first != "prepare-commit" {
		req = zombie.prepare(bucket0, nil, row{"", `{"k":2}`})
	}
	run := func(what string) string {
		switch what {
		case "prepare-commit": // every request of a round but its begin
			return zombie.tryRound(t)
		case "commit":
			_, err := zombie.table.Commit(context.Background(), req)
			return verdict(t, err)
		case "abort":
			_, err := zombie.table.Abort(context.Background(), sink.AbortRequest{Round: req.Round, Staged: req.Staged})
			o.must(err)
			return "aborted"
		case "begin":
			_, err := heir.table.BeginRound(context.Background(), sink.BeginRoundRequest{Round: "heir", Base: heir.last.Round, Fence: 2})
			if err == nil {
				return "begun"
			}
			return verdict(t, err)
		default:
			return heir.tryRound(t)
		}
	}
	var other string
	meanwhile = func() { other = run(second) }
	requests.Store(0)
	own := run(first)
	requests.Store(never)
	reached = stopped.Load()
	outcome = own + ", " + other
	rows := o.rows() // a file that is gone is an error
	twice := slices.Compact(slices.Clone(rows))
	if len(twice) != len(rows) || !slices.Contains(rows, `{"k":1}`) {
		t.Fatalf("stopped before request %d: %s: rows %v", stop, outcome, rows)
	}
	committed := 0
	for _, v := range []string{own, other} {
		if v == "committed" {
			committed++
		}
	}
	if want := 1 + committed; len(rows) != want {
		t.Fatalf("stopped before request %d: %s: rows %v", stop, outcome, rows)
	}
	return outcome, reached
}

// tryRound is a whole round; a rival may be first anywhere.
func (o *one) tryRound(t *testing.T) string {
	o.rounds++
	name := sink.RoundID(fmt.Sprintf("try-%d", o.rounds))
	ctx := context.Background()
	if _, err := o.table.BeginRound(ctx, sink.BeginRoundRequest{Round: name, Base: o.last.Round, Fence: 2}); err != nil {
		return verdict(t, err)
	}
	start := o.last.Ends[bucket0]
	batch := o.batch([]row{{"", fmt.Sprintf(`{"k":%d}`, o.rounds)}})
	defer batch.Release()
	if _, err := o.table.Write(ctx, sink.WriteRequest{Bucket: bucket0, Start: start, End: start + 1, Batch: batch}); err != nil {
		return verdict(t, err)
	}
	resp, err := o.table.Prepare(ctx, sink.PrepareRequest{})
	if err != nil {
		return verdict(t, err)
	}
	_, err = o.table.Commit(ctx, sink.CommitRequest{Staged: resp.Staged, Round: name, Base: o.last.Round, Fence: 2, Ranges: []sink.Range{{Bucket: bucket0, Start: start, End: start + 1}}})
	return verdict(t, err)
}

func verdict(t *testing.T, err error) string {
	t.Helper()
	switch {
	case err == nil:
		return "committed"
	case errors.Is(err, sink.ErrNotExist):
		return "gone"
	case errors.Is(err, sink.ErrConflict):
		return "conflict"
	case errors.Is(err, sink.ErrFenced):
		return "fenced"
	}
	t.Fatalf("an error that no rival explains: %v", err)
	return ""
}
