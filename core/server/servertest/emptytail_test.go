package servertest_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mink-project/mink/core/server"
	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
)

// Case 30: logs that end with what makes no rows. Deletes of keys that are not there, behind rows
// and alone, and records of a topic that are no rows: rounds reach the end of the log, reads of
// the union and of the lake end, and the next rows are not held up.
func TestLogsThatEndWithoutRows(t *testing.T) {
	dir := t.TempDir()
	c := servertest.Start(t, 1, steady(), servertest.Configure(func(_ int, c *server.Config) {
		lazyUploads(c)
		c.LakeCatalogURL, c.StorageURI = "sqlite:"+filepath.Join(dir, "catalog.db"), "file://"+filepath.Join(dir, "objects")
	}))
	cl := c.Client(t)
	for _, name := range []string{"db", "kafka"} {
		if err := cl.CreateDatabase(t.Context(), name, true); err != nil {
			t.Fatal(err)
		}
	}
	// reached tiers a table and wants the lake to end where the log does.
	reached := func(name, when string, rows map[string]int) {
		t.Helper()
		r, err := cl.TierTable(t.Context(), api.TierTable{Table: name, Wait: true})
		if err != nil || r.Error != "" || !r.Tiered {
			t.Fatalf("%s, %s: %+v, %v", name, when, r, err)
		}
		if l := lakeSnapshot(t, cl, name); l.LagOffsets != 0 {
			t.Errorf("%s, %s: %+v", name, when, l)
		}
		for _, lakeOnly := range []bool{false, true} {
			inUnionOf(t, cl, name, rows, lakeOnly)
		}
	}
	for _, image := range []string{"full", "wal"} {
		name := "k" + image
		d := fmt.Sprintf(`{"database":"db","table":%q,"schema":{"columns":[{"name":"id","type":"BIGINT NOT NULL"},{"name":"a","type":"STRING"},{"name":"b","type":"INT"}]},
			"bucket_count":3,"primary_key":["id"],"options":{"lake":"true","lake_freshness":"1h","changelog_image":%q}}`, name, image)
		if _, err := cl.CreateTable(t.Context(), json.RawMessage(d), false); err != nil {
			t.Fatal(err)
		}
		u, err := client.NewTypedUpsertWriter[row](t.Context(), cl, "db."+name, client.DefaultUpsert())
		if err != nil {
			t.Fatal(err)
		}
		nothing := func(first int64) {
			t.Helper()
			for id := first; id < first+20; id++ {
				a, err := u.DeleteRows(t.Context(), row{ID: id})
				if err != nil {
					t.Fatal(err)
				}
				complete(t, a)
			}
		}
		want := map[string]int{}
		nothing(1000)
		reached("db."+name, "deletes of no keys alone", want)
		complete(t, round(t, u, 1))
		for id := range int64(60) {
			want[fmt.Sprintf("a=%s b=1 id=%d", *text(1), id)]++
		}
		nothing(2000)
		reached("db."+name, "rows, and deletes of no keys behind them", want)
		nothing(2000)
		reached("db."+name, "deletes of no keys behind the lake's end", want)
		complete(t, round(t, u, 2))
		clear(want)
		for id := range int64(60) {
			want[fmt.Sprintf("a=%s b=2 id=%d", *text(2), id)]++
		}
		reached("db."+name, "rows again", want)
		if err := u.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := cl.CreateTable(t.Context(), json.RawMessage(`{"database":"kafka","table":"typed","schema":{"columns":[{"name":"id","type":"BIGINT"}]},
		"options":{"lake":"true","lake_freshness":"1h","kafka.value.format":"json","kafka.bad.records":"quarantine"}}`), false); err != nil {
		t.Fatal(err)
	}
	k, err := kgo.NewClient(kgo.SeedBrokers(c.Node(1).Kafka), kgo.DefaultProduceTopic("typed"))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	produce := func(values ...string) {
		t.Helper()
		for _, v := range values {
			if err := k.ProduceSync(t.Context(), kgo.StringRecord(v)).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	produce(`no row`, `neither`)
	reached("kafka.typed", "bad records alone", map[string]int{})
	produce(`{"id":1}`, `{"id":2}`, `{"it":3}`, ``)
	reached("kafka.typed", "bad records at the end", map[string]int{"id=1": 1, "id=2": 1})
	produce(`{"id":4}`)
	reached("kafka.typed", "a row again", map[string]int{"id=1": 1, "id=2": 1, "id=4": 1})
	if l := lakeSnapshot(t, cl, "kafka.typed"); l.Buckets[0].End != 7 {
		t.Errorf("7 records were produced: %+v", l)
	}
}
