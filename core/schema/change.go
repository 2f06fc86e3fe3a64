package schema

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mink-project/mink/sdk/mink"
)

// ChangeOp names what a Change does.
type ChangeOp string

// The operations and the members of Change that they read.
const (
	AddColumn        ChangeOp = "add_column"        // column: nullable, goes to the end
	DropColumn       ChangeOp = "drop_column"       // name
	RenameColumn     ChangeOp = "rename_column"     // name, to
	ModifyColumn     ChangeOp = "modify_column"     // name, type and/or comment
	SetOptions       ChangeOp = "set_options"       // options
	ResetOptions     ChangeOp = "reset_options"     // names
	SetProperties    ChangeOp = "set_properties"    // properties
	RemoveProperties ChangeOp = "remove_properties" // names
	SetComment       ChangeOp = "set_comment"       // comment
	SetBucketCount   ChangeOp = "set_bucket_count"  // bucket_count: more than now, without bucket keys
)

// changeMembers lists what each operation needs ("+") and may have.
var changeMembers = map[ChangeOp][]string{
	AddColumn:        {"+column"},
	DropColumn:       {"+name"},
	RenameColumn:     {"+name", "+to"},
	ModifyColumn:     {"+name", "type", "comment"},
	SetOptions:       {"+options"},
	ResetOptions:     {"+names"},
	SetProperties:    {"+properties"},
	RemoveProperties: {"+names"},
	SetComment:       {"+comment"},
	SetBucketCount:   {"+bucket_count"},
}

// MaxChanges bounds one alter.
const MaxChanges = 1000

// Change is one step of an alter. Columns are named by their current names.
type Change struct {
	Op         ChangeOp          `json:"op"`
	Name       string            `json:"name,omitempty"`
	To         string            `json:"to,omitempty"`
	Column     *Column           `json:"column,omitempty"`
	Type       *Type             `json:"type,omitempty"`
	Comment    *string           `json:"comment,omitempty"`
	Options    map[string]string `json:"options,omitempty"`
	Properties map[string]string `json:"properties,omitempty"`
	Names      []string          `json:"names,omitempty"`
	// BucketCount is of each partition, also those that exist.
	BucketCount int32 `json:"bucket_count,omitempty"`
}

type changeJSON Change

// UnmarshalJSON reads a change strictly: an unknown field is an error.
func (c *Change) UnmarshalJSON(data []byte) error {
	var w changeJSON
	if err := unmarshalStrict(data, &w, "change"); err != nil {
		return err
	}
	*c = Change(w)
	return nil
}

// EncodeChanges is the canonical JSON: an array.
func EncodeChanges(changes []Change) []byte {
	if changes == nil {
		changes = []Change{}
	}
	return mustMarshal(changes)
}

// DecodeChanges reads what EncodeChanges wrote, strictly, at most
// MaxDescriptorBytes and MaxChanges of it. Apply checks what the changes say.
func DecodeChanges(data []byte) ([]Change, error) {
	var changes []Change
	if err := decodeDocument(data, &changes, "changes"); err != nil {
		return nil, err
	}
	if len(changes) > MaxChanges {
		return nil, fmt.Errorf("%w changes: %d, at most %d are allowed at once", mink.ErrInvalid, len(changes), MaxChanges)
	}
	return changes, nil
}

// checkMembers refuses a change that lacks a member or has one that its
// operation does not read: a mistake must not look like success.
func (c Change) checkMembers() error {
	allowed, ok := changeMembers[c.Op]
	if !ok {
		return fmt.Errorf("%w change: unknown op %.50q%s", mink.ErrInvalid, c.Op, suggest(string(c.Op), opNames()))
	}
	for _, m := range []struct {
		name string
		set  bool
	}{
		{"name", c.Name != ""}, {"to", c.To != ""}, {"column", c.Column != nil}, {"type", c.Type != nil},
		{"comment", c.Comment != nil}, {"options", len(c.Options) > 0}, {"properties", len(c.Properties) > 0}, {"names", len(c.Names) > 0},
		{"bucket_count", c.BucketCount != 0},
	} {
		needed := slices.Contains(allowed, "+"+m.name)
		switch {
		case needed && !m.set:
			return fmt.Errorf("%w change %s: %q is missing", mink.ErrInvalid, c.Op, m.name)
		case m.set && !needed && !slices.Contains(allowed, m.name):
			return fmt.Errorf("%w change %s: it has no %q", mink.ErrInvalid, c.Op, m.name)
		}
	}
	if c.Op == ModifyColumn && c.Type == nil && c.Comment == nil {
		return fmt.Errorf("%w change %s: give a type, a comment or both", mink.ErrInvalid, c.Op)
	}
	return nil
}

func opNames() []string {
	var names []string
	for op := range changeMembers {
		names = append(names, string(op))
	}
	slices.Sort(names)
	return names
}

// Apply makes the altered descriptor; d stays as it is and must be valid. All
// changes apply in order, or none does. Schema.ID grows by one when the columns
// changed in any way, however many changes did it; else it stays. The result is
// normalized and valid.
func (d *Descriptor) Apply(changes []Change) (*Descriptor, error) {
	if len(changes) > MaxChanges {
		return nil, fmt.Errorf("%w changes: %d, at most %d are allowed at once", mink.ErrInvalid, len(changes), MaxChanges)
	}
	n := d.Clone()
	for i, c := range changes {
		err := c.checkMembers()
		if err == nil {
			err = n.apply(c)
		}
		if err != nil {
			return nil, fmt.Errorf("alter table %s: change %d: %w", d.Name(), i+1, err)
		}
	}
	n, err := n.Normalize()
	if err != nil {
		return nil, err
	}
	if !slices.EqualFunc(d.Schema.Columns, n.Schema.Columns, Column.equal) {
		n.Schema.ID++
	}
	return n, n.validateAltered()
}

func (d *Descriptor) validateAltered() error {
	if err := d.Validate(); err != nil {
		return err
	}
	return nil
}

func (c Column) equal(o Column) bool {
	if c.ID != o.ID || c.Name != o.Name || c.Comment != o.Comment || c.AutoIncrement != o.AutoIncrement || c.Aggregate != o.Aggregate || !c.Type.Equal(o.Type) {
		return false
	}
	return slices.Equal(nestedIDs(c.Type), nestedIDs(o.Type))
}

func nestedIDs(t Type) (ids []mink.FieldID) {
	eachField(t, func(f *Field) { ids = append(ids, f.ID) })
	return ids
}

// apply does one change on d itself.
func (d *Descriptor) apply(c Change) error {
	switch c.Op {
	case AddColumn:
		return d.addColumn(*c.Column)
	case DropColumn, RenameColumn, ModifyColumn:
		i := d.Schema.Index(c.Name)
		if i < 0 {
			return columnError(c.Name, "the table has no such column%s", suggest(c.Name, d.Schema.names()))
		}
		switch c.Op {
		case DropColumn:
			return d.dropColumn(i)
		case RenameColumn:
			return d.renameColumn(i, c.To)
		}
		return d.modifyColumn(i, c)
	case SetOptions:
		return d.setOptions(c.Options)
	case ResetOptions:
		return d.resetOptions(c.Names)
	case SetProperties:
		if d.Properties == nil {
			d.Properties = map[string]string{}
		}
		maps.Copy(d.Properties, c.Properties)
	case RemoveProperties:
		for _, name := range c.Names {
			delete(d.Properties, name)
		}
	case SetComment:
		d.Comment = *c.Comment
	case SetBucketCount:
		return d.setBucketCount(c.BucketCount)
	}
	return nil
}

// setBucketCount adds buckets. With bucket keys it would part a key's new rows
// from its old ones; fewer buckets would lose the rows of the others.
func (d *Descriptor) setBucketCount(n int32) error {
	switch {
	case len(d.BucketKeys) > 0:
		return fmt.Errorf("%w bucket count: the table has bucket keys (%s), which place each row by the count it was created with", mink.ErrInvalid, strings.Join(d.BucketKeys, ", "))
	case n <= d.BucketCount:
		return fmt.Errorf("%w bucket count %d: the table has %d buckets, and can only get more", mink.ErrInvalid, n, d.BucketCount)
	case n > MaxBuckets:
		return fmt.Errorf("%w bucket count %d: at most %d are possible", mink.ErrInvalid, n, MaxBuckets)
	}
	d.BucketCount = n
	return nil
}

func (d *Descriptor) addColumn(c Column) error {
	if c.ID != 0 || slices.ContainsFunc(nestedIDs(c.Type), func(id mink.FieldID) bool { return id != 0 }) {
		return columnError(c.Name, "a new column gets its field ids from the table, leave them out")
	}
	if d.Schema.Index(c.Name) >= 0 {
		return columnError(c.Name, "the table has a column of this name")
	}
	if c.Type.NotNull {
		return columnError(c.Name, "a new column must be nullable: the rows that exist have no value for it")
	}
	if c.AutoIncrement {
		return columnError(c.Name, "an auto-increment column cannot be added to an existing table")
	}
	c.Type = c.Type.Clone()
	d.Schema.Columns = append(d.Schema.Columns, c)
	// Here, not at the end: a later change of the same alter may drop the column,
	// and its ids must be used up even then.
	return d.assignFieldIDs()
}

// keyUse names the key list that the column is in, "" for none.
func (d *Descriptor) keyUse(name string) string {
	switch {
	case slices.Contains(d.PrimaryKey, name):
		return "primary key"
	case slices.Contains(d.PartitionKeys, name):
		return "partition keys"
	case slices.Contains(d.BucketKeys, name):
		return "bucket keys"
	}
	return ""
}

func (d *Descriptor) dropColumn(i int) error {
	name := d.Schema.Columns[i].Name
	if use := d.keyUse(name); use != "" {
		return columnError(name, "it is in the %s and cannot be dropped", use)
	}
	if d.Options[optionMergeEngine] == versionedPrefix+name {
		return columnError(name, "it is the version column (%s = %s) and cannot be dropped", optionMergeEngine, d.Options[optionMergeEngine])
	}
	if len(d.Schema.Columns) == 1 {
		return columnError(name, "it is the table's only column and cannot be dropped")
	}
	d.Schema.Columns = slices.Delete(d.Schema.Columns, i, i+1)
	return nil
}

func (d *Descriptor) renameColumn(i int, to string) error {
	from := d.Schema.Columns[i].Name
	if err := CheckColumnName(to); err != nil {
		return err
	}
	if at := d.Schema.Index(to); at >= 0 && at != i {
		return columnError(to, "the table has a column of this name")
	}
	if slices.Contains(d.PartitionKeys, from) && to != from { // writers with the old columns find their rows' partitions by name
		return columnError(from, "it is in the partition keys and cannot be renamed")
	}
	d.Schema.Columns[i].Name = to
	for _, keys := range [][]string{d.PrimaryKey, d.BucketKeys} {
		if at := slices.Index(keys, from); at >= 0 {
			keys[at] = to
		}
	}
	if d.Options[optionMergeEngine] == versionedPrefix+from {
		d.Options[optionMergeEngine] = versionedPrefix + to
	}
	return nil
}

func (d *Descriptor) modifyColumn(i int, c Change) error {
	column := &d.Schema.Columns[i]
	if c.Comment != nil {
		column.Comment = *c.Comment
	}
	if c.Type == nil {
		return nil
	}
	to := c.Type.Clone()
	if slices.Contains(d.PrimaryKey, column.Name) {
		to.NotNull = true
	}
	if use := d.keyUse(column.Name); use != "" && !to.SameShape(column.Type) {
		return columnError(column.Name, "it is in the %s: its type cannot change, since the place of every row depends on it", use)
	}
	if column.AutoIncrement && !to.SameShape(column.Type) {
		return columnError(column.Name, "the type of an auto-increment column cannot change")
	}
	promoted, err := promote(column.Type, to, column.Name)
	if err != nil {
		return err
	}
	column.Type = promoted
	return d.assignFieldIDs()
}

func (d *Descriptor) setOptions(set map[string]string) error {
	set, err := canonicalOptions(set)
	if err != nil {
		return err
	}
	if d.Options == nil {
		d.Options = map[string]string{}
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if err := d.checkOptionChange(name, set[name]); err != nil {
			return err
		}
		d.Options[name] = set[name]
	}
	return nil
}

func (d *Descriptor) resetOptions(names []string) error {
	for _, name := range names {
		name = canonicalName(name)
		spec, ok := FindOption(name)
		if !ok {
			return unknownOption(name)
		}
		if err := d.checkOptionChange(name, spec.Default); err != nil {
			return err
		}
		delete(d.Options, name)
	}
	return nil
}

func (d *Descriptor) checkOptionChange(name, value string) error {
	spec, ok := FindOption(name)
	if !ok {
		return unknownOption(name)
	}
	current := spec.Default
	if v, set := d.Options[name]; set {
		current = v
	}
	if spec.Fixed && current != value {
		return optionError(name, value, "it is fixed when the table is created, here to %q", current)
	}
	return nil
}

// Promotable reports whether values of one type can be read as the other: nil,
// or an error that names the first field that cannot and the rule. Nested fields
// are matched by name; to may have nullable fields that from lacks.
func Promotable(from, to Type, path string) error {
	_, err := promote(from, to.Clone(), path)
	return err
}

// promote is "to" with the field ids of "from"; new nested fields get id 0. It
// writes into the fields of "to".
//
//	TINYINT -> SMALLINT -> INT -> BIGINT        CHAR(n) -> CHAR(more) -> STRING
//	FLOAT -> DOUBLE                             BINARY(n) -> BINARY(more) -> BYTES
//	DECIMAL(p,s) -> DECIMAL(more,s)             TIME, TIMESTAMP, TIMESTAMP_LTZ: more digits
//	NOT NULL -> nullable                        ARRAY, MAP value, ROW: field by field
func promote(from, to Type, path string) (Type, error) {
	if to.NotNull && !from.NotNull {
		return Type{}, columnError(path, "it is nullable and cannot become NOT NULL: rows with null may exist")
	}
	if !from.Nested() || from.Kind != to.Kind {
		if !promotableLeaf(from, to) {
			return Type{}, columnError(path, "%s cannot become %s; %s", from.Nullable(), to.Nullable(), promotionsOf(from))
		}
		return to, nil
	}
	if from.Kind == Map && !from.Fields[0].Type.Equal(to.Fields[0].Type) {
		return Type{}, columnError(path+"."+KeyName, "the key of a map cannot change")
	}
	for i := range to.Fields {
		f := &to.Fields[i]
		at := slices.IndexFunc(from.Fields, func(g Field) bool { return g.Name == f.Name })
		if at < 0 {
			if f.Type.NotNull {
				return Type{}, columnError(path+"."+f.Name, "a new field must be nullable: the rows that exist have no value for it")
			}
			f.ID = 0
			eachField(f.Type, func(g *Field) { g.ID = 0 })
			continue
		}
		promoted, err := promote(from.Fields[at].Type, f.Type, path+"."+f.Name)
		if err != nil {
			return Type{}, err
		}
		f.ID, f.Type = from.Fields[at].ID, promoted
	}
	for _, g := range from.Fields {
		if !slices.ContainsFunc(to.Fields, func(f Field) bool { return f.Name == g.Name }) {
			return Type{}, columnError(path+"."+g.Name, "a modification cannot drop a nested field")
		}
	}
	return to, nil
}

func promotableLeaf(from, to Type) bool {
	switch from.Kind {
	case TinyInt, SmallInt, Int, BigInt:
		return to.Kind >= from.Kind && to.Kind <= BigInt
	case Float:
		return to.Kind == Float || to.Kind == Double
	case Decimal:
		return to.Kind == Decimal && to.Scale == from.Scale && to.Precision >= from.Precision
	case Char:
		return to.Kind == String || to.Kind == Char && to.Length >= from.Length
	case Binary:
		return to.Kind == Bytes || to.Kind == Binary && to.Length >= from.Length
	case Time, Timestamp, TimestampLTZ:
		return to.Kind == from.Kind && to.Precision >= from.Precision
	case Boolean, Double, String, Bytes, Date:
		return to.Kind == from.Kind
	}
	return false
}

// promotionsOf says what a type may become, for errors.
func promotionsOf(t Type) string {
	may := func(what ...string) string { return "it may become " + strings.Join(what, " or ") }
	switch t.Kind {
	case TinyInt:
		return may("SMALLINT", "INT", "BIGINT")
	case SmallInt:
		return may("INT", "BIGINT")
	case Int:
		return may("BIGINT")
	case Float:
		return may("DOUBLE")
	case Decimal:
		return may(fmt.Sprintf("DECIMAL of more digits with scale %d", t.Scale))
	case Char:
		return may("a longer CHAR", "STRING")
	case Binary:
		return may("a longer BINARY", "BYTES")
	case Time, Timestamp, TimestampLTZ:
		return may(t.Kind.String() + " of higher precision")
	case Array, Map, Row:
		return "its kind cannot change"
	}
	return "it cannot change"
}
