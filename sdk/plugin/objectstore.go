package plugin

import (
	"context"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"github.com/mink-project/mink/sdk/internal/wire/v1"
	"github.com/mink-project/mink/sdk/objstore"
)

// ObjectStore is a plugin that serves object stores.
type ObjectStore struct {
	Info Info

	// Open makes one store. One process opens several, at once and one after the
	// other, and each is closed. ctx is the call's. Errors are the contract's:
	// ErrInvalid for a bad configuration, ErrUnauthorized, ErrUnavailable when a
	// later attempt may work; others count as unavailable.
	Open func(ctx context.Context, cfg Config) (objstore.Store, error)
}

// Manifest describes the plugin.
func (p ObjectStore) Manifest() Manifest { return p.Info.manifest(KindObjectStore) }

func (p ObjectStore) register(s *grpc.Server) io.Closer {
	m := p.Manifest()
	return wire.RegisterObjectStore(s, func(ctx context.Context, uri string, options map[string]string) (objstore.Store, error) {
		values, err := m.Resolve(options)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", objstore.ErrInvalid, err)
		}
		return p.Open(ctx, Config{URI: uri, Options: values})
	}, wire.InheritShared())
}
