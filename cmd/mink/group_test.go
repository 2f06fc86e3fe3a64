package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// kafkaPort asks the node behind a bootstrap address.
func kafkaPort(t *testing.T, bootstrap string) string {
	t.Helper()
	code, out, errOut := run(t, "", "-b", bootstrap, "cluster", "describe", "--json")
	var d struct {
		Nodes []struct {
			KafkaAddress string `json:"kafka_address"`
		}
	}
	if err := json.Unmarshal([]byte(out), &d); err != nil || code != 0 || len(d.Nodes) != 1 || d.Nodes[0].KafkaAddress == "" {
		t.Fatalf("cluster describe: exit %d, %v, %s %s", code, err, out, errOut)
	}
	return d.Nodes[0].KafkaAddress
}

func kafkaClient(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// consume reads n records of the topic as a member of the group and commits them.
func consume(t *testing.T, cl *kgo.Client, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for n > 0 {
		fs := cl.PollRecords(ctx, n)
		if err := fs.Err(); err != nil {
			t.Fatal(err)
		}
		n -= fs.NumRecords()
	}
	if err := cl.CommitUncommittedOffsets(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestGroups is the life of a consumer group as `mink group` shows it.
func TestGroups(t *testing.T) {
	b := startNode(t)
	port := kafkaPort(t, b)
	mink := func(want int, args ...string) (out, errOut string) {
		t.Helper()
		code, out, errOut := run(t, "", append([]string{"-b", b}, args...)...)
		if code != want {
			t.Fatalf("mink %s: exit %d, want %d\n%s%s", strings.Join(args, " "), code, want, out, errOut)
		}
		return out, errOut
	}
	mink(0, "topic", "create", "clicks", "--partitions", "1")
	producer := kafkaClient(t, kgo.SeedBrokers(port), kgo.DefaultProduceTopic("clicks"))
	for i := range 10 {
		r := kgo.StringRecord(fmt.Sprint(i))
		r.Timestamp = time.UnixMilli(1_700_000_000_000 + int64(i)*1000)
		if err := producer.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if _, e := mink(1, "group", "describe", "reports"); !strings.Contains(e, `there is no group "reports"`) {
		t.Fatalf("describe of an unknown group: %s", e)
	}
	member := kafkaClient(t, kgo.SeedBrokers(port), kgo.ClientID("reporter"), kgo.ConsumerGroup("reports"), kgo.ConsumeTopics("clicks"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	consume(t, member, 4)

	describe := func() (g groupJSON) {
		t.Helper()
		out, _ := mink(0, "group", "describe", "reports", "--json")
		if err := json.Unmarshal([]byte(out), &g); err != nil {
			t.Fatal(err)
		}
		return g
	}
	g := describe()
	if g.State != "Stable" || len(g.Members) != 1 || g.Members[0].Client != "reporter" || g.Members[0].Assigned != "clicks[0]" {
		t.Fatalf("a group with one member: %+v", g)
	}
	if want := (lagJSON{Topic: "clicks", Committed: 4, Start: 0, End: 10, Lag: 6, Member: g.Members[0].ID}); len(g.Offsets) != 1 || g.Offsets[0] != want {
		t.Fatalf("offsets %+v, want %+v", g.Offsets, want)
	}
	if out, _ := mink(0, "group", "list"); !strings.Contains(out, "reports") || !strings.Contains(out, "Stable") {
		t.Fatalf("list: %s", out)
	}
	if _, e := mink(1, "group", "reset", "reports", "--to", "earliest"); !strings.Contains(e, "stop its consumers") {
		t.Fatalf("reset of a group in use: %s", e)
	}
	if _, e := mink(1, "group", "delete", "reports"); !strings.Contains(e, "NON_EMPTY_GROUP") {
		t.Fatalf("delete of a group in use: %s", e)
	}
	member.Close()

	// Of a topic that is gone no offset is known, least of all a latest of 0.
	mink(0, "topic", "create", "gone", "--partitions", "1")
	for range 3 {
		if err := producer.ProduceSync(t.Context(), &kgo.Record{Topic: "gone", Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	orphan := kafkaClient(t, kgo.SeedBrokers(port), kgo.ConsumerGroup("orphaned"), kgo.ConsumeTopics("gone"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	consume(t, orphan, 3)
	mink(0, "topic", "delete", "gone")
	out, _ := mink(0, "group", "describe", "orphaned", "--json")
	var left groupJSON
	if err := json.Unmarshal([]byte(out), &left); err != nil {
		t.Fatal(err)
	}
	if len(left.Offsets) != 1 || left.Offsets[0].Start != -1 || left.Offsets[0].End != -1 || left.Offsets[0].Lag != -1 || left.Offsets[0].Error == "" {
		t.Errorf("offsets in a topic that is gone: %+v", left.Offsets)
	}
	orphan.Close()

	for _, c := range []struct {
		args []string
		want int64
	}{
		{[]string{"--to", "latest"}, 10},
		{[]string{"--shift-by", "-3"}, 7},
		{[]string{"--shift-by", "-100"}, 0},
		{[]string{"--to", "1700000005500ms", "--topic", "clicks"}, 6},
		{[]string{"--to", "2023-11-14T22:13:21Z", "--topic", "clicks:0"}, 1},
		{[]string{"--to", "99"}, 10},
		{[]string{"--to", "2"}, 2},
	} {
		before := describe().Offsets[0].Committed
		mink(0, append([]string{"group", "reset", "reports", "--dry-run"}, c.args...)...)
		if now := describe().Offsets[0].Committed; now != before {
			t.Fatalf("a dry run of %v moved the group from %d to %d", c.args, before, now)
		}
		mink(0, append([]string{"group", "reset", "reports"}, c.args...)...)
		if now := describe().Offsets[0].Committed; now != c.want {
			t.Fatalf("reset %v: committed %d, want %d", c.args, now, c.want)
		}
	}
	if _, e := mink(1, "group", "reset", "reports", "--to", "earliest", "--topic", "clicks:7"); !strings.Contains(e, "partition 7") {
		t.Fatalf("reset of a partition that does not exist: %s", e)
	}
	if _, e := mink(1, "group", "reset", "reports", "--to", "earliest", "--topic", "click"); !strings.Contains(e, `no topic "click"`) || strings.Contains(e, "partition -1") {
		t.Fatalf("reset in a topic that does not exist: %s", e)
	}
	mink(0, "group", "delete", "reports")
	if out, _ := mink(0, "group", "list", "--json"); strings.TrimSpace(out) != "[]" {
		t.Fatalf("after the delete: %s", out)
	}
}

func TestGroupUsage(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"group reset g", "one of --to and --shift-by"},
		{"group reset g --to latest --shift-by 1", "one of --to and --shift-by"},
		{"group reset g --to earliest --topic :1", "want TOPIC or"},
		{"group reset g --to earliest --topic t:x", "is not a partition"},
		{"group reset g --to earliest --topic t --topic t:1", "there already"},
		{"group reset g --to yesterday", "want \"earliest\""},
		{"table offsets d.t --at yesterday", "--at: invalid position \"yesterday\": want \"earliest\""},
		{"read d.t --from yesterday", "--from: invalid position \"yesterday\": want"},
		{"group delete", "at least one name"},
		{"group describe", "one GROUP"},
	} {
		if code, _, e := run(t, "", strings.Fields(c.args)...); code != 2 || !strings.Contains(e, c.want) {
			t.Errorf("mink %s: exit %d, %s; want 2 and %q", c.args, code, e, c.want)
		}
	}
}
