package kafka

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// Every served request cut at every byte, and with bits turned over: an answer
// that can be read or a closed connection, never a panic.
func TestDamagedFrames(t *testing.T) {
	b, frames := hostileBroker(t)
	stride := 1
	if testing.Short() {
		stride = 7
	}
	for i, frame := range frames {
		for n := i % stride; n < len(frame); n += stride {
			feed(t, b, frame[:n])
		}
		damaged := make([]byte, len(frame))
		for n := i % stride; n < len(frame); n += stride {
			for _, mask := range []byte{1 << (n % 8), 0xff, 0x80} {
				copy(damaged, frame)
				damaged[n] ^= mask
				feed(t, b, damaged)
			}
		}
		feed(t, b, append(append([]byte(nil), frame...), 0xff, 1, 2, 3)) // bytes too many
	}
}

// Lengths and counts that cannot be: a number of the largest kind in place of
// each four bytes allocates nothing like it.
func TestAbsurdCounts(t *testing.T) {
	b, frames := hostileBroker(t)
	for _, frame := range frames {
		for at := headerFixed; at+4 <= len(frame); at++ {
			damaged := append([]byte(nil), frame...)
			for _, n := range []uint32{math.MaxInt32, math.MaxUint32, 1 << 31, 0xffffff0f} {
				binary.BigEndian.PutUint32(damaged[at:], n)
				feed(t, b, damaged)
			}
		}
	}
	// A frame that claims as many items as it has bytes, for every API: what it may
	// cost is what the budget counts for it.
	for _, a := range APIs() {
		if a.Key == keyProduce { // counted before it is decoded: TestHostileCountsAllocateLittle
			continue
		}
		for _, v := range []int16{a.Min, max(a.Min, a.Flexible-1), a.Max} {
			for _, count := range [][]byte{{0, 3, 0xf0, 0}, {0x80, 0xe0, 0x0f}} { // 258,048, as int32 and as uvarint
				for _, skip := range []int{0, 1, 2, 3, 4, 5, 6, 8, 11} {
					claimTooMuch(t, b, a, v, skip, count)
				}
			}
		}
	}
}

func claimTooMuch(t *testing.T, b *broker, a API, version int16, skip int, count []byte) {
	frame := make([]byte, 256<<10)
	binary.BigEndian.PutUint16(frame, uint16(a.Key))
	binary.BigEndian.PutUint16(frame[2:], uint16(version))
	binary.BigEndian.PutUint16(frame[headerFixed:], 0xffff) // no client id
	copy(frame[headerFixed+2+skip:], count)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _ = b.accept(context.Background(), frame, new(kmsg.ProduceRequest))
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > uint64(len(frame))*decodeGrowth {
		t.Errorf("%s v%d: %d bytes allocated for a frame of %d, %d per byte are counted", a.Name, version, grown, len(frame), decodeGrowth)
	}
}

// Larger requests wait for the decoders' budget; small ones pass them by.
func TestDecodeBudget(t *testing.T) {
	s := startServer(t, nil)
	if err := s.decode.Acquire(t.Context(), s.cfg.DecodeBytesMax); err != nil {
		t.Fatal(err)
	}
	names := make([]string, 10_000)
	for i := range names {
		names[i] = fmt.Sprint("topic-", i)
	}
	large, small := dial(t, s.addr), dial(t, s.addr)
	r := metadataFor(9, false, names...)
	n := large.send(r)
	for range 20 {
		small.call(metadataFor(9, false, "t"))
		<-time.After(time.Millisecond)
	}
	_ = large.nc.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if k, err := large.nc.Read(make([]byte, 1)); k != 0 || err == nil {
		t.Fatal("a large request was decoded beyond the budget")
	}
	_ = large.nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	s.decode.Release(s.cfg.DecodeBytesMax)
	if got := len(large.receive(r, n).(*kmsg.MetadataResponse).Topics); got != len(names) {
		t.Errorf("%d topics, want %d", got, len(names))
	}
}

// Every key and version there is: answered in a form that can be read, or the
// connection is closed; what is in the table is served, what is not is not.
func TestUnknownKeysAndVersions(t *testing.T) {
	b, _ := hostileBroker(t)
	for key := int16(-3); key < 130; key++ {
		for v := int16(-2); v < 30; v++ {
			frame := binary.BigEndian.AppendUint16(nil, uint16(key))
			frame = binary.BigEndian.AppendUint16(frame, uint16(v))
			frame = append(frame, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
			feed(t, b, frame)
		}
	}
}

// A frame that stops in the middle, for every served API, and one that never
// begins: each connection is closed, and others do not notice.
func TestStalledConnections(t *testing.T) {
	s := startServer(t, func(c *Config) { c.TransferTimeout, c.IdleTimeout = 100*time.Millisecond, 200*time.Millisecond })
	s.node.topic("t", 3)
	_, frames := hostileBroker(t)
	var stalled []*rawClient
	seen := map[int16]bool{}
	for _, frame := range frames {
		key := int16(binary.BigEndian.Uint16(frame))
		if seen[key] {
			continue
		}
		seen[key] = true
		wire := append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)
		for _, n := range []int{0, 1, 4, 4 + headerFixed, len(wire) - 1} {
			c := dial(t, s.addr)
			c.write(wire[:n])
			stalled = append(stalled, c)
		}
	}
	if len(seen) != len(APIs()) {
		t.Errorf("%d of %d APIs", len(seen), len(APIs()))
	}
	good := dial(t, s.addr)
	if p := produced(t, good.call(produceTo(9, "t", map[int32][]byte{0: batch("a")}))); p.ErrorCode != 0 {
		t.Fatalf("%+v", p)
	}
	for _, c := range stalled {
		c.closed()
	}
}

// 500 connections wait in fetches; others are answered, and one append wakes all.
func TestParkedPolls(t *testing.T) {
	s := startServer(t, nil)
	log := s.node.topic("t", 1)[0]
	poll := fetchFrom(12, "t", [16]byte{}, 0)
	poll.MaxWaitMillis = 3_600_000
	wire := frameOf(poll, 1)
	parked := make([]*rawClient, 500)
	for i := range parked {
		parked[i] = dial(t, s.addr)
		parked[i].write(wire)
	}
	until(t, "all of them wait", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := 0
		for c := range s.mu.conns {
			n += int(c.inFlight.Load())
		}
		return n == len(parked)
	})
	for range 50 {
		c := dial(t, s.addr)
		began := time.Now()
		if got := c.call(kmsg.NewPtrApiVersionsRequest()).(*kmsg.ApiVersionsResponse).ErrorCode; got != 0 {
			t.Fatalf("error %d", got)
		}
		if took := time.Since(began); took > time.Minute { // a poll's delay is an hour
			t.Errorf("ApiVersions took %v beside parked polls", took)
		}
	}
	for _, c := range parked { // nobody was answered by mistake
		_ = c.nc.SetReadDeadline(time.Now().Add(-time.Second))
		if n, _ := c.nc.Read(make([]byte, 1)); n != 0 {
			t.Fatal("a parked fetch was answered without a record")
		}
		_ = c.nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	}
	appendTo(t, log, batch("wake up"))
	for _, c := range parked {
		if p := fetched(t, c.receive(poll, 1), 0); p.ErrorCode != 0 || len(p.RecordBatches) == 0 {
			t.Fatalf("%+v", p)
		}
	}
}

// countedReads counts the reads of logs.
type countedReads struct {
	*fakeNode
	reads *atomic.Int64
}

type countedLog struct {
	Log
	reads *atomic.Int64
}

func (n countedReads) Log(ref mink.BucketRef) (Log, error) {
	l, err := n.fakeNode.Log(ref)
	return countedLog{l, n.reads}, err
}

func (l countedLog) Read(ctx context.Context, r tablet.ReadRequest) (tablet.ReadResult, error) {
	l.reads.Add(1)
	return l.Log.Read(ctx, r)
}

// A client that asks for much and reads nothing: what it holds is one answer
// and what the sockets took, others are served, and it is cut off.
func TestSlowReader(t *testing.T) {
	var reads atomic.Int64
	s := startServer(t, func(c *Config) { c.TransferTimeout, c.InFlightMax = 500*time.Millisecond, 100 })
	log := s.node.topic("t", 1)[0]
	s.broker.backend = countedReads{s.node, &reads}
	log.opts.MaxBytes = 16 << 20
	big := batch(string(make([]byte, 3<<20)))
	appendTo(t, log, big)
	slow := dial(t, s.addr)
	r := fetchFrom(12, "t", [16]byte{}, 0)
	const asked = 60
	var wire []byte
	for i := range int32(asked) {
		wire = append(wire, frameOf(r, i)...)
	}
	slow.write(wire)
	for range 5 {
		good := dial(t, s.addr)
		if p := fetched(t, good.call(r), 0); len(p.RecordBatches) != len(big) {
			t.Fatalf("%+v", p)
		}
	}
	// It reads nothing for longer than an answer may take: the connection ends.
	until(t, "the slow reader is cut off", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.mu.conns {
			if c.nc.RemoteAddr().String() == slow.nc.LocalAddr().String() {
				return false
			}
		}
		return true
	})
	if n := reads.Load() / 2; n > 20 { // the second read of a fetch finds the end
		t.Errorf("%d answers of 3 MiB were made, 5 for others; the slow reader took none of its own", n)
	}
	if _, err := io.Copy(io.Discard, slow.nc); err == nil {
		t.Log("the rest was discarded by the kernel")
	}
}

// Cases fetch_total_cap (redpanda#3420): 1,000 partitions of a MiB each in one
// request: the answer is within the client's cap and the server's.
func TestFetchThousandPartitions(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	const parts = 1000
	logs := node.topic("t", parts)
	one := batch(string(make([]byte, 1<<20-200)))
	appendTo(t, logs[0], one)
	shared := logs[0].mu.batches[0] // the same bytes in every log: 1 MiB, not 1 GiB
	for _, l := range logs[1:] {
		l.set(func(l *fakeLog) { l.mu.batches, l.mu.end, l.mu.hwm = append(l.mu.batches, shared), 1, 1 })
	}
	offsets := make([]int64, parts)
	for _, limit := range []int32{50 << 20, math.MaxInt32, 1} {
		r := fetchFrom(12, "t", [16]byte{}, offsets...)
		r.MaxBytes = limit
		f := newFetchRun(t.Context(), b, r)
		for i := range f.parts {
			f.read(t.Context(), &f.parts[i])
		}
		sent := 0
		for i := range f.parts {
			p := &f.parts[i]
			if p.code != 0 || p.hwm != 1 {
				t.Fatalf("partition %d: error %d, high watermark %d", i, p.code, p.hwm)
			}
			if p.bytes > 0 {
				sent++
			}
		}
		want := max(min(int(limit), b.cfg.FetchBytesMax)/len(one), 1)
		if sent != want || f.bytes != want*len(one) {
			t.Errorf("limit %d: %d partitions, %d bytes; want %d partitions", limit, sent, f.bytes, want)
		}
	}
}

// Clients in all states at once, and the listener stops: nothing is left.
func TestStopWithManyClients(t *testing.T) {
	s := startServer(t, func(c *Config) { c.DrainTimeout = time.Second })
	s.node.topic("t", 1)
	poll := fetchFrom(12, "t", [16]byte{}, 0)
	poll.MaxWaitMillis = 3_600_000
	var wg sync.WaitGroup
	for i := range 40 {
		c := dial(t, s.addr)
		switch i % 4 {
		case 0:
			c.write(frameOf(poll, 1))
		case 1:
			c.write(frameOf(poll, 1)[:9])
		case 2:
			c.call(kmsg.NewPtrApiVersionsRequest())
		}
		wg.Go(func() { _, _ = io.Copy(io.Discard, c.nc) })
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}
