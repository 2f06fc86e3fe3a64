// Command sink-postgres is a sink that keeps tables in Postgres, each row exactly
// once: log tables by appending, primary-key tables by upserts and deletes. Its manual
// is docs/sinks.md.
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
			Name: "postgres", Version: version, Summary: "tables in Postgres, each row exactly once",
			Options: []plugin.Option{
				{Name: "url", Secret: true, Doc: "postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=..., or key=value text as libpq takes it; what it leaves out comes from the PG... variables of the node's environment, .pgpass too."},
				{Name: "schema", Doc: "Schema of the tables. Without it each Mink database has the schema of its name, made when it is absent."},
				{Name: "state_schema", Default: "mink_sink", Doc: "Schema of the sink's own tables: last rounds, staged rows. Two Mink clusters that write to one database need different ones."},
				{Name: "connections", Default: "16", Doc: "Most connections of one node; a table that is being written takes one, and a commit one more."},
				{Name: "lock_timeout", Default: "1m", Doc: "How long a statement waits for a lock that somebody else holds before the round is tried again later."},
			},
			Env: []string{"PG*"},
		},
		Open: func(ctx context.Context, cfg plugin.Config) (sink.Sink, error) {
			s, err := open(ctx, cfg.Options)
			if err != nil {
				return nil, err
			}
			return s, nil
		},
	})
}
