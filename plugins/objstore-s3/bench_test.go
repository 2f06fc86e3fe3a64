package main

import (
	"fmt"
	"testing"

	"github.com/mink-project/mink/plugins/cloudtest"
	"github.com/mink-project/mink/sdk/objstore"
)

// BenchmarkHop is the plugin's store in this process and in one of its own, against
// one local server. Aim: 4 MiB through the process at 0.70 of the throughput
// without it, or more.
func BenchmarkHop(b *testing.B) {
	server := cloudtest.S3(b, "bench")
	for _, size := range []int{4 << 10, 4 << 20} {
		for _, op := range []string{"put", "get"} {
			for _, where := range []string{"in-process", "plugin"} {
				b.Run(fmt.Sprintf("%s/%dKiB/%s", op, size>>10, where), func(b *testing.B) {
					uri := fmt.Sprintf("s3://bench/%s/%s/%d", where, op, size)
					s, err := open(b.Context(), uri, optionsFor(server.URL))
					if where == "plugin" {
						s, err = cloudtest.Process(b, self).OpenStore(b.Context(), uri, optionsFor(server.URL))
					}
					if err != nil {
						b.Fatal(err)
					}
					defer s.Close()
					hop(b, s, op, make([]byte, size))
				})
			}
		}
	}
}

func hop(b *testing.B, s objstore.Store, op string, value []byte) {
	b.Helper()
	put := func() {
		if _, err := s.Put(b.Context(), objstore.PutRequest{Key: "k", Chunks: [][]byte{value}}); err != nil {
			b.Fatal(err)
		}
	}
	put()
	b.SetBytes(int64(len(value)))
	for b.Loop() {
		if op == "put" {
			put()
		} else if _, err := s.GetRange(b.Context(), objstore.GetRangeRequest{Key: "k", Length: int64(len(value)), Into: value}); err != nil {
			b.Fatal(err)
		}
	}
}
