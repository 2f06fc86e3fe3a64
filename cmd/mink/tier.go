package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
)

func (a *app) tableTier() *cobra.Command {
	ask := api.TierTable{}
	cmd := &cobra.Command{
		Use: "tier DB.TABLE", Short: "Write a table's new rows to the lake now", Args: oneTable, ValidArgsFunction: a.completeTable,
		Long: `Asks for a round of tiering, of a table with the option lake=true, before its time
(option lake_freshness). With --wait it ends when the lake has all rows that were in stream
objects by then: those that were written before the last upload (wal_upload_interval).
The state of all tables: mink cluster stats.`,
		Example: "  mink table tier db.events --wait",
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
			ask.Table = args[0]
			r, err := c.TierTable(cmd.Context(), ask)
			switch {
			case err != nil:
				return err
			case a.json:
				err = a.printJSON(r)
			case r.Tiered:
				fmt.Fprintf(a.out, "table %s is tiered: round %s, snapshot %s\n", r.Table, or(r.Round, "-"), or(r.Snapshot, "-"))
			case r.Error == "":
				fmt.Fprintf(a.out, "a round of table %s is due\n", r.Table)
			}
			if err == nil && r.Error != "" {
				err = errors.New(r.Error + "; it is tried again by itself")
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&ask.Wait, "wait", false, "wait until it is done")
	return cmd
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
		lag := time.Duration(t.LagMs) * time.Millisecond
		rows = append(rows, []string{
			name, t.Sink, state, timeOf(t.TieredMs), timeOf(t.DueMs), fmt.Sprint(t.LagOffsets), humanize.IBytes(uint64(max(t.LagBytes, 0))), lag.Round(time.Second).String(),
			fmt.Sprint(t.Rounds), fmt.Sprint(t.Rows), fmt.Sprint(t.Failures), t.LastError,
		})
	}
	if len(rows) > 0 {
		a.printTable([]string{"tiering of", "sink", "state", "tiered", "due", "behind", "about", "lag", "rounds", "rows", "failures", "last error"}, rows)
	}
}
