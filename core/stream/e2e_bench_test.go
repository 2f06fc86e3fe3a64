package stream_test

import (
	"errors"
	"testing"
	"time"

	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/sdk/mink"
)

// BenchmarkEndToEnd pours 1 KiB frames into 16 streams over a memory store:
// append, group commit, PUT, acknowledgement, upload.
func BenchmarkEndToEnd(b *testing.B) {
	w := newWorld(b)
	w.cfg = stream.Default(w.mem.Capabilities(), 2<<30)
	n := w.start(1)
	var all []*stream.Stream
	for id := mink.StreamID(1); id <= 16; id++ {
		all = append(all, n.open(id))
	}
	req := stream.AppendRequest{Span: 1, Count: 1, Parts: [][]byte{make([]byte, 1024)}}
	b.SetBytes(1024)
	b.ReportAllocs()
	var last *stream.Ticket
	throttled := 0
	for i := 0; b.Loop(); i++ {
		s := all[i%16]
		req.Start = s.LogEnd()
		for {
			t, err := s.Append(req)
			if err == nil {
				last = t
				break
			}
			if !errors.Is(err, mink.ErrThrottled) {
				b.Fatal(err)
			}
			throttled++
			time.Sleep(time.Millisecond) // what a producer does
		}
	}
	<-last.Done()
	if last.Err() != nil {
		b.Fatal(last.Err())
	}
	st := n.Stats()
	b.ReportMetric(float64(st.Bulks), "bulks")
	b.ReportMetric(float64(throttled), "throttled")
	if err := n.stop(); err != nil {
		b.Fatal(err)
	}
}
