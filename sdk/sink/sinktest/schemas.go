package sinktest

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

func schemaChecks() []Check {
	follows := func(d sink.Description) bool { return d.SchemaChanges }
	return []Check{
		{Name: "SchemaChange", Applies: follows, Run: checkSchemaChange},
		{Name: "SchemaChangeKilled", Applies: follows, Run: checkSchemaChangeKilled},
		{Name: "SchemaChangePrimaryKey", Applies: both(follows, takesChanges), Run: checkSchemaChangePrimaryKey},
		{Name: "SchemaChangeRefused", Applies: func(d sink.Description) bool { return !d.SchemaChanges }, Run: checkSchemaChangeRefused},
	}
}

// nextSchema is the schema after one more change: a column is added, one renamed,
// one widened, one dropped, in turns. The key stays.
func nextSchema(s sink.Schema) sink.Schema {
	fields := slices.Clone(s.Arrow.Fields())
	at := func(id mink.FieldID) int {
		return slices.IndexFunc(fields, func(f arrow.Field) bool { return fieldID(f) == id })
	}
	switch s.ID {
	case 1:
		fields = append(fields, column(columnAdded, "added", "STRING", arrow.BinaryTypes.String, true))
	case 2:
		fields[at(columnNote)] = column(columnNote, "remark", "STRING", arrow.BinaryTypes.String, true)
	case 3:
		fields[at(columnAmount)] = column(columnAmount, "amount", "BIGINT", arrow.PrimitiveTypes.Int64, true)
		fields[at(columnRatio)] = column(columnRatio, "ratio", "DOUBLE", arrow.PrimitiveTypes.Float64, true)
	case 4:
		i := at(columnNote)
		fields = slices.Delete(fields, i, i+1)
	default: // the name of the dropped column, for another one
		fields = slices.Insert(fields, 1, column(columnAdded+mink.FieldID(s.ID), "remark", "STRING", arrow.BinaryTypes.String, true))
	}
	return sink.Schema{ID: s.ID + 1, Arrow: arrow.NewSchema(fields, nil)}
}

const lastSchema = 6

func (k *worker) changeSchema(next sink.Schema) error {
	_, err := k.table.SchemaChange(k.w.t.Context(), sink.SchemaChangeRequest{Schema: next})
	if err == nil {
		k.schema, k.w.spec.Schema = next, next
	}
	return err
}

// evolve changes the schema between rounds up to the last one.
func evolve(w *world) {
	w.t.Helper()
	w.chunk = 10
	k := w.worker()
	for w.goal = 10; w.spec.Schema.ID < lastSchema; w.goal += 10 {
		k.finish()
		if w.spec.Schema.ID%2 == 0 { // through a new process, which opens with the new schema
			k.stop()
			w.spec.Schema = nextSchema(w.spec.Schema)
			k.must(k.start())
			k.must(k.open())
		} else {
			k.must(k.changeSchema(nextSchema(w.spec.Schema)))
			k.must(k.changeSchema(w.spec.Schema)) // is no change
		}
		w.check(k.s)
		k.next = atRecover
	}
	k.finish()
	k.stop()
}

func checkSchemaChange(t T, target Target) {
	evolve(newWorld(t, target, tableOptions{partitioned: true}))
}

func checkSchemaChangePrimaryKey(t T, target Target) {
	evolve(newWorld(t, target, tableOptions{primaryKey: true, buckets: 2}))
}

// checkSchemaChangeKilled kills the sink before and after each change, with a
// prepared round of the old schema beside it.
func checkSchemaChangeKilled(t T, target Target) {
	for i, after := range []bool{false, true} {
		w := newWorld(t, target, tableOptions{id: mink.TableID(800 + i)})
		w.chunk = 10
		k := w.worker()
		for w.goal = 10; w.spec.Schema.ID < lastSchema; w.goal += 10 {
			for k.next != atCommit { // staged under the old schema, and given up
				k.step()
			}
			next := nextSchema(w.spec.Schema)
			if after {
				k.must(k.changeSchema(next))
			}
			k.killed()
			w.spec.Schema = next
			k = w.worker()
			k.finish()
			k.must(k.recover())
			w.goal += 10
			k.must(k.recover())
		}
		k.finish()
		k.stop()
	}
}

func checkSchemaChangeRefused(t T, target Target) {
	w := newWorld(t, target, tableOptions{})
	k := w.worker()
	k.finish()
	schema := w.spec.Schema
	wantIs(t, k.changeSchema(nextSchema(schema)), sink.ErrUnimplemented, "a schema change at a sink that declares none")
	k.must(k.table.Close())
	w.spec.Schema = nextSchema(schema)
	if err := k.open(); w.desc.Delivery == sink.ExactlyOnce {
		wantIs(t, err, sink.ErrUnimplemented, "open with a changed schema at a sink that declares no changes")
	} else if err == nil {
		k.must(k.table.Close())
	}
	k.table, w.spec.Schema = nil, schema
	k.must(k.open())
	w.check(k.s)
	k.stop()
}
