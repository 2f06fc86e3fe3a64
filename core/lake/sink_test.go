package lake

import (
	"context"
	"testing"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/sdk/sink"
	"github.com/mink-project/mink/sdk/sink/sinktest"
)

func TestConformance(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		w := newMemoryWarehouse(memstore.New(memstore.Default()))
		return sinktest.Target{Start: func(context.Context) (sink.Sink, func(), error) {
			return newSink(w, SinkConfig{}), func() {}, nil // a sink that nobody can stop
		}}
	})
}
