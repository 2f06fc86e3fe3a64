package lake

import (
	"fmt"
	"slices"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// IcebergSchema is the Iceberg schema of a table's columns: the user's columns
// only, with Mink's field ids, nested ones included. primaryKey becomes the
// identifier fields, unless a column in it is one that Iceberg does not take there
// (FLOAT, DOUBLE). The schema's id is 0.
//
//	BOOLEAN boolean     FLOAT float            CHAR, STRING string   TIME(0-6) time
//	TINYINT,            DOUBLE double          BINARY(n) fixed[n]    TIMESTAMP(0-6) timestamp
//	SMALLINT, INT int   DECIMAL(p,s) decimal   BYTES binary          TIMESTAMP(7-9) timestamp_ns
//	BIGINT long         DATE date              ARRAY list, MAP map, ROW struct; TIMESTAMP_LTZ timestamptz(_ns)
func IcebergSchema(s *schema.Schema, primaryKey []string) (*iceberg.Schema, error) {
	fields := make([]iceberg.NestedField, 0, len(s.Columns))
	var identifiers []int
	for _, c := range s.Columns {
		f, err := icebergField(schema.Field{ID: c.ID, Name: c.Name, Type: c.Type}, c.Name)
		if err != nil {
			return nil, err
		}
		f.Doc = c.Comment
		fields = append(fields, f)
	}
	for _, name := range primaryKey {
		c, ok := s.Column(name)
		if !ok {
			return nil, fmt.Errorf("%w lake schema: primary key %q is no column", mink.ErrInvalid, name)
		}
		if c.Type.Kind == schema.Float || c.Type.Kind == schema.Double {
			identifiers = nil
			break
		}
		identifiers = append(identifiers, int(c.ID))
	}
	return iceberg.NewSchemaWithIdentifiers(0, identifiers, fields...), nil
}

func icebergField(f schema.Field, path string) (iceberg.NestedField, error) {
	if f.ID < 1 {
		return iceberg.NestedField{}, fmt.Errorf("%w lake schema: column %q has no field id", mink.ErrInvalid, path)
	}
	t, err := icebergType(f.Type, path)
	return iceberg.NestedField{ID: int(f.ID), Name: f.Name, Type: t, Required: f.Type.NotNull}, err
}

var icebergLeaves = map[schema.Kind]iceberg.Type{
	schema.Boolean:  iceberg.PrimitiveTypes.Bool,
	schema.TinyInt:  iceberg.PrimitiveTypes.Int32,
	schema.SmallInt: iceberg.PrimitiveTypes.Int32,
	schema.Int:      iceberg.PrimitiveTypes.Int32,
	schema.BigInt:   iceberg.PrimitiveTypes.Int64,
	schema.Float:    iceberg.PrimitiveTypes.Float32,
	schema.Double:   iceberg.PrimitiveTypes.Float64,
	schema.Char:     iceberg.PrimitiveTypes.String,
	schema.String:   iceberg.PrimitiveTypes.String,
	schema.Bytes:    iceberg.PrimitiveTypes.Binary,
	schema.Date:     iceberg.PrimitiveTypes.Date,
}

func icebergType(t schema.Type, path string) (iceberg.Type, error) {
	fine := t.Precision > schema.LakeTimeDigits
	switch t.Kind {
	case schema.Decimal:
		return iceberg.DecimalTypeOf(t.Precision, t.Scale), nil
	case schema.Binary:
		return iceberg.FixedTypeOf(t.Length), nil
	case schema.Time:
		if fine {
			return nil, fmt.Errorf("%w by the lake: column %q: Iceberg's time has microseconds and would cut %s", mink.ErrUnsupported, path, t)
		}
		return iceberg.PrimitiveTypes.Time, nil
	case schema.Timestamp:
		if fine {
			return iceberg.PrimitiveTypes.TimestampNs, nil
		}
		return iceberg.PrimitiveTypes.Timestamp, nil
	case schema.TimestampLTZ:
		if fine {
			return iceberg.PrimitiveTypes.TimestampTzNs, nil
		}
		return iceberg.PrimitiveTypes.TimestampTz, nil
	case schema.Array, schema.Map, schema.Row:
		return icebergNested(t, path)
	}
	leaf, ok := icebergLeaves[t.Kind]
	if !ok {
		return nil, fmt.Errorf("%w by the lake: column %q: no Iceberg type for %s", mink.ErrUnsupported, path, t)
	}
	return leaf, nil
}

func icebergNested(t schema.Type, path string) (iceberg.Type, error) {
	fields := make([]iceberg.NestedField, 0, len(t.Fields))
	for _, f := range t.Fields {
		inner, err := icebergField(f, path+"."+f.Name)
		if err != nil {
			return nil, err
		}
		fields = append(fields, inner)
	}
	switch t.Kind {
	case schema.Array:
		return &iceberg.ListType{ElementID: fields[0].ID, Element: fields[0].Type, ElementRequired: fields[0].Required}, nil
	case schema.Map:
		return &iceberg.MapType{KeyID: fields[0].ID, KeyType: fields[0].Type, ValueID: fields[1].ID, ValueType: fields[1].Type, ValueRequired: fields[1].Required}, nil
	}
	return &iceberg.StructType{FieldList: fields}, nil
}

// PartitionSpec is the Iceberg partition spec of a table: identity of each
// partition key, then bucket(n) of a single-column bucket key, whose value is
// Mink's bucket number. Iceberg has no bucket transform of BOOLEAN, FLOAT and
// DOUBLE; tables with those, with several bucket keys, with none, or with one
// bucket have no bucket field.
func PartitionSpec(s *schema.Schema, ice *iceberg.Schema, partitionKeys, bucketKeys []string, buckets int32) (iceberg.PartitionSpec, error) {
	var options []iceberg.PartitionOption
	for _, name := range partitionKeys {
		options = append(options, iceberg.AddPartitionFieldByName(name, name, iceberg.IdentityTransform{}, ice, nil))
	}
	if len(bucketKeys) == 1 && buckets > 1 {
		c, ok := s.Column(bucketKeys[0])
		if !ok {
			return iceberg.PartitionSpec{}, fmt.Errorf("%w lake partition spec: bucket key %q is no column", mink.ErrInvalid, bucketKeys[0])
		}
		transform := iceberg.BucketTransform{NumBuckets: int(buckets)}
		if t, err := icebergType(c.Type, c.Name); err == nil && transform.CanTransform(t) {
			name := c.Name + schema.LakeBucketSuffix
			for s.Index(name) >= 0 { // of a table from before Descriptor.CheckLake refused that
				name += "_"
			}
			options = append(options, iceberg.AddPartitionFieldByName(c.Name, name, transform, ice, nil))
		}
	}
	spec, err := iceberg.NewPartitionSpecOpts(options...)
	if err != nil {
		return spec, fmt.Errorf("%w lake partition spec: %w", mink.ErrInvalid, err)
	}
	return spec, nil
}

// SortOrder is the order of rows within the files of a primary-key table: by key.
func SortOrder(s *schema.Schema, primaryKey []string) (table.SortOrder, error) {
	if len(primaryKey) == 0 {
		return table.UnsortedSortOrder, nil
	}
	fields := make([]table.SortField, 0, len(primaryKey))
	for _, name := range primaryKey {
		c, ok := s.Column(name)
		if !ok {
			return table.SortOrder{}, fmt.Errorf("%w lake sort order: primary key %q is no column", mink.ErrInvalid, name)
		}
		fields = append(fields, table.SortField{SourceIDs: []int{int(c.ID)}, Transform: iceberg.IdentityTransform{}, Direction: table.SortASC, NullOrder: table.NullsFirst})
	}
	return table.NewSortOrder(1, fields)
}

// evolveSchema is the schema to set for the columns next while the table has have.
// Fields are matched by id. What Iceberg cannot follow is an error that names the
// column, above all every change of the type of a key: equality deletes that were
// written before would miss rows.
func evolveSchema(have, next *iceberg.Schema, keys []int) (*iceberg.Schema, error) {
	fields := next.Fields()
	old := have.Fields()
	for _, id := range keys {
		if !slices.ContainsFunc(fields, func(f iceberg.NestedField) bool { return f.ID == id }) {
			return nil, fmt.Errorf("%w by the lake: the key column with field id %d cannot be dropped", mink.ErrUnsupported, id)
		}
	}
	for i := range fields {
		f := &fields[i]
		at := slices.IndexFunc(old, func(g iceberg.NestedField) bool { return g.ID == f.ID })
		if at < 0 {
			f.Required = false // rows that exist have no value
			continue
		}
		if slices.Contains(keys, f.ID) && !old[at].Type.Equals(f.Type) {
			return nil, fmt.Errorf("%w by the lake: column %q is a key: its type cannot change from %s to %s", mink.ErrUnsupported, f.Name, old[at].Type, f.Type)
		}
		t, err := evolveType(old[at].Type, f.Type, f.Name)
		if err != nil {
			return nil, err
		}
		f.Type, f.Required = t, f.Required && old[at].Required
	}
	return iceberg.NewSchemaWithIdentifiers(have.ID, next.IdentifierFieldIDs, fields...), nil
}

func evolveType(from, to iceberg.Type, path string) (iceberg.Type, error) {
	switch to := to.(type) {
	case *iceberg.ListType:
		if from, ok := from.(*iceberg.ListType); ok && from.ElementID == to.ElementID {
			inner, err := evolveType(from.Element, to.Element, path+".element")
			return &iceberg.ListType{ElementID: to.ElementID, Element: inner, ElementRequired: to.ElementRequired && from.ElementRequired}, err
		}
	case *iceberg.MapType:
		if from, ok := from.(*iceberg.MapType); ok && from.KeyID == to.KeyID && from.ValueID == to.ValueID && from.KeyType.Equals(to.KeyType) {
			inner, err := evolveType(from.ValueType, to.ValueType, path+".value")
			return &iceberg.MapType{KeyID: to.KeyID, KeyType: to.KeyType, ValueID: to.ValueID, ValueType: inner, ValueRequired: to.ValueRequired && from.ValueRequired}, err
		}
	case *iceberg.StructType:
		if from, ok := from.(*iceberg.StructType); ok {
			return evolveStruct(from, to, path)
		}
	default:
		if from.Equals(to) || promotes(from, to) {
			return to, nil
		}
	}
	return nil, fmt.Errorf("%w by the lake: column %q: Iceberg cannot change %s to %s", mink.ErrUnsupported, path, from, to)
}

func evolveStruct(from, to *iceberg.StructType, path string) (iceberg.Type, error) {
	fields := slices.Clone(to.FieldList)
	for i := range fields {
		f := &fields[i]
		at := slices.IndexFunc(from.FieldList, func(g iceberg.NestedField) bool { return g.ID == f.ID })
		if at < 0 {
			f.Required = false
			continue
		}
		t, err := evolveType(from.FieldList[at].Type, f.Type, path+"."+f.Name)
		if err != nil {
			return nil, err
		}
		f.Type, f.Required = t, f.Required && from.FieldList[at].Required
	}
	return &iceberg.StructType{FieldList: fields}, nil
}

// promotes lists Iceberg's promotions of primitive types.
func promotes(from, to iceberg.Type) bool {
	switch from := from.(type) {
	case iceberg.Int32Type:
		return to.Equals(iceberg.PrimitiveTypes.Int64)
	case iceberg.Float32Type:
		return to.Equals(iceberg.PrimitiveTypes.Float64)
	case iceberg.DecimalType:
		wider, ok := to.(iceberg.DecimalType)
		return ok && wider.Scale() == from.Scale() && wider.Precision() >= from.Precision()
	}
	return false
}
