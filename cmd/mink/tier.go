package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
)

func (a *app) tableTier() *cobra.Command {
	ask := api.TierTable{}
	cmd := &cobra.Command{
		Use: "tier DB.TABLE", Short: "Write a table's new rows to the lake or another sink now", Args: oneTable, ValidArgsFunction: a.completeTable,
		Long: `Asks for a round of tiering, of a table with a sink (lake=true, --sink), before its
time (option lake_freshness, sink.NAME.freshness): of the rows that are in stream objects
(wal_upload_interval). With --wait the rest is uploaded first, and it ends when the sink has
every row that was acknowledged before. The state of all tables: mink cluster stats.`,
		Example: `  mink table tier db.events --wait
  mink table tier db.events --sink warehouse --wait`,
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
			ask.Table = args[0]
			r, err := c.TierTable(cmd.Context(), ask)
			switch {
			case err != nil:
				return err
			case a.json:
				err = a.printJSON(r)
			case r.Tiered:
				fmt.Fprintf(a.out, "table %s is tiered to %s: round %s, snapshot %s\n", r.Table, r.Sink, or(r.Round, "-"), or(r.Snapshot, "-"))
			case r.Error == "":
				fmt.Fprintf(a.out, "a round of table %s to %s is due\n", r.Table, r.Sink)
			}
			if err == nil && r.Error != "" {
				err = errors.New(r.Error + "; it is tried again by itself")
			}
			return err
		}),
	}
	cmd.Flags().StringVar(&ask.Sink, "sink", "", "the sink; none: the table's only one, or the lake")
	cmd.Flags().BoolVar(&ask.Wait, "wait", false, "wait until it is done")
	return cmd
}

func (a *app) tableLakeSnapshot() *cobra.Command {
	return &cobra.Command{
		Use: "lake-snapshot DB.TABLE", Short: "Say how far a table is in the lake", Args: oneTable, ValidArgsFunction: a.completeTable,
		Long: `Prints the lake snapshot of the last round of tiering that was recorded: its id, round
and time, the newest metadata file of the Iceberg table, and for each bucket the offset
up to which it is in the lake and how many offsets it is behind its log.`,
		Example: "  mink table lake-snapshot db.events --json | jq -r .metadata_location",
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
			l, err := c.LakeSnapshot(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(l)
			}
			a.printLakeSnapshot(l)
			return nil
		}),
	}
}

func (a *app) printLakeSnapshot(l api.LakeSnapshot) {
	if l.Snapshot == "" {
		fmt.Fprintf(a.out, "table %s has no round in the lake yet\n", l.Table)
	} else {
		fmt.Fprintf(a.out, "table %s: lake snapshot %s, round %s (number %d), %s\n", l.Table, l.Snapshot, l.Round, l.Rounds, timeOf(l.CommittedMs))
	}
	if l.MetadataLocation != "" {
		fmt.Fprintf(a.out, "metadata: %s\n", l.MetadataLocation)
	}
	switch {
	case l.CatalogError != "":
		fmt.Fprintf(a.out, "catalog: %s\n", l.CatalogError)
	case l.Expired:
		fmt.Fprintf(a.out, "catalog: it does not have this snapshot any more, its current one is %s: another engine expired it or rolled the table back\n", or(l.CatalogSnapshot, "-"))
	case l.Snapshot != l.CatalogSnapshot:
		fmt.Fprintf(a.out, "catalog: its current snapshot is %s, of another engine or of a round that is being recorded\n", or(l.CatalogSnapshot, "-"))
	}
	var rows [][]string
	for _, b := range l.Buckets {
		rows = append(rows, []string{b.Bucket.String(), strings.Join(b.Values, "/"), b.End.String(), b.HighWatermark.String(), fmt.Sprint(b.LagOffsets), b.Error})
	}
	a.printTable([]string{"bucket", "partition", "in the lake up to", "high watermark", "behind", "error"}, rows)
}

func or(text, none string) string {
	if text == "" {
		return none
	}
	return text
}

// printTiering lists what the node tiers, when it tiers anything.
func (a *app) printTiering(targets []api.TieringStats) {
	var rows [][]string
	for _, t := range targets {
		name := t.Table
		if t.Dropping {
			name += " (dropped)"
		}
		state := t.State
		if t.Step != "" {
			state += ": " + t.Step
		}
		span := func(ms int64) string { return (time.Duration(ms) * time.Millisecond).Round(time.Second).String() }
		rows = append(rows, []string{
			name, t.Sink, state, timeOf(t.TieredMs), timeOf(t.DueMs), fmt.Sprint(t.LagOffsets), humanize.IBytes(uint64(max(t.LagBytes, 0))), span(t.LagMs), span(t.StalledMs),
			fmt.Sprint(t.Rounds), fmt.Sprint(t.Rows), fmt.Sprint(t.Failures), t.LastError,
		})
	}
	if len(rows) > 0 {
		a.printTable([]string{"tiering of", "sink", "state", "tiered", "due", "behind", "about", "lag", "stalled", "rounds", "rows", "failures", "last error"}, rows)
	}
}

// printSinks lists the sinks of a table, when it has any.
func (a *app) printSinks(sinks []api.TableSink) {
	var rows [][]string
	for _, s := range sinks {
		retains := "yes"
		if !s.Retains {
			retains = "no"
		}
		rows = append(rows, []string{
			s.Sink, (time.Duration(s.FreshnessMs) * time.Millisecond).String(), retains, timeOf(s.TieredMs), fmt.Sprint(s.Rounds), fmt.Sprint(s.LagOffsets), or(s.Round, "-"), or(s.Snapshot, "-"),
		})
	}
	if len(rows) > 0 {
		a.printTable([]string{"sink", "freshness", "log waits", "tiered", "rounds", "behind", "last round", "snapshot"}, rows)
	}
}

// sinkFlags makes options of --sink NAME[,SETTING=VALUE]...
func sinkFlags(sinks []string) (map[string]string, error) {
	options := map[string]string{}
	for _, text := range sinks {
		name, rest, more := strings.Cut(text, ",")
		if !schema.SinkName.MatchString(name) {
			return nil, usagef("--sink %q: want NAME, or NAME,SETTING=VALUE such as warehouse,freshness=1m", text)
		}
		options[schema.SinkOption(name)] = "true"
		if !more {
			continue
		}
		settings, err := pairs(strings.Split(rest, ","))
		if err != nil {
			return nil, err
		}
		for key, value := range settings {
			if name == schema.LakeSink {
				return nil, usagef("--sink %q: the lake's settings are options of the table, such as --option lake_freshness=1m", text)
			}
			options[schema.SinkOption(name)+"."+key] = value
		}
	}
	return options, nil
}
