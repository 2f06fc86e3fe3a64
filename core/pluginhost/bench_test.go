package pluginhost_test

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/pluginhost"
	"github.com/mink-project/mink/sdk/host/hosttest"
	"github.com/mink-project/mink/sdk/objstore"
)

// BenchmarkStore is a memory store in this process and the same one behind a
// plugin's process: the difference is the hop. cpu-us/op is the time that both
// processes spend. Aim: 4 MiB through the plugin >= 70 % of what a local S3 server
// gives in process, which is far below the figures here.
func BenchmarkStore(b *testing.B) {
	for _, where := range []string{"in-process", "plugin", "plugin-plaintext", "plugin-shared"} {
		for _, size := range []int{4 << 10, 4 << 20, 8 << 20} {
			for _, op := range []string{"put", "get"} {
				b.Run(fmt.Sprintf("%s/%s/%dKiB", where, op, size>>10), func(b *testing.B) {
					s, cpu := benchStore(b, where)
					benchOp(b, s, cpu, op, size)
				})
			}
		}
	}
}

// benchStore answers the store and the CPU time spent for it so far.
func benchStore(b *testing.B, where string) (objstore.Store, func() time.Duration) {
	b.Helper()
	own := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	if where == "in-process" {
		return memstore.New(memstore.Default()), own
	}
	dir := b.TempDir()
	hosttest.Install(b, dir, "mem")
	cfg := pluginhost.Default()
	cfg.Dirs, cfg.Plaintext, cfg.SharedMemory = []string{dir}, where == "plugin-plaintext", where == "plugin-shared"
	h, err := pluginhost.New(cfg, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := h.Close(); err != nil {
			b.Error(err)
		}
	})
	s, err := h.OpenStore(b.Context(), "mem://", nil)
	if err != nil {
		b.Fatal(err)
	}
	return s, func() time.Duration { return own() + h.Stats()[0].CPU }
}

func benchOp(b *testing.B, s objstore.Store, cpu func() time.Duration, op string, size int) {
	b.Helper()
	value, into := make([]byte, size), make([]byte, size)
	put := func() {
		if _, err := s.Put(b.Context(), objstore.PutRequest{Key: "k", Chunks: [][]byte{value}}); err != nil {
			b.Fatal(err)
		}
	}
	put()
	runtime.GC()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	before := cpu()
	for b.Loop() {
		if op == "put" {
			put()
		} else if _, err := s.GetRange(b.Context(), objstore.GetRangeRequest{Key: "k", Length: int64(size), Into: into}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "cpu-us/op")
}
