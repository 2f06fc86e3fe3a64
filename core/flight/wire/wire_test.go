package wire

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

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
		for _, into := range []any{&api.Ticket{}, &api.Command{}, &api.Producer{}, &api.CreateTable{}, &api.AppendMetadata{}, &struct{}{},
			&api.Exchange{}, &api.PutMetadata{}, &api.Lookup{}, &api.PrefixLookup{}, &api.CountRequest{}} {
			err := Decode("body", body, into)
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
			if err := Decode("body", again, into); err != nil {
				t.Errorf("%T: %q was read, its own JSON %q is not: %v", into, body, again, err)
			}
		}
	})
}

// FuzzSchemaMessage feeds what a client's stream begins with.
func FuzzSchemaMessage(f *testing.F) {
	f.Add([]byte{})
	for _, s := range seedSchemas() {
		f.Add(SchemaMessage(s))
	}
	f.Fuzz(func(t *testing.T, header []byte) {
		s, err := ReadSchema(header)
		if err != nil {
			if !errors.Is(err, mink.ErrInvalid) && !errors.Is(err, mink.ErrTooLarge) {
				t.Errorf("%v has no class", err)
			}
			return
		}
		if err := checkSchemaMessage(SchemaMessage(s)); err != nil {
			t.Errorf("schema %v was read, its own message is not: %v", s, err)
		}
	})
}

func TestSuggest(t *testing.T) {
	if got := Suggest("tabel", []string{"mode", "table"}); got != `; did you mean "table"?` {
		t.Errorf("suggest says %q", got)
	}
	if got := Suggest("zzz", []string{"mode", "table"}); got != "; known: mode, table" {
		t.Errorf("suggest says %q", got)
	}
	if got := Suggest("zzz", nil); got != "; this body has no fields" {
		t.Errorf("suggest says %q", got)
	}
}

// seedSchemas are flat, nested and annotated.
func seedSchemas() []*arrow.Schema {
	md := arrow.NewMetadata([]string{"mink.field_id"}, []string{"1"})
	return []*arrow.Schema{
		arrow.NewSchema(nil, nil),
		arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64, Metadata: md}, {Name: "s", Type: arrow.BinaryTypes.String, Nullable: true}}, &md),
		arrow.NewSchema([]arrow.Field{
			{Name: "m", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.ListOf(arrow.StructOf(arrow.Field{Name: "x", Type: arrow.FixedWidthTypes.Timestamp_ms})))},
			{Name: "d", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}},
		}, nil),
	}
}
