package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"go.uber.org/goleak"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every append ends: also when its bucket has no leader and no node answers.
func TestAppendWithoutALeaderEnds(t *testing.T) {
	cfg := Default()
	cfg.Bootstrap, cfg.RetryTimeout, cfg.RetryWait, cfg.RetryWaitMax = []string{"127.0.0.1:1"}, 50*time.Millisecond, time.Millisecond, 2*time.Millisecond
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int32}}, nil)
	v := &tableView{c: c, name: "db.t", id: 1, arrow: s, limit: 1 << 20}
	v.mu.partitions = map[string]api.Partition{"": {ID: 2, Buckets: []api.Bucket{{Bucket: mink.BucketRef{Table: 1, Partition: 2}}}}}
	w := senderOf(context.Background(), "append to", v, DefaultWriter(), api.Writer{WriterID: 7})
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	b.Field(0).(*array.Int32Builder).Append(1)
	a := &Append{done: make(chan struct{}), parts: 1}
	w.mu.Lock()
	w.mu.pending[a] = struct{}{}
	w.appenderLocked(mink.BucketRef{Table: 1, Partition: 2}).push(waiting{rows: b.NewRecordBatch(), to: appends(v), of: a, since: time.Now()})
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := a.Wait(ctx); !errors.Is(err, mink.ErrUnavailable) || ctx.Err() != nil {
		t.Errorf("append without a leader: %v", err)
	}
	if err := w.close(ctx); !errors.Is(err, mink.ErrUnavailable) {
		t.Errorf("close: %v", err)
	}
}

func TestJoined(t *testing.T) {
	seen := map[string][]string{}
	for _, values := range [][]string{
		nil, {""}, {"", ""}, {"a", "b"}, {"a\x00b"}, {"a\x00", "b"}, {"a", "\x00b"}, {"1:a"}, {"1", "a"}, {"1:", "1:"}, {"11:"}, {"a1:b"},
	} {
		if same, ok := seen[joined(values)]; ok {
			t.Errorf("%q and %q are one key", same, values)
		}
		seen[joined(values)] = values
	}
}
