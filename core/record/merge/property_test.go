package merge_test

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/mink-project/mink/core/record/merge"
	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/record/row"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
	"pgregory.net/rapid"
)

// table is a table over an Engine, as a tablet would be: rows by key, a changelog.
type table struct {
	d    *schema.Descriptor
	e    *merge.Engine
	wal  bool
	key  func(mergetest.Row) string
	rows map[string][]byte
	last int64
}

type fataler interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func newTable(t fataler, d *schema.Descriptor) *table {
	t.Helper()
	e, err := merge.New(d, &d.Schema)
	if err != nil {
		t.Fatal(err)
	}
	o, err := d.ParsedOptions()
	if err != nil {
		t.Fatal(err)
	}
	return &table{d: d, e: e, wal: o.WALImage, key: mergetest.New(d).Key, rows: map[string][]byte{}}
}

// put applies all writes, or none when one fails.
func (tb *table) put(t fataler, columns []int, writes []mergetest.Write) ([]mergetest.Change, error) {
	t.Helper()
	var ids []mink.FieldID
	for _, i := range columns {
		ids = append(ids, tb.d.Schema.Columns[i].ID)
	}
	writer := &tb.d.Schema
	if len(writes) > 0 && writes[0].Writer != nil {
		writer = writes[0].Writer
	}
	targets, err := tb.e.Targets(writer, ids)
	if err != nil {
		return nil, err
	}
	var rows []mergetest.Row
	for _, w := range writes {
		rows = append(rows, w.Row)
	}
	enc := tb.e.Codec().Encoder()
	if err := enc.Bind(mergetest.Batch(&tb.d.Schema, rows).Columns()); err != nil {
		t.Fatal(err)
	}
	before, last := maps.Clone(tb.rows), tb.last
	var changes []change
	for i, w := range writes {
		c, err := tb.write(t, targets, tb.key(w.Row), enc.Append(nil, i), w.Delete)
		if err != nil {
			tb.rows, tb.last = before, last
			return nil, err
		}
		changes = append(changes, c...)
	}
	return tb.changelog(t, changes), nil
}

// alter brings the table and its rows to a later version, as reads of older rows do.
func (tb *table) alter(t fataler, d *schema.Descriptor) {
	t.Helper()
	up, err := row.NewUpgrader(&tb.d.Schema, &d.Schema)
	if err != nil {
		t.Fatal(err)
	}
	next := newTable(t, d)
	next.last = tb.last
	for key, value := range tb.rows {
		if next.rows[key], err = up.Append(nil, value); err != nil {
			t.Fatal(err)
		}
	}
	*tb = *next
}

// change is a record of the changelog with its row in bytes.
type change struct {
	kind mink.Change
	row  []byte
}

func (tb *table) write(t fataler, targets *merge.Targets, key string, in []byte, del bool) ([]change, error) {
	t.Helper()
	var old []byte
	needsOld := tb.e.NeedsOld(targets.All())
	if needsOld {
		old = tb.rows[key]
	}
	value, outcome, err := tb.e.Apply(nil, old, in, targets, del)
	switch {
	case err != nil:
		if !errors.Is(err, mink.ErrInvalid) || len(value) > 0 {
			t.Fatalf("%x, %v", value, err)
		}
		return nil, err
	case outcome == merge.Keep:
		return nil, nil
	case outcome == merge.Delete:
		delete(tb.rows, key)
		if !tb.wal {
			return []change{{mink.ChangeDelete, old}}, nil
		}
		if old == nil {
			old = in
		}
		row, err := tb.e.KeyRow(nil, old)
		if err != nil {
			t.Fatal(err)
		}
		return []change{{mink.ChangeDelete, row}}, nil
	}
	if old == nil && tb.e.AutoIncrement() >= 0 {
		tb.last++
		if err := tb.e.Assign(value, tb.last); err != nil {
			t.Fatal(err)
		}
	}
	if err := tb.e.Codec().Check(value); err != nil {
		t.Fatal(err)
	}
	tb.rows[key] = value
	switch {
	case old == nil && needsOld:
		return []change{{mink.ChangeInsert, value}}, nil
	case tb.wal:
		return []change{{mink.ChangeUpdateAfter, value}}, nil
	}
	return []change{{mink.ChangeUpdateBefore, old}, {mink.ChangeUpdateAfter, value}}, nil
}

func (tb *table) decode(t fataler, values [][]byte) []mergetest.Row {
	t.Helper()
	b, err := tb.e.Codec().Builder(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range values {
		if err := b.Append(v); err != nil {
			t.Fatal(err)
		}
	}
	return mergetest.Rows(b.NewBatch())
}

func (tb *table) changelog(t fataler, changes []change) []mergetest.Change {
	t.Helper()
	var values [][]byte
	for _, c := range changes {
		values = append(values, c.row)
	}
	var out []mergetest.Change
	for i, r := range tb.decode(t, values) {
		out = append(out, mergetest.Change{Kind: changes[i].kind, Row: r})
	}
	return out
}

// contents are the rows in key order.
func (tb *table) contents(t fataler) []mergetest.Row {
	t.Helper()
	var values [][]byte
	for _, key := range slices.Sorted(maps.Keys(tb.rows)) {
		values = append(values, tb.rows[key])
	}
	return tb.decode(t, values)
}

// Random writes to random tables do what the model says, in the table and in its
// changelog, and fail when the model does.
func TestAgreesWithModel(t *testing.T) {
	refused, taken := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		d := mergetest.Table(t)
		tb, model := newTable(t, d), mergetest.New(d)
		for range rapid.IntRange(1, 12).Draw(t, "puts") {
			columns := mergetest.Columns(t, d)
			writes := mergetest.Writes(t, d, columns)
			want, wantErr := model.Apply(writes)
			got, err := tb.put(t, columns, writes)
			if (err != nil) != (wantErr != nil) {
				t.Fatalf("%s\n%v\n%v, want %v", d.Encode(), writes, err, wantErr)
			}
			if refused++; err == nil {
				taken++
				refused--
			}
			if !mergetest.Equal(got, want) {
				t.Fatalf("%s\n%v\nchangelog %v, want %v", d.Encode(), writes, got, want)
			}
			if got, want := tb.contents(t), model.Rows(); !mergetest.Equal(got, want) {
				t.Fatalf("%s\n%v\nrows %v, want %v", d.Encode(), writes, got, want)
			}
		}
	})
	if refused == 0 || taken == 0 {
		t.Errorf("%d puts taken, %d refused: the test says nothing", taken, refused)
	}
}

// Tables that are altered between puts, with writers that know the newest or an older
// version of the columns.
func TestAgreesWithModelWhenAltered(t *testing.T) {
	behind := 0
	rapid.Check(t, func(t *rapid.T) {
		d := mergetest.Table(t)
		tb, model := newTable(t, d), mergetest.New(d)
		versions := []*schema.Schema{&d.Schema}
		for range rapid.IntRange(2, 12).Draw(t, "steps") {
			if rapid.IntRange(0, 3).Draw(t, "alter") == 0 {
				changes := mergetest.Alterations(t, tb.d)
				d, err := tb.d.Apply(changes)
				if err != nil {
					t.Fatalf("%s: %v", schema.EncodeChanges(changes), err)
				}
				tb.alter(t, d)
				model.Alter(d)
				versions = append(versions, &d.Schema)
			}
			writer := rapid.SampledFrom(versions).Draw(t, "writer")
			var columns []int
			if writer == versions[len(versions)-1] {
				columns, writer = mergetest.Columns(t, tb.d), nil
			}
			writes := mergetest.Writes(t, tb.d, columns)
			for i := range writes {
				writes[i].Writer = writer
			}
			want, wantErr := model.Apply(writes)
			got, err := tb.put(t, columns, writes)
			if (err != nil) != (wantErr != nil) {
				t.Fatalf("%s\n%v\n%v, want %v", tb.d.Encode(), writes, err, wantErr)
			}
			if writer != nil && err == nil {
				behind++
			}
			if !mergetest.Equal(got, want) {
				t.Fatalf("%s\n%v\nchangelog %v, want %v", tb.d.Encode(), writes, got, want)
			}
			if got, want := tb.contents(t), model.Rows(); !mergetest.Equal(got, want) {
				t.Fatalf("%s\n%v\nrows %v, want %v", tb.d.Encode(), writes, got, want)
			}
		}
	})
	if behind == 0 {
		t.Error("no writer was behind: the test says nothing")
	}
}
