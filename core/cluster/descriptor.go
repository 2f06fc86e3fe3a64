package cluster

import (
	"fmt"
	"slices"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// This file is all that the state machine knows of a table's definition. Apply
// checks only what it relies on itself: the proposer has validated the rest, and
// a rule that a later version changes must not make two nodes disagree.

// maxSchemaHistory bounds all schema versions of a table together, bytes of JSON:
// a snapshot holds a table as one record, which has a limit.
const maxSchemaHistory = 32 << 20

// newTable reads the descriptor of a table to be created.
func newTable(data []byte) (*Table, error) {
	if len(data) > schema.MaxDescriptorBytes {
		return nil, fmt.Errorf("create table: a descriptor of %d bytes, at most %d are allowed: %w", len(data), schema.MaxDescriptorBytes, mink.ErrInvalid)
	}
	d, err := schema.DecodeDescriptor(data)
	if err != nil {
		return nil, fmt.Errorf("create table: %w", err)
	}
	if err := schema.CheckName("database", d.Database); err != nil {
		return nil, err
	}
	if err := schema.CheckName("table", d.Table); err != nil {
		return nil, err
	}
	switch {
	case d.BucketCount < 1 || d.BucketCount > schema.MaxBuckets:
		return nil, fmt.Errorf("create table %s.%s: %d buckets, 1 to %d are allowed: %w", d.Database, d.Table, d.BucketCount, schema.MaxBuckets, mink.ErrInvalid)
	case d.Schema.ID != 1:
		return nil, fmt.Errorf("create table %s.%s: schema version %d, a new table starts at 1: %w", d.Database, d.Table, d.Schema.ID, mink.ErrInvalid)
	}
	return &Table{
		Descriptor: d, Schemas: []*schema.Schema{&d.Schema},
		descriptorJSON: data, schemaJSON: [][]byte{d.Schema.Encode()},
	}, nil
}

// altered is the table with the changes, a JSON list of schema.Change, applied.
func (t *Table) altered(changes []byte) (*Table, error) {
	d := t.Descriptor
	if len(changes) > schema.MaxDescriptorBytes {
		return nil, fmt.Errorf("alter table %s.%s: changes of %d bytes, at most %d are allowed: %w", d.Database, d.Table, len(changes), schema.MaxDescriptorBytes, mink.ErrInvalid)
	}
	list, err := schema.DecodeChanges(changes)
	if err != nil {
		return nil, fmt.Errorf("alter table %s.%s: %w", d.Database, d.Table, err)
	}
	after, err := d.Apply(list)
	if err != nil {
		return nil, fmt.Errorf("alter table %s.%s: %w", d.Database, d.Table, err)
	}
	next := *t
	next.Descriptor, next.descriptorJSON = after, after.Encode()
	switch {
	case after.BucketCount < d.BucketCount || after.BucketCount > schema.MaxBuckets:
		return nil, fmt.Errorf("alter table %s.%s: %d buckets became %d: %w", d.Database, d.Table, d.BucketCount, after.BucketCount, mink.ErrInvalid)
	case after.Schema.ID == d.Schema.ID:
	case after.Schema.ID == d.Schema.ID+1:
		size := 0
		for _, old := range t.schemaJSON {
			size += len(old)
		}
		if size >= maxSchemaHistory {
			return nil, fmt.Errorf("alter table %s.%s: its %d schema versions take %d bytes, the limit is %d: make a new table and copy: %w",
				d.Database, d.Table, len(t.schemaJSON), size, maxSchemaHistory, mink.ErrInvalid)
		}
		next.Schemas = append(slices.Clone(t.Schemas), &after.Schema)
		next.schemaJSON = append(slices.Clone(t.schemaJSON), after.Schema.Encode())
	default:
		return nil, fmt.Errorf("alter table %s.%s: schema version %d became %d: %w", d.Database, d.Table, d.Schema.ID, after.Schema.ID, mink.ErrInvalid)
	}
	return &next, nil
}

// decodeTable restores a table's definition from a snapshot.
func decodeTable(descriptor []byte, schemas [][]byte) (*Table, error) {
	d, err := schema.DecodeDescriptor(descriptor)
	if err != nil {
		return nil, err
	}
	t := &Table{Descriptor: d, descriptorJSON: descriptor, schemaJSON: schemas}
	for i, data := range schemas {
		sc, err := schema.DecodeSchema(data)
		if err != nil {
			return nil, err
		}
		if sc.ID != mink.SchemaID(i+1) {
			return nil, fmt.Errorf("schema version %d where %d belongs: %w", sc.ID, i+1, mink.ErrCorrupt)
		}
		t.Schemas = append(t.Schemas, sc)
	}
	if n := len(t.Schemas); n == 0 || t.Schemas[n-1].ID != d.Schema.ID {
		return nil, fmt.Errorf("%d schema versions for a descriptor at version %d: %w", n, d.Schema.ID, mink.ErrCorrupt)
	}
	return t, nil
}
