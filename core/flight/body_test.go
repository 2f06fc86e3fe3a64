package flight

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	aflight "github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// FuzzBodies feeds tickets, descriptors and action bodies: an error of a class,
// or a value that its own JSON gives again; never a panic.
func FuzzBodies(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `null`, `[]`, `{"scan":null}`, `{"scan":{"bucket":{"table_id":1,"partition_id":2,"bucket":3},"from":4,"until":5,"columns":["a"]}}`,
		`{"table":"db.t","mode":"log","columns":["a","b"],"from":"latest","partition":["x"]}`,
		`{"append":{"bucket":{"table_id":1,"partition_id":1,"bucket":0},"schema_id":1,"writer_id":9}}`,
		`{"name":"p","position":"AAEC","offsets":[{"bucket":{"table_id":1,"partition_id":1,"bucket":0},"offset":7}],"version":1}`,
		`{"descriptor":{"database":"d"},"if_not_exists":true}`, `{"scan":{"from":99999999999999999999}}`, `{"Scan":{}}`, `{"scan":{}}{}`,
		`{"put":{"bucket":{"table_id":1,"partition_id":1,"bucket":0},"schema_id":1,"columns":["id"]}}`, `{"sequence":1,"changes":"AwQ="}`, `{"delete":true}`,
		`{"range":{"bucket":{"table_id":1,"partition_id":2,"bucket":3},"from":{"a":1},"to":null}}`, `{"lookup":{"table":"db.t","columns":["a"]}}`,
		`{"table":"db.t","keys":[{"id":1},null,7],"columns":[]}`, `{"table":"db.t","prefix":{"id":1},"limit":-1}`,
		strings.Repeat(`{"scan":`, 200), strings.Repeat("[", 20000),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, into := range []any{&api.Ticket{}, &api.Command{}, &api.Producer{}, &api.CreateTable{}, &api.AppendMetadata{}, &nothing{},
			&api.Exchange{}, &api.PutMetadata{}, &api.Lookup{}, &api.PrefixLookup{}, &api.CountRequest{}} {
			err := decodeBody("body", body, into)
			if err != nil {
				if !errors.Is(err, mink.ErrInvalid) && !errors.Is(err, mink.ErrTooLarge) {
					t.Errorf("%T: %v has no class", into, err)
				}
				continue
			}
			again, err := json.Marshal(into)
			if err != nil {
				t.Errorf("%T of %q: %v", into, body, err)
				continue
			}
			if err := decodeBody("body", again, into); err != nil {
				t.Errorf("%T: %q was read, its own JSON %q is not: %v", into, body, again, err)
			}
		}
	})
}

// FuzzSchemaMessage feeds what a client's stream begins with.
func FuzzSchemaMessage(f *testing.F) {
	f.Add([]byte{})
	for _, s := range seedSchemas() {
		f.Add(schemaMessage(s))
	}
	f.Fuzz(func(t *testing.T, header []byte) {
		s, err := readSchema(header)
		if err != nil {
			if !errors.Is(err, mink.ErrInvalid) && !errors.Is(err, mink.ErrTooLarge) {
				t.Errorf("%v has no class", err)
			}
			return
		}
		if err := checkSchemaMessage(schemaMessage(s)); err != nil {
			t.Errorf("schema %v was read, its own message is not: %v", s, err)
		}
	})
}

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

func TestSuggest(t *testing.T) {
	if got := suggest("tabel", []string{"mode", "table"}); got != `; did you mean "table"?` {
		t.Errorf("suggest says %q", got)
	}
	if got := suggest("zzz", []string{"mode", "table"}); got != "; known: mode, table" {
		t.Errorf("suggest says %q", got)
	}
	if got := suggest("zzz", nil); got != "; this body has no fields" {
		t.Errorf("suggest says %q", got)
	}
}
