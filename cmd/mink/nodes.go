package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// asking are the flags of commands that ask every node.
type asking struct {
	node    int32
	timeout time.Duration
}

func (q *asking) flags(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().Int32Var(&q.node, "node", 0, "only this node")
	cmd.Flags().DurationVar(&q.timeout, "timeout", 5*time.Second, "how long each node has to answer, at most 1m")
	return cmd
}

func (q *asking) ask(cmd *cobra.Command, c *client.Client, about string) (api.NodeAnswers, error) {
	switch {
	case cmd.Flags().Changed("node") && q.node < 1:
		return api.NodeAnswers{}, usagef("--node %d: want a node id, 1 or more", q.node)
	case q.timeout < time.Millisecond || q.timeout > time.Minute:
		return api.NodeAnswers{}, usagef("--timeout %s: want 1ms to 1m", q.timeout)
	}
	return c.AskNodes(cmd.Context(), api.AskNodes{About: about, Node: mink.NodeID(q.node), TimeoutMs: q.timeout.Milliseconds()})
}

// one is the answer of the node that --node names; ok is false when all were asked.
func (q *asking) one(r api.NodeAnswers) (n api.NodeAnswer, ok bool, err error) {
	if q.node == 0 {
		return n, false, nil
	}
	if n = r.Nodes[0]; n.Error != "" {
		err = silent(n)
	}
	return n, true, err
}

// report is a command that asks about something and prints the answers; of is the part
// of one node's answer that --node prints as JSON.
func (q *asking) report(a *app, about string, of func(api.NodeAnswer) any, print func([]api.NodeAnswer)) func(*cobra.Command, []string) error {
	return a.connected(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		r, err := q.ask(cmd, c, about)
		if err != nil {
			return err
		}
		n, one, err := q.one(r)
		switch {
		case err != nil:
			return err
		case a.json && one:
			return a.printJSON(of(n))
		case a.json:
			return errors.Join(a.printJSON(r), silentOf(r))
		}
		print(r.Nodes)
		return silentOf(r)
	})
}

func silent(n api.NodeAnswer) error {
	return fmt.Errorf("node %d at %s does not answer: %s", n.Node, n.Address, n.Error)
}

// clusterReport is describe's JSON: the cluster as one node's metadata have it, and what
// each live node says of itself.
type clusterReport struct {
	api.Cluster
	Answers []api.NodeAnswer `json:"answers"`
}

func describeCommand(a *app) *cobra.Command {
	q := &asking{}
	return q.flags(&cobra.Command{
		Use: "describe", Short: "List the nodes",
		Long: `Lists the nodes that are registered, and asks each live one how far its metadata are
and whether it serves. A node that has ended stays listed until it is removed.`,
		Example: `  mink cluster describe
  mink cluster describe --node 2`,
		Args: noArgs,
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			d, err := c.DescribeCluster(cmd.Context())
			if err != nil {
				return err
			}
			r, err := q.ask(cmd, c, api.ActionHealth)
			if err != nil {
				return err
			}
			if q.node != 0 {
				d.Nodes = slices.DeleteFunc(d.Nodes, func(n api.Node) bool { return n.ID != mink.NodeID(q.node) })
			}
			if a.json {
				return a.printJSON(clusterReport{d, r.Nodes})
			}
			fmt.Fprintf(a.out, "cluster %s: %d databases, %d tables, %d buckets, metadata index %d, coordinator node %d\n",
				d.ID, d.Databases, d.Tables, d.Buckets, r.Head, d.Coordinator.ID)
			var rows [][]string
			for _, n := range d.Nodes {
				index, lag, state := "-", "-", "ended"
				if n.Live {
					state = "live"
				}
				if i := slices.IndexFunc(r.Nodes, func(a api.NodeAnswer) bool { return a.Node == n.ID }); i >= 0 {
					index, lag, state = answerRow(r.Nodes[i])
				}
				rows = append(rows, []string{fmt.Sprint(n.ID), fmt.Sprint(n.Epoch), state, n.FlightAddress, n.KafkaAddress, fmt.Sprint(n.Buckets), index, lag, n.Version, timeOf(n.RegisteredMs)})
			}
			a.printTable([]string{"node", "epoch", "state", "flight", "kafka", "buckets", "index", "lag", "version", "registered"}, rows)
			return nil
		}),
	})
}

func answerRow(n api.NodeAnswer) (index, lag, state string) {
	switch {
	case n.Error != "":
		return "-", "-", fmt.Sprintf("does not answer (%s)", n.Error)
	case !n.Health.Ready:
		state = fmt.Sprintf("not ready (%s)", n.Health.Reason)
	default:
		state = "ready"
	}
	return fmt.Sprint(n.AppliedIndex), fmt.Sprint(n.Lag), state
}

// healthReport is health's JSON.
type healthReport struct {
	api.NodeAnswers
	Warnings []string `json:"warnings"` // what is not as it should be between the nodes
}

func healthCommand(a *app) *cobra.Command {
	q := &asking{}
	return q.flags(&cobra.Command{
		Use: "health", Short: "Exit 0 when every live node serves, 1 when not",
		Long: `Asks every live node whether it serves. Exits 1 when one is not ready or does not
answer. A node that was stopped, or that the cluster took for dead, is not live and
not asked: others lead its buckets. Warnings, such as different lease_ttl, do not
change the exit code.`,
		Example: `  mink cluster health
  mink cluster health --node 2
  mink cluster health --json | jq '.nodes[] | select(.error)'`,
		Args: noArgs,
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			r, err := q.ask(cmd, c, api.ActionHealth)
			if err != nil {
				return err
			}
			n, one, err := q.one(r)
			if err != nil {
				return err
			}
			warnings := append([]string{}, warningsOf(r.Nodes)...)
			switch {
			case a.json && one:
				err = a.printJSON(n.Health)
			case a.json:
				err = a.printJSON(healthReport{r, warnings})
			default:
				a.printHealth(r, warnings)
			}
			return errors.Join(err, unhealthy(r))
		}),
	})
}

func (a *app) printHealth(r api.NodeAnswers, warnings []string) {
	for _, n := range r.Nodes {
		if n.Health != nil {
			a.printDamage(n.Health.DamagedLogs)
		}
	}
	for _, n := range r.Nodes {
		switch {
		case n.Error != "":
			fmt.Fprintln(a.out, silent(n))
		case n.Health.Ready:
			fmt.Fprintf(a.out, "node %d is ready, up for %s, metadata index %d, lag %d\n", n.Node, time.Duration(n.Health.Uptime*float64(time.Second)).Round(time.Second), n.AppliedIndex, n.Lag)
		default:
			fmt.Fprintf(a.out, "node %d is not ready: %s\n", n.Node, n.Health.Reason)
		}
	}
	for _, w := range warnings {
		fmt.Fprintf(a.out, "warning: %s\n", w)
	}
}

// unhealthy is nil when every node that was asked serves.
func unhealthy(r api.NodeAnswers) error {
	var bad []error
	for _, n := range r.Nodes {
		switch {
		case n.Error != "":
			bad = append(bad, silent(n))
		case !n.Health.Ready:
			bad = append(bad, fmt.Errorf("node %d is not ready: %s", n.Node, n.Health.Reason))
		}
	}
	if len(bad) > 0 && len(r.Nodes) > 1 {
		return fmt.Errorf("%d of %d nodes do not serve", len(bad), len(r.Nodes))
	}
	return errors.Join(bad...)
}

// clockSpread is how far wall clocks may be apart without a word.
const clockSpread = 10 * time.Second

// warningsOf compares what all nodes of a cluster should have in common, and lists sinks that
// have stalled.
func warningsOf(nodes []api.NodeAnswer) (out []string) {
	var heard []api.NodeAnswer
	for _, n := range nodes {
		if n.Health != nil && n.Health.LeaseTTLMs > 0 {
			heard = append(heard, n)
		}
	}
	same := func(what, why string, of func(h *api.Health) string) {
		var values []string
		by := map[string][]string{}
		for _, n := range heard {
			v := of(n.Health)
			if by[v] == nil {
				values = append(values, v)
			}
			by[v] = append(by[v], fmt.Sprint(n.Node))
		}
		if len(values) < 2 {
			return
		}
		for i, v := range values {
			values[i] = fmt.Sprintf("%s on %s", v, plural("node", by[v]))
		}
		out = append(out, fmt.Sprintf("%s differs: %s: %s", what, strings.Join(values, ", "), why))
	}
	same("lease_ttl", "give every node the same; a silent node keeps its buckets for its own or for that of the node that coordinates, whichever is longer",
		func(h *api.Health) string { return (time.Duration(h.LeaseTTLMs) * time.Millisecond).String() })
	same("cluster_id", "give every node the same; clients take them for different clusters", func(h *api.Health) string { return h.ClusterID })
	same("the version", "finish the upgrade", func(h *api.Health) string { return h.Version })
	for _, n := range heard[min(1, len(heard)):] {
		first := heard[0]
		apart := time.Duration(n.Health.ClockMs-first.Health.ClockMs) * time.Millisecond
		if apart.Abs() > clockSpread+time.Duration((n.TookMs+first.TookMs)*float64(time.Millisecond)) {
			out = append(out, fmt.Sprintf("the wall clocks of nodes %d and %d are %s apart: set them by NTP; nothing is lost by it, but times of records and retention are wrong", first.Node, n.Node, apart.Abs().Round(time.Second)))
		}
	}
	for _, n := range nodes {
		if n.Health == nil {
			continue
		}
		for _, s := range n.Health.StalledSinks {
			out = append(out, stalledText(s))
		}
	}
	return out
}

func stalledText(s api.StalledSink) string {
	span := func(ms int64) time.Duration { return (time.Duration(ms) * time.Millisecond).Round(time.Second) }
	why := "no attempt has failed: mink cluster stats shows what its worker does"
	if s.LastError != "" {
		why = fmt.Sprintf("%s failed in a row, the last: %s", count(s.InARow, "attempt"), s.LastError)
	}
	last := "never"
	if s.TieredMs > 0 {
		last = timeOf(s.TieredMs)
	}
	return fmt.Sprintf("table %s waits for sink %s: rows should be there within %s, and %s are late by %s (last tiered: %s); its log is kept as long; %s",
		s.Table, s.Sink, span(s.FreshnessMs), count(s.LagOffsets, "offset"), span(s.StalledMs), last, why)
}

func plural(thing string, of []string) string {
	if len(of) > 1 {
		thing += "s"
	}
	return thing + " " + strings.Join(of, ", ")
}

func configCommand(a *app) *cobra.Command {
	q := &asking{}
	return q.flags(&cobra.Command{
		Use: "config", Short: "Print the nodes' configuration in effect, secrets hidden",
		Example: `  mink cluster config
  mink cluster config --node 2`,
		Args: noArgs,
		RunE: q.report(a, api.ActionGetConfig, func(n api.NodeAnswer) any { return n.Config.Values }, a.printConfigs),
	})
}

// silentOf is nil when every node answered.
func silentOf(r api.NodeAnswers) error {
	var errs []error
	for _, n := range r.Nodes {
		if n.Error != "" {
			errs = append(errs, silent(n))
		}
	}
	return errors.Join(errs...)
}

// printConfigs writes a row for each value of a key, with the nodes that have it when
// they differ.
func (a *app) printConfigs(nodes []api.NodeAnswer) {
	type setting struct{ key, value string }
	by, keys, heard := map[setting][]string{}, map[string][]string{}, 0
	for _, n := range nodes {
		if n.Config == nil {
			continue
		}
		heard++
		for k, v := range n.Config.Values {
			s := setting{k, v}
			if by[s] == nil {
				keys[k] = append(keys[k], v)
			}
			by[s] = append(by[s], fmt.Sprint(n.Node))
		}
	}
	var rows [][]string
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		for _, v := range keys[k] {
			on := by[setting{k, v}]
			if len(on) == heard {
				on = []string{"all"}
			}
			rows = append(rows, []string{k, v, strings.Join(on, ", ")})
		}
	}
	head := []string{"key", "value", "nodes"}
	if len(nodes) == 1 {
		head = head[:2]
		for i := range rows {
			rows[i] = rows[i][:2]
		}
	}
	a.printTable(head, rows)
}

func statsCommand(a *app) *cobra.Command {
	q := &asking{}
	return q.flags(&cobra.Command{
		Use: "stats", Short: "Print the nodes' buckets, loops and figures",
		Example: `  mink cluster stats
  mink cluster stats --node 2
  mink cluster stats --json | jq '.nodes[] | {node_id, loops: [.stats.loops[] | select(.last_error)]}'`,
		Args: noArgs,
		RunE: q.report(a, api.ActionNodeStats, func(n api.NodeAnswer) any { return n.Stats }, func(nodes []api.NodeAnswer) {
			for i, n := range nodes {
				if i > 0 {
					fmt.Fprintln(a.out)
				}
				if n.Stats != nil {
					a.printStats(*n.Stats)
				}
			}
		}),
	})
}
