package gorow

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/sdk/mink"
)

func listCodec(where string, t reflect.Type, dt *arrow.ListType) (Value, bool, error) {
	if t.Kind() != reflect.Slice {
		return Value{}, false, nil
	}
	elem, err := ValueOf(where+"[]", t.Elem(), dt.ElemField())
	return Value{
		func(b array.Builder, v reflect.Value) error {
			l := b.(*array.ListBuilder)
			l.Append(true)
			for i := range v.Len() {
				if err := elem.Append(l.ValueBuilder(), v.Index(i)); err != nil {
					return fmt.Errorf("element %d: %w", i, err)
				}
			}
			return nil
		},
		func(a arrow.Array, row int, v reflect.Value) error {
			l := a.(*array.List)
			from, to := l.ValueOffsets(row)
			v.Set(reflect.MakeSlice(t, int(to-from), int(to-from)))
			for i := from; i < to; i++ {
				if err := elem.Read(l.ListValues(), int(i), v.Index(int(i-from))); err != nil {
					return fmt.Errorf("element %d: %w", i-from, err)
				}
			}
			return nil
		},
	}, true, err
}

func mapCodec(where string, t reflect.Type, dt *arrow.MapType) (Value, bool, error) {
	if t.Kind() != reflect.Map {
		return Value{}, false, nil
	}
	key, err := ValueOf(where+"'s keys", t.Key(), dt.KeyField())
	if err != nil {
		return Value{}, true, err
	}
	value, err := ValueOf(where+"'s values", t.Elem(), dt.ItemField())
	return Value{
		func(b array.Builder, v reflect.Value) error {
			m := b.(*array.MapBuilder)
			m.Append(true)
			for it := v.MapRange(); it.Next(); {
				if err := key.Append(m.KeyBuilder(), it.Key()); err != nil {
					return fmt.Errorf("key %v: %w", it.Key(), err)
				}
				if err := value.Append(m.ItemBuilder(), it.Value()); err != nil {
					return fmt.Errorf("value of %v: %w", it.Key(), err)
				}
			}
			return nil
		},
		func(a arrow.Array, row int, v reflect.Value) error {
			m := a.(*array.Map)
			from, to := m.ValueOffsets(row)
			v.Set(reflect.MakeMapWithSize(t, int(to-from)))
			for i := int(from); i < int(to); i++ {
				k, e := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
				if err := key.Read(m.Keys(), i, k); err != nil {
					return fmt.Errorf("key %d: %w", i-int(from), err)
				}
				if err := value.Read(m.Items(), i, e); err != nil {
					return fmt.Errorf("value of %v: %w", k, err)
				}
				v.SetMapIndex(k, e)
			}
			return nil
		},
	}, true, err
}

func rowCodec(t reflect.Type, dt *arrow.StructType) (Value, bool, error) {
	if Single(t) {
		return Value{}, false, nil
	}
	c, err := Compile(t, arrow.NewSchema(dt.Fields(), nil))
	if err != nil {
		return Value{}, true, err
	}
	var rest []int // fields without a member
	for i, f := range dt.Fields() {
		if slices.ContainsFunc(c.columns, func(b bound) bool { return b.at == i }) {
			continue
		}
		if !f.Nullable {
			return Value{}, true, fmt.Errorf("%w type: field %q is NOT NULL and no field of %s has its tag", mink.ErrInvalid, f.Name, t)
		}
		rest = append(rest, i)
	}
	return Value{
		func(b array.Builder, v reflect.Value) error {
			s := b.(*array.StructBuilder)
			s.Append(true)
			for _, m := range c.columns {
				if err := m.value.Append(s.FieldBuilder(m.at), m.of(v)); err != nil {
					return fmt.Errorf("field %q: %w", m.column, err)
				}
			}
			for _, i := range rest {
				s.FieldBuilder(i).AppendNull()
			}
			return nil
		},
		func(a arrow.Array, row int, v reflect.Value) error {
			s := a.(*array.Struct)
			for _, m := range c.columns {
				if err := m.value.Read(s.Field(m.at), row, m.of(v)); err != nil {
					return fmt.Errorf("field %q: %w", m.column, err)
				}
			}
			return nil
		},
	}, true, nil
}
