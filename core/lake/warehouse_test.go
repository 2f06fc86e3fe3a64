package lake_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/builtin/sqlcatalog"
	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/catalog/catalogtest"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

var orders = catalog.Identifier{Namespace: []string{"sales"}, Name: "orders"}

type world struct {
	store  objstore.Store
	url    string
	faulty *catalogtest.Faulty
	w      *lake.Warehouse
}

func newWorld(t testing.TB) *world {
	t.Helper()
	o := &world{store: memstore.New(memstore.Config{}), url: "sqlite:" + filepath.Join(t.TempDir(), "catalog.db")}
	o.w, o.faulty = o.another(t)
	if err := o.w.CreateNamespace(t.Context(), orders.Namespace, nil); err != nil {
		t.Fatal(err)
	}
	return o
}

// another is the same place, as another process has it.
func (o *world) another(t testing.TB) (*lake.Warehouse, *catalogtest.Faulty) {
	t.Helper()
	c, err := sqlcatalog.Open(t.Context(), o.url, sqlcatalog.Default())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	faulty := &catalogtest.Faulty{Catalog: c}
	w, err := lake.NewWarehouse(lake.WarehouseConfig{Store: o.store, Root: "file:///w", Catalog: faulty})
	if err != nil {
		t.Fatal(err)
	}
	return w, faulty
}

func fields() *iceberg.Schema {
	return iceberg.NewSchemaWithIdentifiers(0, []int{7},
		iceberg.NestedField{ID: 7, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true},
		iceberg.NestedField{ID: 3, Name: "what", Type: iceberg.PrimitiveTypes.String})
}

func (o *world) create(t testing.TB, properties iceberg.Properties) *table.Table {
	t.Helper()
	tbl, err := o.w.Create(t.Context(), lake.CreateTable{ID: orders, Schema: fields(), Spec: *iceberg.UnpartitionedSpec, SortOrder: table.UnsortedSortOrder, Properties: properties})
	if err != nil {
		t.Fatal(err)
	}
	return tbl
}

func rows(t testing.TB, tbl *table.Table, ids ...int64) array.RecordReader {
	t.Helper()
	s, err := table.SchemaToArrowSchema(tbl.Schema(), nil, true, false)
	if err != nil {
		t.Fatal(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	for _, id := range ids {
		b.Field(0).(*array.Int64Builder).Append(id)
		b.Field(1).AppendNull()
	}
	batch := b.NewRecordBatch()
	defer batch.Release()
	r, err := array.NewRecordReader(s, []arrow.RecordBatch{batch})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func read(t testing.TB, tbl *table.Table) (ids []int64) {
	t.Helper()
	got, err := tbl.Scan().ToArrowTable(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer got.Release()
	for _, chunk := range got.Column(0).Data().Chunks() {
		for i := range chunk.Len() {
			ids = append(ids, chunk.(*array.Int64).Value(i))
		}
	}
	slices.Sort(ids)
	return ids
}

func (o *world) keys(t testing.TB, part string) (keys []string) {
	t.Helper()
	err := objstore.All(t.Context(), o.store, "lake/", "", func(i objstore.ObjectInfo) bool {
		if strings.Contains(i.Key, part) {
			keys = append(keys, i.Key)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func set(name, value string) []table.Update {
	return []table.Update{table.NewSetPropertiesUpdate(iceberg.Properties{name: value})}
}

func TestATableIsMadeFilledAndRead(t *testing.T) {
	o := newWorld(t)
	tbl := o.create(t, iceberg.Properties{"format-version": "2"})
	if f, ok := tbl.Schema().FindFieldByID(7); !ok || f.Name != "id" || tbl.Schema().HighestFieldID() != 7 {
		t.Fatal("field ids were changed:", tbl.Schema())
	}
	tbl, err := tbl.Append(t.Context(), rows(t, tbl, 1, 2, 3), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = tbl.Append(t.Context(), rows(t, tbl, 4), nil); err != nil {
		t.Fatal(err)
	}
	other, _ := o.another(t)
	tbl, err = other.Load(t.Context(), orders)
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, tbl); !slices.Equal(got, []int64{1, 2, 3, 4}) {
		t.Fatal(got)
	}
	if got := len(o.keys(t, ".metadata.json")); got != 3 {
		t.Fatal(got, "metadata files")
	}
	if tables, err := other.Tables(t.Context(), orders.Namespace); err != nil || len(tables) != 1 || tables[0].Name != "orders" {
		t.Fatal(tables, err)
	}
	if err := o.w.Drop(t.Context(), orders, true); err != nil {
		t.Fatal(err)
	}
	if left := o.keys(t, ""); len(left) > 0 {
		t.Fatal("purged, but there are", left)
	}
	if _, err := o.w.Load(t.Context(), orders); !errors.Is(err, mink.ErrNotExist) || !errors.Is(err, catalog.ErrNotExist) {
		t.Fatal(err)
	}
}

// Field ids of clients that have not thought of any are given anew.
func TestFreshFieldIDs(t *testing.T) {
	o := newWorld(t)
	tbl, err := o.w.Create(t.Context(), lake.CreateTable{ID: orders, FreshIDs: true, Schema: fields(), Spec: *iceberg.UnpartitionedSpec, SortOrder: table.UnsortedSortOrder})
	if err != nil {
		t.Fatal(err)
	}
	if f, ok := tbl.Schema().FindFieldByName("id"); !ok || f.ID != 1 || !slices.Equal(tbl.Schema().IdentifierFieldIDs, []int{1}) {
		t.Fatal(tbl.Schema())
	}
}

func TestAnIdleLoadReadsTheCatalogOnly(t *testing.T) {
	o := newWorld(t)
	o.create(t, nil)
	w, faulty := o.another(t)
	if _, err := w.Load(t.Context(), orders); err != nil {
		t.Fatal(err)
	}
	before, loads := w.Files().Stats(), 0
	faulty.Before = func(call string) error { loads++; return nil }
	for range 10 {
		if _, err := w.Load(t.Context(), orders); err != nil {
			t.Fatal(err)
		}
	}
	if w.Files().Stats() != before || loads != 10 {
		t.Fatalf("%d catalog reads; files %+v, then %+v", loads, before, w.Files().Stats())
	}
}

// Of commits that assert the same snapshot exactly one takes effect, whatever the
// library would do; the others are told so and leave no metadata file.
func TestOfRacingCommitsOneWins(t *testing.T) {
	o := newWorld(t)
	base := o.create(t, nil)
	var warehouses []*lake.Warehouse
	for range 4 {
		w, _ := o.another(t)
		warehouses = append(warehouses, w)
	}
	for round := range 10 {
		head := base.CurrentSnapshot()
		errs := make([]error, len(warehouses))
		var wg sync.WaitGroup
		var appends []func()
		for i, w := range warehouses {
			tbl, err := w.Load(t.Context(), orders)
			if err != nil {
				t.Fatal(err)
			}
			batch := rows(t, tbl, int64(round))
			appends = append(appends, func() { _, errs[i] = tbl.Append(t.Context(), batch, nil) })
		}
		for _, f := range appends {
			wg.Go(f)
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			switch {
			case err == nil:
				won++
			case !errors.Is(err, catalog.ErrConflict) || errors.Is(err, catalog.ErrUnknownOutcome) || errors.Is(err, table.ErrCommitFailed):
				t.Fatal(err)
			}
		}
		var err error
		if base, err = o.w.Load(t.Context(), orders); err != nil {
			t.Fatal(err)
		}
		s := base.CurrentSnapshot()
		if won != 1 || head != nil && (s.ParentSnapshotID == nil || *s.ParentSnapshotID != head.SnapshotID) {
			t.Fatalf("%d won; snapshot %+v after %+v", won, s, head)
		}
	}
	if got := len(read(t, base)); got != 10 {
		t.Fatal(got, "rows of 10")
	}
	if got := len(o.keys(t, ".metadata.json")); got != 11 {
		t.Fatal(got, "metadata files of 11")
	}
}

// A lost answer is an unknown outcome, whether the commit happened or not, and no file
// that the table may name is deleted.
func TestUnknownOutcomes(t *testing.T) {
	lost := fmt.Errorf("%w: the line is dead", catalog.ErrUnknownOutcome)
	odd := errors.New("of no class")
	for _, c := range []struct {
		name     string
		hook     func(o *world, err error)
		err      error
		happened bool
	}{
		{"lost after", func(o *world, err error) { o.faulty.After = onSwap(err) }, lost, true},
		{"lost before", func(o *world, err error) { o.faulty.Before = onSwap(err) }, lost, false},
		{"of no class, after", func(o *world, err error) { o.faulty.After = onSwap(err) }, odd, true},
		{"canceled, after", func(o *world, err error) { o.faulty.After = onSwap(err) }, context.Canceled, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newWorld(t)
			tbl := o.create(t, nil)
			c.hook(o, c.err)
			_, err := tbl.Append(t.Context(), rows(t, tbl, 5), iceberg.Properties{"try": "this one"})
			if !errors.Is(err, catalog.ErrUnknownOutcome) {
				t.Fatal(err)
			}
			other, _ := o.another(t)
			now, err := other.Load(t.Context(), orders)
			if err != nil {
				t.Fatal(err)
			}
			want := []int64(nil)
			if c.happened {
				want = []int64{5}
			}
			if got := read(t, now); !slices.Equal(got, want) {
				t.Fatal(got)
			}
			if got := len(o.keys(t, ".metadata.json")); got != 2 {
				t.Fatal(got, "metadata files of 2: one may be the table's")
			}
		})
	}
}

func onSwap(err error) func(string) error {
	return func(call string) error {
		if call == "SwapMetadata" {
			return err
		}
		return nil
	}
}

// What fails before the pointer could move has a known outcome: nothing happened.
func TestAFailedWriteOfMetadataIsNoUnknownCommit(t *testing.T) {
	o := newWorld(t)
	o.create(t, nil)
	failing := &failingPuts{Store: o.store, err: fmt.Errorf("%w: put", objstore.ErrUnknownOutcome)}
	w, err := lake.NewWarehouse(lake.WarehouseConfig{Store: failing, Root: "file:///w", Catalog: o.faulty})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Commit(t.Context(), orders, nil, set("a", "1"))
	if !errors.Is(err, catalog.ErrUnavailable) || errors.Is(err, catalog.ErrUnknownOutcome) {
		t.Fatal(err)
	}
	tbl, err := o.w.Load(t.Context(), orders)
	if err != nil || tbl.Properties()["a"] != "" {
		t.Fatal(tbl, err)
	}
}

type failingPuts struct {
	objstore.Store
	err error
}

func (f *failingPuts) Put(context.Context, objstore.PutRequest) (objstore.PutResponse, error) {
	return objstore.PutResponse{}, f.err
}

// A put whose answer was lost is looked for, and not taken for another's.
func TestALostAnswerOfAPutIsLookedFor(t *testing.T) {
	o := newWorld(t)
	lossy := &lossyPuts{Store: o.store}
	w, err := lake.NewWarehouse(lake.WarehouseConfig{Store: lossy, Root: "file:///w", Catalog: o.faulty})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Create(t.Context(), lake.CreateTable{ID: orders, Schema: fields(), Spec: *iceberg.UnpartitionedSpec, SortOrder: table.UnsortedSortOrder})
	if err != nil || lossy.lost != 1 {
		t.Fatal(err, lossy.lost)
	}
}

type lossyPuts struct {
	objstore.Store
	lost int
}

func (l *lossyPuts) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	resp, err := l.Store.Put(ctx, req)
	if err == nil && l.lost == 0 {
		l.lost++
		return objstore.PutResponse{}, objstore.ErrUnknownOutcome
	}
	return resp, err
}

func TestRequirementsAreCheckedOnFreshMetadata(t *testing.T) {
	o := newWorld(t)
	tbl := o.create(t, nil)
	other, _ := o.another(t)
	seen, err := other.Load(t.Context(), orders)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tbl.Append(t.Context(), rows(t, tbl, 1), nil); err != nil {
		t.Fatal(err)
	}
	none := table.AssertRefSnapshotID("main", nil)
	if _, err := other.Commit(t.Context(), orders, []table.Requirement{none}, set("a", "1")); !errors.Is(err, catalog.ErrConflict) {
		t.Fatal(err)
	}
	if _, err := other.Commit(t.Context(), orders, []table.Requirement{table.AssertTableUUID(seen.Metadata().TableUUID())}, set("a", "1")); err != nil {
		t.Fatal("what holds on the newest metadata may be committed:", err)
	}
	if _, err := other.Commit(t.Context(), orders, []table.Requirement{table.AssertCreate()}, set("a", "2")); !errors.Is(err, catalog.ErrConflict) {
		t.Fatal(err)
	}
	absent := catalog.Identifier{Namespace: orders.Namespace, Name: "none"}
	if _, err := other.Commit(t.Context(), absent, nil, set("a", "2")); !errors.Is(err, catalog.ErrNotExist) {
		t.Fatal(err)
	}
}

func TestOldMetadataIsDeletedWhenWanted(t *testing.T) {
	for _, c := range []struct {
		enabled string
		files   int
	}{{"true", 4}, {"false", 8}} {
		o := newWorld(t)
		tbl := o.create(t, iceberg.Properties{"write.metadata.delete-after-commit.enabled": c.enabled, "write.metadata.previous-versions-max": "3"})
		for i := range 7 {
			var err error
			if tbl, err = o.w.Commit(t.Context(), orders, nil, set("n", fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
		keys := o.keys(t, ".metadata.json")
		if len(keys) != c.files || !strings.HasPrefix(filepath.Base(keys[len(keys)-1]), "00007-") {
			t.Errorf("enabled %s: %v", c.enabled, keys)
		}
		for f := range tbl.Metadata().PreviousFiles() {
			if _, err := o.w.Files().With(t.Context()).Stat(f.MetadataFile); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestMetadataInEveryCodec(t *testing.T) {
	for codec, suffix := range map[string]string{"none": ".metadata.json", "gzip": ".gz.metadata.json", "zstd": ".zstd.metadata.json"} {
		o := newWorld(t)
		tbl := o.create(t, iceberg.Properties{"write.metadata.compression-codec": codec})
		if !strings.HasSuffix(tbl.MetadataLocation(), suffix) {
			t.Error(tbl.MetadataLocation())
		}
		other, _ := o.another(t)
		if _, err := other.Load(t.Context(), orders); err != nil {
			t.Error(codec, err)
		}
	}
	o := newWorld(t)
	if _, err := o.w.Create(t.Context(), lake.CreateTable{ID: orders, Schema: fields(), SortOrder: table.UnsortedSortOrder, Properties: iceberg.Properties{"write.metadata.compression-codec": "lzma"}}); !errors.Is(err, catalog.ErrInvalid) {
		t.Error(err)
	}
}

// Commits after which the table could not be found, read or changed are refused, and
// the table goes on.
func TestCommitsThatWouldLoseTheTableAreRefused(t *testing.T) {
	o := newWorld(t)
	tbl := o.create(t, nil)
	for name, updates := range map[string]string{
		"elsewhere":          `[{"action":"set-location","location":"s3://other/x"}]`,
		"the engine's keys":  `[{"action":"set-location","location":"file:///w/wal/1"}]`,
		"metadata elsewhere": `[{"action":"set-properties","updates":{"write.metadata.path":"s3://other/x"}}]`,
		"data elsewhere":     `[{"action":"set-properties","updates":{"write.data.path":"file:///w/lake/../wal"}}]`,
		"bad codec":          `[{"action":"set-properties","updates":{"write.metadata.compression-codec":"x"}}]`,
		"no such schema":     `[{"action":"set-current-schema","schema-id":99}]`,
		"no such snapshot":   `[{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":12}]`,
		"foreign manifests":  `[{"action":"add-snapshot","snapshot":{"snapshot-id":5,"sequence-number":1,"timestamp-ms":4102444800000,"manifest-list":"file:///etc/x.avro","summary":{"operation":"append"},"schema-id":0}}]`,
	} {
		_, ups, err := lake.ParseUpdates(nil, []byte(updates))
		if err == nil {
			_, err = o.w.Commit(t.Context(), orders, nil, ups)
		}
		if !errors.Is(err, catalog.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := lake.ParseUpdates([]byte(`[{"type":"assert-the-moon"}]`), nil); !errors.Is(err, catalog.ErrInvalid) || !strings.Contains(err.Error(), "assert-the-moon") {
		t.Error(err)
	}
	if _, _, err := lake.ParseUpdates(nil, []byte(`[{"action":"fly"}]`)); !errors.Is(err, catalog.ErrInvalid) || !strings.Contains(err.Error(), "fly") {
		t.Error(err)
	}
	now, err := o.w.Load(t.Context(), orders)
	if err != nil || now.MetadataLocation() != tbl.MetadataLocation() {
		t.Fatal(now, err)
	}
}

func TestPurgeDeletesOneTablesFilesOnly(t *testing.T) {
	o := newWorld(t)
	o.create(t, nil)
	for _, location := range []string{"file:///w/lake", "file:///w/lake/sales", "file:///w/lake/sales/mine"} {
		id := catalog.Identifier{Namespace: orders.Namespace, Name: "theirs"}
		if _, err := o.w.Create(t.Context(), lake.CreateTable{ID: id, Schema: fields(), SortOrder: table.UnsortedSortOrder, Location: location}); err != nil {
			if errors.Is(err, catalog.ErrInvalid) {
				continue // not below lake/
			}
			t.Fatal(err)
		}
		if err := o.w.Drop(t.Context(), id, true); !errors.Is(err, catalog.ErrInvalid) {
			t.Errorf("%s: %v", location, err)
		}
		if err := o.w.Drop(t.Context(), id, false); err != nil {
			t.Error(err)
		}
	}
	if _, err := o.w.Load(t.Context(), orders); err != nil {
		t.Fatal(err)
	}
}

// A metadata file that commits of others removed between the catalog's answer and its reading
// is no damage: the catalog names another one by then.
func TestAMetadataFileThatWentMeanwhile(t *testing.T) {
	o := newWorld(t)
	old := o.create(t, iceberg.Properties{})
	other, faulty := o.another(t) // it has seen nothing yet
	answers := 0
	faulty.After = func(call string) error {
		if answers++; call != "LoadTable" || answers > 1 {
			return nil
		}
		if _, err := o.w.Commit(t.Context(), orders, nil, []table.Update{table.NewSetPropertiesUpdate(iceberg.Properties{"a": "b"})}); err != nil {
			t.Fatal(err)
		}
		key, err := o.w.Key(old.MetadataLocation())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.store.DeleteBatch(t.Context(), []string{key}); err != nil {
			t.Fatal(err)
		}
		return nil
	}
	tbl, err := other.Load(t.Context(), orders)
	if err != nil || tbl.Properties()["a"] != "b" || answers != 2 {
		t.Fatalf("%v after %d answers of the catalog", err, answers)
	}
	key, _ := o.w.Key(tbl.MetadataLocation())
	if _, err := o.store.DeleteBatch(t.Context(), []string{key}); err != nil {
		t.Fatal(err)
	}
	third, faulty := o.another(t)
	faulty.After = func(string) error { answers++; return nil }
	if _, err := third.Load(t.Context(), orders); !errors.Is(err, catalog.ErrCorrupt) || answers != 4 {
		t.Fatalf("a file that is missing: %v, after %d answers", err, answers)
	}
}
