package mergetest

import (
	"fmt"
	"math"
	"math/big"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/mink-project/mink/core/schema"
	"pgregory.net/rapid"
)

// The types that tables are made of.
var (
	keyTypes = []string{"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(9,2)", "CHAR(3)", "STRING", "BINARY(2)", "BYTES",
		"DATE", "TIME(0)", "TIME(9)", "TIMESTAMP(3)", "TIMESTAMP_LTZ(6)"}
	valueTypes = append(slices.Clone(keyTypes), "DECIMAL(38,0)", "DECIMAL(38,20)", "DECIMAL(5,5)", "BINARY(20)", "TIME(3)", "TIMESTAMP(9)",
		"ARRAY<INT>", "MAP<STRING, DOUBLE>", "ROW<x BIGINT, y STRING>", "ARRAY<ROW<z BYTES>>")
)

// Table draws a valid primary-key table: any merge engine, delete behaviour and
// changelog image, columns of any type, sometimes an auto-increment column.
func Table(t *rapid.T) *schema.Descriptor {
	d := &schema.Descriptor{Database: "db", Table: "t", Options: map[string]string{}}
	column := func(name, typ string) *schema.Column {
		d.Schema.Columns = append(d.Schema.Columns, schema.Column{Name: name, Type: schema.MustParseType(typ)})
		return &d.Schema.Columns[len(d.Schema.Columns)-1]
	}
	engine := rapid.SampledFrom([]string{"last_write", "last_write", "first_row", "versioned:version", "aggregation", "aggregation"}).Draw(t, "engine")
	d.Options["merge_engine"] = engine
	if engine == "versioned:version" {
		column("version", rapid.SampledFrom(keyTypes[1:]).Draw(t, "version"))
	}
	for i := range rapid.IntRange(0, 5).Draw(t, "value columns") {
		c := column(fmt.Sprint("v", i), rapid.SampledFrom(valueTypes).Draw(t, "type"))
		c.Type.NotNull = rapid.IntRange(0, 4).Draw(t, "not null") == 0
		if engine == "aggregation" {
			c.Aggregate = aggregate(t, d, *c)
		}
	}
	for i := range rapid.IntRange(1, 2).Draw(t, "key columns") {
		c := column(fmt.Sprint("k", i), rapid.SampledFrom(keyTypes).Draw(t, "key type"))
		d.PrimaryKey = append(d.PrimaryKey, c.Name)
	}
	if rapid.IntRange(0, 4).Draw(t, "auto") == 0 {
		column("id", rapid.SampledFrom([]string{"INT", "BIGINT NOT NULL"}).Draw(t, "auto type")).AutoIncrement = true
	}
	deletes := []string{"allow", "allow", "ignore", "disable"}
	if engine == "first_row" || engine == "versioned:version" {
		deletes = []string{"", "ignore", "disable"}
	}
	if b := rapid.SampledFrom(deletes).Draw(t, "deletes"); b != "" {
		d.Options["delete_behavior"] = b
	}
	d.Options["changelog_image"] = rapid.SampledFrom([]string{"full", "wal"}).Draw(t, "image")
	n, err := d.Normalize()
	if err == nil {
		err = n.Validate()
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// aggregate draws a function that the column's type has.
func aggregate(t *rapid.T, d *schema.Descriptor, c schema.Column) schema.AggregateFunction {
	names := append(schema.AggregateFunctions(), "")
	fits := slices.DeleteFunc(names, func(name string) bool {
		try := &schema.Descriptor{Database: "db", Table: "t", PrimaryKey: []string{"k"}, Options: map[string]string{"merge_engine": "aggregation"}}
		try.Schema.Columns = []schema.Column{{Name: "k", Type: schema.MustParseType("INT NOT NULL")}, {Name: c.Name, Type: c.Type, Aggregate: schema.AggregateFunction(name)}}
		n, err := try.Normalize()
		return err != nil || n.Validate() != nil
	})
	return schema.AggregateFunction(rapid.SampledFrom(fits).Draw(t, "function"))
}

// Value draws a value of a type: few different ones, so that writes meet the same
// keys and versions, edges often, null when the type allows it.
func Value(t *rapid.T, typ schema.Type) any {
	if !typ.NotNull && rapid.IntRange(0, 4).Draw(t, "null") == 0 {
		return nil
	}
	integer := func(bits uint) int64 {
		edge := int64(1)<<(bits-1) - 1
		return rapid.SampledFrom([]int64{0, 1, 2, -1, 3, edge, -edge - 1, edge / 2}).Draw(t, "v")
	}
	float := func() float64 {
		return rapid.SampledFrom([]float64{0, math.Copysign(0, -1), 1, -1.5, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat32}).Draw(t, "v")
	}
	switch typ.Kind {
	case schema.Boolean:
		return rapid.Bool().Draw(t, "v")
	case schema.TinyInt:
		return int8(integer(8))
	case schema.SmallInt:
		return int16(integer(16))
	case schema.Int:
		return int32(integer(32))
	case schema.BigInt:
		return integer(64)
	case schema.Float:
		return float32(float())
	case schema.Double:
		return float()
	case schema.Decimal:
		return decimalValue(t, typ)
	case schema.Char, schema.String:
		return rapid.SampledFrom([]string{"", "a", "ab", "\x00", "ü"}).Draw(t, "v")
	case schema.Binary:
		v := make([]byte, typ.Length)
		v[0] = rapid.SampledFrom([]byte{0, 1, 0xff}).Draw(t, "v")
		return v
	case schema.Bytes:
		return []byte(rapid.SampledFrom([]string{"", "\x00", "\xff", "a"}).Draw(t, "v"))
	case schema.Date:
		return arrow.Date32(rapid.Int32Range(-1, 1).Draw(t, "v"))
	case schema.Time:
		if typ.Precision <= 3 {
			return arrow.Time32(rapid.Int32Range(0, 2).Draw(t, "v"))
		}
		return arrow.Time64(rapid.Int64Range(0, 2).Draw(t, "v"))
	case schema.Timestamp, schema.TimestampLTZ:
		return arrow.Timestamp(rapid.Int64Range(-1, 1).Draw(t, "v"))
	}
	return nestedValue(t, typ)
}

// decimalValue draws from small numbers, numbers of half and of all digits.
func decimalValue(t *rapid.T, typ schema.Type) decimal128.Num {
	digits := rapid.SampledFrom([]int{0, 1, typ.Scale, typ.Precision / 2, typ.Precision}).Draw(t, "digits")
	limit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(digits)), nil)
	v := limit.Sub(limit, big.NewInt(rapid.Int64Range(1, 5).Draw(t, "below")))
	v.Abs(v).Rem(v, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(typ.Precision)), nil))
	if rapid.Bool().Draw(t, "negative") {
		v.Neg(v)
	}
	return decimal128.FromBigInt(v)
}

func nestedValue(t *rapid.T, typ schema.Type) any {
	switch n := rapid.IntRange(0, 2).Draw(t, "elements"); typ.Kind {
	case schema.Array:
		out := make([]any, n)
		for i := range out {
			out[i] = Value(t, typ.Fields[0].Type)
		}
		return out
	case schema.Map:
		out := make([][2]any, n)
		for i := range out {
			out[i] = [2]any{Value(t, typ.Fields[0].Type), Value(t, typ.Fields[1].Type)}
		}
		return out
	}
	out := make([]any, len(typ.Fields))
	for i, f := range typ.Fields {
		out[i] = Value(t, f.Type)
	}
	return out
}

// Columns draws the target columns of a put: often all (nil), else some with the
// primary key, in any order.
func Columns(t *rapid.T, d *schema.Descriptor) []int {
	if rapid.Bool().Draw(t, "all columns") {
		return nil
	}
	var columns []int
	for i, c := range d.Schema.Columns {
		if slices.Contains(d.PrimaryKey, c.Name) || rapid.Bool().Draw(t, c.Name) {
			columns = append(columns, i)
		}
	}
	return rapid.Permutation(columns).Draw(t, "order")
}

// Writes draws the writes of one put to some of the columns. Most are fit to be
// taken; some are refused for a null, or a number for the auto-increment column.
func Writes(t *rapid.T, d *schema.Descriptor, columns []int) []Write {
	writes := make([]Write, rapid.IntRange(1, 4).Draw(t, "writes"))
	for i := range writes {
		w := Write{Row: make(Row, len(d.Schema.Columns)), Columns: columns, Delete: rapid.IntRange(0, 3).Draw(t, "delete") == 0}
		for j, c := range d.Schema.Columns {
			rare := rapid.IntRange(0, 60).Draw(t, "rare") == 0
			isNull := rare && !slices.Contains(d.PrimaryKey, c.Name)
			if c.AutoIncrement {
				isNull = !rare
			}
			if !isNull {
				w.Row[j] = Value(t, c.Type)
			}
		}
		writes[i] = w
	}
	return writes
}

// OlderWrites draws the writes of one put by a writer who knows the table as it was at an
// earlier schema version: sent are by that version, writes are the same by d. None when
// only that version says what becomes of them.
func OlderWrites(t *rapid.T, d *schema.Descriptor, version *schema.Schema) (sent, writes []Write) {
	of := *d
	of.Schema, of.PrimaryKey = *version, nil
	for _, name := range d.PrimaryKey {
		c, _ := d.Schema.Column(name)
		of.PrimaryKey = append(of.PrimaryKey, version.Columns[version.IndexByID(c.ID)].Name)
	}
	columns := Columns(t, &of)
	sent = Writes(t, &of, columns)
	var now []int
	whole := true // of what is left
	dropped := false
	for i, c := range version.Columns {
		at, named := d.Schema.IndexByID(c.ID), columns == nil || slices.Contains(columns, i)
		switch {
		case at < 0 && (c.Type.NotNull || c.AutoIncrement):
			return nil, nil // whether its value is refused
		case at < 0:
			dropped = dropped || !named
		case named:
			now = append(now, at)
		default:
			whole = whole && c.AutoIncrement
		}
	}
	if columns == nil {
		now = nil
	}
	if dropped && whole {
		return nil, nil // of some columns, when the others are gone
	}
	for _, w := range sent {
		writes = append(writes, Write{Row: Follow(w.Row, version, &d.Schema), Columns: now, Delete: w.Delete, Writer: version})
	}
	return sent, writes
}

// Partition is the table with one more column of its key, which partitions it: into three
// at most.
func Partition(t *rapid.T, d *schema.Descriptor) *schema.Descriptor {
	d = d.Clone()
	d.Schema.Columns = append(d.Schema.Columns, schema.Column{Name: "part", Type: schema.MustParseType(rapid.SampledFrom([]string{"BOOLEAN NOT NULL", "DATE NOT NULL"}).Draw(t, "partitions"))})
	d.PrimaryKey, d.PartitionKeys = append(d.PrimaryKey, "part"), []string{"part"}
	n, err := d.Normalize()
	if err == nil {
		err = n.Validate()
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}
