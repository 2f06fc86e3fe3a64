package flight_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// example is docs/flight.md's, with another address.
func example(ctx context.Context, cfg client.Config) error {
	// docs: begin
	c, err := client.New(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	w, err := c.NewWriter(ctx, "shop.orders", client.DefaultWriter())
	if err != nil {
		return err
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, w.Schema())
	defer b.Release()
	b.Field(0).(*array.Int64Builder).Append(4)
	b.Field(1).(*array.StringBuilder).Append("bread")
	b.Field(2).AppendNull()
	rec := b.NewRecordBatch()
	defer rec.Release()
	if _, err := w.Append(ctx, rec); err != nil { // on its way; Wait or Close says when it is durable
		return err
	}
	if err := w.Close(ctx); err != nil {
		return err
	}
	for batch, err := range c.Scan(ctx, client.ScanRequest{Table: "shop.orders", Bucket: -1}) {
		if err != nil {
			return err
		}
		fmt.Println(batch.Meta.Base, batch.Record.NumRows())
	}
	// docs: end
	return nil
}

// exampleOfRows is docs/flight.md's second.
func exampleOfRows(ctx context.Context, c *client.Client) error {
	// docs: begin
	w, err := c.NewUpsertWriter(ctx, "shop.stock", client.DefaultUpsert())
	if err != nil {
		return err
	}
	rows, _, err := array.RecordFromJSON(memory.DefaultAllocator, w.Schema(), strings.NewReader(
		`[{"shop":"west","id":1,"item":"salt","price":"0.40","pieces":5},{"shop":"west","id":2,"item":"oil","price":"7.00","pieces":6}]`))
	if err != nil {
		return err
	}
	defer rows.Release()
	if _, err := w.Upsert(ctx, rows); err != nil {
		return err
	}
	keys, _, err := array.RecordFromJSON(memory.DefaultAllocator, w.KeySchema(), strings.NewReader(`[{"shop":"west","id":2}]`))
	if err != nil {
		return err
	}
	defer keys.Release()
	if _, err := w.Delete(ctx, keys); err != nil { // in the order of the calls
		return err
	}
	if err := w.Close(ctx); err != nil { // durable, and seen by lookups
		return err
	}
	l, err := c.NewLookuper(ctx, "shop.stock", client.DefaultLookup())
	if err != nil {
		return err
	}
	defer l.Close()
	found, err := l.Lookup(ctx, keys)
	if err != nil {
		return err
	}
	fmt.Println(found.Rows.NumRows(), found.Missing) // 0 [0]
	found.Rows.Release()
	for b, err := range c.ScanSnapshot(ctx, client.SnapshotRequest{Table: "shop.stock", Bucket: -1}) {
		if err != nil {
			return err
		}
		fmt.Println(b.Bucket, b.LogOffset, b.Record.NumRows()) // the changelog goes on at LogOffset
	}
	for b, err := range c.Scan(ctx, client.ScanRequest{Table: "shop.stock", Bucket: -1}) {
		if err != nil {
			return err
		}
		for i, change := range b.Meta.Changes {
			fmt.Println(mink.Change(change), b.Record.Column(0).ValueStr(i), b.Record.Column(1).ValueStr(i))
		}
	}
	// docs: end
	return nil
}
