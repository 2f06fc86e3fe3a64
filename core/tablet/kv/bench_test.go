package kv

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/cockroachdb/pebble/v2"

	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

var (
	ratioRounds = flag.Int("ratios", 0, "rounds of TestRatios: KV tablet against raw Pebble, interleaved")
	ratioRows   = flag.Int("ratio-rows", 1_000_000, "rows of TestRatios")
	openStores  = flag.Int("stores", 0, "stores of TestMemoryOfStores")
)

const (
	benchBatch = 256
	benchSize  = 100 // bytes of a row
)

// forgetful is a stream that keeps nothing: the log's cost is not the store's.
type forgetful struct {
	*memStream
	at mink.Offset
}

var nullTicket = func() *memTicket { t := &memTicket{done: make(chan struct{})}; close(t.done); return t }()

func (s *forgetful) Append(r stream.AppendRequest) (tablet.Ticket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = r.Start + mink.Offset(r.Span)
	s.hw = s.at
	return nullTicket, nil
}

func (s *forgetful) LogEnd() mink.Offset { return s.get(&s.at) }

func (s *forgetful) Read(_ context.Context, r stream.ReadRequest) (stream.ReadResult, error) {
	return stream.ReadResult{Next: s.get(&s.at), HighWatermark: s.get(&s.at)}, nil
}

// benchTablet is a tablet of (k BIGINT, v STRING), rows of 100 bytes.
func benchTablet(t testing.TB, image string) *Tablet {
	t.Helper()
	sh := newShared(t, func(c *SharedConfig) { c.CacheBytes, c.MemtableBytes = 512<<20, 4<<20 })
	d := table(t, 1, map[string]string{"changelog_image": image, "max.message.bytes": "16MiB"}, column("k", "BIGINT"), column("v", "STRING"))
	b := &bed{t: t, table: Table{}, sh: sh, dir: t.TempDir(), s: newStream(false)}
	s1 := d.Schema.Clone()
	b.table.Descriptor, b.table.Schemas = d, append(b.table.Schemas, &s1)
	b.cfg = Default()
	b.cfg.Shared = sh
	cfg := tablet.Default()
	cfg.Bucket, cfg.PrimaryKey, cfg.Schemas = bucket7, true, b.changelogSchemas()
	var err error
	if b.log, err = tablet.OpenLog(context.Background(), &forgetful{memStream: b.s}, cfg); err != nil {
		t.Fatal(err)
	}
	if err := b.tryOpen(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	return b.kv
}

// batchOf is a put of 256 rows with keys of the sequence.
func batchOf(t testing.TB, s *Tablet, r *rand.Rand, next func() int64) Put {
	b := array.NewRecordBuilder(memory.DefaultAllocator, s.Schema().Arrow())
	defer b.Release()
	value := make([]byte, benchSize-8)
	for range benchBatch {
		for i := range value {
			value[i] = byte('a' + r.IntN(26))
		}
		b.Field(0).(*array.Int64Builder).Append(next())
		b.Field(1).(*array.StringBuilder).Append(string(value))
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	meta, body, err := arrowipc.Encode(rec)
	if err != nil {
		t.Fatal(err)
	}
	return Put{SchemaID: 1, Metadata: meta, Body: body, Count: benchBatch, WriterID: mink.NoWriter}
}

// upserts hands over n batches, pipelined, and waits for the last.
func upserts(t testing.TB, s *Tablet, puts []Put, n int) {
	var last *Pending
	for i := range n {
		for {
			p, err := s.Put(context.Background(), puts[i%len(puts)])
			if errors.Is(err, mink.ErrThrottled) {
				<-last.Done()
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			last = p
			break
		}
	}
	<-last.Done()
}

func rawStore(t testing.TB) *store {
	sh := newShared(t, func(c *SharedConfig) { c.CacheBytes, c.MemtableBytes = 512<<20, 4<<20 })
	s, _ := mustOpen(t, sh, filepath.Join(t.TempDir(), "raw"))
	t.Cleanup(func() { mustClose(t, s) })
	return s
}

// letters are what values are cut from: as little to compress as the values of batchOf.
func letters(r *rand.Rand) []byte {
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = byte('a' + r.IntN(26))
	}
	return b
}

// rawPuts is what upserts does to the store, alone: batches of 256 rows.
func rawPuts(t testing.TB, s *store, text []byte, keys []int64, n int) {
	key := make([]byte, 9)
	key[0] = rowPrefix
	at, from := 0, 0
	for range n {
		b := s.db.NewBatchWithSize(benchBatch * (benchSize + 24))
		for range benchBatch {
			binary.BigEndian.PutUint64(key[1:], uint64(keys[at%len(keys)])^1<<63)
			at++
			if from += 61; from+benchSize > len(text) {
				from -= len(text) - benchSize
			}
			_ = b.Set(key, text[from:from+benchSize], nil)
		}
		if err := b.Commit(pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		_ = b.Close()
	}
}

func encodeKey(k int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(k)^1<<63) }

// cost is what something took, of the clock and of all processors.
type cost struct{ wall, cpu float64 }

// costOf measures f, and what the stores do because of it until they rest.
func costOf(t testing.TB, f func(), stores ...*store) cost {
	used := func() float64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
	}
	runtime.GC()
	cpu, at := used(), time.Now()
	f()
	wall := time.Since(at).Seconds()
	for rest := 0; rest < 3; {
		time.Sleep(time.Millisecond)
		rest++
		for _, s := range stores {
			if m := s.db.Metrics(); m.Compact.NumInProgress+m.Flush.NumInProgress > 0 {
				rest = 0
			}
		}
	}
	return cost{wall, used() - cpu}
}

// TestRatios measures tablet against raw Pebble, round by round (make bench): go test
// ./core/tablet/kv -run Ratios -ratios 10 -v. It asserts nothing. Beside the clock's
// it says the processors' time, which a loaded machine changes less.
func TestRatios(t *testing.T) {
	if *ratioRounds == 0 {
		t.Skip("give -ratios")
	}
	r := rand.New(rand.NewPCG(1, 2))
	raw, text := rawStore(t), letters(r)
	kvs := map[string]*Tablet{"full": benchTablet(t, "full"), "wal": benchTablet(t, "wal")}
	stores := []*store{raw, kvs["full"].store, kvs["wal"].store}
	benchRows := *ratioRows
	keys := make([]int64, benchRows)
	for i := range keys {
		keys[i] = int64(i)
	}
	rawPuts(t, raw, text, keys, benchRows/benchBatch)
	for _, s := range kvs {
		k := int64(-1)
		var puts []Put
		for range benchRows / benchBatch {
			puts = append(puts, batchOf(t, s, r, func() int64 { k++; return k }))
		}
		upserts(t, s, puts, len(puts))
	}
	const n = 1000 // batches: enough that memtables fill and are merged
	random := make([]int64, n*benchBatch)
	for i := range random {
		random[i] = r.Int64N(int64(benchRows / benchBatch * benchBatch))
	}
	at := 0
	next := func() int64 { at++; return random[at%len(random)] }
	puts := map[string][]Put{}
	for name, s := range kvs {
		for range n {
			puts[name] = append(puts[name], batchOf(t, s, r, next))
		}
	}
	var lookups [][][]byte
	for i := range n {
		var batch [][]byte
		for j := range benchBatch {
			batch = append(batch, encodeKey(random[i*benchBatch+j]))
		}
		lookups = append(lookups, batch)
	}
	fresh := int64(1) << 40
	get := map[string][]float64{}
	ratio := func(name string, one, of cost) {
		get[name] = append(get[name], one.wall/of.wall)
		get[name+", cpu"] = append(get[name+", cpu"], one.cpu/of.cpu)
	}
	rate := func(name string, c cost) {
		get[name+", 1/s"] = append(get[name+", 1/s"], n*benchBatch/c.wall)
		get[name+", cpu us"] = append(get[name+", cpu us"], c.cpu*1e6/(n*benchBatch))
	}
	costOf(t, func() {}, stores...)
	for range *ratioRounds {
		rawGet := costOf(t, func() { // of the same store: another one may have other levels
			for _, batch := range lookups {
				for _, k := range batch {
					v, c, err := kvs["full"].store.db.Get(rowKey(nil, k))
					if err != nil || len(v) < benchSize {
						t.Fatal(err)
					}
					_ = c.Close()
				}
			}
		}, stores...)
		kvGet := costOf(t, func() {
			for _, batch := range lookups {
				rows, _, err := kvs["full"].Lookup(context.Background(), batch, nil)
				if err != nil || rows.NumRows() != benchBatch {
					t.Fatal(err, rows)
				}
				rows.Release()
			}
		}, stores...)
		ratio("lookups / raw gets", rawGet, kvGet)
		rate("raw gets", rawGet)
		rawPut := costOf(t, func() { rawPuts(t, raw, text, random, n) }, stores...)
		rate("raw puts", rawPut)
		for name, s := range kvs {
			took := costOf(t, func() { upserts(t, s, puts[name], n) }, stores...)
			ratio("upserts "+name+" / raw puts", rawPut, took)
			rate("upserts "+name, took)
			if name == "full" {
				ratio("upserts full / raw gets, then raw puts", cost{rawGet.wall + rawPut.wall, rawGet.cpu + rawPut.cpu}, took)
			}
		}
		inserts := make([]Put, n)
		for i := range inserts {
			inserts[i] = batchOf(t, kvs["full"], r, func() int64 { fresh++; return fresh })
		}
		took := costOf(t, func() { upserts(t, kvs["full"], inserts, n) }, stores...)
		ratio("inserts full / raw puts", rawPut, took)
	}
	for _, name := range slices.Sorted(maps.Keys(get)) {
		v := slices.Clone(get[name])
		slices.Sort(v)
		t.Logf("%-44s median %.2f, %.2f to %.2f of %d", name, v[len(v)/2], v[0], v[len(v)-1], len(v))
	}
}

// TestMemoryOfStores opens many stores with rows in each, all written to, and says
// what the process takes: go test ./core/tablet/kv -run MemoryOfStores -stores 500 -v.
// The node's budget is 1 GiB for 500.
func TestMemoryOfStores(t *testing.T) {
	if *openStores == 0 {
		t.Skip("give -stores")
	}
	cfg := DefaultShared()
	sh, err := NewShared(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer sh.Close()
	d := table(t, 1, nil, column("k", "BIGINT"), column("v", "STRING"))
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(3, 4))
	before := resident(t)
	most := int64(0)
	beds := make([]*bed, 0, *openStores)
	for i := range *openStores {
		b := makeBed(t, sh, filepath.Join(dir, strconv.Itoa(i)), d, true)
		defer b.close()
		beds = append(beds, b)
		k := int64(0)
		for range 20 { // 5,120 rows, 500 KB
			p, err := b.kv.Put(context.Background(), batchOf(t, b.kv, r, func() int64 { k++; return r.Int64() }))
			if err != nil {
				t.Fatal(err)
			}
			wait(t, p)
		}
		b.s.mu.Lock() // the log's memory is not the store's
		b.s.start, b.s.frames = b.s.hw, nil
		b.s.mu.Unlock()
		if i%50 == 49 {
			runtime.GC()
			most = max(most, resident(t))
			t.Logf("%d stores: %d MiB resident, %d MiB of it blocks and memtables", i+1, (resident(t)-before)>>20, sh.Stats().CacheBytes>>20)
		}
	}
	debug.FreeOSMemory()
	now := resident(t)
	t.Logf("%d open stores take %d MiB (%d KiB each), at most %d MiB while they were filled", len(beds), (now-before)>>20, (now-before)>>10/int64(len(beds)), (most-before)>>20)
	if limit := int64(len(beds)) << 30 / 500; *openStores >= 100 && now-before > limit+cfg.CacheBytes {
		t.Errorf("more than %d MiB", (limit+cfg.CacheBytes)>>20)
	}
}

// resident is the process's resident memory.
func resident(t testing.TB) int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
