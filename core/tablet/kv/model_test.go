package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// sentPut is what the test keeps beside each put.
type sentPut struct {
	put     Put
	pending *Pending
}

// TestModel: whatever is put, by whichever columns and under whichever version, lost,
// sent again, altered, restarted and restored: lookups, scans, counts and the changelog
// are the model's.
func TestModel(t *testing.T) {
	var puts, refused, noops, dups, crashes, restores, alters, older, stale int
	sh, dir := newShared(t), t.TempDir()
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		d := mergetest.Table(rt)
		runs++
		r := &modelRun{rt: rt, m: mergetest.NewHistory[sentPut](d), b: makeBed(t, sh, filepath.Join(dir, fmt.Sprint(runs)), d, false), snap: -1}
		defer func() {
			r.drop()
			r.b.close()
			_ = os.RemoveAll(r.b.dir)
		}()
		rt.Repeat(map[string]func(*rapid.T){
			"put":     func(rt *rapid.T) { r.rt = rt; r.put(); r.put() },
			"again":   func(rt *rapid.T) { r.rt = rt; r.again() },
			"older":   func(rt *rapid.T) { r.rt = rt; r.older() },
			"race":    func(rt *rapid.T) { r.rt = rt; r.race() },
			"finish":  func(rt *rapid.T) { r.rt = rt; r.finish() },
			"squeeze": func(*rapid.T) { r.squeeze() },
			"land":    func(rt *rapid.T) { r.b.s.land(rapid.IntRange(1, 3).Draw(rt, "n")) },
			"reopen":  func(rt *rapid.T) { r.rt = rt; r.reopen() },
			"crash":   func(rt *rapid.T) { r.rt = rt; r.crash() },
			"restore": func(rt *rapid.T) { r.rt = rt; r.checkpoint() },
			"alter":   func(rt *rapid.T) { r.rt = rt; r.alter() },
			"check":   func(rt *rapid.T) { r.rt = rt; r.check() },
		})
		r.check()
		puts, refused, noops, dups = puts+r.puts, refused+r.refused, noops+r.noops, dups+r.dups
		crashes, restores, alters, older, stale = crashes+r.crashes, restores+r.restores, alters+r.alters, older+r.olders, stale+r.stale
	})
	t.Logf("%d puts, %d refused, %d changed nothing, %d sent again, %d of older schemas; %d crashes, %d restored; %d alters; %d rows read too early", puts, refused, noops, dups, older, crashes, restores, alters, stale)
	did := []int{puts, refused, noops, dups, crashes, restores, alters, older}
	if puts > 1000 { // then also what is rare
		did = append(did, stale)
	}
	if slices.Contains(did, 0) {
		t.Error("the histories hardly do anything")
	}
}

type modelRun struct {
	rt     *rapid.T
	m      *mergetest.History[sentPut]
	b      *bed
	snap   mink.Offset // of the checkpoint, -1: none
	dir    string
	nextAt int

	early []earlyPut

	puts, refused, noops, dups, crashes, restores, alters, olders, stale int
}

// earlyPut is a put that has read the store and has had no turn yet.
type earlyPut struct {
	prepared *prepared
	sent     Put
	writes   []mergetest.Write
}

const modelWriter = mink.WriterID(5)

func (r *modelRun) put() {
	d := r.m.Descriptor()
	writes := mergetest.Writes(r.rt, d, mergetest.Columns(r.rt, d))
	r.send(r.b.current(), writes, writes)
}

// older puts under an earlier schema version.
func (r *modelRun) older() {
	if len(r.b.table.Schemas) == 1 {
		return
	}
	v := r.b.table.Schemas[rapid.IntRange(0, len(r.b.table.Schemas)-2).Draw(r.rt, "version")]
	if sent, writes := mergetest.OlderWrites(r.rt, r.m.Descriptor(), v); sent != nil {
		r.olders++
		r.send(v, sent, writes)
	}
}

func (r *modelRun) send(s *schema.Schema, sent, writes []mergetest.Write) {
	p := putOf(r.b.t, s, sent, noWriter)
	if rapid.Bool().Draw(r.rt, "writer") {
		p.WriterID, p.Sequence = modelWriter, int32(len(r.m.ByWriter()))
	}
	pending, err := r.b.kv.Put(context.Background(), p)
	r.outcome(pending, err, p, writes)
}

// outcome compares that of a put with the model's.
func (r *modelRun) outcome(pending *Pending, err error, p Put, writes []mergetest.Write) {
	for _, w := range writes {
		for i, c := range r.m.Descriptor().Schema.Columns {
			if w.Row[i] == nil && slices.Contains(r.m.Descriptor().PrimaryKey, c.Name) {
				if !errors.Is(err, mink.ErrInvalid) {
					r.rt.Fatalf("a put with null in a key: %v", err)
				}
				return
			}
		}
	}
	e, refused := r.m.Put(writes, p.WriterID >= 0, sentPut{p, pending})
	if (err != nil) != (refused != nil) {
		r.rt.Fatalf("put: %v, the model: %v", err, refused)
	}
	if err != nil {
		if !errors.Is(err, mink.ErrInvalid) && !errors.Is(err, mink.ErrOutOfRange) {
			r.rt.Fatal(err)
		}
		r.refused++
		return
	}
	r.puts++
	if len(e.Changes) == 0 {
		r.noops++
	}
	if end := r.b.log.LogEnd(); end != r.m.End {
		r.rt.Fatalf("the log ends at %d, want %d", end, r.m.End)
	}
}

// prepare begins a put that ends later, when others have changed its rows.
func (r *modelRun) prepare() {
	if len(r.early) == 3 {
		return
	}
	writes := mergetest.Writes(r.rt, r.m.Descriptor(), mergetest.Columns(r.rt, r.m.Descriptor()))
	e := earlyPut{sent: putOf(r.b.t, r.b.current(), writes, noWriter), writes: writes}
	var err error
	if e.prepared, err = r.b.kv.prepare(context.Background(), e.sent); err != nil {
		r.outcome(nil, err, e.sent, writes)
		return
	}
	r.early = append(r.early, e)
}

func (r *modelRun) finish() {
	if len(r.early) == 0 {
		return
	}
	i := rapid.IntRange(0, len(r.early)-1).Draw(r.rt, "which")
	e := r.early[i]
	r.early = slices.Delete(r.early, i, i+1)
	if in := e.prepared.in; in.reads && in.mark < r.b.kv.before.dropped {
		r.stale++
	}
	pending, err := e.prepared.put(context.Background())
	r.outcome(pending, err, e.sent, e.writes)
}

// race has puts flushed between another put's read of the store and its turn.
func (r *modelRun) race() {
	r.prepare()
	r.put()
	if rapid.Bool().Draw(r.rt, "flushed") {
		r.b.s.land(-1)
		r.settle()
		if rapid.Bool().Draw(r.rt, "squeezed") {
			r.squeeze()
		}
	}
	if rapid.IntRange(0, 3).Draw(r.rt, "finish") > 0 {
		r.finish()
	}
}

// squeeze drops what is kept for puts that have read the store.
func (r *modelRun) squeeze() {
	r.b.kv.turn <- struct{}{}
	r.b.kv.sweep(0)
	r.b.kv.leaveTurn()
}

// drop gives the early puts up: their rows are of the table, or the tablet, of before.
func (r *modelRun) drop() {
	for _, e := range r.early {
		e.prepared.drop()
	}
	r.early = nil
}

// again sends a writer's put again.
func (r *modelRun) again() {
	w := r.m.ByWriter()
	if len(w) == 0 {
		return
	}
	e := w[rapid.IntRange(0, len(w)-1).Draw(r.rt, "which")]
	p, err := r.b.kv.Put(context.Background(), e.Note.put)
	if err != nil {
		r.rt.Fatal(err)
	}
	if !p.res.Duplicate || r.b.log.LogEnd() != r.m.End {
		r.rt.Fatalf("sent again: %+v, the log ends at %d, want %d", p.res, r.b.log.LogEnd(), r.m.End)
	}
	r.dups++
	r.m.Repeat(sentPut{pending: p})
}

func (r *modelRun) reopen() {
	r.drop()
	r.b.s.land(-1)
	r.b.reopen()
	r.settle()
	r.m.LastID = r.b.nextID
}

// crash loses some of what was on its way, the directory, and the numbers that were
// leased.
func (r *modelRun) crash() {
	r.drop()
	r.b.crash(rapid.IntRange(0, 3).Draw(r.rt, "keep"))
	r.crashes++
	if r.snap >= 0 {
		r.restores++
	}
	r.m.LastID = r.b.nextID
	if _, err := r.m.Cut(r.b.log.LogEnd()); err != nil {
		r.rt.Fatal(err)
	}
	for _, e := range r.m.Events {
		e.Note.pending = nil
	}
}

// checkpoint makes what later crashes restore.
func (r *modelRun) checkpoint() {
	r.nextAt++
	dir := filepath.Join(r.b.dir, fmt.Sprint("checkpoint", r.nextAt))
	cp, err := r.b.kv.Checkpoint(context.Background(), dir)
	if err != nil {
		r.rt.Fatal(err)
	}
	r.dir, r.snap = dir, cp.Offset
	r.b.cfg.Restore = func(_ context.Context, to string, refused error) (mink.Offset, bool, error) {
		if refused != nil {
			return 0, false, refused
		}
		return cp.Offset, true, copyDir(dir, to)
	}
}

func copyDir(from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(from, path)
		if err != nil || e.IsDir() {
			return errors.Join(err, os.MkdirAll(filepath.Join(to, rel), 0o755))
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o644)
	})
}

func (r *modelRun) alter() {
	r.drop()
	d := r.m.Descriptor()
	r.alters++
	var c schema.Change
	value := func() string {
		for _, i := range rapid.Permutation(indexes(len(d.Schema.Columns))).Draw(r.rt, "columns") {
			if name := d.Schema.Columns[i].Name; !slices.Contains(d.PrimaryKey, name) {
				return name
			}
		}
		return ""
	}
	name := fmt.Sprint("c", d.HighestFieldID+1)
	switch rapid.IntRange(0, 4).Draw(r.rt, "alter") {
	case 0, 1:
		typ := rapid.SampledFrom([]string{"INT", "STRING", "DOUBLE", "ARRAY<INT>"}).Draw(r.rt, "type")
		c = schema.Change{Op: schema.AddColumn, Column: &schema.Column{Name: name, Type: schema.MustParseType(typ)}}
	case 2:
		c = schema.Change{Op: schema.DropColumn, Name: value()}
	case 3:
		c = schema.Change{Op: schema.RenameColumn, Name: d.Schema.Columns[rapid.IntRange(0, len(d.Schema.Columns)-1).Draw(r.rt, "column")].Name, To: name}
	case 4:
		typ := schema.MustParseType("BIGINT")
		c = schema.Change{Op: schema.ModifyColumn, Name: value(), Type: &typ}
	}
	if r.b.alter(c) != nil {
		return // one of its rules
	}
	r.m.Alter(r.b.table.Descriptor)
}

func indexes(n int) (out []int) {
	for i := range n {
		out = append(out, i)
	}
	return out
}

// settle waits for the puts that were not lost.
func (r *modelRun) settle() {
	for _, e := range r.m.Events {
		if e.Note.pending == nil {
			continue
		}
		<-e.Note.pending.Done()
		res, err := e.Note.pending.Result()
		if err != nil {
			r.rt.Fatal(err)
		}
		if !res.Duplicate && res.Last-res.First+1 != e.Offsets {
			r.rt.Fatalf("a put takes %+v, want %d offsets", res, e.Offsets)
		}
		e.Note.pending = nil
	}
}

func (r *modelRun) check() {
	b, ctx := r.b, context.Background()
	b.s.land(-1)
	r.settle()
	want := r.m.Rows()
	sameRows(r.rt, "view", b.all(), want)
	if n, err := b.kv.Count(ctx); n != int64(len(want)) || err != nil {
		r.rt.Fatalf("%d rows, %v, want %d", n, err, len(want))
	}
	if got := b.kv.VisibleHighWatermark(); got != r.m.End {
		r.rt.Fatalf("visible up to %d of %d", got, r.m.End)
	}
	changes, next := changelog(r.rt, b.log, 0)
	if next != r.m.End {
		r.rt.Fatalf("a reader gets to %d of %d", next, r.m.End)
	}
	sameChanges(r.rt, "changelog", changes, r.m.Changes())
	// Of all keys that ever were, the ones with a row are found, in any order.
	var keys [][]byte
	var found []mergetest.Row
	for _, w := range slices.Backward(r.m.Events) {
		for _, k := range w.Keys {
			keys = append(keys, []byte(k))
			if row := r.m.Get(k); row != nil {
				found = append(found, row)
			}
		}
	}
	rec, hit, err := b.kv.Lookup(ctx, keys, nil)
	if err != nil {
		r.rt.Fatal(err)
	}
	for i, k := range keys {
		if hit[i] != (r.m.Get(string(k)) != nil) {
			r.rt.Fatalf("key %x: found is %t", k, hit[i])
		}
	}
	sameRows(r.rt, "lookup", rowsOf(rec), found)
	if len(want) > 1 { // a range of keys
		lo, hi := key(r.rt, r.m.Descriptor(), want[1]), key(r.rt, r.m.Descriptor(), want[len(want)-1])
		v, err := b.kv.View()
		if err != nil {
			r.rt.Fatal(err)
		}
		defer v.Close()
		sameRows(r.rt, "range", scan(r.rt, v, lo, hi, math.MaxInt32), want[1:len(want)-1])
		if bytes.Compare(lo, hi) > 0 {
			r.rt.Fatal("rows are not in the order of their keys")
		}
	}
}
