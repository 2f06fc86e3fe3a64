package servertest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/server"
	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/api"
)

// What a node in between costs: rows put by path and a bucket read through the leader
// and through another node, and the same bytes over loopback TCP, in turns. Two nodes, a
// store in memory, all in one process; MB are 10^6 bytes of values, the client's part is
// in them.
//
//	go test ./core/server/servertest -run - -bench ThroughTheWrongNode -benchtime 1x -count 10
func BenchmarkThroughTheWrongNode(b *testing.B) {
	c := servertest.Start(b, 2, steady(), servertest.Configure(func(_ int, c *server.Config) { c.LogCacheBytes = 512 << 20 }))
	cl := c.Client(b)
	large := table(b, cl, "large", 1)[0]
	small := table(b, cl, "small", 1)[0]
	first := wrongFirst
	wrongFirst = !wrongFirst
	for i := range b.N + 1 { // a round before those that count: memory in use for the first time is dear
		for _, wrong := range []bool{first, !first} {
			arm := map[bool]string{false: "right-", true: "wrong-"}[wrong]
			if i == 0 {
				arm = "cold-" + arm
			}
			node := func(leader int) int {
				if wrong {
					return leader%2 + 1
				}
				return leader
			}
			const batches, rows = 64, 64 << 10
			rec := idRows(0, rows)
			took := putAll(b, at(b, c, node(c.Leader(large))), "db.large", rec, batches)
			b.ReportMetric(batches*rows*8/1e6/took.Seconds(), arm+"put-MB/s")
			rec.Release()
			few := idRows(0, 10)
			took = putAll(b, at(b, c, node(c.Leader(small))), "db.small", few, 2000)
			b.ReportMetric(2000/took.Seconds(), arm+"small-batches/s")
			few.Release()
			began := time.Now()
			n := readAll(b, at(b, c, node(c.Leader(large))), logOf(large))
			b.ReportMetric(float64(n)/1e6/time.Since(began).Seconds(), arm+"read-MB/s")
		}
		b.ReportMetric(256<<20/1e6/loopback(b, 256<<20).Seconds(), "loopback-MB/s")
	}
	b.ReportMetric(0, "ns/op")
}

// wrongFirst changes from run to run, so that neither side has the better turn.
var wrongFirst bool

// putAll puts a batch so many times and waits for all of it.
func putAll(b *testing.B, g *generic, name string, rec arrow.RecordBatch, times int) time.Duration {
	b.Helper()
	began := time.Now()
	p := g.put(api.Command{Table: name}, idSchema)
	for range times {
		rec.Retain() // write releases it
		p.write(rec)
	}
	if n := p.close(); n != int64(times)*rec.NumRows() {
		b.Fatalf("%d rows of %d", n, int64(times)*rec.NumRows())
	}
	return time.Since(began)
}

// readAll reads a ticket and answers the bytes of its bodies.
func readAll(b *testing.B, g *generic, t *flight.Ticket) (n int) {
	b.Helper()
	s, err := g.DoGet(b.Context(), t)
	if err != nil {
		b.Fatal(err)
	}
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			b.Fatal(err)
		}
		n += len(m.DataBody)
	}
}

// loopback sends so many bytes over one connection.
func loopback(b *testing.B, size int) time.Duration {
	b.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	began := time.Now()
	done := make(chan error, 1)
	go func() {
		in, err := l.Accept()
		if err == nil {
			_, err = io.Copy(io.Discard, in)
			_ = in.Close()
		}
		done <- err
	}()
	out, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 256<<10)
	for sent := 0; sent < size; sent += len(buf) {
		if _, err := out.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	_ = out.Close()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}
