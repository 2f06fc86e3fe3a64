package lake_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/mink"
)

// minkTable is a table of Mink's with two rounds, and one append of others after them.
func minkTable(t *testing.T, o *world) (tbl *table.Table, rounds []int64) {
	t.Helper()
	tbl = o.create(t, iceberg.Properties{"mink.table-id": "7", "mink.offsets": "{}"})
	for i := range 3 {
		summary := iceberg.Properties{}
		if i < 2 {
			summary["mink.round-id"] = fmt.Sprint("r", i)
		}
		var err error
		if tbl, err = tbl.Append(t.Context(), rows(t, tbl, int64(i)), summary); err != nil {
			t.Fatal(err)
		}
		if i < 2 {
			rounds = append(rounds, tbl.CurrentSnapshot().SnapshotID)
		}
	}
	return tbl, rounds
}

func TestOthersMayNotBreakMinksTables(t *testing.T) {
	o := newWorld(t)
	tbl, rounds := minkTable(t, o)
	head := tbl.CurrentSnapshot().SnapshotID
	g := &lake.Guard{Warehouse: o.w}
	for name, c := range map[string]struct{ updates, says string }{
		"a property gone":    {`[{"action":"remove-properties","removals":["mink.offsets"]}]`, "mink.offsets"},
		"a property changed": {`[{"action":"set-properties","updates":{"mink.table-id":"8"}}]`, "mink.table-id"},
		"metadata elsewhere": {`[{"action":"set-properties","updates":{"write.metadata.path":"file:///w/lake/a/b"}}]`, "write.metadata.path"},
		"a property made":    {`[{"action":"set-properties","updates":{"mink.round-id":"x"}}]`, "mink.round-id"},
		"key dropped":        {`[{"action":"add-schema","schema":{"type":"struct","schema-id":1,"fields":[{"id":3,"name":"what","type":"string","required":false}]}},{"action":"set-current-schema","schema-id":-1}]`, `"id"`},
		"column added":       {`[{"action":"add-schema","schema":{"type":"struct","schema-id":1,"identifier-field-ids":[7],"fields":[{"id":7,"name":"id","type":"long","required":true},{"id":3,"name":"what","type":"string","required":false},{"id":8,"name":"x","type":"int","required":false}]}},{"action":"set-current-schema","schema-id":-1}]`, "columns"},
		"field id taken":     {`[{"action":"add-schema","schema":{"type":"struct","schema-id":1,"fields":[{"id":7,"name":"id","type":"long","required":true},{"id":9,"name":"x","type":"int","required":false}]}}]`, "field ids"},
		"partitioned anew":   {`[{"action":"add-spec","spec":{"spec-id":1,"fields":[{"source-id":7,"field-id":1000,"name":"b","transform":"bucket[4]"}]}},{"action":"set-default-spec","spec-id":-1}]`, "partitioning"},
		"moved":              {`[{"action":"set-location","location":"file:///w/lake/a/b"}]`, "location"},
		"another format":     {`[{"action":"upgrade-format-version","format-version":3}]`, "format version"},
		"main back":          {fmt.Sprintf(`[{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":%d}]`, rounds[0]), "main"},
		"main's retention":   {fmt.Sprintf(`[{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":%d,"max-snapshot-age-ms":1,"min-snapshots-to-keep":1}]`, head), "retention"},
		"main gone":          {`[{"action":"remove-snapshot-ref","ref-name":"main"}]`, "main"},
		"newest round gone":  {fmt.Sprintf(`[{"action":"remove-snapshots","snapshot-ids":[%d]}]`, rounds[1]), fmt.Sprint(rounds[1])},
		"history gone":       {fmt.Sprintf(`[{"action":"remove-snapshots","snapshot-ids":[%d,%d]}]`, rounds[0], rounds[1]), fmt.Sprint(rounds[1])},
	} {
		_, ups, err := lake.ParseUpdates(nil, []byte(c.updates))
		if err == nil {
			_, err = g.Commit(t.Context(), orders, nil, ups)
		}
		if !errors.Is(err, lake.ErrGuarded) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	unsure := &lake.Guard{Warehouse: o.w, Owned: func(mink.TableID) (bool, error) { return false, catalog.ErrUnavailable }}
	if err := unsure.Drop(t.Context(), orders, false); !errors.Is(err, catalog.ErrUnavailable) {
		t.Errorf("dropped by a node that does not know whose it is: %v", err)
	}
	if _, err := unsure.Commit(t.Context(), orders, nil, []table.Update{table.NewRemovePropertiesUpdate([]string{"mink.offsets"})}); !errors.Is(err, catalog.ErrUnavailable) {
		t.Errorf("changed by a node that does not know whose it is: %v", err)
	}
	if err := g.Drop(t.Context(), orders, false); !errors.Is(err, lake.ErrGuarded) || !strings.Contains(err.Error(), "table 7") {
		t.Error(err)
	}
	if err := g.Drop(t.Context(), orders, true); !errors.Is(err, lake.ErrGuarded) {
		t.Error(err)
	}
	if err := g.Rename(t.Context(), orders, catalog.Identifier{Namespace: orders.Namespace, Name: "x"}); !errors.Is(err, lake.ErrGuarded) {
		t.Error(err)
	}
	if _, err := g.Create(t.Context(), lake.CreateTable{ID: catalog.Identifier{Namespace: orders.Namespace, Name: "y"}, Schema: fields(), SortOrder: table.UnsortedSortOrder, Properties: iceberg.Properties{"mink.table-id": "9"}}); !errors.Is(err, lake.ErrGuarded) {
		t.Error(err)
	}
	if _, err := g.Register(t.Context(), catalog.Identifier{Namespace: orders.Namespace, Name: "y"}, tbl.MetadataLocation()); !errors.Is(err, catalog.ErrInvalid) {
		t.Error(err)
	}
	now, err := o.w.Load(t.Context(), orders)
	if err != nil || now.CurrentSnapshot().SnapshotID != head || now.MetadataLocation() != tbl.MetadataLocation() {
		t.Fatal(now, err)
	}
}

func TestOthersMayNotSettleInMinksDirectories(t *testing.T) {
	o := newWorld(t)
	g := &lake.Guard{Warehouse: o.w}
	theirs, err := g.Create(t.Context(), lake.CreateTable{ID: catalog.Identifier{Namespace: orders.Namespace, Name: "own"}, Schema: o.create(t, iceberg.Properties{}).Schema(), SortOrder: table.UnsortedSortOrder})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"lake/a/orders-7", "lake/a/orders-7/", "lake/a/orders-7/data", "lake/b", "lake"} {
		at := o.w.Location(key)
		req := lake.CreateTable{ID: catalog.Identifier{Namespace: orders.Namespace, Name: "guest"}, Schema: theirs.Schema(), Location: at}
		if _, err := g.Create(t.Context(), req); !errors.Is(err, catalog.ErrInvalid) {
			t.Errorf("create at %s: %v", at, err)
		}
		if _, err := g.Stage(req); !errors.Is(err, catalog.ErrInvalid) {
			t.Errorf("stage at %s: %v", at, err)
		}
		_, ups, err := lake.ParseUpdates(nil, fmt.Appendf(nil, `[{"action":"set-location","location":%q}]`, at))
		if err == nil {
			_, err = g.Commit(t.Context(), catalog.Identifier{Namespace: orders.Namespace, Name: "own"}, nil, ups)
		}
		if !errors.Is(err, catalog.ErrInvalid) {
			t.Errorf("move to %s: %v", at, err)
		}
	}
}

func TestOthersMayAppendAndExpireMinksTables(t *testing.T) {
	o := newWorld(t)
	tbl, rounds := minkTable(t, o)
	g := &lake.Guard{Warehouse: o.w, Pinned: func(id mink.TableID) []int64 {
		if id != 7 {
			t.Error("asked about table", id)
		}
		return []int64{rounds[0]}
	}}
	commit := func(updates string, reqs ...table.Requirement) error {
		_, ups, err := lake.ParseUpdates(nil, []byte(updates))
		if err == nil {
			_, err = g.Commit(t.Context(), orders, reqs, ups)
		}
		return err
	}
	expire := fmt.Sprintf(`[{"action":"remove-snapshots","snapshot-ids":[%d]}]`, rounds[0])
	if err := commit(expire); !errors.Is(err, lake.ErrGuarded) || !strings.Contains(err.Error(), "read_grace") {
		t.Fatal("a snapshot that may be read was expired:", err)
	}
	g.Pinned = nil
	if err := commit(expire); err != nil {
		t.Fatal(err)
	}
	head := tbl.CurrentSnapshot()
	append1 := fmt.Sprintf(`[{"action":"add-snapshot","snapshot":{"snapshot-id":99,"parent-snapshot-id":%d,"sequence-number":%d,"timestamp-ms":%d,"manifest-list":%q,"summary":{"operation":"append"},"schema-id":0}},
		{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":99},{"action":"set-properties","updates":{"theirs":"1"}}]`,
		head.SnapshotID, head.SequenceNumber+1, head.TimestampMs+1, head.ManifestList)
	if err := commit(append1, table.AssertRefSnapshotID("main", &head.SnapshotID)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{
		fmt.Sprintf(`[{"action":"set-snapshot-ref","ref-name":"audit","type":"tag","snapshot-id":%d}]`, rounds[1]),
		`[{"action":"remove-properties","removals":["theirs"]}]`,
	} {
		if err := commit(c); err != nil {
			t.Error(err)
		}
	}
	if got := read(t, tbl); !slices.Equal(got, []int64{0, 1, 2}) {
		t.Fatal(got)
	}
}

// Files and readers of older snapshots have older columns.
func TestOthersMayNotRemoveSchemas(t *testing.T) {
	o := newWorld(t)
	tbl, _ := minkTable(t, o)
	wider := iceberg.NewSchemaWithIdentifiers(1, nil, append(tbl.Schema().Fields(), iceberg.NestedField{ID: tbl.Metadata().LastColumnID() + 1, Name: "more", Type: iceberg.PrimitiveTypes.String})...)
	if _, err := o.w.Commit(t.Context(), orders, nil, []table.Update{table.NewAddSchemaUpdate(wider), table.NewSetCurrentSchemaUpdate(-1)}); err != nil {
		t.Fatal(err)
	}
	g := &lake.Guard{Warehouse: o.w}
	if _, err := g.Commit(t.Context(), orders, nil, []table.Update{table.NewRemoveSchemasUpdate([]int{tbl.Schema().ID})}); !errors.Is(err, lake.ErrGuarded) || !strings.Contains(err.Error(), "schema") {
		t.Error(err)
	}
}

// A table that Mink does not write to any more is anybody's.
func TestATableThatMinkGaveUpMayBeDropped(t *testing.T) {
	o := newWorld(t)
	minkTable(t, o)
	g := &lake.Guard{Warehouse: o.w, Owned: func(mink.TableID) (bool, error) { return false, nil }}
	if _, err := g.Commit(t.Context(), orders, nil, []table.Update{table.NewRemovePropertiesUpdate([]string{"mink.offsets"})}); err != nil {
		t.Error(err)
	}
	if err := g.Drop(t.Context(), orders, true); err != nil {
		t.Error(err)
	}
}

// What engines send to make a table that was staged, in the orders in which they do.
func TestAStagedTableIsMadeByItsFirstCommit(t *testing.T) {
	for name, updates := range map[string]string{
		"pyiceberg": `[{"action":"assign-uuid","uuid":"9c12d441-03fe-4693-9a96-a0705ddf69c1"},{"action":"upgrade-format-version","format-version":2},{"action":"add-schema","schema":{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"a","type":"long","required":false}]}},{"action":"set-current-schema","schema-id":-1},{"action":"add-spec","spec":{"spec-id":0,"fields":[]}},{"action":"set-default-spec","spec-id":-1},{"action":"add-sort-order","sort-order":{"order-id":0,"fields":[]}},{"action":"set-default-sort-order","sort-order-id":-1},{"action":"set-location","location":"file:///w/lake/n/t-9c12d441"},{"action":"set-properties","updates":{}}]`,
		"DuckDB":    `[{"action":"assign-uuid","uuid":"9c12d441-03fe-4693-9a96-a0705ddf69c1"},{"action":"upgrade-format-version","format-version":2},{"action":"add-schema","schema":{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"a","type":"long","required":false}]}},{"action":"add-spec","spec":{"spec-id":0,"fields":[]}},{"action":"set-default-spec","spec-id":0},{"action":"add-sort-order","sort-order":{"order-id":0,"fields":[]}},{"action":"set-default-sort-order","sort-order-id":0},{"action":"set-current-schema","schema-id":0},{"action":"set-location","location":"file:///w/lake/n/t-9c12d441"}]`,
	} {
		o := newWorld(t)
		g := &lake.Guard{Warehouse: o.w}
		reqs, ups, err := lake.ParseUpdates([]byte(`[{"type":"assert-create"}]`), []byte(updates))
		if err != nil {
			t.Fatal(name, err)
		}
		tbl, err := g.Commit(t.Context(), orders, reqs, ups)
		if err != nil {
			t.Fatal(name, err)
		}
		if tbl.Location() != "file:///w/lake/n/t-9c12d441" || tbl.Metadata().TableUUID().String() != "9c12d441-03fe-4693-9a96-a0705ddf69c1" || tbl.Schema().NumFields() != 1 {
			t.Error(name, tbl.Metadata())
		}
		if _, err := g.Commit(t.Context(), orders, reqs, ups); !errors.Is(err, catalog.ErrConflict) {
			t.Error(name, err)
		}
	}
}
