package lake

import (
	"context"
	"os"
	"testing"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/sdk/sink"
	"github.com/mink-project/mink/sdk/sink/sinktest"
)

func TestConformance(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		w := newMemoryWarehouse(memstore.New(memstore.Default()))
		return sinktest.Target{Start: func(context.Context) (sink.Sink, func(), error) {
			return optioned{newSink(w, SinkConfig{}), map[string]string{optionDeletes: deletesEquality}}, func() {}, nil // a sink that nobody can stop
		}}
	})
}

// optioned opens tables with options that the kit does not know.
type optioned struct {
	*Sink
	options map[string]string
}

func (o optioned) Open(ctx context.Context, req sink.OpenRequest) (sink.Table, error) {
	req.Table.Options = o.options
	return o.Sink.Open(ctx, req)
}

// TestConformanceWithPositionDeletes, and with changes that go through scratch files.
func TestConformanceWithPositionDeletes(t *testing.T) {
	dir := t.TempDir()
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		w := newMemoryWarehouse(memstore.New(memstore.Default()))
		return sinktest.Target{Start: func(context.Context) (sink.Sink, func(), error) {
			return optioned{newSink(w, SinkConfig{SortBytes: 1 << 10, ScratchDir: dir, FileBytes: 1 << 10}), map[string]string{optionDeletes: deletesPosition}}, func() {}, nil
		}}
	})
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("scratch files are left: %v, %v", left, err)
	}
}
