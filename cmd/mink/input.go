package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

var jsonNull = json.RawMessage("null")

// appendJSONValue reads one JSON value exactly, at any depth. Arrow's own reader
// rounds decimals, drops fields that a ROW does not have, and takes bare numbers
// for dates. An error says what is wanted and where in the value; the builder is
// then of no more use.
func appendJSONValue(b array.Builder, v json.RawMessage) error {
	v = bytes.TrimSpace(v)
	if bytes.Equal(v, jsonNull) {
		b.AppendNull()
		return nil
	}
	switch b := b.(type) {
	case *array.StructBuilder:
		return appendJSONObject(b, v)
	case *array.MapBuilder:
		return appendJSONMap(b, v)
	case *array.ListBuilder:
		var items []json.RawMessage
		if json.Unmarshal(v, &items) != nil {
			return errors.New("want a JSON list")
		}
		b.Append(true)
		elem := b.Type().(*arrow.ListType).ElemField()
		for i, item := range items {
			if err := appendJSONField(b.ValueBuilder(), elem, item); err != nil {
				return fmt.Errorf("element %d: %w", i+1, err)
			}
		}
		return nil
	}
	text, quoted := string(v), v[0] == '"'
	if quoted {
		if err := json.Unmarshal(v, &text); err != nil {
			return err
		}
	}
	if v[0] == '{' || v[0] == '[' || !quoted && needsQuotes(b.Type()) {
		return errors.New("want " + wanted(b.Type()))
	}
	return appendText(b, text)
}

// appendJSONField is appendJSONValue for what may be NOT NULL.
func appendJSONField(b array.Builder, f arrow.Field, v json.RawMessage) error {
	if !f.Nullable && bytes.Equal(bytes.TrimSpace(v), jsonNull) {
		return errors.New("it is NOT NULL and has no value")
	}
	return appendJSONValue(b, v)
}

func appendJSONObject(b *array.StructBuilder, v json.RawMessage) error {
	fields := b.Type().(*arrow.StructType).Fields()
	members, err := jsonMembers(v, fields)
	if err != nil {
		return err
	}
	b.Append(true)
	for i, f := range fields {
		if err := appendJSONField(b.FieldBuilder(i), f, members[i]); err != nil {
			return fmt.Errorf("field %q: %w", f.Name, err)
		}
	}
	return nil
}

// jsonMembers are the members of an object in the order of the fields, null for
// those that are not there.
func jsonMembers(v json.RawMessage, fields []arrow.Field) ([]json.RawMessage, error) {
	var members map[string]json.RawMessage
	if json.Unmarshal(v, &members) != nil {
		return nil, errors.New("want a JSON object")
	}
	out, names := make([]json.RawMessage, len(fields)), make([]string, len(fields))
	for i, f := range fields {
		out[i], names[i] = jsonNull, f.Name
	}
	for name, m := range members {
		i := slices.Index(names, name)
		if i < 0 {
			return nil, fmt.Errorf("there is no field %q; it has %s", name, strings.Join(names, ", "))
		}
		out[i] = m
	}
	return out, nil
}

func appendJSONMap(b *array.MapBuilder, v json.RawMessage) error {
	var entries []json.RawMessage
	if json.Unmarshal(v, &entries) != nil {
		return errors.New(`want a list such as [{"key": ..., "value": ...}]`)
	}
	t := b.Type().(*arrow.MapType)
	key, item := t.KeyField(), t.ItemField()
	key.Name, item.Name = "key", "value"
	b.Append(true)
	for i, e := range entries {
		m, err := jsonMembers(e, []arrow.Field{key, item})
		if err == nil {
			err = appendJSONField(b.KeyBuilder(), arrow.Field{}, m[0])
		}
		if err == nil {
			err = appendJSONField(b.ItemBuilder(), item, m[1])
		}
		if err != nil {
			return fmt.Errorf("entry %d: %w", i+1, err)
		}
	}
	return nil
}

// needsQuotes reports that a bare JSON number or boolean is no value of the type.
func needsQuotes(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.BOOL, arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64, arrow.FLOAT32, arrow.FLOAT64, arrow.DECIMAL128:
		return false
	}
	return true
}

// appendText reads one value from text, of a CSV field or a JSON string.
func appendText(b array.Builder, text string) error {
	var err error
	switch b := b.(type) {
	case *array.StringBuilder:
		b.Append(text)
		return nil
	case *array.StructBuilder, *array.MapBuilder, *array.ListBuilder:
		if !json.Valid([]byte(text)) {
			return errors.New("want " + wanted(b.Type()))
		}
		return appendJSONValue(b, json.RawMessage(text))
	case *array.Decimal128Builder:
		n, err := parseDecimal(text, b.Type().(*arrow.Decimal128Type))
		if err == nil {
			b.Append(n)
		}
		return err
	case *array.Int8Builder, *array.Int16Builder, *array.Int32Builder, *array.Int64Builder:
		if text, err = wholeNumber(text); err == nil {
			err = b.AppendValueFromString(text)
		}
	case *array.FixedSizeBinaryBuilder:
		var v []byte
		if v, err = base64.StdEncoding.DecodeString(text); err == nil && len(v) != b.Type().(*arrow.FixedSizeBinaryType).ByteWidth {
			err = errors.New("wrong length")
		}
		if err == nil {
			b.Append(v)
		}
	case *array.Date32Builder, *array.Time32Builder, *array.Time64Builder, *array.TimestampBuilder:
		if _, number := strconv.ParseInt(text, 10, 64); number == nil {
			err = errors.New("a number") // which Arrow takes for days or ticks
		} else {
			err = b.AppendValueFromString(text)
		}
	default:
		err = b.AppendValueFromString(text)
	}
	if err != nil || text == array.NullValueStr { // Arrow's sign for null is no value here
		return errors.New("want " + wanted(b.Type()))
	}
	return nil
}

// wholeNumber is the digits of a number that may be written 1e3 or 2.0.
func wholeNumber(text string) (string, error) {
	if _, err := strconv.ParseInt(text, 10, 64); err == nil {
		return text, nil
	}
	n, err := parseDecimal(text, &arrow.Decimal128Type{Precision: 19})
	if err != nil {
		return "", err
	}
	return n.BigInt().String(), nil
}

// wanted says what a column's type takes.
func wanted(t arrow.DataType) string {
	switch t := t.(type) {
	case *arrow.BooleanType:
		return "true or false"
	case *arrow.Int8Type, *arrow.Int16Type, *arrow.Int32Type, *arrow.Int64Type:
		bits := t.(arrow.FixedWidthDataType).BitWidth()
		most := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
		return fmt.Sprintf("a whole number from -%s to %s", most, new(big.Int).Sub(most, big.NewInt(1)))
	case *arrow.Float32Type, *arrow.Float64Type:
		return "a number"
	case *arrow.StringType:
		return "text in quotes"
	case *arrow.BinaryType:
		return "base64"
	case *arrow.FixedSizeBinaryType:
		return fmt.Sprintf("base64 of exactly %d bytes", t.ByteWidth)
	case *arrow.Date32Type:
		return "a date such as 2026-01-31"
	case *arrow.Time32Type, *arrow.Time64Type:
		return "a time such as 07:05:00, with no more digits than the type has"
	case *arrow.TimestampType:
		zone := ""
		if t.TimeZone != "" {
			zone = "Z"
		}
		return "a time such as 2026-01-31T07:05:00" + zone + ", with no more digits than the type has"
	case *arrow.MapType:
		return `a list such as [{"key": ..., "value": ...}]`
	case *arrow.ListType:
		return "a JSON list"
	case *arrow.StructType:
		return "a JSON object"
	}
	return "a value of " + t.String()
}
