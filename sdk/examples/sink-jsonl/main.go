// Command sink-jsonl is a sink that keeps tables as files of JSON lines, each row
// exactly once. It is an example to start from: what it does with directories and
// renames, a sink for a database does with a transaction.
package main

import (
	"context"

	"github.com/mink-project/mink/sdk/plugin"
	"github.com/mink-project/mink/sdk/sink"
)

func main() {
	plugin.Serve(plugin.Sink{
		Info: plugin.Info{
			Name: "jsonl", Version: version, Summary: "files of JSON lines, each row exactly once",
			Options: []plugin.Option{{Name: "dir", Doc: "Directory that gets a folder per database. It must be one file system."}},
		},
		Open: func(_ context.Context, cfg plugin.Config) (sink.Sink, error) { return open(cfg.Options["dir"]) },
	})
}
