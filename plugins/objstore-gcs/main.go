package main

import (
	"context"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/plugin"
)

func main() { plugin.Serve(self) }

var self = plugin.ObjectStore{
	Info: plugin.Info{
		Name: "gcs", Version: cloudstore.Version, Schemes: []string{"gs"}, Options: options,
		Env:     []string{"GOOGLE_*", "GCE_METADATA_HOST", "CLOUDSDK_*", "STORAGE_EMULATOR_HOST"},
		Summary: "objects in Google Cloud Storage",
	},
	Open: func(ctx context.Context, cfg plugin.Config) (objstore.Store, error) {
		return open(ctx, cfg.URI, cfg.Options)
	},
}
