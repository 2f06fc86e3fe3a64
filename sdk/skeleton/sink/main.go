// Command mink-plugin-sink-skeleton is a Mink plugin: a tiering sink.
package main

import (
	"context"

	"github.com/mink-project/mink/sdk/plugin"
	"github.com/mink-project/mink/sdk/sink"
)

const version = "0.1.0"

func main() {
	plugin.Serve(plugin.Sink{
		Info: plugin.Info{
			Name: "skeleton", Version: version, Summary: "one line about it",
			Options: []plugin.Option{{Name: "dir", Doc: "Directory that holds the tables."}},
		},
		Open: func(_ context.Context, cfg plugin.Config) (sink.Sink, error) { return open(cfg.Options["dir"]) },
	})
}
