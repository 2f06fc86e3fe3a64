package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/nearest"
)

// bodyBytesMax bounds a JSON body: a descriptor is at most 1 MiB of it, a
// producer's offsets a few.
const bodyBytesMax = 8 << 20

// Decode reads a JSON body strictly: a name that the type lacks is refused
// with the nearest one that it has, in exactly this spelling; so is anything
// after the value. An empty body is an empty object.
func Decode(what string, body []byte, into any) error {
	if len(body) > bodyBytesMax {
		return fmt.Errorf("%s: %w: %d bytes of JSON, at most %d are read", what, mink.ErrTooLarge, len(body), bodyBytesMax)
	}
	if len(body) == 0 {
		body = []byte("{}")
	}
	if err := checkNames(body, reflect.TypeOf(into).Elem(), ""); err != nil {
		return fmt.Errorf("%s: %w: %w", what, mink.ErrInvalid, err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%s: %w: %w", what, mink.ErrInvalid, inWords(err))
	}
	return nil
}

var rawMessage = reflect.TypeFor[json.RawMessage]()

// checkNames walks the JSON along the type. Values that do not fit the type are
// left to the decoder.
func checkNames(body []byte, t reflect.Type, at string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == rawMessage:
		return nil
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		if e := t.Elem(); e.Kind() != reflect.Struct {
			return nil
		}
		var items []json.RawMessage
		if err := json.Unmarshal(body, &items); err != nil {
			return inWords(err)
		}
		for i, item := range items {
			if err := checkNames(item, t.Elem(), fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
		return nil
	case t.Kind() != reflect.Struct || bytes.Equal(bytes.TrimSpace(body), []byte("null")):
		return nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		if at != "" {
			return fmt.Errorf("field %q: want an object", strings.TrimPrefix(at, "."))
		}
		return fmt.Errorf("want a JSON object: %w", inWords(err))
	}
	fields := fieldsOf(t)
	names := make([]string, 0, len(members))
	for name := range members {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		ft, ok := fields[name]
		if !ok {
			return fmt.Errorf("unknown field %.100q%s", strings.TrimPrefix(at+"."+name, "."), amongFields(name, fields))
		}
		if err := checkNames(members[name], ft, at+"."+name); err != nil {
			return err
		}
	}
	return nil
}

// fieldsOf maps JSON names to types.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type, t.NumField())
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name != "" && name != "-" {
			fields[name] = t.Field(i).Type
		}
	}
	return fields
}

// amongFields suggests a field.
func amongFields(name string, fields map[string]reflect.Type) string {
	known := make([]string, 0, len(fields))
	for k := range fields {
		known = append(known, k)
	}
	slices.Sort(known)
	return Suggest(name, known)
}

// Suggest is `; did you mean "x"?`, or what there is when nothing is near.
func Suggest(name string, known []string) string {
	if k, ok := nearest.Close(name, known); ok {
		return fmt.Sprintf("; did you mean %q?", k)
	}
	switch {
	case len(known) == 0:
		return "; this body has no fields"
	case len(known) > 20:
		return ""
	}
	return "; known: " + strings.Join(known, ", ")
}

func inWords(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		return fmt.Errorf("field %q cannot be a JSON %s", wrong.Field, wrong.Value)
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("byte %d: %w", syntax.Offset, err)
	}
	return err
}
