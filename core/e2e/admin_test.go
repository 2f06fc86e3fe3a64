package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// What admin tools change is there after kill -9: partitions, configs, deleted
// records.
func TestAdminThroughKadm(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	k := n.franz(kgo.DefaultProduceTopic("adm"))
	adm := kadm.NewClient(k)
	if _, err := adm.CreateTopic(ctx, 1, 3, nil, "adm"); err != nil {
		t.Fatal(err)
	}
	produce := func(k *kgo.Client, partition int32, from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			if err := k.ProduceSync(ctx, &kgo.Record{Partition: partition, Value: []byte(fmt.Sprint(i))}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	produce(k, 0, 0, 10)
	if r, err := adm.UpdatePartitions(ctx, 3, "adm"); err != nil || r.Error() != nil {
		t.Fatal(err, r.Error())
	}
	if r, err := adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: kadm.StringPtr("86400000")}}, "adm"); err != nil || r[0].Err != nil {
		t.Fatal(err, r[0].Err)
	}
	to := kadm.Offsets{}
	to.Add(kadm.Offset{Topic: "adm", Partition: 0, At: 4})
	if r, err := adm.DeleteRecords(ctx, to); err != nil || r.Error() != nil {
		t.Fatal(err, r.Error())
	}
	k.Close()
	k = n.franz(kgo.DefaultProduceTopic("adm"))
	produce(k, 2, 10, 12)
	check := func(when string, adm *kadm.Client) {
		t.Helper()
		d, err := adm.ListTopics(ctx, "adm")
		if err != nil || len(d["adm"].Partitions) != 3 {
			t.Fatalf("%s: %+v, %v", when, d, err)
		}
		starts, err := adm.ListStartOffsets(ctx, "adm")
		if err != nil {
			t.Fatal(err)
		}
		ends, err := adm.ListEndOffsets(ctx, "adm")
		if err != nil {
			t.Fatal(err)
		}
		for p, want := range map[int32][2]int64{0: {4, 10}, 1: {0, 0}, 2: {0, 2}} {
			s, _ := starts.Lookup("adm", p)
			e, _ := ends.Lookup("adm", p)
			if s.Offset != want[0] || e.Offset != want[1] {
				t.Errorf("%s: partition %d is [%d, %d), want %v", when, p, s.Offset, e.Offset, want)
			}
		}
		configs, err := adm.DescribeTopicConfigs(ctx, "adm")
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range configs[0].Configs {
			if c.Key == "retention.ms" && c.MaybeValue() != "86400000" {
				t.Errorf("%s: %+v", when, c)
			}
		}
	}
	check("before the kill", kadm.NewClient(k))
	k.Close()
	for _, when := range []string{"after kill -9", "after the second kill -9"} {
		n.kill()
		n.start()
		k := n.franz()
		check(when, kadm.NewClient(k))
		k.Close()
	}
	if got := n.consume("adm", 0, 4, 10); string(got[0].Value) != "4" {
		t.Errorf("the first record is %q", got[0].Value)
	}
	n.fsck()
}
