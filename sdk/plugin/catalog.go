package plugin

import (
	"context"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/internal/wire/v1"
)

// Catalog is a plugin that serves lake catalogs.
type Catalog struct {
	Info Info // without schemes

	// Open makes one catalog; Config.URI is "". One process opens several, at once and
	// one after the other, and each is closed. ctx is the call's. Errors are the
	// contract's: ErrInvalid for a bad configuration, ErrUnauthorized,
	// ErrUnavailable when a later attempt may work; others count as unavailable.
	Open func(ctx context.Context, cfg Config) (catalog.Catalog, error)
}

// Manifest describes the plugin.
func (p Catalog) Manifest() Manifest { return p.Info.manifest(KindCatalog) }

func (p Catalog) register(s *grpc.Server) io.Closer {
	m := p.Manifest()
	return wire.RegisterCatalog(s, func(ctx context.Context, options map[string]string) (catalog.Catalog, error) {
		values, err := m.Resolve(options)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", catalog.ErrInvalid, err)
		}
		return p.Open(ctx, Config{Options: values})
	})
}
