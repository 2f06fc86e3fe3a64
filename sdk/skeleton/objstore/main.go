// Command mink-plugin-objstore-skeleton is a Mink plugin: an object store.
package main

import (
	"context"

	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/plugin"
)

const version = "0.1.0"

func main() {
	plugin.Serve(plugin.ObjectStore{
		Info: plugin.Info{
			Name: "skeleton", Version: version, Summary: "one line about it",
			Schemes: []string{"skeleton"}, // skeleton://...
			Options: []plugin.Option{{Name: "region", Doc: "An example of an option; not used."}},
		},
		Open: func(_ context.Context, cfg plugin.Config) (objstore.Store, error) { return open(cfg.URI) },
	})
}
