package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// load is what the client does. Sizes are of record values, bytes.
type load struct {
	partitions int
	record     int
	batchMax   int           // largest record batch
	buffered   int           // bytes that the client may hold
	warmup     time.Duration // not measured, at least
	warmBytes  int           // not measured, at least
	duration   time.Duration // measured
	rate       int           // bytes/s; 0: as fast as it goes
	topic      string        // to produce to; made
	opened     func()        // called when the measured time begins
}

// result is one measured run. CPU is the broker's.
type result struct {
	Records   int64
	Bytes     int64
	Seconds   float64
	CPU       float64            // seconds
	Latencies []time.Duration    // of Produce requests, as the client saw them
	Puts      float64            // create-only and stream objects, in the window
	Figures   map[string]float64 `json:",omitempty"`
}

func (r *result) mbPerSecond() float64 { return float64(r.Bytes) / 1e6 / r.Seconds }
func (r *result) recordsPerS() float64 { return float64(r.Records) / r.Seconds }
func (r *result) cpuPerGB() float64    { return r.CPU / (float64(r.Bytes) / 1e9) }

// ownCPUPerGB leaves out what a simulated store took inside the broker's process.
func (r *result) ownCPUPerGB() float64 {
	return (r.CPU - r.Figures["bench_store_cpu_seconds"]) / (float64(r.Bytes) / 1e9)
}
func (r *result) putsPerGB() float64 { return r.Puts / (float64(r.Bytes) / 1e9) }
func percentile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[min(len(d)-1, int(q*float64(len(d))))]
}

// requestTimes gathers how long Produce requests took.
type requestTimes struct {
	mu   sync.Mutex
	on   bool
	took []time.Duration
}

// OnBrokerE2E implements kgo.HookBrokerE2E.
func (h *requestTimes) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e kgo.BrokerE2E) {
	if key != 0 || e.Err() != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.on {
		h.took = append(h.took, e.DurationE2E())
	}
}

func (h *requestTimes) measure() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.on = true
}

func (h *requestTimes) taken() []time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.took
}

func createTopic(ctx context.Context, addr, topic string, partitions int) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	_, err = kadm.NewClient(cl).CreateTopic(ctx, int32(partitions), 1, nil, topic)
	if err != nil {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	return nil
}

// producer sends records round-robin: every partition has a batch that fills.
type producer struct {
	cl      *kgo.Client
	value   []byte
	times   *requestTimes
	records sync.Pool
	acked   atomic.Int64
	failed  atomic.Pointer[error]
}

func newProducer(addr, topic string, l load) (*producer, error) {
	p := &producer{value: make([]byte, l.record), times: &requestTimes{}}
	_, _ = rand.NewChaCha8([32]byte{1}).Read(p.value)
	p.records.New = func() any { return new(kgo.Record) }
	// franz-go with idempotence, its default: acks=all, five requests in flight. No
	// compression: it would measure the codec.
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic(topic),
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerBatchMaxBytes(int32(l.batchMax)), kgo.ProducerLinger(5*time.Millisecond),
		kgo.MaxBufferedRecords(max(1, l.buffered/l.record)), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
		kgo.WithHooks(p.times))
	if err != nil {
		return nil, err
	}
	p.cl = cl
	return p, nil
}

func (p *producer) send(ctx context.Context) {
	r := p.records.Get().(*kgo.Record)
	*r = kgo.Record{Value: p.value}
	p.cl.Produce(ctx, r, p.promise)
}

func (p *producer) promise(r *kgo.Record, err error) {
	if err != nil {
		p.failed.CompareAndSwap(nil, &err)
	} else {
		p.acked.Add(1)
	}
	p.records.Put(r)
}

// until sends for d, at the load's rate; it checks the clock every 64 records.
func (p *producer) until(ctx context.Context, d time.Duration, l load) error {
	began := time.Now()
	for n := int64(0); ; n++ {
		if n%64 == 0 {
			since := time.Since(began)
			if since >= d || ctx.Err() != nil {
				return ctx.Err()
			}
			if e := p.failed.Load(); e != nil {
				return fmt.Errorf("produce: %w", *e)
			}
			if l.rate > 0 {
				due := time.Duration(float64(n*int64(l.record)) / float64(l.rate) * float64(time.Second))
				if due > since && !pause(ctx, due-since) {
					return ctx.Err()
				}
			}
		}
		p.send(ctx)
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// warmMax bounds the warming up to load.warmBytes.
const warmMax = 30 * time.Second

// produce measures from a warm, drained client to the last acknowledgement of
// what it sent in l.duration.
func produce(ctx context.Context, b *process, l load) (*result, error) {
	if err := createTopic(ctx, b.kafka, l.topic, l.partitions); err != nil {
		return nil, err
	}
	p, err := newProducer(b.kafka, l.topic, l)
	if err != nil {
		return nil, err
	}
	defer p.cl.Close()
	for began := time.Now(); ; {
		if err := p.until(ctx, l.warmup, l); err != nil {
			return nil, err
		}
		if p.acked.Load()*int64(l.record) >= int64(l.warmBytes) || time.Since(began) > warmMax {
			break
		}
	}
	if err := p.cl.Flush(ctx); err != nil {
		return nil, err
	}
	w, err := openWindow(ctx, b)
	if err != nil {
		return nil, err
	}
	l.opened()
	p.times.measure()
	before := p.acked.Load()
	if err := errors.Join(p.until(ctx, l.duration, l), p.cl.Flush(ctx)); err != nil {
		return nil, err
	}
	n := p.acked.Load() - before
	r, err := w.close(ctx, n, n*int64(l.record))
	if err != nil {
		return nil, err
	}
	r.Latencies = p.times.taken()
	if e := p.failed.Load(); e != nil {
		return nil, fmt.Errorf("produce: %w", *e)
	}
	return r, nil
}

// fillName is the topic that fillTopic fills.
const fillName = "bench-fetch"

// fillTopic produces `fill` bytes and answers how many records they are.
func fillTopic(ctx context.Context, b *process, l load, fill int) (records int64, err error) {
	if err := createTopic(ctx, b.kafka, fillName, l.partitions); err != nil {
		return 0, err
	}
	p, err := newProducer(b.kafka, fillName, l)
	if err != nil {
		return 0, err
	}
	for range fill / l.record {
		p.send(ctx)
	}
	err = p.cl.Flush(ctx)
	p.cl.Close()
	if err != nil {
		return 0, err
	}
	if e := p.failed.Load(); e != nil {
		return 0, fmt.Errorf("fill: %w", *e)
	}
	return p.acked.Load(), nil
}

// fetch fills a topic with `fill` bytes and reads it from the start, again and
// again, for l.duration. The data is in the broker's memory: it is hot.
func fetch(ctx context.Context, b *process, l load, fill int) (*result, error) {
	want, err := fillTopic(ctx, b, l, fill)
	if err != nil {
		return nil, err
	}
	if _, err := readAll(ctx, b.kafka, fillName, l, want); err != nil { // warm up
		return nil, err
	}
	w, err := openWindow(ctx, b)
	if err != nil {
		return nil, err
	}
	l.opened()
	var records, bytes int64
	for time.Since(w.began) < l.duration {
		n, err := readAll(ctx, b.kafka, fillName, l, want)
		if err != nil {
			return nil, err
		}
		records, bytes = records+want, bytes+n
	}
	return w.close(ctx, records, bytes)
}

// readAll consumes `want` records and answers their bytes.
func readAll(ctx context.Context, addr, topic string, l load, want int64) (int64, error) {
	at := map[int32]kgo.Offset{}
	for i := range l.partitions {
		at[int32(i)] = kgo.NewOffset().AtStart()
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: at}),
		kgo.FetchMaxBytes(32<<20), kgo.FetchMaxPartitionBytes(8<<20), kgo.FetchMaxWait(500*time.Millisecond))
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	var n, bytes int64
	for n < want {
		fs := cl.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			return 0, fmt.Errorf("fetch: %w", err)
		}
		fs.EachRecord(func(r *kgo.Record) { n++; bytes += int64(len(r.Value)) })
	}
	if n != want {
		return 0, fmt.Errorf("%d records fetched, %d were produced", n, want)
	}
	return bytes, nil
}

// window is a measured stretch of a broker's time.
type window struct {
	b       *process
	began   time.Time
	cpu     time.Duration
	figures map[string]float64
}

func openWindow(ctx context.Context, b *process) (*window, error) {
	figures, err := b.figures(ctx)
	if err != nil {
		return nil, err
	}
	cpu, err := b.cpu()
	return &window{b: b, began: time.Now(), cpu: cpu, figures: figures}, err
}

func (w *window) close(ctx context.Context, records, bytes int64) (*result, error) {
	seconds := time.Since(w.began).Seconds()
	cpu, err := w.b.cpu()
	if err != nil {
		return nil, err
	}
	figures, err := w.b.figures(ctx)
	if err != nil {
		return nil, err
	}
	r := &result{Records: records, Bytes: bytes, Seconds: seconds, CPU: (cpu - w.cpu).Seconds(), Figures: map[string]float64{}}
	for name, v := range figures {
		r.Figures[name] = v - w.figures[name]
	}
	r.Puts = r.Figures["mink_wal_objects_total"] + r.Figures["mink_stream_objects_total"]
	return r, nil
}
