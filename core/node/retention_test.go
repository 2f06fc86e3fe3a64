package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

func TestPartitionsPastRetentionAreRefused(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	d, err := (&schema.Descriptor{
		Database: "db", Table: "t", PartitionKeys: []string{"day"},
		Schema: schema.Schema{Columns: []schema.Column{{Name: "day", Type: schema.MustParseType("STRING NOT NULL")}}},
		Options: map[string]string{
			"auto_partition.time_unit": "day", "auto_partition.time_zone": "UTC", "auto_partition.num_retention": "7",
		},
	}).Normalize()
	if err != nil {
		t.Fatal(err)
	}
	for _, day := range []string{"2026-03-10", "2026-03-03", "2026-03-12"} {
		if err := withinRetention(d, []string{day}, now); err != nil {
			t.Errorf("%s: %v", day, err)
		}
	}
	err = withinRetention(d, []string{"2026-03-02"}, now)
	if !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), "2026-03-03") {
		t.Errorf("a day past retention: %v, want an error that names the oldest day kept", err)
	}
	d.Options = nil
	if err := withinRetention(d, []string{"1999-01-01"}, now); err != nil {
		t.Errorf("without automatic partitions: %v", err)
	}
}
