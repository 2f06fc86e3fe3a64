package main

import (
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
)

func (a *app) tableCompact() *cobra.Command {
	return a.maintain("compact", &cobra.Command{
		Use: "compact DB.TABLE", Short: "Merge small files and deletes of a table in the lake now",
		Long: `Merges the small files of the lake table of a table with the option lake=true, and applies its
deletes: all that can be, also where the node's own maintenance (option lake_auto_compaction)
would wait for more. It is done between the table's rounds of tiering, in pieces. Readers see
the same rows before and after. With --wait it ends when nothing is left to merge.`,
		Example: "  mink table compact db.events --wait",
	}, func(d api.MaintenanceStats) string {
		return fmt.Sprintf("%d data files and %d delete files (%s) were replaced by %d files (%s)", d.DataFiles, d.DeleteFiles, humanize.IBytes(uint64(max(d.Bytes, 0))), d.NewFiles, humanize.IBytes(uint64(max(d.NewBytes, 0))))
	})
}

func (a *app) tableExpire() *cobra.Command {
	return a.maintain("expire", &cobra.Command{
		Use: "expire DB.TABLE", Short: "Expire old snapshots of a table in the lake now",
		Long: `Takes snapshots of the lake table out of its metadata that were superseded longer ago than the
option lake_snapshot_age says, merges small manifests, and deletes files below its location
that no snapshot names and that are older than the option lake_orphan_age. What readers of
Mink may have in use (read_grace), the newest ten snapshots, and what a branch or a tag names
stay. The node does it by itself every hour while rounds are made.`,
		Example: "  mink table expire db.events --wait",
	}, func(d api.MaintenanceStats) string {
		return fmt.Sprintf("%d snapshots were expired, %d manifests merged, %d files (%s) deleted", d.Snapshots, d.Manifests, d.Removed, humanize.IBytes(uint64(max(d.RemovedBytes, 0))))
	})
}

func (a *app) maintain(work string, cmd *cobra.Command, did func(api.MaintenanceStats) string) *cobra.Command {
	ask := api.MaintainTable{Work: work}
	cmd.Args, cmd.ValidArgsFunction = oneTable, a.completeTable
	cmd.RunE = a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
		ask.Table = args[0]
		r, err := c.MaintainTable(cmd.Context(), ask)
		switch {
		case err != nil:
			return err
		case a.json:
			err = a.printJSON(r)
		case r.Done:
			fmt.Fprintf(a.out, "table %s: %s\n", r.Table, did(r.Did))
		case r.Error == "":
			fmt.Fprintf(a.out, "table %s is to be maintained (%s); mink cluster stats --json shows what came of it\n", r.Table, r.Work)
		}
		if err == nil && r.Error != "" {
			err = errors.New(r.Error)
		}
		return err
	})
	cmd.Flags().BoolVar(&ask.Wait, "wait", false, "wait until it is done")
	return cmd
}
