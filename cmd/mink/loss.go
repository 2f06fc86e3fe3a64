package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

func acceptLossCommand(a *app) *cobra.Command {
	yes := false
	cmd := &cobra.Command{
		Use: "accept-loss [NODE/EPOCH]", Short: "Show what damaged write-ahead objects lose, or give it up",
		Long: `A write-ahead log with a damaged or missing object is not recovered, and the
buckets that its node led stay closed, until the object is restored or its records
are given up. Without --yes this shows which offsets of which tables that is, and
changes nothing. With --yes it is done, for good: the recovery goes on, the buckets
open, and readers skip those offsets, which are never given out again.`,
		Example: `  mink cluster accept-loss
  mink cluster accept-loss 1/3
  mink cluster accept-loss 1/3 --yes`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("%s wants one NODE/EPOCH at most, got %s", cmd.CommandPath(), count(int64(len(args)), "argument"))
			}
			return nil
		},
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if yes && len(args) == 0 {
				return usagef("--yes wants NODE/EPOCH, as mink cluster accept-loss shows it")
			}
			logs, err := c.Losses(cmd.Context())
			if err != nil {
				return err
			}
			if len(args) == 1 {
				if logs, err = logNamed(logs, args[0]); err != nil {
					return err
				}
			}
			if yes {
				return a.acceptLoss(cmd, c, logs[0])
			}
			if a.json {
				return a.printJSON(api.LossReport{Logs: append([]api.DamagedLog{}, logs...)})
			}
			if len(logs) == 0 {
				fmt.Fprintln(a.out, "no write-ahead log is damaged")
				return nil
			}
			a.printDamage(logs)
			a.note("nothing was changed; to give these records up for good: mink cluster accept-loss %d/%d --yes", logs[0].Node, logs[0].Epoch)
			return nil
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "give the records up, for good")
	return cmd
}

func (a *app) acceptLoss(cmd *cobra.Command, c *client.Client, log api.DamagedLog) error {
	r, err := c.AcceptLoss(cmd.Context(), log)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(r)
	}
	a.printDamage(r.Logs)
	a.note("given up; the recovery goes on, and mink cluster health says when the node serves")
	return nil
}

// logNamed finds NODE/EPOCH among the damaged logs.
func logNamed(logs []api.DamagedLog, name string) ([]api.DamagedLog, error) {
	node, epoch, found := strings.Cut(name, "/")
	n, err := strconv.ParseInt(node, 10, 32)
	e, err2 := strconv.ParseInt(epoch, 10, 64)
	if !found || err != nil || err2 != nil || n < 1 || e < 1 {
		return nil, usagef("%q: want NODE/EPOCH, such as 1/3", name)
	}
	for _, l := range logs {
		if l.Node == mink.NodeID(n) && l.Epoch == mink.NodeEpoch(e) {
			return []api.DamagedLog{l}, nil
		}
	}
	return nil, fmt.Errorf("no write-ahead log of node %d, epoch %d, waits for a decision; mink cluster accept-loss lists those that do", n, e)
}

func (a *app) printDamage(logs []api.DamagedLog) {
	for _, l := range logs {
		for _, s := range l.Slots {
			fmt.Fprintf(a.out, "log %d/%d, slot %d, object %s: %s\n", l.Node, l.Epoch, s.Slot, s.Object, s.Reason)
			for _, loss := range s.Losses {
				fmt.Fprintf(a.out, "  lost: %s\n", lossText(loss))
			}
			if s.More > 0 {
				fmt.Fprintf(a.out, "  and %s more; mink cluster accept-loss lists all\n", count(int64(s.More), "range"))
			}
			if len(s.Losses) == 0 {
				fmt.Fprintln(a.out, "  lost: nothing that is not stored elsewhere")
			}
		}
	}
}

// rangeText names a range of offsets of a bucket.
func rangeText(l api.Loss) string {
	name := l.Table
	if name == "" {
		name = fmt.Sprintf("table %d", l.Bucket.Table)
	}
	return fmt.Sprintf("%s bucket %d (%s), offsets %d to %d", name, l.Bucket.Index, l.Bucket, l.Start, l.End-1)
}

func lossText(l api.Loss) string {
	if l.Exact {
		return rangeText(l) + ": " + count(int64(l.End-l.Start), "offset")
	}
	return rangeText(l) + " at most: nothing says how many there were, all of these are skipped"
}
