package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
)

func clusterCommand(a *app) *cobra.Command {
	return group("cluster", "Describe the cluster, its health, configuration and figures",
		describeCommand(a), healthCommand(a), configCommand(a), statsCommand(a), rebalanceCommand(a), removeNodeCommand(a), acceptLossCommand(a))
}

func (a *app) printStats(s api.Stats) {
	fmt.Fprintf(a.out, "node %d, epoch %d, metadata index %d\n", s.Node, s.Epoch, s.AppliedIndex)
	var rows [][]string
	for _, b := range s.Buckets {
		rows = append(rows, []string{b.Table, b.Bucket.String(), fmt.Sprint(b.LeaderEpoch), b.LogStart.String(), b.HighWatermark.String(), b.LogEnd.String(), fmt.Sprint(b.Quarantined), fmt.Sprint(b.Refused), b.Error})
	}
	a.printTable([]string{"table", "bucket", "epoch", "log start", "high watermark", "log end", "quarantined", "refused", "error"}, rows)
	a.printKVSnapshots(s.Buckets)
	a.printHeldTrims(s.Buckets)
	a.printTiering(s.Tiering)
	rows = nil
	for _, l := range s.Loops {
		rows = append(rows, []string{l.Name, (time.Duration(l.IntervalMs) * time.Millisecond).String(), timeOf(l.LastMs), timeOf(l.NextMs), fmt.Sprint(l.Runs), fmt.Sprint(l.Failures), said(l)})
	}
	a.printTable([]string{"loop", "interval", "last", "next", "runs", "failures", "last error"}, rows)
	rows = nil
	for _, k := range slices.Sorted(maps.Keys(s.Figures)) {
		rows = append(rows, []string{k, fmt.Sprintf("%.10g", s.Figures[k])})
	}
	a.printTable([]string{"figure", "value"}, rows)
	a.printPlugins(s.Plugins)
}

// said is how a loop's last run ended.
func said(l api.Loop) string {
	if l.Idle {
		return "(another node's work)"
	}
	return l.LastError
}

// printKVSnapshots lists the snapshots of primary-key buckets, when there are any such.
func (a *app) printKVSnapshots(buckets []api.BucketStats) {
	var rows [][]string
	for _, b := range buckets {
		k := b.KVSnapshot
		if k == nil {
			continue
		}
		state := "-"
		if k.RunningMs != 0 {
			state = "since " + timeOf(k.RunningMs)
		}
		rows = append(rows, []string{b.Table, b.Bucket.String(), fmt.Sprint(k.ID), k.Offset.String(), fmt.Sprint(k.Rows), fmt.Sprint(k.Files), humanize.IBytes(uint64(max(k.Bytes, 0))), timeOf(k.TakenMs), fmt.Sprint(k.Retained), state, k.Error})
	}
	if len(rows) > 0 {
		a.printTable([]string{"KV snapshots of", "bucket", "newest", "offset", "rows", "files", "size", "taken", "retained", "running", "last error"}, rows)
	}
}

// printHeldTrims lists what keeps logs longer than retention says, when anything does.
func (a *app) printHeldTrims(buckets []api.BucketStats) {
	var rows [][]string
	for _, b := range buckets {
		if h := b.HeldTrim; h != nil {
			rows = append(rows, []string{b.Table, b.Bucket.String(), b.LogStart.String(), h.Wanted.String(), h.At.String(), h.By, h.Why})
		}
	}
	if len(rows) > 0 {
		a.printTable([]string{"trim held of", "bucket", "log start", "wanted", "possible", "by", "why"}, rows)
	}
}

func (a *app) printPlugins(plugins []api.PluginStats) {
	if len(plugins) == 0 {
		return
	}
	bytes := func(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
	var processes, operations [][]string
	for _, p := range plugins {
		pid := "down"
		if p.PID != 0 {
			pid = fmt.Sprint(p.PID)
		}
		processes = append(processes, []string{p.Name, p.Version, pid, fmt.Sprint(p.Restarts), bytes(p.RSSBytes), fmt.Sprintf("%.1fs", p.CPUSeconds), fmt.Sprint(p.InFlight), p.LastError})
		for _, o := range p.Operations {
			operations = append(operations, []string{p.Name, o.Name, fmt.Sprint(o.Calls), fmt.Sprint(o.Failures), bytes(o.SentBytes), bytes(o.ReceivedBytes), fmt.Sprintf("%.4gms", o.P50Ms), fmt.Sprintf("%.4gms", o.P99Ms)})
		}
	}
	a.printTable([]string{"plugin", "version", "process", "restarts", "memory", "cpu", "in flight", "last error"}, processes)
	a.printTable([]string{"plugin", "operation", "calls", "failures", "sent", "received", "p50 under", "p99 under"}, operations)
}

func fsckCommand(a *app) *cobra.Command {
	deep := false
	cmd := &cobra.Command{
		Use: "fsck", Short: "Check that everything the metadata names is on the object store",
		Long: `Asks a running node to check its metadata against the object store: every named
object exists with its size and checksum, every stream is contiguous, nothing is
orphaned; of tables in the lake, that every file that a snapshot names is there, and
that offsets and columns are those that the metadata know. Exits 1 when it finds a
problem.`,
		Args: noArgs,
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			r, err := c.Check(cmd.Context(), deep)
			if err != nil {
				return err
			}
			return a.printCheck(r)
		}),
	}
	cmd.Flags().BoolVar(&deep, "deep", false, "read and verify every block, and the footer of every lake file, too")
	return cmd
}

// printUnnamed lists what a restore of the metadata left behind.
func (a *app) printUnnamed(r api.CheckReport) {
	for _, u := range r.Unnamed {
		var holds []string
		for _, l := range u.Holds {
			holds = append(holds, rangeText(l))
		}
		if u.Others > 0 {
			holds = append(holds, count(int64(u.Others), "range")+" of unknown or dropped buckets")
		}
		if u.Damage != "" {
			holds = append(holds, u.Damage)
		}
		if len(holds) == 0 {
			holds = []string{"no records"}
		}
		fmt.Fprintf(a.out, "not in the metadata: %s, %s: %s\n", u.Object, humanize.IBytes(uint64(max(u.Bytes, 0))), strings.Join(holds, "; "))
	}
	if n := r.UnnamedObjects - int64(len(r.Unnamed)); n > 0 {
		fmt.Fprintf(a.out, "not in the metadata: %s more\n", count(n, "object"))
	}
}

// printLakeChecks says what was looked at in the lake.
func (a *app) printLakeChecks(tables []api.LakeCheck) {
	bytes := func(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
	for _, t := range tables {
		for _, o := range t.Orphans {
			fmt.Fprintf(a.out, "not named by lake table %s: %s\n", t.Table, o)
		}
		if n := t.OrphanFiles - int64(len(t.Orphans)); n > 0 {
			fmt.Fprintf(a.out, "not named by lake table %s: %s more\n", t.Table, count(n, "object"))
		}
		if t.OrphanFiles > 0 {
			fmt.Fprintf(a.out, "lake table %s: %s that nothing names, %s: another engine's removal of orphan files takes them\n", t.Table, count(t.OrphanFiles, "object"), bytes(t.OrphanBytes))
		}
		fmt.Fprintf(a.out, "lake table %s: %s, %s, %s, %s in data files\n", t.Table, count(int64(t.Snapshots), "snapshot"), count(t.Files, "file"), bytes(t.Bytes), count(t.Rows, "row"))
	}
}

func (a *app) printCheck(r api.CheckReport) error {
	if a.json {
		if err := a.printJSON(r); err != nil {
			return err
		}
	} else {
		for _, p := range r.Problems {
			fmt.Fprintf(a.out, "%s: %s\n", p.Kind, p.Text)
		}
		verdict := "clean"
		if !r.Clean {
			verdict = "not clean"
		}
		for _, l := range r.AcceptedLosses {
			fmt.Fprintf(a.out, "accepted loss: %s are skipped\n", rangeText(l))
		}
		a.printUnnamed(r)
		a.printLakeChecks(r.Lake)
		fmt.Fprintf(a.out, "%s: %s, %s, %s, %s checked\n", verdict, count(r.Objects, "object"), humanize.IBytes(uint64(max(r.Bytes, 0))),
			count(r.Streams, "stream"), count(r.Records, "record"))
	}
	if !r.Clean {
		return fmt.Errorf("%s found; docs/operations.md says what each means", count(int64(len(r.Problems)), "problem"))
	}
	return nil
}
