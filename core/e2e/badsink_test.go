package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/plugin"
	"github.com/mink-project/mink/sdk/sink"
)

// badSinkFile is the name under which this executable is a sink that does not work.
const badSinkFile = plugin.FilePrefix + "sink-bad"

// badSinkMain serves it, when that is the executable's name, and does not return.
func badSinkMain() {
	if filepath.Base(os.Args[0]) != badSinkFile {
		return
	}
	plugin.Serve(plugin.Sink{
		Info: plugin.Info{Name: "bad", Version: "1", Options: []plugin.Option{{Name: "mode", Doc: "slow, down, full or garbage."}}},
		Open: func(_ context.Context, cfg plugin.Config) (sink.Sink, error) {
			if cfg.Options["mode"] == "down" {
				return nil, fmt.Errorf("%w: the target is away", sink.ErrUnavailable)
			}
			return badSink{cfg.Options["mode"]}, nil
		},
	})
}

type badSink struct{ mode string }

func (b badSink) Describe() sink.Description {
	return sink.Description{Name: "bad", Delivery: sink.ExactlyOnce, Changes: sink.ChangesKept, SchemaChanges: true}
}

func (b badSink) Close() error { return nil }

func (b badSink) Open(_ context.Context, req sink.OpenRequest) (sink.Table, error) {
	return badTable{mode: b.mode, id: req.Table.ID}, nil
}

type badTable struct {
	sink.Table
	mode string
	id   mink.TableID
}

func (b badTable) Recover(context.Context, sink.RecoverRequest) (sink.RecoverResponse, error) {
	if b.mode != "garbage" {
		return sink.RecoverResponse{}, nil
	}
	ends := map[mink.BucketRef]mink.Offset{}
	for p := range mink.PartitionID(20) {
		ends[mink.BucketRef{Table: b.id, Partition: p + 1}] = 1 << 40
	}
	return sink.RecoverResponse{Committed: sink.Committed{Round: "never-was", Fence: 1, Ends: ends}}, nil
}

func (b badTable) BeginRound(context.Context, sink.BeginRoundRequest) (sink.BeginRoundResponse, error) {
	return sink.BeginRoundResponse{}, nil
}

func (b badTable) Write(ctx context.Context, _ sink.WriteRequest) (sink.WriteResponse, error) {
	if b.mode == "full" {
		return sink.WriteResponse{}, fmt.Errorf("%w: the disk is full", sink.ErrNoSpace)
	}
	<-ctx.Done()
	return sink.WriteResponse{}, ctx.Err()
}

func (b badTable) Close() error { return nil }
