// Package plugintest runs conformance kits on plugins as they are used: through a
// process of its executable, which the kit kills as it likes.
package plugintest

import (
	"context"
	"fmt"

	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/catalog/catalogtest"
	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/plugin"
	"github.com/mink-project/mink/sdk/sink"
	"github.com/mink-project/mink/sdk/sink/sinktest"
)

// SinkTarget starts a process of the executable for every sink. options are the
// same for all of one target: they name an empty place.
func SinkTarget(cfg host.Config, options map[string]string) sinktest.Target {
	cfg.Kind = plugin.KindSink
	return sinktest.Target{Start: func(ctx context.Context) (sink.Sink, func(), error) {
		p, err := host.Launch(ctx, cfg)
		if err != nil {
			return nil, nil, err
		}
		s, err := p.OpenSink(ctx, options)
		if err != nil {
			_ = p.Kill()
			return nil, nil, fmt.Errorf("open a sink in %s: %w", cfg.Path, err)
		}
		// The pointer to the process keeps it: a kit may forget to end one.
		return s, func() { _ = p.Kill() }, nil
	}}
}

// CatalogTarget starts a process of the executable for every client. end kills them. The
// place that options name may have other namespaces.
func CatalogTarget(cfg host.Config, options map[string]string) (_ catalogtest.Target, end func()) {
	cfg.Kind = plugin.KindCatalog
	var kills killed
	return catalogtest.Target{Shared: true, Start: func(ctx context.Context) (catalog.Catalog, error) {
		p, err := host.Launch(ctx, cfg)
		if err != nil {
			return nil, err
		}
		kills.add(func() { _ = p.Kill() })
		c, err := p.OpenCatalog(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("open a catalog in %s: %w", cfg.Path, err)
		}
		return c, nil
	}}, kills.end
}
