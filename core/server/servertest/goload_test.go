package servertest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// entry is a row of db.t, row one of db.k; part is what partial updates of db.k set.
type (
	entry struct {
		ID int64 `mink:"id"`
	}
	row struct {
		ID int64   `mink:"id"`
		A  *string `mink:"a"`
		B  *int32  `mink:"b"`
	}
	part struct {
		ID int64 `mink:"id"`
		B  int32 `mink:"b"`
	}
)

func (r row) String() string {
	a, b := "null", "null"
	if r.A != nil {
		a = *r.A
	}
	if r.B != nil {
		b = fmt.Sprint(*r.B)
	}
	return fmt.Sprintf("%d(a=%s, b=%s)", r.ID, a, b)
}

// Keys of db.k by what is done with them: whole rows are replaced, one column is set,
// rows come and go.
const (
	wholeFrom, wholeTo = 0, 40
	partFrom, partTo   = 100, 140
	flipFrom, flipTo   = 200, 220
)

// goLoad uses a cluster in every way that the Go client has, and keeps what it was told.
//
//	db.t  typed appends; scans of it; a tail from its beginning
//	db.k  typed upserts, partial updates, deletes; after each round lookups of its keys; a Bootstrap, resumed again and again
type goLoad struct {
	t       *testing.T
	c       *servertest.Cluster
	cl      *client.Client
	ctx     context.Context
	stop    context.CancelFunc // of the readers
	quit    chan struct{}      // closed: writers end
	writers sync.WaitGroup
	readers sync.WaitGroup
	log     []mink.BucketRef // of db.t

	acked  atomic.Int64 // rows 0 .. acked-1 of db.t are acknowledged
	counts [kinds]atomic.Int64

	mu       sync.Mutex
	failures []string
	rounds   int32                      // of upserts that were acknowledged
	tailed   map[mink.BucketRef][]int64 // what the tail brought, in order
	copied   map[int64]row              // what the Bootstrap brought
}

// What goes on, each counted.
const (
	appends = iota
	upserts
	scans
	tails
	copies
	kinds
)

var kindNames = [kinds]string{"appends", "upserts with lookups", "scans", "batches of the tail", "batches of the Bootstrap"}

func startGoLoad(t *testing.T, c *servertest.Cluster) *goLoad {
	t.Helper()
	setup := c.Client(t)
	l := &goLoad{t: t, c: c, cl: c.ClientWith(t, func(c *client.Config) { c.LookAfter = time.Second }), quit: make(chan struct{}),
		log: table(t, setup, "t", 6), tailed: map[mink.BucketRef][]int64{}, copied: map[int64]row{}}
	keyed(t, setup, "")
	l.ctx, l.stop = context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(l.end)
	l.writers.Go(l.append)
	l.writers.Go(l.upsert)
	l.writers.Go(l.scan)
	l.readers.Go(l.tail)
	l.readers.Go(l.copy)
	return l
}

// end ends what still runs, of a load that did not finish.
func (l *goLoad) end() {
	l.stop()
	l.writers.Wait()
	l.readers.Wait()
}

func (l *goLoad) failed(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.failures) < 10 {
		l.failures = append(l.failures, fmt.Sprintf(format, args...))
	}
}

func (l *goLoad) broken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.failures) > 0
}

// running paces the writers; false: they are to end.
func (l *goLoad) running() bool {
	pace := time.NewTimer(5 * time.Millisecond)
	defer pace.Stop()
	select {
	case <-l.quit:
		return false
	case <-l.ctx.Done():
		return false
	case <-pace.C:
		return !l.broken()
	}
}

// append writes ids in order, some appends at a time.
func (l *goLoad) append() {
	w, err := client.NewTypedWriter[entry](l.ctx, l.cl, "db.t", client.DefaultWriter())
	if err != nil {
		l.failed("open a writer: %v", err)
		return
	}
	for l.running() {
		next := l.acked.Load()
		var out []*client.Append
		for range 3 {
			var batch []entry
			for range 12 {
				batch = append(batch, entry{next})
				next++
			}
			a, err := w.AppendRows(l.ctx, batch...)
			if err != nil {
				l.failed("append: %v", err)
				return
			}
			out = append(out, a)
		}
		for _, a := range out {
			if err := a.Wait(l.ctx); err != nil {
				l.failed("append: %v", err)
				return
			}
		}
		l.acked.Store(next)
		l.counts[appends].Add(1)
	}
	if err := w.Close(l.ctx); err != nil {
		l.failed("close the writer: %v", err)
	}
}

func text(v int32) *string {
	s := fmt.Sprintf("v%d", v)
	return &s
}

// upsert writes round after round; each key's rows have the round's number.
func (l *goLoad) upsert() {
	w, err := client.NewTypedUpsertWriter[row](l.ctx, l.cl, "db.k", client.DefaultUpsert())
	if err != nil {
		l.failed("open an upsert writer: %v", err)
		return
	}
	p, err := client.NewTypedUpsertWriter[part](l.ctx, l.cl, "db.k", client.DefaultUpsert())
	if err != nil {
		l.failed("open a writer of partial updates: %v", err)
		return
	}
	look, err := client.NewTypedLookuper[entry, row](l.ctx, l.cl, "db.k", client.DefaultLookup())
	if err != nil {
		l.failed("open a lookuper: %v", err)
		return
	}
	defer look.Close()
	for v := int32(1); l.running(); v++ {
		want := map[int64]row{}
		var whole, flips []row
		var parts []part
		for id := int64(wholeFrom); id < wholeTo; id++ {
			whole = append(whole, row{id, text(v), &v})
			want[id] = row{id, text(v), &v}
		}
		for id := int64(partFrom); id < partTo; id++ {
			if v == 1 {
				whole = append(whole, row{id, text(1), &v})
			} else {
				parts = append(parts, part{id, v})
			}
			want[id] = row{id, text(1), &v}
		}
		for id := int64(flipFrom); id < flipTo; id++ {
			flips = append(flips, row{id, text(v), &v})
			if v%2 == 1 {
				want[id] = row{id, text(v), &v}
			}
		}
		flip := w.UpsertRows
		if v%2 == 0 {
			flip = w.DeleteRows
		}
		for _, put := range []func() (*client.Append, error){
			func() (*client.Append, error) { return w.UpsertRows(l.ctx, whole...) },
			func() (*client.Append, error) { return flip(l.ctx, flips...) },
			func() (*client.Append, error) { return p.UpsertRows(l.ctx, parts...) },
		} {
			if _, err := put(); err != nil {
				l.failed("round %d: %v", v, err)
				return
			}
		}
		for _, flush := range []func(context.Context) error{w.Flush, p.Flush} {
			if err := flush(l.ctx); err != nil {
				l.failed("round %d: %v", v, err)
				return
			}
		}
		if !l.lookup(look, v, want) {
			return
		}
		l.mu.Lock()
		l.rounds = v
		l.mu.Unlock()
		l.counts[upserts].Add(1)
	}
	for _, end := range []func(context.Context) error{w.Close, p.Close} {
		if err := end(l.ctx); err != nil {
			l.failed("close an upsert writer: %v", err)
		}
	}
}

// lookup asks for every key that was just written: each is as it was acknowledged.
func (l *goLoad) lookup(look *client.TypedLookuper[entry, row], v int32, want map[int64]row) bool {
	for _, span := range [][2]int64{{wholeFrom, wholeTo}, {partFrom, partTo}, {flipFrom, flipTo}} {
		var keys []entry
		for id := span[0]; id < span[1]; id++ {
			keys = append(keys, entry{id})
		}
		rows, found, err := look.FindAll(l.ctx, keys...)
		if err != nil {
			l.failed("round %d: lookup: %v", v, err)
			return false
		}
		for i, k := range keys {
			w, there := want[k.ID]
			switch {
			case !found[i] && there:
				l.failed("round %d: key %d was acknowledged and is not found", v, k.ID)
			case found[i] && (!there || rows[i].String() != w.String()):
				l.failed("round %d: lookup finds %s, acknowledged was %s (there: %v)", v, rows[i], w, there)
			}
		}
	}
	return true
}

// scan reads all of db.t again and again: what was acknowledged before is there, each
// row once, and in order per bucket.
func (l *goLoad) scan() {
	for l.running() {
		least := l.acked.Load()
		got, err := l.readLog()
		if err != nil {
			l.failed("scan: %v", err)
			return
		}
		n := int64(0)
		for b, ids := range got {
			for i, id := range ids {
				if i > 0 && ids[i-1] >= id {
					l.failed("scan: bucket %s has row %d behind row %d", b, id, ids[i-1])
				}
				if id < least {
					n++
				}
			}
		}
		if n != least {
			l.failed("scan: %d of the %d rows that were acknowledged before it began", n, least)
		}
		l.counts[scans].Add(1)
	}
}

func (l *goLoad) readLog() (map[mink.BucketRef][]int64, error) {
	out := map[mink.BucketRef][]int64{}
	for b, err := range l.cl.Scan(l.ctx, client.ScanRequest{Table: "db.t", Bucket: -1}) {
		if err != nil {
			return nil, err
		}
		out[b.Bucket] = append(out[b.Bucket], b.Record.Column(0).(*array.Int64).Int64Values()...)
	}
	return out, nil
}

// tail keeps what it brings: compared at the end.
func (l *goLoad) tail() {
	for b, err := range l.cl.Tail(l.ctx, client.TailRequest{ScanRequest: client.ScanRequest{Table: "db.t", Bucket: -1}}) {
		if err != nil {
			if l.ctx.Err() == nil {
				l.failed("tail: %v", err)
			}
			return
		}
		l.mu.Lock()
		l.tailed[b.Bucket] = append(l.tailed[b.Bucket], b.Record.Column(0).(*array.Int64).Int64Values()...)
		l.mu.Unlock()
		l.counts[tails].Add(1)
	}
}

// copy applies a Bootstrap, which another goes on for after some batches: no change is
// missing or comes twice, since each says what was there before it.
func (l *goLoad) copy() {
	positions := map[mink.BucketRef]client.BootstrapPosition{}
	for l.ctx.Err() == nil {
		left := 40
		r := client.BootstrapRequest{Table: "db.k", Bucket: -1, Resume: slices.Collect(maps.Values(positions))}
		for b, err := range l.cl.Bootstrap(l.ctx, r) {
			if err != nil {
				if l.ctx.Err() == nil {
					l.failed("bootstrap: %v", err)
				}
				return
			}
			rows, err := client.Decode[row](b.Record)
			if err != nil {
				l.failed("bootstrap: %v", err)
				return
			}
			l.mu.Lock()
			bad := ""
			for i, change := range b.Changes {
				if why := apply(l.copied, change, rows[i]); why != "" {
					bad = fmt.Sprintf("bootstrap, bucket %s, following %v, offsets %v: %s", b.Bucket, b.Following, b.Offsets, why)
				}
			}
			l.mu.Unlock()
			if bad != "" {
				l.failed("%s", bad)
				return
			}
			positions[b.Bucket] = b.Position
			l.counts[copies].Add(1)
			if left--; left == 0 {
				break
			}
		}
	}
}

// apply does a change; what is wrong with it is said.
func apply(rows map[int64]row, change mink.Change, r row) string {
	old, there := rows[r.ID]
	switch change {
	case mink.ChangeInsert:
		if there {
			return fmt.Sprintf("%s comes new, %s is there", r, old)
		}
		rows[r.ID] = r
	case mink.ChangeUpdateBefore, mink.ChangeDelete:
		if !there || old.String() != r.String() {
			return fmt.Sprintf("%s goes, there is %s (%v)", r, old, there)
		}
		delete(rows, r.ID)
	case mink.ChangeUpdateAfter:
		if there {
			return fmt.Sprintf("%s comes, %s is there", r, old)
		}
		rows[r.ID] = r
	default:
		return fmt.Sprintf("change %d", change)
	}
	return ""
}

// goesOn waits until everything went on that began after the call.
func (l *goLoad) goesOn(what string) {
	l.t.Helper()
	began := time.Now()
	defer func() {
		l.t.Logf("%s %s: on after %s", time.Now().Format("05.000"), what, time.Since(began).Round(time.Millisecond))
	}()
	var from [kinds]int64
	for k := range kinds {
		from[k] = l.counts[k].Load()
	}
	stands := ""
	if !servertest.Wait(l.ctx, func() bool {
		stands = ""
		for k := range kinds {
			if n := l.counts[k].Load(); n < from[k]+3 {
				stands += fmt.Sprintf("; %s: %d, now %d", kindNames[k], from[k], n)
			}
		}
		return stands == "" || l.broken()
	}) {
		l.t.Fatalf("the load does not go on %s%s", what, stands)
	}
	l.check()
}

func (l *goLoad) check() {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.failures {
		l.t.Error(f)
	}
	if len(l.failures) > 0 {
		l.t.FailNow()
	}
}

// finish ends the writers and compares everything that was written, told and read.
func (l *goLoad) finish() {
	l.t.Helper()
	close(l.quit)
	l.writers.Wait()
	l.check()
	log, err := l.readLog()
	if err != nil {
		l.t.Fatal(err)
	}
	var all []int64
	for _, ids := range log {
		all = append(all, ids...)
	}
	slices.Sort(all)
	if want := upTo(l.acked.Load()); !slices.Equal(all, want) {
		l.t.Errorf("%d rows are there, %d were acknowledged", len(all), len(want))
	}
	if !servertest.Wait(l.ctx, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		n := 0
		for _, ids := range l.tailed {
			n += len(ids)
		}
		return n >= len(all) || len(l.failures) > 0
	}) {
		l.t.Error("the tail does not come to the end")
	}
	changelogOf(l.t, l.cl)
	rows := l.snapshot()
	if !servertest.Wait(l.ctx, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return same(l.copied, rows) || len(l.failures) > 0
	}) {
		l.t.Errorf("the Bootstrap ends with %v, the table has %v", l.copied, rows)
	}
	l.end()
	l.check()
	for b, ids := range log {
		if !slices.Equal(l.tailed[b], ids) {
			l.t.Errorf("bucket %s: the tail brought %d rows, the log has %d: %v, %v", b, len(l.tailed[b]), len(ids), l.tailed[b], ids)
		}
	}
	l.t.Logf("%d rows appended, %d rounds of upserts, %d scans, %d batches tailed, %d of the Bootstrap",
		l.acked.Load(), l.rounds, l.counts[scans].Load(), l.counts[tails].Load(), l.counts[copies].Load())
}

func same(a, b map[int64]row) bool {
	return maps.EqualFunc(a, b, func(a, b row) bool { return a.String() == b.String() })
}

// snapshot reads db.k: each key as its last acknowledged round left it.
func (l *goLoad) snapshot() map[int64]row {
	l.t.Helper()
	out := map[int64]row{}
	for b, err := range l.cl.ScanSnapshot(l.ctx, client.SnapshotRequest{Table: "db.k", Bucket: -1}) {
		if err != nil {
			l.t.Fatal(err)
		}
		for _, r := range decoded(l.t, b.Record) {
			if _, twice := out[r.ID]; twice {
				l.t.Errorf("key %d is there twice", r.ID)
			}
			out[r.ID] = r
		}
	}
	want := map[int64]row{}
	v := l.rounds
	for id := int64(wholeFrom); id < wholeTo; id++ {
		want[id] = row{id, text(v), &v}
	}
	for id := int64(partFrom); id < partTo; id++ {
		want[id] = row{id, text(1), &v}
	}
	for id := int64(flipFrom); v%2 == 1 && id < flipTo; id++ {
		want[id] = row{id, text(v), &v}
	}
	if !same(out, want) {
		l.t.Errorf("the table has %v after %d rounds", out, v)
	}
	return out
}

func decoded(t *testing.T, rec arrow.RecordBatch) []row {
	t.Helper()
	rows, err := client.Decode[row](rec)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// changelogOf reads all changes of db.k: of every key each round once, in order.
func changelogOf(t *testing.T, cl *client.Client) {
	t.Helper()
	rows := map[int64]row{}
	last := map[int64]int32{}
	for b, err := range cl.Scan(t.Context(), client.ScanRequest{Table: "db.k", Bucket: -1}) {
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range decoded(t, b.Record) {
			change := b.Change(i)
			if why := apply(rows, change, r); why != "" {
				t.Errorf("changelog of bucket %s, offset %d: %s", b.Bucket, b.Meta.Base+mink.Offset(i), why)
			}
			step := int32(1)
			switch {
			case change == mink.ChangeUpdateBefore, change == mink.ChangeDelete:
				continue
			case r.ID >= flipFrom && last[r.ID] > 0:
				step = 2
			}
			if *r.B != last[r.ID]+step {
				t.Errorf("changelog of bucket %s, offset %d: key %d comes to round %d after round %d", b.Bucket, b.Meta.Base+mink.Offset(i), r.ID, *r.B, last[r.ID])
			}
			last[r.ID] = *r.B
		}
	}
}

// release moves a bucket to a node, through its leader.
func release(t *testing.T, c *servertest.Cluster, b mink.BucketRef, to int) {
	t.Helper()
	var out json.RawMessage
	if err := at(t, c, c.Leader(b)).action(t.Context(), api.ActionReleaseBucket, api.ReleaseBucket{Bucket: b, To: c.Node(to).ID}, &out); err != nil {
		t.Fatalf("release bucket %s to node %d: %v", b, to, err)
	}
}
