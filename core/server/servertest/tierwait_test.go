package servertest_test

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/internal/units"
	"github.com/mink-project/mink/core/server"
	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
)

// lazyUploads leaves rows in the write-ahead log.
func lazyUploads(c *server.Config) { c.WALUploadInterval = units.Duration(time.Hour) }

// tiered has rows of two tables, and what each of them should hold.
type tiered struct {
	t        *testing.T
	cl       *client.Client
	w        *client.TypedWriter[row]
	u        *client.TypedUpsertWriter[row]
	inT, inK map[string]int
}

func newTiered(t *testing.T, cl *client.Client) *tiered {
	t.Helper()
	x := &tiered{t: t, cl: cl, inT: map[string]int{}, inK: map[string]int{}}
	lakeTable(t, cl, "t", "")
	lakeTable(t, cl, "k", `,"primary_key":["id"]`)
	var err error
	if x.w, err = client.NewTypedWriter[row](t.Context(), cl, "db.t", client.DefaultWriter()); err != nil {
		t.Fatal(err)
	}
	if x.u, err = client.NewTypedUpsertWriter[row](t.Context(), cl, "db.k", client.DefaultUpsert()); err != nil {
		t.Fatal(err)
	}
	return x
}

// write adds 40 rows to db.t, and gives db.k 60 keys without one of them.
func (x *tiered) write(turn int32) {
	t := x.t
	t.Helper()
	var add []row
	for id := int64(turn) * 40; id < int64(turn)*40+40; id++ {
		add = append(add, row{id, text(turn), &turn})
		x.inT[fmt.Sprintf("a=%s b=%d id=%d", *text(turn), turn, id)]++
	}
	a, err := x.w.AppendRows(t.Context(), add...)
	if err != nil {
		t.Fatal(err)
	}
	complete(t, a, round(t, x.u, turn))
	gone, err := x.u.DeleteRows(t.Context(), row{ID: int64(turn)})
	if err != nil {
		t.Fatal(err)
	}
	complete(t, gone)
	clear(x.inK)
	for id := range int64(60) {
		if id != int64(turn) {
			x.inK[fmt.Sprintf("a=%s b=%d id=%d", *text(turn), turn, id)]++
		}
	}
}

// tier waits for both tables.
func (x *tiered) tier() {
	x.t.Helper()
	for _, name := range []string{"db.t", "db.k"} {
		r, err := x.cl.TierTable(x.t.Context(), api.TierTable{Table: name, Wait: true})
		if err != nil || r.Error != "" || !r.Tiered || r.Round == "" {
			x.t.Fatalf("%s: %+v, %v", name, r, err)
		}
	}
}

func (x *tiered) close() {
	if err := errors.Join(x.w.Close(x.t.Context()), x.u.Close(x.t.Context())); err != nil {
		x.t.Fatal(err)
	}
}

// Nobody uploads: after TierTable with Wait, asked of whichever node, the lake alone has every
// row that was acknowledged before, whoever leads its bucket.
func TestTierWaitTakesWhatWasAcknowledged(t *testing.T) {
	s := newShelf()
	c := servertest.Start(t, 3, steady(), servertest.Configure(func(_ int, c *server.Config) { lazyUploads(c) }), servertest.Sinks(map[string]sink.Sink{"lake": s}))
	cl := c.Client(t)
	x := newTiered(t, cl)
	table(t, cl, "plain", 1)
	leaders := map[mink.NodeID]bool{}
	known, _ := c.View().TableByName("db", "t")
	for p := range c.View().Partitions(known.ID) {
		for _, id := range p.Streams {
			st, _ := c.View().Stream(id)
			leaders[st.Owner.Node] = true
		}
	}
	if len(leaders) != 3 {
		t.Fatalf("db.t is led by %v: the test wants a bucket on each of three nodes", leaders)
	}
	for turn := range int32(4) {
		x.write(turn)
		x.tier()
		for name, want := range map[string]map[string]int{"t": x.inT, "k": x.inK} {
			have := map[string]int{}
			for text, n := range s.rows(name) {
				have[sorted(text)] += n
			}
			if !maps.Equal(have, want) {
				t.Errorf("turn %d: the sink has %d rows of %s, want %d:\n%v\n%v", turn, len(have), name, len(want), have, want)
			}
		}
	}
	for id := 1; id <= 3; id++ {
		var l api.LakeSnapshot
		if err := at(t, c, id).action(t.Context(), api.ActionLakeSnapshot, api.Named{Name: "db.t"}, &l); err != nil {
			t.Fatal(err)
		}
		if l.Snapshot == "" || l.Rounds != 4 || l.LagOffsets != 0 || len(l.Buckets) != 3 {
			t.Errorf("node %d: %+v", id, l)
		}
	}
	if _, err := cl.LakeSnapshot(t.Context(), "db.plain"); !errors.Is(err, mink.ErrNotExist) {
		t.Errorf("a table that is not tiered: %v", err)
	}
	if _, err := cl.TierTable(t.Context(), api.TierTable{Table: "db.plain", Wait: true}); !errors.Is(err, mink.ErrNotExist) {
		t.Errorf("tiering a table that is not tiered: %v", err)
	}
	x.close()
}

// LakeSnapshot beside the catalog of a real lake, before and after rounds.
func TestLakeSnapshot(t *testing.T) {
	dir := t.TempDir()
	c := servertest.Start(t, 1, steady(), servertest.Configure(func(_ int, c *server.Config) {
		lazyUploads(c)
		c.LakeCatalogURL, c.StorageURI = "sqlite:"+filepath.Join(dir, "catalog.db"), "file://"+filepath.Join(dir, "objects")
	}))
	cl := c.Client(t)
	x := newTiered(t, cl)
	seen := map[string]bool{}
	for turn := range int32(3) {
		x.write(turn)
		before := lakeSnapshot(t, cl, "db.t")
		if before.LagOffsets != 40 || before.Rounds != int64(turn) || (before.Snapshot == "") != (turn == 0) || before.CatalogError != "" {
			t.Errorf("turn %d, before the round: %+v", turn, before)
		}
		x.tier()
		inUnion(t, cl, "t", x.inT, true)
		inUnion(t, cl, "k", x.inK, true)
		for _, name := range []string{"db.t", "db.k"} {
			l := lakeSnapshot(t, cl, name)
			if l.Snapshot == "" || l.Snapshot != l.CatalogSnapshot || l.Expired || l.CatalogError != "" || l.Rounds != int64(turn)+1 || l.LagOffsets != 0 || l.CommittedMs == 0 {
				t.Errorf("turn %d: %+v", turn, l)
			}
			if !strings.HasPrefix(l.MetadataLocation, l.Location+"/metadata/") || seen[l.MetadataLocation] {
				t.Errorf("turn %d: metadata at %q, table at %q", turn, l.MetadataLocation, l.Location)
			}
			seen[l.MetadataLocation] = true
			for _, b := range l.Buckets {
				if b.End == 0 || b.End != b.HighWatermark || b.LagOffsets != 0 || b.Error != "" {
					t.Errorf("turn %d: %+v", turn, b)
				}
			}
		}
	}
	x.close()
	fsckOfTheLake(t, c, cl)
}

// fsckOfTheLake wants a lake of two tables that is whole, takes a file away, and wants it missed.
func fsckOfTheLake(t *testing.T, c *servertest.Cluster, cl *client.Client) {
	t.Helper()
	r, err := cl.Check(t.Context(), true)
	if err != nil || !r.Clean || len(r.Lake) != 2 || r.Lake[0].Table != "db.t" || r.Lake[0].Rows != 120 || r.Lake[0].OrphanFiles != 0 || r.Lake[1].Snapshots != 3 {
		t.Fatalf("a lake that is whole: %+v, %v", r, err)
	}
	gone := ""
	if err := objstore.All(t.Context(), c.Store(), "lake/db/t-", "", func(o objstore.ObjectInfo) bool {
		if strings.HasSuffix(o.Key, ".parquet") {
			gone = o.Key
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Store().DeleteBatch(t.Context(), []string{gone}); err != nil || gone == "" {
		t.Fatal(gone, err)
	}
	if r, err = cl.Check(t.Context(), false); err != nil || r.Clean || len(r.Problems) != 1 || r.Problems[0].Kind != "missing" || r.Problems[0].Object != gone {
		t.Errorf("%s was taken away: %+v, %v", gone, r, err)
	}
}

func lakeSnapshot(t *testing.T, cl *client.Client, table string) api.LakeSnapshot {
	t.Helper()
	l, err := cl.LakeSnapshot(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
