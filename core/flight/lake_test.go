package flight_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	aflight "github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/builtin/sqlcatalog"
	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/flight"
	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/core/lake/scan"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/record/jsonrow"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// lakeWorld is a node with a lake; rounds of tiering are run by hand.
type lakeWorld struct {
	*world
	sink   *lake.Sink
	rounds int
}

func newLakeWorld(t testing.TB, change ...func(*flight.Config)) *lakeWorld {
	t.Helper()
	c, err := sqlcatalog.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "catalog.db"), sqlcatalog.Default())
	if err != nil {
		t.Fatal(err)
	}
	store := memstore.New(memstore.Config{})
	warehouse, err := lake.NewWarehouse(lake.WarehouseConfig{Store: store, Root: "file:///lake", Catalog: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		_ = store.Close()
	})
	w := &lakeWorld{
		world: newWorldOn(t, func(c *node.Config) { c.Stream.WALUploadInterval = 10 * time.Millisecond }, change...),
		sink:  lake.NewSink(warehouse, lake.SinkConfig{ScratchDir: t.TempDir()}),
	}
	w.backend.lake.Store(scan.NewOpener(warehouse.Load))
	return w
}

// committed waits until the metadata have all of a bucket's log.
func (w *lakeWorld) committed(ref mink.BucketRef) (*cluster.State, mink.Offset) {
	w.t.Helper()
	hw := w.log(ref).HighWatermark()
	for {
		view := w.node.View()
		_, end, err := w.node.Source().CommittedEnd(view, ref)
		if err != nil {
			w.t.Fatal(err)
		}
		if end >= hw {
			return view, end
		}
		if err := w.node.WaitApplied(w.t.Context(), view.Index()+1); err != nil {
			w.t.Fatal(err)
		}
	}
}

// tier brings db.t to the lake, up to where its log ends now.
func (w *lakeWorld) tier() {
	w.t.Helper()
	ctx := w.t.Context()
	must := func(err error) {
		if err != nil {
			w.t.Helper()
			w.t.Fatal(err)
		}
	}
	view := w.node.View()
	for view.Lease().Epoch == 0 {
		must(w.node.WaitApplied(ctx, view.Index()+1))
		view = w.node.View()
	}
	t, _ := view.TableByName("db", "t")
	d, s := t.Descriptor, t.Schemas[len(t.Schemas)-1]
	tiering, ok := view.Tiering(t.ID, cluster.LakeSink)
	if !ok {
		w.t.Fatal("db.t is not tiered")
	}
	h, err := w.sink.Open(ctx, sink.OpenRequest{Table: sink.TableSpec{
		ID: t.ID, Database: d.Database, Name: d.Table, Schema: sink.Schema{ID: s.ID, Arrow: s.Arrow()},
		PrimaryKey: d.PrimaryKey, PartitionKeys: d.PartitionKeys, BucketKeys: d.BucketKeys, BucketCount: d.BucketCount,
	}})
	must(err)
	defer h.Close()
	lease := view.Lease().Epoch
	last, err := h.Recover(ctx, sink.RecoverRequest{Fence: lease})
	must(err)
	w.rounds++
	round := sink.RoundID(fmt.Sprintf("r%d", w.rounds))
	_, err = h.BeginRound(ctx, sink.BeginRoundRequest{Round: round, Base: last.Committed.Round, Fence: lease})
	must(err)
	commit := sink.CommitRequest{Round: round, Base: last.Committed.Round, Fence: lease}
	var ends []cluster.BucketOffset
	for p := range view.Partitions(t.ID) {
		for i := range p.Streams {
			ref := mink.BucketRef{Table: t.ID, Partition: p.ID, Index: int32(i)}
			now, end := w.committed(ref)
			_, from, _ := now.TieredEnd(cluster.LakeSink, ref)
			for rows, err := range w.node.Source().ReadCommitted(ctx, now, ref, from, end, s) {
				must(err)
				_, err = h.Write(ctx, sink.WriteRequest{Bucket: ref, PartitionValues: p.Values, Batch: rows.Batch, Changes: rows.Changes, Start: rows.Start, End: rows.End})
				must(err)
			}
			commit.Ranges = append(commit.Ranges, sink.Range{Bucket: ref, Start: from, End: end})
			ends = append(ends, cluster.BucketOffset{Bucket: ref, Offset: end})
		}
	}
	staged, err := h.Prepare(ctx, sink.PrepareRequest{})
	must(err)
	commit.Staged = staged.Staged
	done, err := h.Commit(ctx, commit)
	must(err)
	must(w.node.CommitTieredRound(ctx, cluster.TieredRound{
		Table: t.ID, Sink: cluster.LakeSink, Lease: lease, Round: string(round), BaseRound: tiering.Round, Snapshot: done.Snapshot, Ends: ends,
	}))
}

// plan asks for the endpoints of a read.
func (w *lakeWorld) plan(c api.Command) []*aflight.FlightEndpoint {
	w.t.Helper()
	c.Table = "db.t"
	info, err := w.raw.GetFlightInfo(w.t.Context(), cmd(c))
	if err != nil {
		w.t.Fatal(err)
	}
	return info.GetEndpoint()
}

// rows reads endpoints, as JSON in an order of their own.
func (w *lakeWorld) rows(endpoints []*aflight.FlightEndpoint) ([]string, error) {
	w.t.Helper()
	out := []string{}
	for _, e := range endpoints {
		s, err := w.raw.DoGet(w.t.Context(), e.GetTicket())
		if err != nil {
			return nil, err
		}
		r, err := aflight.NewRecordReader(s)
		if err != nil {
			return nil, err
		}
		for r.Next() {
			rec := r.RecordBatch()
			for i := range int(rec.NumRows()) {
				out = append(out, string(jsonrow.AppendObject(nil, rec.Schema().Fields(), rec.Columns(), i)))
			}
		}
		err = r.Err()
		r.Release()
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(out)
	return out, nil
}

func (w *lakeWorld) want(what string, endpoints []*aflight.FlightEndpoint, want ...string) {
	w.t.Helper()
	got, err := w.rows(endpoints)
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		w.t.Errorf("%s: %v, %v\nwant %v", what, got, err, want)
	}
}

// The life of a log table: before the first round, with a tail, the lake alone, filters
// and projections, a pinned plan while the lake moves on, a partition that is dropped.
func TestUnionOfALogTable(t *testing.T) {
	t.Parallel()
	w := newLakeWorld(t)
	w.table(`{"name":"day","type":"DATE"},{"name":"n","type":"INT"},{"name":"at","type":"TIMESTAMP(0)"}`,
		`"partition_keys":["day"],"bucket_count":2,"bucket_keys":["n"],"options":{"lake":"true"}`)
	row := func(day string, n int) string {
		return fmt.Sprintf(`{"day":"2024-01-%s","n":%d,"at":"2024-01-31 07:05:0%d"}`, day, n, n%10)
	}
	as := func(day string, n int) string { return strings.Replace(row(day, n), " 07", "T07", 1) }
	append := func(objects ...string) {
		t.Helper()
		rec := w.jsonRecord([]string{"day", "n", "at"}, objects...)
		p := w.put(path("db", "t"), rec.Schema())
		p.send(rec, nil)
		mustResult[api.PutResult](p)
		p.finish()
	}
	union, lakeOnly := api.Command{Mode: "union"}, api.Command{Mode: "lake"}
	append(row("01", 1), row("02", 2))
	w.want("before the first round", w.plan(union), as("01", 1), as("02", 2))
	w.want("nothing in the lake", w.plan(lakeOnly))
	w.tier()
	append(row("01", 3))
	old := w.plan(union)
	w.want("lake and tail", old, as("01", 1), as("02", 2), as("01", 3))
	w.want("lake alone", w.plan(lakeOnly), as("01", 1), as("02", 2))
	append(row("03", 4)) // a partition that has nothing in the lake
	w.want("another partition", w.plan(union), as("01", 1), as("02", 2), as("01", 3), as("03", 4))
	w.tier()
	append(row("02", 5))
	w.want("the old plan", old, as("01", 1), as("02", 2), as("01", 3))
	w.want("the new plan", w.plan(union), as("01", 1), as("02", 2), as("01", 3), as("03", 4), as("02", 5))
	w.want("a filter", w.plan(api.Command{Mode: "union", Filter: "day >= DATE '2024-01-02' AND at < TIMESTAMP '2024-01-31 07:05:05'", Columns: []string{"n"}}), `{"n":2}`, `{"n":4}`)
	w.want("a partition", w.plan(api.Command{Mode: "union", Partition: []string{"2024-01-02"}}), as("02", 2), as("02", 5))
	if err := w.client.DropPartition(t.Context(), "db.t", []string{"2024-01-01"}, false); err != nil {
		t.Fatal(err)
	}
	w.want("rows of a dropped partition stay in the lake", w.plan(union), as("01", 1), as("02", 2), as("01", 3), as("03", 4), as("02", 5))

	var got []string
	for b, err := range w.client.ScanUnion(t.Context(), client.UnionRequest{Table: "db.t", Bucket: -1, Filter: "n > 2", Columns: []string{"n"}}) {
		if err != nil {
			t.Fatal(err)
		}
		for i := range int(b.Record.NumRows()) {
			got = slices.Concat(got, []string{string(jsonrow.AppendObject(nil, b.Record.Schema().Fields(), b.Record.Columns(), i))})
		}
	}
	slices.Sort(got)
	if want := []string{`{"n":3}`, `{"n":4}`, `{"n":5}`}; !slices.Equal(got, want) {
		t.Errorf("the Go client: %v, want %v", got, want)
	}
}

// Primary-key tables of both images, with a partition column that comes first in the key
// and is no text, while rows, rounds, partitions and columns come: each plan gives the rows
// of its moment, whenever it is read.
func TestUnionOfAPrimaryKeyTable(t *testing.T) {
	t.Parallel()
	for _, image := range []string{"full", "wal"} {
		for seed := range uint64(2) {
			t.Run(fmt.Sprint(image, seed), func(t *testing.T) {
				t.Parallel()
				w := newLakeWorld(t)
				w.table(`{"name":"day","type":"DATE"},{"name":"k","type":"TINYINT"},{"name":"v","type":"STRING"}`,
					fmt.Sprintf(`"primary_key":["day","k"],"partition_keys":["day"],"bucket_count":2,"options":{"lake":"true","changelog_image":%q}`, image))
				r := rand.New(rand.NewPCG(seed, 7))
				model := map[string]string{}
				columns, values := []string{"day", "k", "v"}, 0
				type plan struct {
					endpoints []*aflight.FlightEndpoint
					rows      []string
					pinned    bool
				}
				var plans []plan
				rows := func() []string {
					out := slices.Sorted(maps.Values(model))
					for i, row := range out { // columns that were added since
						var object map[string]any
						if err := json.Unmarshal([]byte(row), &object); err != nil {
							t.Fatal(err)
						}
						for _, c := range columns {
							if _, ok := object[c]; !ok {
								row = strings.TrimSuffix(row, "}") + fmt.Sprintf(",%q:null}", c)
							}
						}
						out[i] = row
					}
					slices.Sort(out)
					return out
				}
				for step := range 40 {
					switch n := r.IntN(10); {
					case n < 5:
						var objects []string
						for range 1 + r.IntN(5) {
							key := fmt.Sprintf(`"day":"2024-01-0%d","k":%d`, 1+r.IntN(2+step/13), r.IntN(12)-6)
							values++
							object := fmt.Sprintf(`{%s,"v":"%d"`, key, values)
							for _, c := range columns[3:] {
								object += fmt.Sprintf(`,%q:%d`, c, values)
							}
							objects, model[key] = append(objects, object+"}"), object+"}"
						}
						rec := w.jsonRecord(columns, objects...)
						p := w.put(path("db", "t"), rec.Schema())
						p.send(rec, nil)
						mustResult[api.PutResult](p)
						p.finish()
					case n < 7:
						var objects []string
						for key := range model {
							objects = append(objects, "{"+key+"}")
						}
						slices.Sort(objects)
						objects = objects[:min(len(objects), r.IntN(4))]
						if len(objects) == 0 {
							continue
						}
						for _, o := range objects {
							delete(model, o[1:len(o)-1])
						}
						rec := w.jsonRecord([]string{"day", "k"}, objects...)
						p := w.put(cmd(api.Command{Table: "db.t", Delete: true}), rec.Schema())
						p.send(rec, nil)
						mustResult[api.PutResult](p)
						p.finish()
					case n < 8:
						w.tier()
					case n < 9 && step%10 == 9 && len(columns) < 6:
						name := fmt.Sprintf("c%d", len(columns))
						change := json.RawMessage(fmt.Sprintf(`[{"op":"add_column","column":{"name":%q,"type":"INT"}}]`, name))
						if _, err := w.client.AlterTable(t.Context(), "db.t", change, 0); err != nil {
							t.Fatal(err)
						}
						columns, plans = append(columns, name), nil // plans answer the newest columns
					default:
						p := plan{endpoints: w.plan(api.Command{Mode: "union"}), rows: rows(), pinned: true}
						for _, e := range p.endpoints {
							var ticket api.Ticket
							if err := json.Unmarshal(e.GetTicket().GetTicket(), &ticket); err != nil {
								t.Fatal(err)
							}
							p.pinned = p.pinned && (ticket.Union == nil || ticket.Union.LakeSnapshot != "")
						}
						w.want(fmt.Sprintf("step %d", step), p.endpoints, p.rows...)
						if p.pinned {
							plans = append(plans, p)
						}
						if len(plans) > 0 {
							old := plans[r.IntN(len(plans))]
							w.want(fmt.Sprintf("an older plan at step %d", step), old.endpoints, old.rows...)
						}
					}
					if t.Failed() {
						return
					}
				}
				if w.rounds == 0 {
					t.Error("no round was made: the test shows little")
				}
				w.want("by a filter", w.plan(api.Command{Mode: "union", Filter: "k = 100 OR v IS NULL"}))
			})
		}
	}
}

// A snapshot that the lake has no more: the plan takes the one that is there, and a ticket
// of the old one says what happened.
func TestUnionOfAnotherSnapshot(t *testing.T) {
	t.Parallel()
	w := newLakeWorld(t)
	w.table(`{"name":"n","type":"INT"}`, `"bucket_count":1,"options":{"lake":"true"}`)
	rec := w.jsonRecord([]string{"n"}, `{"n":1}`)
	p := w.put(path("db", "t"), rec.Schema())
	p.send(rec, nil)
	mustResult[api.PutResult](p)
	p.finish()
	w.tier()
	endpoints := w.plan(api.Command{Mode: "union"})
	var ticket api.Ticket
	if err := json.Unmarshal(endpoints[0].GetTicket().GetTicket(), &ticket); err != nil {
		t.Fatal(err)
	}
	ticket.Union.LakeSnapshot = "42"
	s, err := w.raw.DoGet(t.Context(), &aflight.Ticket{Ticket: api.JSON(ticket)})
	if err == nil {
		_, err = s.Recv()
	}
	wantStatus(t, err, api.ReasonNotExist, "plan the read anew")
	ticket.Union.LakeSnapshot = "x"
	s, err = w.raw.DoGet(t.Context(), &aflight.Ticket{Ticket: api.JSON(ticket)})
	if err == nil {
		_, err = s.Recv()
	}
	wantStatus(t, err, api.ReasonInvalid, "lake snapshot")
}
