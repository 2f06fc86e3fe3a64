package node_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/record/jsonrow"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/evolve"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// offsetRows are the rows of a bucket as text, by offset.
type offsetRows map[mink.Offset]string

func (o offsetRows) add(at mink.Offset, rows arrow.RecordBatch, changes func(int) mink.Change) {
	for i := range int(rows.NumRows()) {
		text := string(jsonrow.AppendObject(nil, rows.Schema().Fields(), rows.Columns(), i))
		o[at+mink.Offset(i)] = changes(i).String() + text
	}
}

// leaderRows reads [from, to) as the leader serves it.
func leaderRows(t *testing.T, log *tablet.Log, schemas []*schema.Schema, from, to mink.Offset, target *schema.Schema) offsetRows {
	t.Helper()
	out := offsetRows{}
	for at := from; at < to; {
		res, err := log.Read(context.Background(), tablet.ReadRequest{From: at, MaxBytes: 10_000})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range res.Batches {
			if b.Count() == 0 {
				continue
			}
			rows, skip, err := log.Rows(b, nil)
			if errors.As(err, new(*tablet.QuarantineError)) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			now, err := evolve.Remap(memory.DefaultAllocator, rows, schemas[b.SchemaID()-1], target)
			if err != nil {
				t.Fatal(err)
			}
			out.add(b.BaseOffset(), now, func(i int) mink.Change {
				if c := b.Changes(); c != nil {
					return mink.Change(c[i])
				}
				return mink.ChangeAppend
			})
			now.Release()
			rows.Release()
			for _, q := range skip {
				for o := q.First; o <= q.Last; o++ {
					delete(out, o)
				}
			}
		}
		at = res.Next
	}
	for o := range out {
		if o < from || o >= to {
			delete(out, o)
		}
	}
	return out
}

// sourceRows reads [from, to) as any node can, and checks that Rows are as they promise.
func sourceRows(p *sim.Process, ref mink.BucketRef, from, to mink.Offset, target *schema.Schema) (out offsetRows, quarantined int64, err error) {
	out = offsetRows{}
	at := from
	for rows, err := range p.Node().Source().ReadCommitted(context.Background(), p.Node().View(), ref, from, to, target) {
		if err != nil {
			return nil, 0, err
		}
		n := mink.Offset(rows.Batch.NumRows())
		if rows.Start != at || rows.End <= at || rows.End < at+n || rows.End > to {
			return nil, 0, fmt.Errorf("rows [%d, %d), %d of them, where %d was expected", rows.Start, rows.End, n, at)
		}
		if rows.Changes != nil && len(rows.Changes) != int(n) {
			return nil, 0, fmt.Errorf("%d changes of %d rows", len(rows.Changes), n)
		}
		if !rows.Batch.Schema().Equal(target.Arrow()) {
			return nil, 0, fmt.Errorf("rows of %s, want %s", rows.Batch.Schema(), target.Arrow())
		}
		out.add(rows.Start, rows.Batch, func(i int) mink.Change {
			if rows.Changes != nil {
				return rows.Changes[i]
			}
			return mink.ChangeAppend
		})
		at, quarantined = rows.End, quarantined+rows.Quarantined
	}
	if at != to {
		return nil, 0, fmt.Errorf("it ends at %d, not %d", at, to)
	}
	return out, quarantined, nil
}

// leaderOf is the process that leads a bucket.
func leaderOf(t *testing.T, w *sim.World, ref mink.BucketRef) (p *sim.Process, log *tablet.Log) {
	t.Helper()
	w.Eventually(time.Minute, "a leader", func() bool {
		for _, p = range w.Processes() {
			if !p.Running() || p.Node() == nil {
				continue
			}
			var err error
			if log, err = p.Node().Log(ref); err == nil {
				return true
			}
		}
		return false
	})
	return p, log
}

// sourceEquals waits until all is uploaded and compares what every node reads with what
// the leader does. What a cleaning takes meanwhile may be there or not.
func sourceEquals(t *testing.T, w *sim.World, r *rand.Rand, ref mink.BucketRef) (rows int, quarantined int64) {
	t.Helper()
	p, log := leaderOf(t, w, ref)
	var start, end mink.Offset
	for _, q := range w.Processes() {
		if q.Running() {
			w.Eventually(time.Minute, "everything is uploaded", func() bool {
				var err error
				start, end, err = q.Node().Source().CommittedEnd(q.Node().View(), ref)
				return err == nil && end == log.HighWatermark() && start == log.LogStart()
			})
		}
	}
	if start == end {
		return 0, 0
	}
	table, _ := p.Node().View().Table(ref.Table)
	target := table.Schemas[len(table.Schemas)-1]
	cuts := [][2]mink.Offset{{start, end}}
	for range 3 {
		from := start + mink.Offset(r.Int64N(int64(end-start)))
		cuts = append(cuts, [2]mink.Offset{from, from + 1 + mink.Offset(r.Int64N(int64(end-from)))})
	}
	for i, c := range cuts {
		before := leaderRows(t, log, table.Schemas, c[0], c[1], target)
		for _, q := range w.Processes() {
			if !q.Running() {
				continue
			}
			got, bad, err := sourceRows(q, ref, c[0], c[1], target)
			if err != nil {
				t.Fatalf("bucket %s [%d, %d): %v", ref, c[0], c[1], err)
			}
			after := leaderRows(t, log, table.Schemas, c[0], c[1], target)
			for o := c[0]; o < c[1]; o++ {
				if text, ok := got[o]; ok && text != before[o] || !ok && after[o] != "" {
					t.Fatalf("bucket %s, offset %d of [%d, %d):\n got %q\nwant %q\n now %q", ref, o, c[0], c[1], text, before[o], after[o])
				}
			}
			if i == 0 {
				rows, quarantined = len(got), bad
			}
		}
	}
	return rows, quarantined
}

func typedTable(t *testing.T, p *sim.Process, name string) mink.BucketRef {
	t.Helper()
	d := &schema.Descriptor{Database: "sim", Table: name, Options: map[string]string{"kafka.value.format": "json", "kafka.bad.records": "quarantine"}}
	for _, c := range [][2]string{{"n", "INT"}, {"s", "STRING NOT NULL"}, {"r", "ROW<a SMALLINT, l ARRAY<STRING>>"}, {"t", "TIMESTAMP(3)"}} {
		d.Schema.Columns = append(d.Schema.Columns, schema.Column{Name: c[0], Type: schema.MustParseType(c[1])})
	}
	d, err := d.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Node().CreateDatabase(t.Context(), "sim", true); err != nil {
		t.Fatal(err)
	}
	table, err := p.Node().CreateTable(t.Context(), d, false)
	if err != nil {
		t.Fatal(err)
	}
	for part := range p.Node().View().Partitions(table.ID) {
		return mink.BucketRef{Table: table.ID, Partition: part.ID}
	}
	t.Fatal("no partition")
	return mink.BucketRef{}
}

// typedEvolution is what happens to the table of typedTable.
func typedEvolution() [][]schema.Change {
	typ := func(text string) *schema.Type { t := schema.MustParseType(text); return &t }
	column := func(name, text string) *schema.Column { return &schema.Column{Name: name, Type: *typ(text)} }
	return [][]schema.Change{
		{{Op: schema.AddColumn, Column: column("x", "DOUBLE")}},
		{{Op: schema.ModifyColumn, Name: "n", Type: typ("BIGINT")}},
		{{Op: schema.RenameColumn, Name: "n", To: "number"}, {Op: schema.DropColumn, Name: "x"}},
		{{Op: schema.AddColumn, Column: column("x", "STRING")}}, // another one
		{{Op: schema.ModifyColumn, Name: "t", Type: typ("TIMESTAMP(9)")}},
	}
}

// arrowRows are n rows of a schema with the columns of typedTable, as a message.
func arrowRows(t *testing.T, s *schema.Schema, r *rand.Rand, n int) tablet.ArrowAppend {
	t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, s.Arrow())
	defer b.Release()
	for i, c := range s.Columns {
		for range n {
			if !c.Type.NotNull && r.IntN(4) == 0 {
				b.Field(i).AppendNull()
				continue
			}
			switch f := b.Field(i).(type) {
			case *array.StructBuilder:
				f.Append(true)
				f.FieldBuilder(0).(*array.Int16Builder).Append(int16(r.IntN(100)))
				l := f.FieldBuilder(1).(*array.ListBuilder)
				l.Append(true)
				for range r.IntN(3) {
					l.ValueBuilder().(*array.StringBuilder).Append(fmt.Sprint("l", r.IntN(1000)))
				}
			case *array.StringBuilder:
				f.Append(fmt.Sprint("s", r.IntN(1000)))
			case *array.Int32Builder:
				f.Append(r.Int32N(1000))
			case *array.Int64Builder:
				f.Append(r.Int64())
			case *array.Float64Builder:
				f.Append(r.Float64())
			case *array.TimestampBuilder:
				f.Append(arrow.Timestamp(r.Int64N(1 << 40)))
			default:
				t.Fatalf("%T", f)
			}
		}
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	meta, body, err := arrowipc.Encode(rec)
	if err != nil {
		t.Fatal(err)
	}
	return tablet.ArrowAppend{SchemaID: s.ID, Metadata: meta, Body: body, Count: int32(n), WriterID: mink.NoWriter}
}

func appended(t *testing.T, pending *tablet.Pending, err error) {
	t.Helper()
	if err == nil {
		<-pending.Done()
		_, err = pending.Result()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Random logs of a table with every encoding, records that are no rows, schema changes and
// trims, merged all the time: every node reads what the leader does.
func TestSourceReadsWhatTheLeaderDoes(t *testing.T) {
	for seed := range uint64(6) {
		sim.InBubble(t, sim.Quiet(seed), func(t *testing.T, w *sim.World) {
			p := w.StartReady(1)
			w.StartReady(2)
			r := rand.New(rand.NewPCG(seed, 9))
			ref := typedTable(t, p, "t")
			todo := typedEvolution()
			total, bad := 0, int64(0)
			for range 20 {
				p, log := leaderOf(t, w, ref)
				table, _ := p.Node().View().Table(ref.Table)
				for range r.IntN(6) {
					if r.IntN(2) == 0 {
						a := arrowRows(t, table.Schemas[r.IntN(len(table.Schemas))], r, 1+r.IntN(5))
						pending, err := log.AppendArrow(a)
						appended(t, pending, err)
						continue
					}
					var values []string
					for range 1 + r.IntN(5) {
						values = append(values, [...]string{
							fmt.Sprintf(`{"s": "k%d"}`, r.IntN(100)), fmt.Sprintf(`{"s": "k", "r": {"a": %d, "l": ["x", null]}, "t": "2026-01-02 03:04:05.678"}`, r.IntN(100)),
							`{"s": null}`, "{", `{"s": "", "r": {"a": 1}}`,
						}[r.IntN(5)])
					}
					pending, err := log.AppendKafka(sim.KafkaBatch(mink.NoWriter, -1, values...), tablet.KafkaAppend{})
					appended(t, pending, err)
				}
				switch k := r.IntN(8); {
				case k < 3 && len(todo) > 0:
					if _, err := p.Node().AlterTable(t.Context(), ref.Table, todo[0], 0); err != nil {
						t.Fatal(err)
					}
					todo = todo[1:]
				case k == 3 && log.HighWatermark() > log.LogStart():
					to := log.LogStart() + mink.Offset(r.Int64N(int64(log.HighWatermark()-log.LogStart())))
					if _, err := p.Node().DeleteRecords(t.Context(), ref, to); err != nil {
						t.Fatal(err)
					}
				case k == 4:
					time.Sleep(20 * time.Second)
				}
				rows, quarantined := sourceEquals(t, w, r, ref)
				total, bad = total+rows, bad+quarantined
			}
			if total < 100 || bad == 0 {
				t.Errorf("seed %d: %d rows, %d quarantined: the history hardly does anything", seed, total, bad)
			}
		})
	}
}

// Raw topics, one of which is cleaned all the time.
func TestSourceReadsCleanedTopics(t *testing.T) {
	for seed := range uint64(3) {
		sim.InBubble(t, sim.Quiet(seed), func(t *testing.T, w *sim.World) {
			p := w.StartReady(1)
			w.StartReady(2)
			r := rand.New(rand.NewPCG(seed, 9))
			_, refs := p.Topic("t", 2, map[string]string{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "3000"})
			cleaned := int64(0)
			for range 12 {
				for _, ref := range refs {
					_, log := leaderOf(t, w, ref)
					for range 1 + r.IntN(6) {
						var pairs []sim.Pair
						for range 1 + r.IntN(4) {
							pair := sim.Pair{Key: fmt.Sprint(r.IntN(5))}
							if r.IntN(4) > 0 {
								pair.Value = []byte(fmt.Sprint(r.Int64()))
							}
							pairs = append(pairs, pair)
						}
						pending, err := log.AppendKafka(sim.KeyedBatch(mink.NoWriter, 0, pairs...), tablet.KafkaAppend{})
						appended(t, pending, err)
					}
					time.Sleep(time.Duration(r.IntN(6)) * time.Second)
					sourceEquals(t, w, r, ref)
				}
			}
			for _, q := range w.Processes() {
				for _, b := range q.Node().Stats().Buckets {
					cleaned += b.Clean.Removed
				}
			}
			if cleaned == 0 {
				t.Error("nothing was cleaned")
			}
		})
	}
}

func TestSourceErrors(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, refs := p.Topic("t", 1, nil)
		s := p.Node().Source()
		for i := range 10 {
			p.Append(refs[0], fmt.Sprint(i))
			time.Sleep(1200 * time.Millisecond)
		}
		w.Eventually(time.Minute, "uploads", func() bool { _, end, _ := s.CommittedEnd(p.Node().View(), refs[0]); return end == 10 })
		if _, err := p.Node().DeleteRecords(t.Context(), refs[0], 4); err != nil {
			t.Fatal(err)
		}
		table, _ := p.Node().View().Table(refs[0].Table)
		target := table.Schemas[0]
		for _, c := range [][2]mink.Offset{{3, 10}, {4, 11}} {
			if _, _, err := sourceRows(p, refs[0], c[0], c[1], target); !errors.Is(err, mink.ErrOutOfRange) {
				t.Errorf("%v: %v", c, err)
			}
		}
		none := mink.BucketRef{Table: 99, Partition: 99}
		if _, _, err := sourceRows(p, none, 0, 1, target); !errors.Is(err, mink.ErrNotExist) {
			t.Error(err)
		}
		if _, _, err := s.CommittedEnd(p.Node().View(), none); !errors.Is(err, mink.ErrNotExist) {
			t.Error(err)
		}
		for rows, err := range s.ReadCommitted(t.Context(), p.Node().View(), refs[0], 4, 10, target) {
			if err != nil || rows.Start != 4 {
				t.Fatal(rows, err)
			}
			break
		}
		// A target that is older than the rows.
		late := typedTable(t, p, "late")
		old, _ := p.Node().View().Table(late.Table)
		for _, changes := range typedEvolution() {
			if _, err := p.Node().AlterTable(t.Context(), late.Table, changes, 0); err != nil {
				t.Fatal(err)
			}
		}
		_, log := leaderOf(t, w, late)
		now, _ := p.Node().View().Table(late.Table)
		pending, err := log.AppendArrow(arrowRows(t, now.Schemas[len(now.Schemas)-1], rand.New(rand.NewPCG(1, 1)), 3))
		appended(t, pending, err)
		w.Eventually(time.Minute, "uploads", func() bool { _, end, _ := s.CommittedEnd(p.Node().View(), late); return end == 3 })
		if _, _, err := sourceRows(p, late, 0, 3, old.Schemas[0]); !errors.Is(err, mink.ErrUnavailable) {
			t.Error(err)
		}
		// Objects that are gone although they are named.
		id, _ := p.Node().View().StreamOf(refs[0])
		st, _ := p.Node().View().Stream(id)
		for _, o := range st.Objects() {
			obj, _ := p.Node().View().Object(o)
			if _, err := w.Objects().DeleteBatch(t.Context(), []string{obj.Key()}); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := sourceRows(w.StartReady(2), refs[0], 4, 10, target); !errors.Is(err, mink.ErrCorrupt) || !errors.Is(err, objstore.ErrNotExist) {
			t.Error(err)
		}
	})
}

// A row that the newer schema cannot hold stops the reading there: it is not skipped, nor
// are those of its batch. Large batches come in pieces.
func TestSourceSkipsNoGoodRow(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		ref := typedTable(t, p, "t")
		_, log := leaderOf(t, w, ref)
		table, _ := p.Node().View().Table(ref.Table)
		const n, far = 40_000, 30_001
		b := array.NewRecordBuilder(memory.DefaultAllocator, table.Schemas[0].Arrow())
		defer b.Release()
		for i := range n {
			b.Field(0).AppendNull()
			b.Field(1).(*array.StringBuilder).Append("")
			b.Field(2).AppendNull()
			ms := arrow.Timestamp(1_700_000_000_000)
			if i == far {
				ms = 253_402_300_799_000 // 9999-12-31 23:59:59, beyond nanoseconds
			}
			b.Field(3).(*array.TimestampBuilder).Append(ms)
		}
		rec := b.NewRecordBatch()
		defer rec.Release()
		meta, body, err := arrowipc.Encode(rec)
		if err != nil {
			t.Fatal(err)
		}
		pending, err := log.AppendArrow(tablet.ArrowAppend{SchemaID: 1, Metadata: meta, Body: body, Count: n, WriterID: mink.NoWriter})
		appended(t, pending, err)
		finer := schema.MustParseType("TIMESTAMP(9)")
		table, err = p.Node().AlterTable(t.Context(), ref.Table, []schema.Change{{Op: schema.ModifyColumn, Name: "t", Type: &finer}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		s := p.Node().Source()
		w.Eventually(time.Minute, "uploads", func() bool { _, end, _ := s.CommittedEnd(p.Node().View(), ref); return end == n })
		for _, c := range []struct{ from, to, end mink.Offset }{{0, n, far}, {0, far, far}, {far + 1, n, n}} {
			at := c.from
			var failed error
			for rows, err := range s.ReadCommitted(t.Context(), p.Node().View(), ref, c.from, c.to, table.Schemas[1]) {
				if failed = err; err != nil {
					break
				}
				if rows.Start != at || rows.End-rows.Start != mink.Offset(rows.Batch.NumRows()) || rows.Batch.NumRows() > 20_000 || rows.Quarantined != 0 {
					t.Fatalf("rows [%d, %d) at %d, %d of them", rows.Start, rows.End, at, rows.Batch.NumRows())
				}
				at = rows.End
			}
			if at != c.end || (failed != nil) != (c.end < c.to) || failed != nil && (!errors.Is(failed, mink.ErrInvalid) || errors.Is(failed, mink.ErrOutOfRange)) {
				t.Errorf("[%d, %d) ends at %d: %v", c.from, c.to, at, failed)
			}
		}
	})
}

// A node that hears nothing of the metadata any more reads objects that the others have
// long replaced and deleted: that is not corruption, and once it hears again it reads on.
func TestSourceOnANodeThatIsBehind(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, refs := p.Topic("t", 1, nil)
		reader := w.StartReady(2)
		if leader, _ := leaderOf(t, w, refs[0]); leader != p {
			p, reader = reader, p
		}
		for i := range 30 {
			p.Append(refs[0], fmt.Sprint(i))
			time.Sleep(500 * time.Millisecond)
		}
		table, _ := reader.Node().View().Table(refs[0].Table)
		var end mink.Offset
		w.Eventually(time.Minute, "uploads", func() bool {
			_, end, _ = reader.Node().Source().CommittedEnd(reader.Node().View(), refs[0])
			return end == 30
		})
		named := func(q *sim.Process) (keys []string) {
			id, _ := q.Node().View().StreamOf(refs[0])
			st, _ := q.Node().View().Stream(id)
			for _, o := range st.Objects() {
				obj, _ := q.Node().View().Object(o)
				keys = append(keys, obj.Key())
			}
			return keys
		}
		reader.PauseMetadata()
		before := named(reader)
		for i := range 200 {
			p.Append(refs[0], fmt.Sprint(30+i))
			time.Sleep(500 * time.Millisecond)
		}
		gone := func() bool {
			return slices.ContainsFunc(before, func(key string) bool {
				_, err := w.Objects().Head(t.Context(), key)
				return errors.Is(err, objstore.ErrNotExist)
			})
		}
		for range 100 {
			if time.Sleep(5 * time.Second); gone() {
				break
			}
		}
		if !gone() {
			t.Fatal("nothing that the reader knows is deleted")
		}
		if now := named(reader); !slices.Equal(now, before) {
			t.Fatal("the reader has heard something")
		}
		done := make(chan error)
		go func() { // it misses the objects, and asks the metadata log whether they were replaced
			_, _, err := sourceRows(reader, refs[0], 0, end, table.Schemas[0])
			done <- err
		}()
		synctest.Wait()
		time.Sleep(time.Second)
		reader.Resume()
		if err := <-done; err != nil && (!errors.Is(err, mink.ErrUnavailable) || errors.Is(err, mink.ErrCorrupt)) {
			t.Errorf("a node that is behind: %v", err)
		}
		w.Eventually(time.Minute, "it reads again", func() bool {
			rows, _, err := sourceRows(reader, refs[0], 0, end, table.Schemas[0])
			return err == nil && len(rows) == 30
		})
	})
}
