package flight_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/mink-project/mink/sdk/client"
)

// clientItem is a row of itemColumns.
type clientItem struct {
	Shop  string  `mink:"shop"`
	ID    int64   `mink:"id"`
	Name  *string `mink:"name"`
	Price *string `mink:"price"`
	N     *int32  `mink:"n"`
}

func (i clientItem) text() string {
	price := "null"
	if i.Price != nil {
		price = *i.Price
	}
	return fmt.Sprintf("%s/%d %s", i.Shop, i.ID, price)
}

// The Go client's writers, lookups and scans of rows against the listener.
func TestClientOfPrimaryKeyTables(t *testing.T) {
	w := newWorld(t)
	w.table(itemColumns, itemKey)
	ctx := t.Context()
	up, err := client.NewTypedUpsertWriter[clientItem](ctx, w.client, "db.t", client.DefaultUpsert())
	if err != nil {
		t.Fatal(err)
	}
	price := "12.30"
	for i := range int64(500) {
		if _, err := up.UpsertRows(ctx, clientItem{Shop: []string{"a", "b", "c"}[i%3], ID: i, Price: &price}); err != nil {
			t.Fatal(err)
		}
	}
	for i := int64(0); i < 500; i += 2 {
		if _, err := up.DeleteRows(ctx, clientItem{Shop: []string{"a", "b", "c"}[i%3], ID: i}); err != nil {
			t.Fatal(err)
		}
	}
	if err := up.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if n, err := w.client.Count(ctx, "db.t", nil); err != nil || n != 250 {
		t.Errorf("count %d, %v", n, err)
	}
	cfg := client.DefaultUpsert()
	cfg.Columns = []string{"price", "shop", "id"}
	part, err := client.NewTypedUpsertWriter[clientItem](ctx, w.client, "db.t", cfg)
	if err != nil {
		t.Fatal(err)
	}
	dear := "99.00"
	if _, err := part.UpsertRows(ctx, clientItem{Shop: "b", ID: 1, Price: &dear}); err != nil {
		t.Fatal(err)
	}
	if err := part.Close(ctx); err != nil {
		t.Fatal(err)
	}
	type key struct {
		ID   int64  `mink:"id"`
		Shop string `mink:"shop"`
	}
	l, err := client.NewTypedLookuper[key, clientItem](ctx, w.client, "db.t", client.DefaultLookup())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var keys []key
	for i := range int64(700) {
		keys = append(keys, key{699 - i, []string{"a", "b", "c"}[(699-i)%3]})
	}
	rows, found, err := l.FindAll(ctx, keys...)
	if err != nil {
		t.Fatal(err)
	}
	for i, k := range keys {
		if want := k.ID < 500 && k.ID%2 == 1; found[i] != want || want && (rows[i].ID != k.ID || rows[i].Shop != k.Shop) {
			t.Errorf("key %v: %v, %v", k, found[i], rows[i])
		}
	}
	if row, ok, err := l.Find(ctx, key{1, "b"}); err != nil || !ok || row.text() != "b/1 99.00" {
		t.Errorf("after a partial update: %v, %v, %v", row.text(), ok, err)
	}
	if _, ok, err := l.Find(ctx, key{2, "c"}); err != nil || ok {
		t.Errorf("a deleted row: %v, %v", ok, err)
	}
	scan := func(r client.SnapshotRequest) (out []string) {
		t.Helper()
		r.Table, r.Bucket = "db.t", -1
		for b, err := range w.client.ScanSnapshot(ctx, r) {
			if err != nil {
				t.Fatal(err)
			}
			items, err := client.Decode[clientItem](b.Record)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range items {
				out = append(out, i.text())
			}
		}
		return out
	}
	if got := scan(client.SnapshotRequest{}); len(got) != 250 {
		t.Errorf("a snapshot of %d rows", len(got))
	}
	if got := scan(client.SnapshotRequest{Limit: 7}); len(got) != 7 {
		t.Errorf("limit 7: %v", got)
	}
	if got, want := scan(client.SnapshotRequest{From: []any{"b", 1}, To: []any{"b", 19}}), []string{"b/1 99.00", "b/7 12.30", "b/13 12.30"}; !slices.Equal(got, want) {
		t.Errorf("range: %v, want %v", got, want)
	}
	if got := scan(client.SnapshotRequest{Prefix: []any{"c"}}); len(got) != 83 || got[0] != "c/5 12.30" {
		t.Errorf("prefix: %d rows, %v", len(got), got[:min(len(got), 3)])
	}
}
