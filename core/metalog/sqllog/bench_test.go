package sqllog_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/pgtest"
	"github.com/mink-project/mink/core/metalog/sqllog"
)

// Append latency (group of 1) and throughput (larger groups) of 200 B entries,
// beside the limit: a raw write of the same bytes and an fsync.
func BenchmarkAppend(b *testing.B) {
	groups := []int{1, 100, 1000}
	payloads := func(group int) [][]byte {
		out := make([][]byte, group)
		for i := range out {
			out[i] = make([]byte, 200)
			for j := range out[i] {
				out[i][j] = byte(i*31 + j)
			}
		}
		return out
	}
	report := func(b *testing.B, group int) {
		b.ReportMetric(float64(b.N*group)/b.Elapsed().Seconds(), "rows/s")
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(b.Elapsed().Seconds()*1e3/float64(b.N), "ms/append")
	}
	b.Run("raw-fsync", func(b *testing.B) {
		for _, group := range groups {
			b.Run(fmt.Sprintf("group=%d", group), func(b *testing.B) {
				f, err := os.Create(filepath.Join(b.TempDir(), "raw"))
				if err != nil {
					b.Fatal(err)
				}
				defer f.Close()
				buf := make([]byte, 200*group)
				for b.Loop() {
					if _, err := f.Write(buf); err != nil {
						b.Fatal(err)
					}
					if err := f.Sync(); err != nil {
						b.Fatal(err)
					}
				}
				report(b, group)
			})
		}
	})
	run := func(b *testing.B, url func(*testing.B) string) {
		for _, group := range groups {
			b.Run(fmt.Sprintf("group=%d", group), func(b *testing.B) {
				l, err := sqllog.Open(b.Context(), url(b), sqllog.Default(), quiet())
				if err != nil {
					b.Fatal(err)
				}
				defer l.Close()
				a := metalog.Append{Payloads: payloads(group)}
				for b.Loop() {
					if _, err := l.Append(b.Context(), a); err != nil {
						b.Fatal(err)
					}
				}
				report(b, group)
			})
		}
	}
	b.Run("sqlite", func(b *testing.B) {
		run(b, func(b *testing.B) string { return "sqlite:" + filepath.Join(b.TempDir(), "meta.db") })
	})
	b.Run("postgres", func(b *testing.B) {
		pg := pgtest.Start(b)
		run(b, func(b *testing.B) string { return pg.Schema(b) })
	})
}
