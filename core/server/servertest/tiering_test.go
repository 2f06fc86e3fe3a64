package servertest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/core/builtin/sqlcatalog"
	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/internal/units"
	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/core/server"
	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// quickTiering uploads often and tiers what is uploaded within a second.
func quickTiering() servertest.Option {
	return servertest.Configure(func(_ int, c *server.Config) {
		c.WALUploadInterval = units.Duration(50 * time.Millisecond)
		c.KVSnapshotInterval = units.Duration(time.Second)
	})
}

func lakeTable(t *testing.T, cl *client.Client, name, rest string) {
	t.Helper()
	if err := cl.CreateDatabase(t.Context(), "db", true); err != nil {
		t.Fatal(err)
	}
	d := fmt.Sprintf(`{"database":"db","table":%q,"schema":{"columns":[{"name":"id","type":"BIGINT NOT NULL"},{"name":"a","type":"STRING"},{"name":"b","type":"INT"}]},
		"bucket_count":3,"bucket_keys":["id"],"options":{"lake":"true","lake_freshness":"1s"}%s}`, name, rest)
	if _, err := cl.CreateTable(t.Context(), json.RawMessage(d), false); err != nil {
		t.Fatal(err)
	}
}

// shows waits until the shelf has just these rows of a table.
func (s *shelf) shows(t *testing.T, table string, want map[string]int) {
	t.Helper()
	var have map[string]int
	late := time.NewTimer(waitLong)
	defer late.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if have = s.rows(table); fmt.Sprint(have) == fmt.Sprint(want) {
			return
		}
		select {
		case <-tick.C:
		case <-late.C:
			t.Fatalf("the sink has %d different rows of %s, want %d:\n%v\n%v", len(have), table, len(want), have, want)
		}
	}
}

// Rows of log and primary-key tables reach the sink once each, through changes of schema, the
// death of the node that tiers between the sink's commit and its record, and a table that
// is dropped and made again.
func TestTiering(t *testing.T) {
	s := newShelf()
	var mu sync.Mutex
	var stuck chan struct{} // a commit that was made and will not be heard of
	s.before = func(ctx context.Context, call, table string) error {
		mu.Lock()
		c := stuck
		if call == "committed" && table == "t" {
			stuck = nil
		} else {
			c = nil
		}
		mu.Unlock()
		if c == nil {
			return nil
		}
		close(c)
		<-ctx.Done()
		return sink.ErrUnknownOutcome
	}
	c := servertest.Start(t, 3, quickTiering(), servertest.Sinks(map[string]sink.Sink{"lake": s}))
	cl := c.Client(t)
	lakeTable(t, cl, "t", "")
	lakeTable(t, cl, "k", `,"primary_key":["id"]`)
	w, err := client.NewTypedWriter[row](t.Context(), cl, "db.t", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	u, err := client.NewTypedUpsertWriter[row](t.Context(), cl, "db.k", client.DefaultUpsert())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = u.Close(context.WithoutCancel(t.Context())) }()
	inT, inK := map[string]int{}, map[string]int{}
	write := func(first int64, extra string) {
		t.Helper()
		var add []row
		for id := first; id < first+40; id++ {
			v := int32(id)
			add = append(add, row{id, text(v), &v})
			inT[fmt.Sprintf("id=%d a=%s b=%d%s", id, *text(v), v, extra)]++
		}
		a, err := w.AppendRows(t.Context(), add...)
		if err != nil {
			t.Fatal(err)
		}
		complete(t, a)
	}
	upsert := func(v int32, extra string) {
		t.Helper()
		clear(inK)
		complete(t, round(t, u, v))
		gone := []row{{ID: 7}, {ID: 23}}
		a, err := u.DeleteRows(t.Context(), gone...)
		if err != nil {
			t.Fatal(err)
		}
		complete(t, a)
		for id := range int64(60) {
			if id != 7 && id != 23 {
				inK[fmt.Sprintf("id=%d a=%s b=%d%s", id, *text(v), v, extra)]++
			}
		}
	}
	write(0, "")
	upsert(1, "")
	s.shows(t, "t", inT)
	s.shows(t, "k", inK)

	// The holder dies when the sink has the round and the metadata have not.
	heard := make(chan struct{})
	mu.Lock()
	stuck = heard
	mu.Unlock()
	write(40, "")
	<-heard
	c.Kill(c.LeaseHolder())
	upsert(2, "")
	write(80, "")
	s.shows(t, "t", inT)
	s.shows(t, "k", inK)

	// Columns come; rows of before show as they were.
	for _, name := range []string{"db.t", "db.k"} {
		if _, err := cl.AlterTable(t.Context(), name, json.RawMessage(`[{"op":"add_column","column":{"name":"c","type":"INT"}}]`), 0); err != nil {
			t.Fatal(err)
		}
	}
	write(120, " c=(null)")
	upsert(3, " c=(null)")
	s.shows(t, "t", inT)
	s.shows(t, "k", inK)

	// Another table takes the name.
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := cl.DropTable(t.Context(), "db.t", false); err != nil {
		t.Fatal(err)
	}
	lakeTable(t, cl, "t", "")
	if w, err = client.NewTypedWriter[row](t.Context(), cl, "db.t", client.DefaultWriter()); err != nil {
		t.Fatal(err)
	}
	clear(inT)
	defer func() { _ = w.Close(context.WithoutCancel(t.Context())) }()
	write(500, "")
	s.shows(t, "t", inT)

	// On demand, at whichever node.
	write(600, "")
	for {
		r, err := cl.TierTable(t.Context(), api.TierTable{Table: "db.t", Wait: true})
		if err != nil || r.Error != "" || !r.Tiered {
			t.Fatalf("%+v, %v", r, err)
		}
		if fmt.Sprint(s.rows("t")) == fmt.Sprint(inT) {
			break // what was not uploaded yet comes with the next one
		}
	}
	var stats api.Stats
	if err := at(t, c, c.LeaseHolder()).action(t.Context(), api.ActionNodeStats, struct{}{}, &stats); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, x := range stats.Tiering {
		if x.Table == "db.t" && !x.Dropping {
			found = true
			if x.Rounds == 0 || x.LastRound == "" || x.LastError != "" {
				t.Errorf("%+v", x)
			}
		}
	}
	if !found {
		t.Errorf("stats of the holder have no db.t: %+v", stats.Tiering)
	}
}

// A node with its own parts: rows come back from the Iceberg tables, by what the sink's
// Reader finds.
func TestTieringToTheLake(t *testing.T) {
	dir := t.TempDir()
	url, root := "sqlite:"+filepath.Join(dir, "catalog.db"), "file://"+filepath.Join(dir, "objects")
	c := servertest.Start(t, 1, quickTiering(), steady(), servertest.Configure(func(_ int, c *server.Config) {
		c.LakeCatalogURL, c.StorageURI = url, root
	}))
	cl := c.Client(t)
	lakeTable(t, cl, "t", "")
	lakeTable(t, cl, "k", `,"primary_key":["id"]`)
	w, err := client.NewTypedWriter[row](t.Context(), cl, "db.t", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	u, err := client.NewTypedUpsertWriter[row](t.Context(), cl, "db.k", client.DefaultUpsert())
	if err != nil {
		t.Fatal(err)
	}
	inT, inK := map[string]int{}, map[string]int{}
	for turn := range int32(3) {
		var add []row
		for id := int64(turn) * 40; id < int64(turn)*40+40; id++ {
			add = append(add, row{id, text(turn), &turn})
			inT[fmt.Sprintf("a=%s b=%d id=%d", *text(turn), turn, id)]++
		}
		a, err := w.AppendRows(t.Context(), add...)
		if err != nil {
			t.Fatal(err)
		}
		complete(t, a, round(t, u, turn))
		gone, err := u.DeleteRows(t.Context(), row{ID: int64(turn)})
		if err != nil {
			t.Fatal(err)
		}
		complete(t, gone)
		clear(inK)
		for id := range int64(60) {
			if id != int64(turn) {
				inK[fmt.Sprintf("a=%s b=%d id=%d", *text(turn), turn, id)]++
			}
		}
		inUnion(t, cl, "t", inT, false) // whatever of it is in the lake by now
		inUnion(t, cl, "k", inK, false)
		inLake(t, c, cl, url, root, "t", inT)
		inLake(t, c, cl, url, root, "k", inK)
		for _, lakeOnly := range []bool{false, true} {
			inUnion(t, cl, "t", inT, lakeOnly)
			inUnion(t, cl, "k", inK, lakeOnly)
		}
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := u.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// inUnion reads a table by mode union, or lake.
func inUnion(t *testing.T, cl *client.Client, name string, want map[string]int, lakeOnly bool) {
	t.Helper()
	inUnionOf(t, cl, "db."+name, want, lakeOnly)
}

// inUnionOf is inUnion of a table of any database.
func inUnionOf(t *testing.T, cl *client.Client, name string, want map[string]int, lakeOnly bool) {
	t.Helper()
	have := map[string]int{}
	for b, err := range cl.ScanUnion(t.Context(), client.UnionRequest{Table: name, Bucket: -1, LakeOnly: lakeOnly}) {
		if err != nil {
			t.Fatal(err)
		}
		for i := range int(b.Record.NumRows()) {
			have[sorted(textOf(b.Record, i))]++
		}
	}
	if !maps.Equal(have, want) {
		t.Errorf("%s, lake only %v: %d rows %v, want %d: %v", name, lakeOnly, len(have), have, len(want), want)
	}
}

// inLake waits until the lake has just these rows.
func inLake(t *testing.T, c *servertest.Cluster, cl *client.Client, url, root, name string, want map[string]int) {
	t.Helper()
	catalog, err := sqlcatalog.Open(t.Context(), url, sqlcatalog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = catalog.Close() }()
	warehouse, err := lake.NewWarehouse(lake.WarehouseConfig{Store: c.Store(), Root: root, Catalog: catalog})
	if err != nil {
		t.Fatal(err)
	}
	s := lake.NewSink(warehouse, lake.SinkConfig{ScratchDir: t.TempDir()})
	table, ok := c.View().TableByName("db", name)
	if !ok {
		t.Fatal("no table")
	}
	d := table.Descriptor
	spec := sink.TableSpec{ID: table.ID, Database: d.Database, Name: d.Table, Schema: sink.Schema{ID: d.Schema.ID, Arrow: d.Schema.Arrow()}, PrimaryKey: d.PrimaryKey, BucketKeys: d.BucketKeys, BucketCount: d.BucketCount}
	late := time.Now().Add(waitLong)
	for {
		r, err := cl.TierTable(t.Context(), api.TierTable{Table: "db." + name, Sink: cluster.LakeSink, Wait: true})
		if err != nil || r.Error != "" {
			t.Fatalf("%+v, %v", r, err)
		}
		have := map[string]int{}
		if err := s.Read(t.Context(), sink.ReadRequest{Table: spec}, func(b arrow.RecordBatch, _ []mink.Change) bool {
			for i := range int(b.NumRows()) {
				have[sorted(textOf(b, i))]++
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(have) == fmt.Sprint(want) {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("the lake has %d different rows of %s, want %d:\n%v\n%v", len(have), name, len(want), have, want)
		}
	}
}

func sorted(text string) string {
	words := strings.Fields(text)
	slices.Sort(words)
	return strings.Join(words, " ")
}
