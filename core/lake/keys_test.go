package lake_test

import (
	"strings"
	"testing"

	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
)

// fsck, the sweeps of orphans and the scan for lost objects look below these prefixes
// only: nothing of the lake may lie there, or it would be called an orphan and deleted.
func TestTheLakeIsApartFromTheEnginesObjects(t *testing.T) {
	key := lake.TableDir("data", "wal", "1") + "/data/x.parquet"
	if !strings.HasPrefix(key, lake.KeyPrefix) {
		t.Fatal(key)
	}
	for _, prefix := range []string{plan.DataPrefix(plan.WALID{}), plan.WALPrefix(plan.WALID{}), kvplan.Prefix, "data/", "wal/"} {
		if strings.HasPrefix(key, prefix) || strings.HasPrefix(prefix, lake.KeyPrefix) || prefix == "" {
			t.Errorf("%s is below %q", key, prefix)
		}
	}
}
