package flight_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/api"
)

// Batches of 256 keys over loopback, 8 ahead, of 100,000 rows in 4 buckets: rows
// found per second, all of gRPC, routing and stores in it.
func BenchmarkLookupStream(b *testing.B) {
	const rows, batch, ahead = 100_000, 256, 8
	w := newWorld(b)
	w.table(idName, `"primary_key":["id"],"bucket_count":4`)
	p := w.put(path("db", "t"), idNameSchema)
	for at := 0; at < rows; at += 10_000 {
		p.send(idNames(at, 10_000), nil)
	}
	for range rows / 10_000 {
		mustResult[api.PutResult](p)
	}
	p.finish()
	x := w.lookups(api.LookupStream{Table: "db.t"}, "id")
	next := int64(1)
	send := func() {
		keys := array.NewRecordBuilder(memory.DefaultAllocator, x.schema)
		defer keys.Release()
		for range batch {
			next = (next*1103515245 + 12345) % rows
			keys.Field(0).(*array.Int64Builder).Append(next)
		}
		rec := keys.NewRecordBatch()
		defer rec.Release()
		if err := x.out.Write(rec); err != nil {
			b.Fatal(err)
		}
	}
	for range ahead {
		send()
	}
	var m api.LookupMetadata
	b.ResetTimer()
	for range b.N {
		rec, md, err := x.message()
		if err != nil || json.Unmarshal(md, &m) != nil || rec.NumRows() != batch || m.More {
			b.Fatal(fmt.Sprint(rec, m, err))
		}
		send()
	}
	b.ReportMetric(float64(b.N)*batch/b.Elapsed().Seconds(), "rows/s")
}
