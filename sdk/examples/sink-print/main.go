// Command sink-print is a sink that prints rows as lines of JSON: to the node's
// log, or to a file. It promises each row at least once, which takes no state at
// all, and is the shortest sink there can be. To watch a table with it is its use.
package main

import (
	"context"

	"github.com/mink-project/mink/sdk/plugin"
	"github.com/mink-project/mink/sdk/sink"
)

func main() {
	plugin.Serve(plugin.Sink{
		Info: plugin.Info{
			Name: "print", Version: version, Summary: "prints rows, each at least once",
			Options: []plugin.Option{{Name: "file", Doc: "File that lines are appended to. Without it they go to the node's log."}},
		},
		Open: func(_ context.Context, cfg plugin.Config) (sink.Sink, error) { return open(cfg.Options["file"]) },
	})
}
