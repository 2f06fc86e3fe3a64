package merge_test

import (
	"testing"

	"github.com/mink-project/mink/core/record/merge"
	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/sdk/mink"
)

func BenchmarkApply(b *testing.B) {
	columns := "id BIGINT, customer INT, status STRING, total DECIMAL(12,2) =sum, at TIMESTAMP(3) =max, paid BOOLEAN, note STRING, weight DOUBLE =product"
	plain := "id BIGINT, customer INT, status STRING, total DECIMAL(12,2), at TIMESTAMP(3), paid BOOLEAN, note STRING, weight DOUBLE"
	for _, c := range []struct {
		name, columns, engine string
		ids                   []mink.FieldID
	}{
		{"last_write", plain, "last_write", nil}, {"some columns", plain, "last_write", []mink.FieldID{1, 3, 5}}, {"first_row", plain, "first_row", nil},
		{"versioned", plain, "versioned:at", nil}, {"aggregation", columns, "aggregation", nil},
	} {
		b.Run(c.name, func(b *testing.B) {
			d := descriptor(b, c.columns, "merge_engine="+c.engine)
			e, err := merge.New(d, &d.Schema)
			if err != nil {
				b.Fatal(err)
			}
			targets, err := e.Targets(&d.Schema, c.ids)
			if err != nil {
				b.Fatal(err)
			}
			row := mergetest.Row{}
			for i, text := range []string{"1", "2", "shipped", "0.25", "1700000000000", "true", "-", "1"} {
				row = append(row, parse(b, d.Schema.Columns[i].Type, text))
			}
			enc := e.Codec().Encoder()
			if err := enc.Bind(mergetest.Batch(&d.Schema, []mergetest.Row{row}).Columns()); err != nil {
				b.Fatal(err)
			}
			in := enc.Append(nil, 0)
			dst := make([]byte, 0, 1024)
			for b.Loop() {
				if _, _, err := e.Apply(dst, in, in, targets, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
