package flight_test

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/client"
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
