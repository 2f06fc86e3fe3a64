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
	"github.com/mink-project/mink/core/schema/evolve"
	"github.com/mink-project/mink/sdk/mink"
)

// tableModel is a table through puts, alters, restarts and losses: mergetest.Model
// knows the rows, this the order in which everything happened, so that what a crash
// lost can be taken back.
type tableModel struct {
	d       *schema.Descriptor
	m       *mergetest.Model
	history []event
	end     mink.Offset
	auto    int64 // the last number that was given out
}

// event is a put or an alter.
type event struct {
	d       *schema.Descriptor // after an alter
	sent    Put
	writes  []mergetest.Write
	changes []mergetest.Change
	keys    []string
	ids     []int64
	offsets mink.Offset // taken
	pending *Pending
}

func newTableModel(d *schema.Descriptor) *tableModel { return &tableModel{d: d, m: mergetest.New(d)} }

// put applies writes; offsets that a put without changes takes are 1 with a writer.
func (m *tableModel) put(sent Put, writes []mergetest.Write) (event, error) {
	e := event{sent: sent, writes: writes}
	was := m.auto
	m.m.NextID = func() int64 {
		m.auto++
		e.ids = append(e.ids, m.auto)
		return m.auto
	}
	changes, err := m.m.Apply(writes)
	if err != nil {
		m.auto = was
		return e, err
	}
	for _, w := range writes {
		e.keys = append(e.keys, m.m.Key(w.Row))
	}
	e.changes, e.offsets = changes, mink.Offset(len(changes))
	if len(changes) == 0 && sent.WriterID >= 0 {
		e.offsets = 1
	}
	m.end += e.offsets
	return e, nil
}

func (m *tableModel) alter(d *schema.Descriptor) {
	rows := migrate(m.m.Rows(), &m.d.Schema, &d.Schema)
	m.d, m.m = d, mergetest.New(d)
	auto := slices.IndexFunc(d.Schema.Columns, func(c schema.Column) bool { return c.AutoIncrement })
	for _, r := range rows {
		if auto >= 0 {
			id := r[auto]
			m.m.NextID = func() int64 {
				if v, ok := id.(int32); ok {
					return int64(v)
				}
				return id.(int64)
			}
			r = slices.Clone(r)
			r[auto] = nil
		}
		if _, err := m.m.Apply([]mergetest.Write{{Row: r}}); err != nil {
			panic(err)
		}
	}
}

func migrate(rows []mergetest.Row, from, to *schema.Schema) []mergetest.Row {
	if len(rows) == 0 {
		return nil
	}
	rec := mergetest.Batch(from, rows)
	defer rec.Release()
	out, err := evolve.Remap(allocator, rec, from, to)
	if err != nil {
		panic(err)
	}
	return rowsOf(out)
}

// cut takes back the puts that the log does not have.
func (m *tableModel) cut(d0 *schema.Descriptor, end mink.Offset) {
	history := m.history
	auto, lost := m.auto, false
	*m = *newTableModel(d0)
	for _, e := range history {
		if e.d != nil {
			m.alter(e.d)
			m.history = append(m.history, e)
			continue
		}
		if lost = lost || m.end+e.offsets > end; lost {
			continue // and what came after it: it may have changed nothing only because of it
		}
		ids := e.ids
		m.m.NextID = func() int64 {
			id := ids[0]
			ids = ids[1:]
			return id
		}
		if _, err := m.m.Apply(e.writes); err != nil {
			panic(err)
		}
		m.end += e.offsets
		m.history = append(m.history, e)
	}
	m.auto = auto
}

func (m *tableModel) changes() (all []mergetest.Change) {
	for _, e := range m.history {
		all = append(all, e.changes...)
	}
	return all
}

// writers are the puts of the one writer, in order.
func (m *tableModel) writers() (out []event) {
	for _, e := range m.history {
		if e.d == nil && e.sent.WriterID >= 0 {
			out = append(out, e)
		}
	}
	return out
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
		r := &modelRun{rt: rt, d0: d, m: newTableModel(d), b: makeBed(t, sh, filepath.Join(dir, fmt.Sprint(runs)), d, false), snap: -1}
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
	for _, n := range []int{puts, refused, noops, dups, crashes, restores, alters, older, stale} {
		if n == 0 {
			t.Error("the histories hardly do anything")
		}
	}
}

type modelRun struct {
	rt     *rapid.T
	d0     *schema.Descriptor
	m      *tableModel
	b      *bed
	snap   mink.Offset // of the checkpoint, -1: none
	dir    string
	nextAt int

	early []earlyPut

	puts, refused, noops, dups, crashes, restores, alters, olders, stale int
}

// earlyPut is a put that has read the store and has had no turn yet.
type earlyPut struct {
	prepared *Prepared
	sent     Put
	writes   []mergetest.Write
}

const modelWriter = mink.WriterID(5)

func (r *modelRun) put() {
	d := r.m.d
	columns := mergetest.Columns(r.rt, d)
	writes := mergetest.Writes(r.rt, d, columns)
	r.send(r.b.current(), writes, writes)
}

// older puts under an earlier schema version.
func (r *modelRun) older() {
	o, _ := r.m.d.ParsedOptions()
	if len(r.b.table.Schemas) == 1 || o.MergeEngine == schema.FirstRow || o.MergeEngine == schema.Versioned {
		return // these take whole rows: how a row without a new column is whole the model does not know
	}
	v := r.b.table.Schemas[rapid.IntRange(0, len(r.b.table.Schemas)-2).Draw(r.rt, "version")]
	of := *r.m.d
	of.Schema = *v
	of.PrimaryKey = nil
	for _, name := range r.m.d.PrimaryKey {
		c, _ := r.m.d.Schema.Column(name)
		of.PrimaryKey = append(of.PrimaryKey, v.Columns[v.IndexByID(c.ID)].Name)
	}
	columns := mergetest.Columns(r.rt, &of)
	writes := mergetest.Writes(r.rt, &of, columns)
	complete := columns == nil
	if columns != nil {
		complete = true
		for i, c := range v.Columns {
			complete = complete && (c.AutoIncrement || slices.Contains(columns, i))
		}
	}
	var now []mergetest.Write
	for _, w := range writes {
		row := migrateNulls(w.Row, v, &r.m.d.Schema)
		n := mergetest.Write{Row: row, Columns: []int{}, Delete: w.Delete}
		all := true
		for i, c := range r.m.d.Schema.Columns {
			at := v.IndexByID(c.ID)
			switch {
			case at >= 0 && (columns == nil || slices.Contains(columns, at)):
				n.Columns = append(n.Columns, i)
			case !c.AutoIncrement:
				all = false
			}
		}
		if w.Delete && !complete && all {
			return // of columns, of which the others were dropped since: to the model it is of the row
		}
		if w.Delete && complete && !all { // of the row, by who does not know all its columns
			n.Columns = nil
			for i, c := range r.m.d.Schema.Columns {
				if slices.Contains(r.m.d.PrimaryKey, c.Name) {
					n.Columns = append(n.Columns, i)
				}
			}
		}
		now = append(now, n)
	}
	r.olders++
	r.send(v, writes, now)
}

// migrateNulls is migrate for a row that may have nulls where it must not.
func migrateNulls(row mergetest.Row, from, to *schema.Schema) mergetest.Row {
	loose := func(s *schema.Schema) *schema.Schema {
		c := s.Clone()
		for i := range c.Columns {
			c.Columns[i].Type.NotNull = false
		}
		return &c
	}
	return migrate([]mergetest.Row{row}, loose(from), loose(to))[0]
}

func (r *modelRun) send(s *schema.Schema, sent, writes []mergetest.Write) {
	p := putOf(r.b.t, s, sent, noWriter)
	if rapid.Bool().Draw(r.rt, "writer") {
		p.WriterID, p.Sequence = modelWriter, int32(len(r.m.writers()))
	}
	pending, err := r.b.kv.Put(context.Background(), p)
	r.outcome(pending, err, p, writes)
}

// outcome compares that of a put with the model's.
func (r *modelRun) outcome(pending *Pending, err error, p Put, writes []mergetest.Write) {
	for _, w := range writes {
		for i, c := range r.m.d.Schema.Columns {
			if w.Row[i] == nil && slices.Contains(r.m.d.PrimaryKey, c.Name) {
				if !errors.Is(err, mink.ErrInvalid) {
					r.rt.Fatalf("a put with null in a key: %v", err)
				}
				return
			}
		}
	}
	e, refused := r.m.put(p, writes)
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
	e.pending = pending
	r.puts++
	if len(e.changes) == 0 {
		r.noops++
	}
	r.m.history = append(r.m.history, e)
	if end := r.b.log.LogEnd(); end != r.m.end {
		r.rt.Fatalf("the log ends at %d, want %d", end, r.m.end)
	}
}

// prepare begins a put that ends later, when others have changed its rows.
func (r *modelRun) prepare() {
	if len(r.early) == 3 {
		return
	}
	writes := mergetest.Writes(r.rt, r.m.d, mergetest.Columns(r.rt, r.m.d))
	e := earlyPut{sent: putOf(r.b.t, r.b.current(), writes, noWriter), writes: writes}
	var err error
	if e.prepared, err = r.b.kv.Prepare(e.sent); err != nil {
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
	pending, err := e.prepared.Put(context.Background())
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
		e.prepared.Drop()
	}
	r.early = nil
}

// again sends a writer's put again.
func (r *modelRun) again() {
	w := r.m.writers()
	if len(w) == 0 {
		return
	}
	e := w[rapid.IntRange(0, len(w)-1).Draw(r.rt, "which")]
	p, err := r.b.kv.Put(context.Background(), e.sent)
	if err != nil {
		r.rt.Fatal(err)
	}
	if !p.res.Duplicate || r.b.log.LogEnd() != r.m.end {
		r.rt.Fatalf("sent again: %+v, the log ends at %d, want %d", p.res, r.b.log.LogEnd(), r.m.end)
	}
	r.dups++
	r.m.history = append(r.m.history, event{writes: nil, pending: p, sent: noWriter})
}

func (r *modelRun) reopen() {
	r.drop()
	r.b.s.land(-1)
	r.b.reopen()
	r.settle()
	r.m.auto = r.b.nextID
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
	r.m.auto = r.b.nextID
	r.m.cut(r.d0, r.b.log.LogEnd())
	if end := r.b.log.LogEnd(); end != r.m.end {
		r.rt.Fatalf("the log ends at %d, the model has puts up to %d", end, r.m.end)
	}
	for i := range r.m.history {
		r.m.history[i].pending = nil
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
	d := r.m.d
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
	r.m.alter(r.b.table.Descriptor)
	r.m.history = append(r.m.history, event{d: r.b.table.Descriptor})
}

func indexes(n int) (out []int) {
	for i := range n {
		out = append(out, i)
	}
	return out
}

// settle waits for the puts that were not lost.
func (r *modelRun) settle() {
	for i := range r.m.history {
		e := &r.m.history[i]
		if e.pending == nil {
			continue
		}
		<-e.pending.Done()
		res, err := e.pending.Result()
		if err != nil {
			r.rt.Fatal(err)
		}
		if !res.Duplicate && res.Last-res.First+1 != e.offsets {
			r.rt.Fatalf("a put takes %+v, want %d offsets", res, e.offsets)
		}
		e.pending = nil
	}
}

func (r *modelRun) check() {
	b, ctx := r.b, context.Background()
	b.s.land(-1)
	r.settle()
	want := r.m.m.Rows()
	sameRows(r.rt, "view", b.all(), want)
	if n, err := b.kv.Count(ctx); n != int64(len(want)) || err != nil {
		r.rt.Fatalf("%d rows, %v, want %d", n, err, len(want))
	}
	if got := b.kv.VisibleHighWatermark(); got != r.m.end {
		r.rt.Fatalf("visible up to %d of %d", got, r.m.end)
	}
	changes, next := changelog(r.rt, b.log, 0)
	if next != r.m.end {
		r.rt.Fatalf("a reader gets to %d of %d", next, r.m.end)
	}
	sameChanges(r.rt, "changelog", changes, r.m.changes())
	// Of all keys that ever were, the ones with a row are found, in any order.
	var keys [][]byte
	var found []mergetest.Row
	for _, w := range slices.Backward(r.m.history) {
		for _, k := range w.keys {
			keys = append(keys, []byte(k))
			if row := r.m.m.Get(k); row != nil {
				found = append(found, row)
			}
		}
	}
	rec, hit, err := b.kv.Lookup(ctx, keys, nil)
	if err != nil {
		r.rt.Fatal(err)
	}
	for i, k := range keys {
		if hit[i] != (r.m.m.Get(string(k)) != nil) {
			r.rt.Fatalf("key %x: found is %t", k, hit[i])
		}
	}
	sameRows(r.rt, "lookup", rowsOf(rec), found)
	if len(want) > 1 { // a range of keys
		lo, hi := key(r.rt, r.m.d, want[1]), key(r.rt, r.m.d, want[len(want)-1])
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
