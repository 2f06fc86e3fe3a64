package flight

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	aflight "github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/sdk/mink"
)

// FuzzCommand feeds descriptors, by path and as commands, to what finds a table
// and its columns.
func FuzzCommand(f *testing.F) {
	view := seedView(f)
	for _, s := range []string{
		`{"table":"db.t"}`, `{"table":"db.t","mode":"log","columns":["id","name"],"from":"latest","partition":["x"]}`, `{"table":"a.b.c"}`, `{"table":".t"}`,
		`{"append":{"bucket":{"table_id":1,"partition_id":1,"bucket":0},"schema_id":1}}`, `{"append":{},"table":"db.t"}`, `{"table":"db.t","filter":"x"}`, `{"table":"db.t","mode":"lake"}`,
	} {
		f.Add(int32(aflight.DescriptorCMD), s, "")
	}
	f.Add(int32(aflight.DescriptorPATH), "db", "t")
	f.Add(int32(aflight.DescriptorPATH), "db.t", "")
	f.Add(int32(7), "", "")
	f.Fuzz(func(t *testing.T, kind int32, first, second string) {
		d := &aflight.FlightDescriptor{Type: aflight.DescriptorType(kind), Cmd: []byte(first)}
		for _, e := range []string{first, second} {
			if e != "" {
				d.Path = append(d.Path, e)
			}
		}
		c, table, err := command(view, d)
		if err == nil && table != nil {
			if table.Descriptor.Name() != "db.t" {
				t.Errorf("%v is table %s", d, table.Descriptor.Name())
			}
			s, perr := projection(table.Schemas[0], c.Columns)
			if perr == nil && len(c.Columns) > 0 && len(s.Columns) != len(c.Columns) {
				t.Errorf("%q are %d columns", c.Columns, len(s.Columns))
			}
			_, err = partitionsOf(view, table, c.Partition)
			err = errors.Join(perr, err)
		}
		if err == nil {
			return
		}
		if _, _, ok := classOf(err); !ok || len(err.Error()) > 4096 {
			t.Errorf("%v: %v", d, err)
		}
	})
}

// FuzzKeys feeds objects of keys to what reads them: bounds of ranges, prefixes and
// keys of lookups.
func FuzzKeys(f *testing.F) {
	view := seedView(f)
	for _, s := range []string{
		`{"day":"2026-01-01","shop":"a","id":1}`, `{"shop":"a"}`, `{"id":1}`, `{}`, `null`, `[]`, `{"shop":"a","shop":"b"}`, `{"shop":null}`, `{"shop":{"a":[1]}}`,
		`{"day":"2026-01-01","shop":"\u0000"}`, `{"shop":"a","id":9223372036854775808}`, `{"shop":"a","id":1}{}`, `{"shop":"` + strings.Repeat("x", 5000) + `","id":1.5}`,
		strings.Repeat(`{"shop":`, 200),
	} {
		f.Add([]byte(s))
	}
	t, ok := view.TableByName("db", "items")
	if !ok {
		f.Fatal("no table")
	}
	f.Fuzz(func(tt *testing.T, object []byte) {
		k := keyOf(t)
		prefix, err := k.leading("from", object)
		if err == nil && len(prefix) == 0 {
			tt.Errorf("%q has no bytes", object)
		}
		s := &service{backend: viewBackend{view: view}}
		_, _, _, perr := s.prefixOf(t, object)
		rows, rerr := rowsOf(func(int) string { return "keys[0]" }, k.columns, []json.RawMessage{object})
		if rerr == nil {
			if rows.NumRows() != 1 {
				tt.Errorf("%q is %d rows", object, rows.NumRows())
			}
			rows.Release()
		}
		for _, err := range []error{err, perr, rerr} {
			if err == nil {
				continue
			}
			if !errors.Is(err, mink.ErrInvalid) || len(err.Error()) > 4096 {
				tt.Errorf("%q: %v", object, err)
			}
		}
	})
}

// viewBackend has metadata only.
type viewBackend struct {
	Backend
	view *cluster.State
}

func (b viewBackend) View() *cluster.State { return b.view }
