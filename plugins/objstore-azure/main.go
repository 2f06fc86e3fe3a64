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
		Name: "azure", Version: cloudstore.Version, Schemes: []string{"az", "abfs", "abfss"}, Options: options,
		Env:     []string{"AZURE_*", "IDENTITY_*", "MSI_*", "IMDS_*"},
		Summary: "objects in Azure Blob Storage",
	},
	Open: func(ctx context.Context, cfg plugin.Config) (objstore.Store, error) {
		return open(ctx, cfg.URI, cfg.Options)
	},
}
