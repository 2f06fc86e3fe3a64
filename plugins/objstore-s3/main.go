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
		Name: "s3", Version: cloudstore.Version, Schemes: []string{"s3"}, Options: options, Env: []string{"AWS_*"},
		Summary: "objects in Amazon S3, S3 Express One Zone, or a service that speaks S3",
	},
	Open: func(ctx context.Context, cfg plugin.Config) (objstore.Store, error) {
		return open(ctx, cfg.URI, cfg.Options)
	},
}
