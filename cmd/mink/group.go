package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
)

// groupCommand speaks the Kafka protocol: consumer groups exist nowhere else.
func groupCommand(a *app) *cobra.Command {
	return group("group", "Consumer groups: list, describe with lag, reset offsets, delete",
		groupListCommand(a), groupDescribeCommand(a), groupResetCommand(a), groupDeleteCommand(a))
}

// kafkaAdmin is a command's run with an admin client on the nodes' Kafka ports,
// which the bootstrap node tells.
func (a *app) kafkaAdmin(run func(context.Context, *kadm.Client, []string) error) func(*cobra.Command, []string) error {
	return a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
		d, err := c.DescribeCluster(cmd.Context())
		if err != nil {
			return err
		}
		var seeds []string
		for _, n := range d.Nodes {
			if n.Live && n.KafkaAddress != "" {
				seeds = append(seeds, n.KafkaAddress)
			}
		}
		if len(seeds) == 0 {
			return errors.New("no live node has a Kafka port: kafka_listen and kafka_advertise in docs/configuration.md")
		}
		cl, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.ClientID("mink-cli"), kgo.RetryTimeout(max(a.retryFor, time.Millisecond)))
		if err != nil {
			return err
		}
		defer cl.Close()
		return run(cmd.Context(), kadm.NewClient(cl), args)
	})
}

func groupListCommand(a *app) *cobra.Command {
	var states []string
	cmd := &cobra.Command{
		Use: "list", Short: "List the groups and their states", Args: noArgs,
		RunE: a.kafkaAdmin(func(ctx context.Context, adm *kadm.Client, _ []string) error {
			groups, err := adm.ListGroups(ctx, states...)
			if err != nil {
				return fmt.Errorf("list groups: %w", err)
			}
			type line struct {
				Group        string `json:"group"`
				State        string `json:"state"`
				ProtocolType string `json:"protocol_type"`
				Coordinator  int32  `json:"coordinator"`
			}
			lines := []line{}
			var rows [][]string
			for _, g := range groups.Sorted() {
				lines = append(lines, line{g.Group, g.State, g.ProtocolType, g.Coordinator})
				rows = append(rows, []string{g.Group, g.State, dash(g.ProtocolType), fmt.Sprint(g.Coordinator)})
			}
			if a.json {
				return a.printJSON(lines)
			}
			a.printTable([]string{"group", "state", "protocol type", "coordinator"}, rows)
			return nil
		}),
	}
	cmd.Flags().StringSliceVar(&states, "state", nil, "only groups in these states: Empty, PreparingRebalance, CompletingRebalance, Stable")
	completeWords(cmd, "state", "Empty", "PreparingRebalance", "CompletingRebalance", "Stable")
	return cmd
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// The JSON of `group describe`.
type (
	groupJSON struct {
		Group        string       `json:"group"`
		State        string       `json:"state"`
		ProtocolType string       `json:"protocol_type"`
		Protocol     string       `json:"protocol"`
		Coordinator  int32        `json:"coordinator"`
		Members      []memberJSON `json:"members"`
		Offsets      []lagJSON    `json:"offsets"`
	}
	memberJSON struct {
		ID       string `json:"id"`
		Instance string `json:"instance,omitempty"`
		Client   string `json:"client"`
		Host     string `json:"host"`
		Assigned string `json:"assigned,omitempty"`
	}
	lagJSON struct {
		Topic     string `json:"topic"`
		Partition int32  `json:"partition"`
		Committed int64  `json:"committed"` // -1: nothing
		Start     int64  `json:"start"`     // -1: not known, error says why
		End       int64  `json:"end"`
		Lag       int64  `json:"lag"`
		Member    string `json:"member,omitempty"`
		Error     string `json:"error,omitempty"`
	}
)

func groupDescribeCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "describe GROUP", Short: "Print a group's members, committed offsets and lag", Args: exactArgs(1, "one GROUP"),
		RunE: a.kafkaAdmin(func(ctx context.Context, adm *kadm.Client, args []string) error {
			g, err := describeGroup(ctx, adm, args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(g)
			}
			fmt.Fprintf(a.out, "group %s: %s, protocol %s (%s), coordinator node %d, %s\n", g.Group, g.State, dash(g.Protocol), dash(g.ProtocolType),
				g.Coordinator, count(int64(len(g.Members)), "member"))
			var rows [][]string
			for _, m := range g.Members {
				rows = append(rows, []string{m.ID, dash(m.Instance), m.Client, m.Host, dash(m.Assigned)})
			}
			if rows != nil {
				a.printTable([]string{"member", "instance", "client", "host", "assigned"}, rows)
			}
			rows = nil
			for _, l := range g.Offsets {
				rows = append(rows, []string{
					l.Topic, fmt.Sprint(l.Partition), offsetText(l.Committed), offsetText(l.Start), offsetText(l.End),
					offsetText(l.Lag), dash(l.Member), l.Error,
				})
			}
			a.printTable([]string{"topic", "partition", "committed", "earliest", "latest", "lag", "member", "error"}, rows)
			return nil
		}),
	}
}

// offsetText is "-" for what is not known, which Kafka says as -1.
func offsetText(at int64) string {
	if at < 0 {
		return "-"
	}
	return strconv.FormatInt(at, 10)
}

// describeGroup is an error for a group that nobody knows: GROUP_ID_NOT_FOUND, and
// from brokers before DescribeGroups v6 the state Dead.
func describeGroup(ctx context.Context, adm *kadm.Client, name string) (*groupJSON, error) {
	lags, err := adm.Lag(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("describe group %q: %w", name, err)
	}
	l, ok := lags[name]
	if !ok {
		return nil, fmt.Errorf("describe group %q: the node answered about other groups", name)
	}
	if err := l.Error(); errors.Is(err, kerr.GroupIDNotFound) {
		return nil, unknownGroup(name)
	} else if err != nil {
		return nil, fmt.Errorf("describe group %q: %w", name, err)
	}
	g := &groupJSON{
		Group: name, State: l.State, ProtocolType: l.ProtocolType, Protocol: l.Protocol, Coordinator: l.Coordinator.NodeID,
		Members: []memberJSON{}, Offsets: []lagJSON{},
	}
	for _, m := range l.Members {
		j := memberJSON{ID: m.MemberID, Client: m.ClientID, Host: m.ClientHost, Assigned: assignedText(m.Assigned)}
		if m.InstanceID != nil {
			j.Instance = *m.InstanceID
		}
		g.Members = append(g.Members, j)
	}
	for _, p := range l.Lag.Sorted() {
		j := lagJSON{Topic: p.Topic, Partition: p.Partition, Committed: p.Commit.At, Start: listed(p.Start), End: listed(p.End), Lag: p.Lag}
		if p.Member != nil {
			j.Member = p.Member.MemberID
		}
		if p.Err != nil {
			j.Error = p.Err.Error()
		}
		g.Offsets = append(g.Offsets, j)
	}
	if g.State == "Dead" && len(g.Offsets) == 0 {
		return nil, unknownGroup(name)
	}
	return g, nil
}

// listed is -1 for an offset that could not be had: of a topic that is gone, say.
func listed(o kadm.ListedOffset) int64 {
	if o.Err != nil {
		return -1
	}
	return o.Offset
}

func unknownGroup(name string) error {
	return fmt.Errorf("there is no group %q; see mink group list", name)
}

// assignedText is "clicks[0 1] orders[2]"; empty for another protocol than the
// consumers' own, whose bytes are theirs.
func assignedText(m kadm.GroupMemberAssignment) string {
	c, ok := m.AsConsumer()
	if !ok {
		return ""
	}
	var parts []string
	for _, t := range c.Topics {
		parts = append(parts, fmt.Sprintf("%s%v", t.Topic, t.Partitions))
	}
	return strings.Join(parts, " ")
}

type resetFlags struct {
	topics []string
	to     string
	by     int64
	dryRun bool
}

func groupResetCommand(a *app) *cobra.Command {
	var f resetFlags
	cmd := &cobra.Command{
		Use: "reset GROUP", Short: "Set a group's committed offsets",
		Long: `Sets the offsets from which the group goes on, while it has no members: stop its
consumers first. Without --topic it is every topic that the group has offsets of.
A target beyond the log's ends is moved to the nearest end.`,
		Example: `  mink group reset reports --to earliest --dry-run
  mink group reset reports --topic clicks --to 2026-01-31T07:05:00Z
  mink group reset reports --topic clicks:0,3 --shift-by -100`,
		Args: exactArgs(1, "one GROUP"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (f.to == "") == (f.by == 0) {
				return usagef("group reset wants one of --to and --shift-by")
			}
			topics, err := parseTopicPartitions(f.topics)
			if err != nil {
				return err
			}
			t := target{shift: f.to == "", by: f.by}
			if !t.shift {
				if t.to, err = api.ParsePosition(f.to); err != nil {
					return usagef("--to: %w", err)
				}
			}
			return a.kafkaAdmin(func(ctx context.Context, adm *kadm.Client, args []string) error {
				return a.resetGroup(ctx, adm, args[0], topics, t, f.dryRun)
			})(cmd, args)
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&f.topics, "topic", nil, "TOPIC or TOPIC:PARTITION,PARTITION; may be repeated")
	fl.StringVar(&f.to, "to", "", "earliest, latest, an offset, or a timestamp (RFC 3339, or 1700000000000ms): the first record at or after it")
	fl.Int64Var(&f.by, "shift-by", 0, "records forward, or back when negative, from what is committed")
	fl.BoolVar(&f.dryRun, "dry-run", false, "only print what would be set")
	completeWords(cmd, "to", "earliest", "latest")
	return cmd
}

// parseTopicPartitions reads TOPIC and TOPIC:0,3; no partitions are all of them.
func parseTopicPartitions(args []string) (map[string][]int32, error) {
	topics := map[string][]int32{}
	for _, arg := range args {
		topic, list, some := strings.Cut(arg, ":")
		if topic == "" {
			return nil, usagef("--topic %q: want TOPIC or TOPIC:PARTITION,PARTITION", arg)
		}
		had, twice := topics[topic]
		if twice && (!some || had == nil) {
			return nil, usagef("--topic %q: the topic is there already", arg)
		}
		if !some {
			topics[topic] = nil
			continue
		}
		for p := range strings.SplitSeq(list, ",") {
			n, err := strconv.ParseInt(p, 10, 32)
			if err != nil || n < 0 {
				return nil, usagef("--topic %q: %q is not a partition", arg, p)
			}
			topics[topic] = append(topics[topic], int32(n))
		}
	}
	return topics, nil
}

// target says where a reset goes: to a position, or `by` from what is committed.
type target struct {
	to    api.Position
	shift bool
	by    int64
}

// ends are a topic's listed offsets, as a reset needs them.
type ends struct{ first, last, timed kadm.ListedOffsets }

func (a *app) resetGroup(ctx context.Context, adm *kadm.Client, name string, want map[string][]int32, t target, dryRun bool) error {
	had, err := idleOffsets(ctx, adm, name)
	if err != nil {
		return err
	}
	if len(want) == 0 {
		for topic := range had {
			want[topic] = slices.Sorted(maps.Keys(had[topic]))
		}
	}
	if len(want) == 0 {
		return fmt.Errorf("group %q has no committed offsets: name topics with --topic", name)
	}
	e, err := listEnds(ctx, adm, slices.Sorted(maps.Keys(want)), t)
	if err != nil {
		return err
	}
	var plan []resetLine
	offsets := kadm.Offsets{}
	for _, topic := range slices.Sorted(maps.Keys(want)) {
		partitions := want[topic]
		if partitions == nil {
			partitions = slices.Sorted(maps.Keys(e.last[topic]))
		}
		for _, p := range partitions {
			l, epoch, err := e.place(topic, p, had, t)
			if err != nil {
				return fmt.Errorf("reset group %q: %w", name, err)
			}
			plan = append(plan, l)
			offsets.Add(kadm.Offset{Topic: topic, Partition: p, At: l.To, LeaderEpoch: epoch})
		}
	}
	if !dryRun {
		if err := adm.CommitAllOffsets(ctx, name, offsets); err != nil {
			return fmt.Errorf("reset group %q: %w", name, err)
		}
	}
	return a.printReset(plan, dryRun)
}

// resetLine is one partition of a reset. From -1: nothing was committed.
type resetLine struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"`
	To        int64  `json:"to"`
}

func (a *app) printReset(plan []resetLine, dryRun bool) error {
	if a.json {
		return a.printJSON(map[string]any{"offsets": plan, "dry_run": dryRun})
	}
	var rows [][]string
	for _, l := range plan {
		rows = append(rows, []string{l.Topic, fmt.Sprint(l.Partition), offsetText(l.From), fmt.Sprint(l.To)})
	}
	a.printTable([]string{"topic", "partition", "from", "to"}, rows)
	if dryRun {
		a.note("nothing was changed: this was a dry run")
	}
	return nil
}

// idleOffsets are the committed offsets of a group without members. A group
// that nobody knows has none.
func idleOffsets(ctx context.Context, adm *kadm.Client, name string) (kadm.OffsetResponses, error) {
	d, err := adm.DescribeGroups(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("describe group %q: %w", name, err)
	}
	if g := d[name]; g.Err == nil && len(g.Members) > 0 {
		return nil, fmt.Errorf("group %q is in use (%s, %s): stop its consumers, then reset", name, g.State, count(int64(len(g.Members)), "member"))
	}
	had, err := adm.FetchOffsets(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("offsets of group %q: %w", name, err)
	}
	return had, nil
}

func listEnds(ctx context.Context, adm *kadm.Client, topics []string, t target) (e ends, err error) {
	if e.first, err = adm.ListStartOffsets(ctx, topics...); err != nil {
		return e, fmt.Errorf("first offsets: %w", err)
	}
	if e.last, err = adm.ListEndOffsets(ctx, topics...); err != nil {
		return e, fmt.Errorf("last offsets: %w", err)
	}
	if t.to.Kind == api.AtTimestamp {
		if e.timed, err = adm.ListOffsetsAfterMilli(ctx, t.to.Value, topics...); err != nil {
			return e, fmt.Errorf("offsets by time: %w", err)
		}
	}
	return e, nil
}

// place says where partition p goes, within the ends of its log.
func (e ends) place(topic string, p int32, had kadm.OffsetResponses, t target) (resetLine, int32, error) {
	first, ok1 := e.first.Lookup(topic, p)
	last, ok2 := e.last.Lookup(topic, p)
	if p < 0 && errors.Is(first.Err, kerr.UnknownTopicOrPartition) { // kadm has no partition to tell it of
		return resetLine{}, 0, fmt.Errorf("there is no topic %q; see mink topic list", topic)
	}
	if err := cmp.Or(first.Err, last.Err); err != nil || !ok1 || !ok2 {
		if err == nil {
			err = errors.New("there is no such partition")
		}
		return resetLine{}, 0, fmt.Errorf("topic %s, partition %d: %w", topic, p, err)
	}
	l := resetLine{Topic: topic, Partition: p, From: -1}
	if c, ok := had.Lookup(topic, p); ok && c.Err == nil {
		l.From = c.At
	}
	switch {
	case t.shift && l.From < 0:
		return l, 0, fmt.Errorf("topic %s, partition %d: nothing is committed to shift from; use --to", topic, p)
	case t.shift:
		l.To = l.From + t.by
	case t.to.Kind == api.AtEarliest:
		l.To = first.Offset
	case t.to.Kind == api.AtLatest:
		l.To = last.Offset
	case t.to.Kind == api.AtOffset:
		l.To = t.to.Value
	default:
		at, ok := e.timed.Lookup(topic, p)
		if !ok || at.Err != nil {
			return l, 0, fmt.Errorf("topic %s, partition %d: offset by time: %w", topic, p, at.Err)
		}
		l.To = at.Offset // kadm answers the end when no record is that late
	}
	l.To = min(max(l.To, first.Offset), last.Offset)
	return l, -1, nil
}

func groupDeleteCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "delete GROUP...", Short: "Delete groups without members, and their committed offsets",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("group delete wants at least one name")
			}
			return nil
		},
		RunE: a.kafkaAdmin(func(ctx context.Context, adm *kadm.Client, args []string) error {
			deleted, err := adm.DeleteGroups(ctx, args...)
			if err != nil {
				return fmt.Errorf("delete groups: %w", err)
			}
			var failed []error
			for _, name := range args {
				if err := deleted[name].Err; errors.Is(err, kerr.GroupIDNotFound) {
					failed = append(failed, unknownGroup(name))
					continue
				} else if err != nil {
					failed = append(failed, fmt.Errorf("delete group %q: %w", name, err))
					continue
				}
				if err := a.done("group", name, "deleted"); err != nil {
					return err
				}
			}
			return errors.Join(failed...)
		}),
	}
}
