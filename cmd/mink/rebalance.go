package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
)

func rebalanceCommand(a *app) *cobra.Command {
	dryRun := false
	cmd := &cobra.Command{
		Use: "rebalance", Short: "Even out the buckets over the nodes",
		Long: `Gives buckets without a leader one, then moves buckets from nodes that lead more
than 110 % of the mean to those that lead less than 90 %. Each move is asked of
the bucket's leader: what clients have sent is made durable first, then the other
node serves the bucket; clients find it by themselves. Several buckets move at
once, each is away for a moment.

A node that does not answer is passed over. Exits 1 when a bucket was not moved;
run it again then: it plans anew, and nothing when all is even.`,
		Example: `  mink cluster rebalance --dry-run
  mink cluster rebalance`,
		Args: noArgs,
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			bar := newMoveBar(a, dryRun)
			r, err := c.Rebalance(cmd.Context(), dryRun, bar.ended)
			bar.stop()
			if err != nil {
				return err
			}
			return a.printRebalance(r)
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the moves that would be made, change nothing")
	return cmd
}

func (a *app) printRebalance(r api.RebalanceReport) error {
	if a.json {
		if err := a.printJSON(r); err != nil {
			return err
		}
	} else {
		var rows [][]string
		for _, m := range r.Moves {
			from := fmt.Sprint(m.From)
			if m.From == 0 {
				from = "-"
			}
			took := "-"
			if m.TookMs > 0 {
				took = fmt.Sprintf("%.0fms", m.TookMs)
			}
			rows = append(rows, []string{m.Table, m.Bucket.String(), from, fmt.Sprint(m.To), m.Outcome, took, m.Reason})
		}
		if len(rows) > 0 {
			a.printTable([]string{"table", "bucket", "from", "to", "outcome", "took", "reason"}, rows)
		}
		rows = nil
		for _, n := range r.Nodes {
			rows = append(rows, []string{fmt.Sprint(n.Node), fmt.Sprint(n.Before), fmt.Sprint(n.After)})
		}
		a.printTable([]string{"node", "buckets before", "after"}, rows)
	}
	if len(r.Moves) == 0 {
		a.note("the buckets are even: nothing to move")
		return nil
	}
	if r.DryRun {
		a.note("nothing was changed; to move %s: mink cluster rebalance", count(int64(len(r.Moves)), "bucket"))
		return nil
	}
	if left := len(r.Moves) - r.Count(api.MoveMoved); left > 0 {
		return fmt.Errorf("%s of %d not moved; run mink cluster rebalance again", count(int64(left), "bucket"), len(r.Moves))
	}
	a.note("%s moved in %s", count(int64(len(r.Moves)), "bucket"), (time.Duration(r.TookMs * float64(time.Millisecond))).Round(time.Millisecond))
	return nil
}

// moveBar shows a person how far a rebalance is; nothing in a pipe, or with --quiet.
type moveBar struct {
	tracker *progress.Tracker // nil: none is shown
	gone    chan struct{}     // closed when the last of it is written
}

func newMoveBar(a *app, dryRun bool) *moveBar {
	file, ok := a.errOut.(*os.File)
	if a.quiet || dryRun || !ok || !isatty.IsTerminal(file.Fd()) {
		return &moveBar{}
	}
	return startMoveBar(file)
}

func startMoveBar(out io.Writer) *moveBar {
	w := progress.NewWriter()
	w.SetOutputWriter(out)
	w.SetStyle(progress.StyleBlocks)
	w.SetUpdateFrequency(100 * time.Millisecond)
	w.SetAutoStop(true)
	b := &moveBar{tracker: &progress.Tracker{Message: "moving buckets", Units: progress.UnitsDefault}, gone: make(chan struct{})}
	w.AppendTracker(b.tracker)
	go func() {
		defer close(b.gone)
		w.Render()
	}()
	return b
}

// ended takes one move that has ended.
func (b *moveBar) ended(p api.MoveProgress) {
	if b.tracker == nil {
		return
	}
	b.tracker.UpdateTotal(int64(p.Total))
	b.tracker.SetValue(int64(p.Ended))
	b.tracker.UpdateMessage(fmt.Sprintf("%s bucket %d to node %d: %s", p.Move.Table, p.Move.Bucket.Index, p.Move.To, p.Move.Outcome))
}

// stop ends the bar; what was written stays.
func (b *moveBar) stop() {
	if b.tracker == nil {
		return
	}
	b.tracker.MarkAsDone()
	<-b.gone
}
