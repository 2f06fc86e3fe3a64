package arrowipc

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/schema"
)

// The table's CHAR(n) holds for what clients send, by characters, not bytes.
func TestCharTakesNoMoreThanItsLength(t *testing.T) {
	s := schema.Schema{Columns: []schema.Column{
		{ID: 1, Name: "c", Type: schema.MustParseType("CHAR(3)")},
		{ID: 2, Name: "list", Type: schema.MustParseType("ARRAY<CHAR(2)>")},
		{ID: 4, Name: "any", Type: schema.MustParseType("STRING")},
	}}
	l, err := NewLayout(s.Arrow())
	if err != nil {
		t.Fatal(err)
	}
	check := func(c, item string) error {
		t.Helper()
		b := array.NewRecordBuilder(memory.DefaultAllocator, s.Arrow())
		defer b.Release()
		b.Field(0).AppendNull()
		b.Field(0).(*array.StringBuilder).Append(c)
		items := b.Field(1).(*array.ListBuilder)
		items.AppendNull()
		items.Append(true)
		items.ValueBuilder().(*array.StringBuilder).Append(item)
		b.Field(2).(*array.StringBuilder).AppendValues([]string{"as long as it likes", "ü"}, nil)
		rec := b.NewRecordBatch()
		defer rec.Release()
		metadata, body, err := Encode(rec)
		if err != nil {
			t.Fatal(err)
		}
		_, err = NewChecker(1<<20).Check(l, metadata, body)
		return err
	}
	for _, ok := range [][2]string{{"", ""}, {"abc", "ab"}, {"äöü", "日本"}} {
		if err := check(ok[0], ok[1]); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, c := range []struct{ c, item, want string }{
		{"abcd", "", "column c: row 1 has 4 characters, CHAR(3)"},
		{"äöüß", "", "column c: row 1 has 4 characters"},
		{"", "abc", "CHAR(2)"},
	} {
		if err := check(c.c, c.item); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q, %q: error %v, want one with %q", c.c, c.item, err, c.want)
		}
	}
}
