package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mink-project/mink/sdk/mink"
)

// LakeTimeDigits is the finest that Iceberg's time, and its timestamp up to format
// version 2, can keep: microseconds.
const LakeTimeDigits = 6

// LakeBucketSuffix behind a bucket key is the name of the lake's partition field of it.
const LakeBucketSuffix = "_bucket"

// lakeNames are the reserved field names of Iceberg's specification ("Reserved Field
// IDs"), and of the metadata columns of its readers.
var lakeNames = []string{
	"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number",
	"_change_type", "_change_ordinal", "_commit_snapshot_id",
}

// CheckLake refuses what an Iceberg table cannot keep exactly, naming the column:
// it is asked before the option lake is set, and at every change of the columns
// after it. d is normalized and valid.
//
//	TIME(7..9)                     Iceberg's time has microseconds
//	TIMESTAMP(7..9)                needs format version 3, which has no position delete files
//	FLOAT, DOUBLE in the key       equality deletes cannot name them, position deletes can
//	FLOAT, DOUBLE partition keys   a file's partition value must equal itself
//	Iceberg's own column names     readers take "_file", "_row_id" and the like for theirs
//	names that collide as paths    "a.b" beside a field b of a: Iceberg finds fields by path
//	the bucket field's name        "id_bucket" where id is the bucket key: engines on Java load no such table
//	databases "a..b", ".a"         a namespace's levels have names
func (d *Descriptor) CheckLake() error {
	if slices.Contains(strings.Split(d.Database, "."), "") {
		return fmt.Errorf("table %s: %w by the lake: the database's name has an empty level between its dots, and a namespace's levels have names; make the table in another database", d.Name(), mink.ErrUnsupported)
	}
	if len(d.BucketKeys) == 1 {
		if name := d.BucketKeys[0] + LakeBucketSuffix; d.Schema.Index(name) >= 0 {
			return fmt.Errorf("table %s: %w", d.Name(), lakeError(name, "the lake's partitions by the bucket key %q have that name; rename the column", d.BucketKeys[0]))
		}
	}
	position := len(d.PrimaryKey) > 0 && d.Options[optionLakeDeletes] != string(EqualityDeletes)
	for _, c := range d.Schema.Columns {
		if slices.Contains(lakeNames, strings.ToLower(c.Name)) {
			return fmt.Errorf("table %s: %w", d.Name(), lakeError(c.Name, "Iceberg has a column of its own of that name; rename it"))
		}
		if err := checkLakeType(c.Type, c.Name, position); err != nil {
			return fmt.Errorf("table %s: %w", d.Name(), err)
		}
		float := c.Type.Kind == Float || c.Type.Kind == Double
		switch {
		case !float:
		case slices.Contains(d.PartitionKeys, c.Name):
			return fmt.Errorf("table %s: %w", d.Name(), lakeError(c.Name, "%s cannot be a partition key of a lake table", c.Type))
		case slices.Contains(d.PrimaryKey, c.Name) && !position:
			return fmt.Errorf("table %s: %w", d.Name(), lakeError(c.Name, "equality deletes of Iceberg cannot name a %s, which is in the primary key; set lake_deletes = position", c.Type.Nullable()))
		}
	}
	paths := map[string]bool{}
	for _, c := range d.Schema.Columns {
		if err := checkLakePaths(paths, c.Name, c.Type); err != nil {
			return fmt.Errorf("table %s: %w", d.Name(), err)
		}
	}
	return nil
}

// CheckLakeChange refuses changes of types that Mink allows and Iceberg cannot
// follow, naming the column: it is asked at every change of the columns of a table
// that the lake has. Fields are matched by id.
//
//	BINARY(n) -> BINARY(more), BYTES      TIMESTAMP(0..6) -> TIMESTAMP(7..9), _LTZ too
func CheckLakeChange(from, to *Schema) error {
	for _, c := range to.Columns {
		if i := from.IndexByID(c.ID); i >= 0 && c.ID != 0 {
			if err := checkLakeChange(from.Columns[i].Type, c.Type, c.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkLakeChange(from, to Type, path string) error {
	fine := func(t Type) bool { return t.Precision > LakeTimeDigits }
	switch {
	case from.Kind == Binary && (to.Kind != Binary || to.Length != from.Length),
		from.Kind == to.Kind && (to.Kind == Timestamp || to.Kind == TimestampLTZ) && fine(from) != fine(to):
		return lakeError(path, "Iceberg cannot change %s to %s; add a column instead", from.Nullable(), to.Nullable())
	}
	for i, f := range to.Fields {
		at := i
		if to.Kind == Row {
			at = slices.IndexFunc(from.Fields, func(g Field) bool { return g.ID == f.ID })
		}
		if at >= 0 && at < len(from.Fields) {
			if err := checkLakeChange(from.Fields[at].Type, f.Type, path+"."+f.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// LakeNeedsV3 says whether the columns need Iceberg's format version 3.
func (s *Schema) LakeNeedsV3() bool {
	fine := func(t Type) bool {
		return (t.Kind == Timestamp || t.Kind == TimestampLTZ) && t.Precision > LakeTimeDigits
	}
	for _, c := range s.Columns {
		needs := fine(c.Type)
		eachField(c.Type, func(f *Field) { needs = needs || fine(f.Type) })
		if needs {
			return true
		}
	}
	return false
}

func lakeError(path, rule string, args ...any) error {
	return fmt.Errorf("%w by the lake: column %q: %s", mink.ErrUnsupported, path, fmt.Sprintf(rule, args...))
}

func checkLakeType(t Type, path string, position bool) error {
	switch {
	case t.Kind == Time && t.Precision > LakeTimeDigits:
		return lakeError(path, "Iceberg's time has microseconds and would cut %s; use TIME(%d), or BIGINT", t, LakeTimeDigits)
	case position && (t.Kind == Timestamp || t.Kind == TimestampLTZ) && t.Precision > LakeTimeDigits:
		return lakeError(path, "%s needs Iceberg's format version 3, which has no position delete files; use precision %d, or lake_deletes = equality", t, LakeTimeDigits)
	}
	for _, f := range t.Fields {
		if err := checkLakeType(f.Type, path+"."+f.Name, position); err != nil {
			return err
		}
	}
	return nil
}

func checkLakePaths(seen map[string]bool, path string, t Type) error {
	if seen[path] {
		return lakeError(path, "two fields have this path, and Iceberg finds fields by their path; rename one")
	}
	seen[path] = true
	for _, f := range t.Fields {
		if err := checkLakePaths(seen, path+"."+f.Name, f.Type); err != nil {
			return err
		}
	}
	return nil
}
