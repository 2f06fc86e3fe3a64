package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/sdk/mink"
)

// TestSharedStrings: every pair of the metadata refers to one long string, which
// Arrow's reader would copy for each of them: 4,000 times 1 MiB here.
func TestSharedStrings(t *testing.T) {
	keys, values := []string{"long"}, []string{strings.Repeat("v", 1<<20)}
	for i := range 3999 {
		keys, values = append(keys, fmt.Sprint(i)), append(values, "short")
	}
	md := arrow.NewMetadata(keys, values)
	field := arrow.Field{Name: "a", Type: arrow.PrimitiveTypes.Int64, Metadata: md}
	for name, c := range map[string]struct {
		schema *arrow.Schema
		vector func(w *tables, schema int64) int64
	}{
		"of the schema": {arrow.NewSchema(nil, &md), func(w *tables, sch int64) int64 { return w.field(sch, 2) }},
		"of a field": {arrow.NewSchema([]arrow.Field{field}, nil), func(w *tables, sch int64) int64 {
			fields := w.follow(w.field(sch, 1))
			return w.field(w.follow(fields+4), 6)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			header := SchemaMessage(c.schema)
			if _, err := ReadSchema(header); err != nil {
				t.Fatalf("with strings of their own: %v", err)
			}
			w := &tables{b: header}
			v := w.follow(c.vector(w, w.follow(w.field(w.follow(0), 2))))
			long := w.follow(v + 4)
			for i := range w.u32(v) {
				if at := v + 4 + 4*i; at < long {
					binary.LittleEndian.PutUint32(header[at:], uint32(long-at))
				}
			}
			if _, err := ReadSchema(header); w.bad || !errors.Is(err, mink.ErrInvalid) {
				t.Errorf("shared: %v, want %v", err, mink.ErrInvalid)
			}
		})
	}
}
