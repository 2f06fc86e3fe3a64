package plugin

import (
	"context"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"github.com/mink-project/mink/sdk/internal/wire/v1"
	"github.com/mink-project/mink/sdk/sink"
)

// Sink is a plugin that serves tiering sinks.
type Sink struct {
	Info Info // without schemes

	// Open makes one sink; Config.URI is "". One process opens several, at once and
	// one after the other, and each is closed. ctx is the call's. Errors are the
	// contract's: ErrInvalid for a bad configuration, ErrUnauthorized,
	// ErrUnavailable when a later attempt may work; others count as unavailable.
	Open func(ctx context.Context, cfg Config) (sink.Sink, error)
}

// Manifest describes the plugin.
func (p Sink) Manifest() Manifest { return p.Info.manifest(KindSink) }

func (p Sink) register(s *grpc.Server) io.Closer {
	m := p.Manifest()
	return wire.RegisterSink(s, func(ctx context.Context, options map[string]string) (sink.Sink, error) {
		values, err := m.Resolve(options)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", sink.ErrInvalid, err)
		}
		return p.Open(ctx, Config{Options: values})
	})
}
