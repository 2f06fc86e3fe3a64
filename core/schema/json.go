package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sort"
	"strings"

	"github.com/mink-project/mink/core/internal/invariant"
	"github.com/mink-project/mink/sdk/mink"
)

// columnJSON is a column's wire form. The type is its canonical text; the ids of
// nested fields follow in the order in which the text names them.
type columnJSON struct {
	ID            mink.FieldID      `json:"id,omitempty"`
	Name          string            `json:"name"`
	Type          string            `json:"type"`
	NestedIDs     []mink.FieldID    `json:"nested_ids,omitempty"`
	Comment       string            `json:"comment,omitempty"`
	AutoIncrement bool              `json:"auto_increment,omitempty"`
	Aggregate     AggregateFunction `json:"aggregate,omitempty"`
}

type schemaJSON struct {
	ID      mink.SchemaID `json:"id,omitempty"`
	Columns []Column      `json:"columns"`
}

// MarshalJSON writes {"id":1,"name":"a","type":"ARRAY<INT>","nested_ids":[2]}.
func (c Column) MarshalJSON() ([]byte, error) {
	w := columnJSON{ID: c.ID, Name: c.Name, Type: c.Type.String(), Comment: c.Comment, AutoIncrement: c.AutoIncrement, Aggregate: c.Aggregate}
	any := false
	eachField(c.Type, func(f *Field) {
		w.NestedIDs = append(w.NestedIDs, f.ID)
		any = any || f.ID != 0
	})
	if !any {
		w.NestedIDs = nil
	}
	return marshal(w)
}

// UnmarshalJSON reads what MarshalJSON writes, strictly.
func (c *Column) UnmarshalJSON(data []byte) error {
	var w columnJSON
	if err := unmarshalStrict(data, &w, "column"); err != nil {
		return err
	}
	t, err := ParseType(w.Type)
	if err != nil {
		return fmt.Errorf("column %q: %w", w.Name, err)
	}
	if w.NestedIDs != nil {
		rest := w.NestedIDs
		short := false
		eachField(t, func(f *Field) {
			if len(rest) == 0 {
				short = true
				return
			}
			f.ID, rest = rest[0], rest[1:]
		})
		if short || len(rest) > 0 {
			return fmt.Errorf("%w column %q: nested_ids must have one id for each field inside %s", mink.ErrInvalid, w.Name, t)
		}
	}
	*c = Column{ID: w.ID, Name: w.Name, Type: t, Comment: w.Comment, AutoIncrement: w.AutoIncrement, Aggregate: w.Aggregate}
	return nil
}

// eachField visits the fields inside t in the order of its text.
func eachField(t Type, visit func(*Field)) {
	for i := range t.Fields {
		visit(&t.Fields[i])
		eachField(t.Fields[i].Type, visit)
	}
}

// MarshalJSON writes {"id":1,"columns":[...]}.
func (s Schema) MarshalJSON() ([]byte, error) {
	w := schemaJSON(s)
	if w.Columns == nil {
		w.Columns = []Column{}
	}
	return marshal(w)
}

// UnmarshalJSON reads what MarshalJSON writes, strictly.
func (s *Schema) UnmarshalJSON(data []byte) error {
	var w schemaJSON
	if err := unmarshalStrict(data, &w, "schema"); err != nil {
		return err
	}
	*s = Schema(w)
	return nil
}

// MarshalJSON writes the type's canonical text.
func (t Type) MarshalJSON() ([]byte, error) { return marshal(t.String()) }

// UnmarshalJSON reads a type's text.
func (t *Type) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("%w type: want its text such as \"INT NOT NULL\": %w", mink.ErrInvalid, err)
	}
	parsed, err := ParseType(text)
	if err == nil {
		*t = parsed
	}
	return err
}

// descriptorJSON is Descriptor without its UnmarshalJSON.
type descriptorJSON Descriptor

// UnmarshalJSON reads a descriptor, strictly: an unknown field is an error.
func (d *Descriptor) UnmarshalJSON(data []byte) error {
	var w descriptorJSON
	if err := unmarshalStrict(data, &w, "descriptor"); err != nil {
		return err
	}
	*d = Descriptor(w)
	return nil
}

// Encode is the canonical JSON: equal descriptors give equal bytes.
func (d *Descriptor) Encode() []byte { return mustMarshal(d) }

// Encode is the canonical JSON of one schema version.
func (s *Schema) Encode() []byte { return mustMarshal(s) }

// DecodeDescriptor reads a descriptor's JSON, at most MaxDescriptorBytes of it.
// Unknown fields are refused with the nearest known name. It neither normalizes
// nor validates, so that a person's short form can be read.
func DecodeDescriptor(data []byte) (*Descriptor, error) {
	d := new(Descriptor)
	if err := decodeDocument(data, d, "descriptor"); err != nil {
		return nil, err
	}
	return d, nil
}

// DecodeSchema reads what Schema.Encode wrote.
func DecodeSchema(data []byte) (*Schema, error) {
	s := new(Schema)
	if err := decodeDocument(data, s, "schema"); err != nil {
		return nil, err
	}
	return s, nil
}

func decodeDocument(data []byte, dst any, what string) error {
	if len(data) > MaxDescriptorBytes {
		return fmt.Errorf("%w %s: %d bytes, at most %d are allowed", mink.ErrTooLarge, what, len(data), MaxDescriptorBytes)
	}
	err := json.Unmarshal(data, dst)
	if err == nil || errors.Is(err, mink.ErrInvalid) {
		return err
	}
	return fmt.Errorf("%w %s: %w", mink.ErrInvalid, what, jsonError(err))
}

// unmarshalStrict refuses names that the struct behind dst does not have.
// encoding/json alone would match names in any case and drop unknown ones.
func unmarshalStrict(data []byte, dst any, what string) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return fmt.Errorf("%w %s: want an object: %w", mink.ErrInvalid, what, jsonError(err))
	}
	known := jsonNames(reflect.TypeOf(dst).Elem())
	unknown := make([]string, 0)
	for name := range members {
		if i := sort.SearchStrings(known, name); i == len(known) || known[i] != name {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		sort.Strings(unknown)
		return fmt.Errorf("%w %s: unknown field %.100q%s", mink.ErrInvalid, what, unknown[0], suggest(unknown[0], known))
	}
	if err := json.Unmarshal(data, dst); err != nil {
		if errors.Is(err, mink.ErrInvalid) {
			return err
		}
		return fmt.Errorf("%w %s: %w", mink.ErrInvalid, what, jsonError(err))
	}
	return nil
}

func jsonNames(t reflect.Type) []string {
	names := make([]string, 0, t.NumField())
	for i := 0; i < t.NumField(); i++ {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// jsonError says where, in a person's words.
func jsonError(err error) error {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) && wrongType.Field != "" {
		return fmt.Errorf("field %q cannot be a JSON %s", wrongType.Field, wrongType.Value)
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("byte %d: %w", syntax.Offset, err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends too early")
	}
	return err
}

// marshal is json.Marshal without HTML escapes: ARRAY<INT> stays readable.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func mustMarshal(v any) []byte {
	data, err := marshal(v)
	invariant.Check(err == nil, "encode %T: %v", v, err) // only strings, numbers and maps of strings
	return data
}
