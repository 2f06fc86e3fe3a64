package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

func decodeJSON(b []byte, out any) error { return json.Unmarshal(b, out) }

const (
	chaosTopic      = "chaos"
	chaosRows       = "chaos.rows"
	chaosPlain      = "chaos.plain"
	chaosPartitions = 4
	chaosParts      = 2
)

var chaosProducers = []string{"a", "b"}

// chaos is a node under load that is killed again and again, and what its
// writers were promised.
type chaos struct {
	*node
	t   *testing.T
	rng *rand.Rand
	c   *client.Client

	kafka map[string][]*acks // producer -> partition
	rows  []*acks            // part
	plain plainLoad

	read    *chaosRead // goes on from round to round
	figures map[string]float64
}

// TestChaos kills a node at random moments under load: soon after it is ready,
// while it recovers, while it uploads, merges and deletes. After every restart
// everything that was acknowledged is there, once and in order, offsets have no
// holes, and the deep check finds nothing. MINK_TEST_CHAOS_ROUNDS and
// MINK_TEST_CHAOS_SEED choose the run.
func TestChaos(t *testing.T) {
	rounds := number(t, "MINK_TEST_CHAOS_ROUNDS", 3)
	seed := uint64(number(t, "MINK_TEST_CHAOS_SEED", int(time.Now().UnixNano()%1_000_000)))
	t.Logf("%d rounds, MINK_TEST_CHAOS_SEED=%d", rounds, seed)
	x := &chaos{t: t, rng: rand.New(rand.NewPCG(seed, 1)), kafka: map[string][]*acks{}, figures: map[string]float64{}}
	x.node = newNode(t, "--wal-upload-interval", "150ms", "--object-grace", "1s", "--compaction-interval", "300ms",
		"--object-cleanup-interval", "200ms", "--orphan-age", "2s", "--coordinator-tick", "200ms",
		"--metadata-snapshot-interval", "1s", "--log-retention-interval", "500ms")
	x.start()
	x.tables()
	x.read = newChaosRead()

	stop, end := context.WithCancel(t.Context())
	defer end()
	var load errgroup.Group
	x.startLoad(stop, &load)
	for round := range rounds {
		x.round(round)
		if t.Failed() {
			return
		}
	}
	end()
	if err := load.Wait(); err != nil {
		t.Fatalf("the load: %v", err)
	}
	x.verify(x.read, "after the load")
	x.gather()
	x.node.kill()
	x.start()
	whole := newChaosRead()
	x.verify(whole, "all of it once more after the last kill")
	x.everythingSent(whole)
	t.Logf("%d rounds: %d records and %d rows acknowledged exactly once, %d of %d plain rows; %v",
		rounds, whole.records, whole.rowsRead, len(x.plain.snapshot()), x.plain.sent, x.figures)
	x.exercised(rounds)
	x.stop()
}

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s=%q: %v", name, s, err)
	}
	return n
}

func (x *chaos) tables() {
	x.mink(nil, "topic", "create", chaosTopic, "--partitions", strconv.Itoa(chaosPartitions))
	x.mink(nil, "db", "create", "chaos")
	columns := []string{"-C", "part INT NOT NULL", "-C", "seq BIGINT NOT NULL", "-C", "text STRING"}
	x.mink(nil, append([]string{"table", "create", chaosRows, "--bucket-key", "part", "--bucket-count", "2"}, columns...)...)
	x.mink(nil, append([]string{"table", "create", chaosPlain, "--bucket-count", "1"}, columns...)...)
}

func (x *chaos) startLoad(stop context.Context, g *errgroup.Group) {
	ctx := x.t.Context()
	x.c = x.client()
	for i, name := range chaosProducers {
		lists := make([]*acks, chaosPartitions)
		for p := range lists {
			lists[p] = &acks{}
		}
		x.kafka[name] = lists
		codec := []kgo.CompressionCodec{kgo.NoCompression(), kgo.ZstdCompression()}[i]
		k := x.franz(kgo.ProducerBatchCompression(codec),
			kgo.StopProducerOnDataLossDetected(), kgo.MaxBufferedRecords(2000))
		g.Go(func() error { return produceLoad(ctx, stop, k, chaosTopic, name, lists) })
	}
	w, err := x.c.NewWriter(ctx, chaosRows, client.DefaultWriter())
	if err != nil {
		x.t.Fatal(err)
	}
	for part := range chaosParts {
		a := &acks{}
		x.rows = append(x.rows, a)
		g.Go(func() error { return appendLoad(ctx, stop, w, int32(part), a) })
	}
	x.plain.acked = map[int64]bool{}
	database, table, _ := strings.Cut(chaosPlain, ".")
	g.Go(func() error { return x.plain.run(ctx, stop, x.flight, w.Schema(), database, table) })
}

// round lets the load run for a while, kills the node in one of several ways
// and checks what is there after the restart.
func (x *chaos) round(round int) {
	x.t.Helper()
	how := "under load"
	switch x.rng.IntN(8) {
	case 0, 1:
		how = "milliseconds after it was ready"
		for range 1 + x.rng.IntN(3) {
			pause(x.t.Context(), time.Duration(x.rng.IntN(15_000))*time.Microsecond)
			x.gather()
			x.node.kill()
			x.start()
		}
	case 2, 3:
		how = "while it recovered"
		pause(x.t.Context(), time.Duration(x.rng.IntN(300))*time.Millisecond)
		x.gather()
		x.node.kill()
		for range 1 + x.rng.IntN(3) {
			x.launch()
			pause(x.t.Context(), time.Duration(x.rng.IntN(250_000))*time.Microsecond)
			x.node.kill()
		}
		x.start()
	default:
		long := time.Duration(x.rng.IntN(2)) * 2 * time.Second // for what waits for a grace or an age
		pause(x.t.Context(), long+time.Duration(x.rng.IntN(1000))*time.Millisecond)
		x.gather()
		x.node.kill()
		x.start()
	}
	what := fmt.Sprintf("round %d, killed %s", round, how)
	x.verify(x.read, what)
	if round%25 == 24 {
		x.verify(newChaosRead(), what+", everything from the start")
	}
}

// gather adds up the node's counters before they are lost.
func (x *chaos) gather() {
	for _, name := range []string{"mink_wal_objects_total", "mink_stream_objects_total", "mink_stream_compactions_total",
		"mink_stream_objects_deleted_total", "mink_wal_slots_deleted_total", "mink_stream_orphans_deleted_total"} {
		x.figures[name] += max(0, x.figure(name))
	}
}

// exercised fails when a long run never did what it is there for.
func (x *chaos) exercised(rounds int) {
	for name, after := range map[string]int{
		"mink_stream_objects_total": 10, "mink_wal_slots_deleted_total": 20, "mink_stream_compactions_total": 50, "mink_stream_objects_deleted_total": 50,
	} {
		if rounds >= after && x.figures[name] == 0 {
			x.t.Errorf("%d rounds, and %s is 0", rounds, name)
		}
	}
}

// chaosRead is how far a verification has read, and what it found.
type chaosRead struct {
	next     map[string]int64   // stream, "table/bucket", -> next offset
	found    map[string][]int64 // writer and stream -> offset of each of its rows
	plain    map[int64]bool
	records  int
	rowsRead int
}

func newChaosRead() *chaosRead {
	return &chaosRead{next: map[string]int64{}, found: map[string][]int64{}, plain: map[int64]bool{}}
}

// verify reads what came since r's last time and compares it with what was
// acknowledged before it began.
func (x *chaos) verify(r *chaosRead, what string) {
	x.t.Helper()
	kafka := map[string][]int64{}
	for name, lists := range x.kafka {
		for p, a := range lists {
			kafka[writerOf(name, p)] = a.snapshot(x.t)
		}
	}
	rows := make([][]int64, len(x.rows))
	for part, a := range x.rows {
		rows[part] = a.snapshot(x.t)
	}
	plain := x.plain.snapshot()

	ctx, cancel := context.WithTimeout(x.t.Context(), 2*time.Minute)
	defer cancel()
	for p, end := range ends(ctx, x.t, x.c, "kafka."+chaosTopic) {
		x.readPartition(r, int32(p), int64(end), what)
	}
	x.scan(ctx, r, chaosRows, what, func(part int32, seq int64) {
		w := writerOf("rows", int(part))
		if seq != int64(len(r.found[w])) {
			x.t.Fatalf("%s: %s: row %d of part %d comes where row %d belongs", what, chaosRows, seq, part, len(r.found[w]))
		}
		r.found[w] = append(r.found[w], -1)
		r.rowsRead++
	})
	x.scan(ctx, r, chaosPlain, what, func(_ int32, seq int64) {
		if r.plain[seq] {
			x.t.Fatalf("%s: %s: row %d is there twice, it was sent once", what, chaosPlain, seq)
		}
		r.plain[seq] = true
	})
	for w, promised := range kafka {
		x.compare(what, w, promised, r.found[w])
	}
	for part, promised := range rows {
		x.compare(what, writerOf("rows", part), promised, r.found[writerOf("rows", part)])
	}
	for seq := range plain {
		if !r.plain[seq] {
			x.t.Fatalf("%s: %s: row %d was acknowledged and is not there", what, chaosPlain, seq)
		}
	}
	if report := check(ctx, x.t, x.c); !report.Clean {
		x.t.Fatalf("%s: fsck: %+v", what, report.Problems)
	}
}

func writerOf(name string, stream int) string { return fmt.Sprintf("%s/%d", name, stream) }

func (x *chaos) compare(what, writer string, promised, found []int64) {
	x.t.Helper()
	if len(found) < len(promised) {
		x.t.Fatalf("%s: writer %s: %d rows were acknowledged, %d are there", what, writer, len(promised), len(found))
	}
	for seq, offset := range promised {
		if offset >= 0 && found[seq] != offset {
			x.t.Fatalf("%s: writer %s: row %d was acknowledged at offset %d and is at %d", what, writer, seq, offset, found[seq])
		}
	}
}

func (x *chaos) readPartition(r *chaosRead, p int32, end int64, what string) {
	x.t.Helper()
	stream := writerOf(chaosTopic, int(p))
	for _, rec := range x.consume(chaosTopic, p, r.next[stream], end, kgo.FetchMaxWait(100*time.Millisecond)) {
		if rec.Offset != r.next[stream] {
			x.t.Fatalf("%s: %s: offset %d follows %d", what, stream, rec.Offset, r.next[stream]-1)
		}
		r.next[stream]++
		w := writerOf(string(rec.Key), int(p))
		if want := fmt.Sprintf("%s/%d", w, len(r.found[w])); string(rec.Value) != want {
			x.t.Fatalf("%s: %s at offset %d is %q, want %q", what, stream, rec.Offset, rec.Value, want)
		}
		r.found[w] = append(r.found[w], rec.Offset)
		r.records++
	}
	if r.next[stream] != end {
		x.t.Fatalf("%s: %s ends at %d, the high watermark was %d", what, stream, r.next[stream], end)
	}
}

// scan reads a table of numbered rows from where r stands.
func (x *chaos) scan(ctx context.Context, r *chaosRead, table, what string, each func(part int32, seq int64)) {
	x.t.Helper()
	for b, end := range ends(ctx, x.t, x.c, table) {
		stream := writerOf(table, b)
		if r.next[stream] >= int64(end) {
			continue
		}
		request := client.ScanRequest{Table: table, Bucket: int32(b), From: strconv.FormatInt(r.next[stream], 10)}
		for batch, err := range x.c.Scan(ctx, request) {
			if err != nil {
				x.t.Fatalf("%s: scan %s: %v", what, stream, err)
			}
			n := batch.Record.NumRows()
			if n > 0 && (batch.Meta.Base != mink.Offset(r.next[stream]) || int64(batch.Meta.Last-batch.Meta.Base)+1 != n) {
				x.t.Fatalf("%s: %s: a batch of %d rows has offsets %d..%d, want them from %d", what, stream, n, batch.Meta.Base, batch.Meta.Last, r.next[stream])
			}
			part, seq := batch.Record.Column(0).(*array.Int32), batch.Record.Column(1).(*array.Int64)
			for i := range int(n) {
				each(part.Value(i), seq.Value(i))
			}
			r.next[stream] += n
		}
		if r.next[stream] < int64(end) {
			x.t.Fatalf("%s: %s ends at %d, the high watermark was %d", what, stream, r.next[stream], end)
		}
	}
}

// everythingSent: the idempotent writers were all told that everything arrived,
// and nothing else is there.
func (x *chaos) everythingSent(r *chaosRead) {
	x.t.Helper()
	for name, lists := range x.kafka {
		for p, a := range lists {
			if sent, found := len(a.snapshot(x.t)), len(r.found[writerOf(name, p)]); sent != found || sent == 0 {
				x.t.Errorf("producer %s, partition %d: %d records sent, %d there", name, p, sent, found)
			}
		}
	}
	for part, a := range x.rows {
		if sent, found := len(a.snapshot(x.t)), len(r.found[writerOf("rows", part)]); sent != found || sent == 0 {
			x.t.Errorf("rows of part %d: %d sent, %d there", part, sent, found)
		}
	}
}
