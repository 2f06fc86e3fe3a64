package row

import (
	"fmt"
	"strings"
	"testing"
)

// benchRows is 1000 rows of eight columns, as an order might have.
func benchRows(b *testing.B) (*Codec, *Encoder, [][]byte) {
	s := table(b, 1, "id BIGINT", "customer INT", "status STRING", "total DECIMAL(12,2)", "at TIMESTAMP(3)", "paid BOOLEAN", "note STRING", "weight DOUBLE")
	var json []string
	for i := range 1000 {
		note := "null"
		if i%4 == 0 {
			note = fmt.Sprintf("%q", strings.Repeat("n", i%60))
		}
		json = append(json, fmt.Sprintf(`{"id": %d, "customer": %d, "status": "shipped", "total": "%d.25", "at": "2026-01-31 07:05:00", "paid": true, "note": %s, "weight": 1.5}`, i, i%97, i, note))
	}
	rec := batch(b, s, "["+strings.Join(json, ",")+"]")
	c := codec(b, s)
	e := c.Encoder()
	if err := e.Bind(rec.Columns()); err != nil {
		b.Fatal(err)
	}
	return c, e, encodeAll(b, c, rec)
}

func BenchmarkEncode(b *testing.B) {
	_, e, _ := benchRows(b)
	dst := make([]byte, 0, 1024)
	for i := 0; b.Loop(); i++ {
		e.Append(dst, i%1000)
	}
}

func BenchmarkReadColumn(b *testing.B) {
	c, _, rows := benchRows(b)
	for i := 0; b.Loop(); i++ {
		r, err := c.Row(rows[i%1000])
		if err != nil || Int(r.Field(4)) == 0 {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	c, _, rows := benchRows(b)
	for i := 0; b.Loop(); i++ {
		if err := c.Check(rows[i%1000]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBuild is per row, batches of 1000 included.
func BenchmarkBuild(b *testing.B) {
	c, _, rows := benchRows(b)
	build, err := c.Builder(nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := build.Append(rows[i%1000]); err != nil {
			b.Fatal(err)
		}
		if i%1000 == 999 {
			build.NewBatch().Release()
		}
	}
}

func BenchmarkUpgrade(b *testing.B) {
	c, _, rows := benchRows(b)
	u, err := NewUpgrader(c.Schema(), table(b, 2, "id BIGINT", "customer BIGINT", "status STRING", "total DECIMAL(14,2)", "at TIMESTAMP(6)", "paid BOOLEAN", "note STRING", "weight DOUBLE"))
	if err != nil {
		b.Fatal(err)
	}
	dst := make([]byte, 0, 1024)
	for i := 0; b.Loop(); i++ {
		if _, err := u.Append(dst, rows[i%1000]); err != nil {
			b.Fatal(err)
		}
	}
}
