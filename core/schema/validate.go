package schema

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mink-project/mink/sdk/mink"
)

// MaxPropertyBytes bounds the name plus value of one property.
const MaxPropertyBytes = 64 * 1024

// Index is the position of the named column, -1 when absent.
func (s *Schema) Index(name string) int {
	return slices.IndexFunc(s.Columns, func(c Column) bool { return c.Name == name })
}

// IndexByID is the position of the column with the field id, -1 when absent.
// Nested fields are not looked at.
func (s *Schema) IndexByID(id mink.FieldID) int {
	return slices.IndexFunc(s.Columns, func(c Column) bool { return c.ID == id })
}

// Column finds a column by name.
func (s *Schema) Column(name string) (Column, bool) {
	if i := s.Index(name); i >= 0 {
		return s.Columns[i], true
	}
	return Column{}, false
}

// Clone copies the schema deeply.
func (s *Schema) Clone() Schema {
	c := Schema{ID: s.ID, Columns: slices.Clone(s.Columns)}
	for i := range c.Columns {
		c.Columns[i].Type = c.Columns[i].Type.Clone()
	}
	return c
}

// Clone copies the descriptor deeply.
func (d *Descriptor) Clone() *Descriptor {
	c := *d
	c.Schema = d.Schema.Clone()
	c.PrimaryKey = slices.Clone(d.PrimaryKey)
	c.PartitionKeys = slices.Clone(d.PartitionKeys)
	c.BucketKeys = slices.Clone(d.BucketKeys)
	c.Options = maps.Clone(d.Options)
	c.Properties = maps.Clone(d.Properties)
	return &c
}

// Name is "database.table".
func (d *Descriptor) Name() string { return d.Database + "." + d.Table }

// Normalize returns a copy in which everything that a person may leave out is
// filled in; the given parts stay. It is idempotent, and does not validate.
//
//   - schema id 1; field ids for columns and nested fields that have none, above
//     every id that was ever used
//   - primary-key columns NOT NULL
//   - bucket count 1; bucket keys = primary key minus partition keys; the bucket
//     function that belongs to the keys
//   - Kafka's retention.ms and retention.bytes become log_ttl and log_max_bytes
//
// It fails only when options contradict each other or field ids run out.
func (d *Descriptor) Normalize() (*Descriptor, error) {
	n := d.Clone()
	if n.Schema.ID == 0 {
		n.Schema.ID = 1
	}
	for i := range n.Schema.Columns {
		if c := &n.Schema.Columns[i]; slices.Contains(n.PrimaryKey, c.Name) {
			c.Type.NotNull = true
		}
	}
	if err := n.assignFieldIDs(); err != nil {
		return nil, err
	}
	if n.BucketCount == 0 {
		n.BucketCount = 1
	}
	if len(n.BucketKeys) == 0 {
		for _, name := range n.PrimaryKey {
			if !slices.Contains(n.PartitionKeys, name) {
				n.BucketKeys = append(n.BucketKeys, name)
			}
		}
	}
	if n.BucketFunction == "" {
		n.BucketFunction = n.bucketFunction()
	}
	options, err := canonicalOptions(n.Options)
	n.Options = options
	return n, err
}

func (d *Descriptor) bucketFunction() BucketFunction {
	switch len(d.BucketKeys) {
	case 0:
		return BucketRoundRobin
	case 1:
		return BucketIceberg
	}
	return BucketMurmur3
}

func (d *Descriptor) assignFieldIDs() error {
	missing := int64(0)
	note := func(id mink.FieldID) {
		d.HighestFieldID = max(d.HighestFieldID, id)
		if id == 0 {
			missing++
		}
	}
	columns := d.Schema.Columns
	for _, c := range columns {
		note(c.ID)
		eachField(c.Type, func(f *Field) { note(f.ID) })
	}
	if missing > math.MaxInt32-int64(max(d.HighestFieldID, 0)) {
		return fmt.Errorf("%w table %s: %d field ids are needed after %d, there are not as many", mink.ErrInvalid, d.Name(), missing, d.HighestFieldID)
	}
	assign := func(id *mink.FieldID) {
		if *id == 0 {
			d.HighestFieldID++
			*id = d.HighestFieldID
		}
	}
	for i := range columns { // columns first: they get 1..n in a new table
		assign(&columns[i].ID)
	}
	for _, c := range columns {
		eachField(c.Type, func(f *Field) { assign(&f.ID) })
	}
	return nil
}

// Validate checks every rule of a normalized descriptor and returns the first
// violation: mink.ErrInvalid with the column or option and the rule, or
// mink.ErrUnsupported for an option that is understood but not built.
func (d *Descriptor) Validate() error {
	for _, check := range []func() error{
		d.checkNames, d.checkFieldIDs, d.checkPrimaryKey, d.checkPartitionKeys, d.checkBuckets,
		d.checkAutoIncrement, d.checkTexts, d.checkOptions,
	} {
		if err := check(); err != nil {
			return fmt.Errorf("table %s: %w", d.Name(), err)
		}
	}
	return nil
}

// columnError is the one shape of rule violations.
func columnError(name, rule string, args ...any) error {
	return fmt.Errorf("%w column %q: %s", mink.ErrInvalid, name, fmt.Sprintf(rule, args...))
}

func (d *Descriptor) checkNames() error {
	if err := CheckName("database", d.Database); err != nil {
		return err
	}
	if err := CheckName("table", d.Table); err != nil {
		return err
	}
	if len(d.Schema.Columns) == 0 {
		return fmt.Errorf("%w schema: a table needs at least one column", mink.ErrInvalid)
	}
	if d.Schema.ID < 1 {
		return fmt.Errorf("%w schema: id %d, want 1 or more", mink.ErrInvalid, d.Schema.ID)
	}
	seen := map[string]bool{}
	fields := len(d.Schema.Columns)
	for _, c := range d.Schema.Columns {
		if err := CheckColumnName(c.Name); err != nil {
			return err
		}
		if seen[c.Name] {
			return columnError(c.Name, "the name occurs twice")
		}
		seen[c.Name] = true
		if err := checkType(c.Type, c.Name, 0); err != nil {
			return err
		}
		eachField(c.Type, func(*Field) { fields++ })
	}
	if fields > MaxFields {
		return fmt.Errorf("%w schema: %d columns and nested fields, at most %d are allowed", mink.ErrInvalid, fields, MaxFields)
	}
	return nil
}

// CheckCase refuses names that differ in case only, among columns and within each
// ROW: SQL engines, and Iceberg for them, look columns up regardless of case and
// cannot tell such two apart. It is a rule for what is made from now on, beside
// Validate, which what exists must pass for ever.
func (d *Descriptor) CheckCase() error {
	columns := make([]string, len(d.Schema.Columns))
	for i, c := range d.Schema.Columns {
		columns[i] = c.Name
	}
	if err := checkCase("", columns); err != nil {
		return fmt.Errorf("table %s: %w", d.Name(), err)
	}
	for _, c := range d.Schema.Columns {
		if err := checkTypeCase(c.Name, c.Type); err != nil {
			return fmt.Errorf("table %s: %w", d.Name(), err)
		}
	}
	return nil
}

func checkTypeCase(path string, t Type) error {
	names := make([]string, len(t.Fields))
	for i, f := range t.Fields {
		names[i] = f.Name
		if err := checkTypeCase(path+"."+f.Name, f.Type); err != nil {
			return err
		}
	}
	return checkCase(path+".", names)
}

func checkCase(prefix string, names []string) error {
	seen := make(map[string]string, len(names))
	for _, name := range names {
		folded := strings.ToLower(name)
		if other, ok := seen[folded]; ok && other != name {
			return columnError(prefix+name, "it differs from %q in case only, which SQL engines cannot tell apart", prefix+other)
		}
		seen[folded] = name
	}
	return nil
}

// checkType checks a type that code may have built without the parser.
func checkType(t Type, path string, depth int) error {
	between := func(what string, n, low, high int) error {
		if n < low || n > high {
			return columnError(path, "%s of %s must be %d to %d, not %d", what, t.Kind, low, high, n)
		}
		return nil
	}
	if depth > MaxTypeDepth {
		return columnError(path, "nested more than %d deep", MaxTypeDepth)
	}
	want := 0
	switch t.Kind {
	case Decimal:
		if err := between("precision", t.Precision, 1, MaxPrecision); err != nil {
			return err
		}
		if err := between("scale", t.Scale, 0, t.Precision); err != nil {
			return err
		}
	case Char, Binary:
		if err := between("length", t.Length, 1, MaxFixedLength); err != nil {
			return err
		}
	case Time, Timestamp, TimestampLTZ:
		if err := between("precision", t.Precision, 0, MaxTimeDigits); err != nil {
			return err
		}
	case Array:
		want = 1
	case Map:
		want = 2
	case Row:
		want = max(1, len(t.Fields))
	default:
		if t.Kind.String() == "INVALID" {
			return columnError(path, "it has no type")
		}
	}
	if len(t.Fields) != want {
		return columnError(path, "%s has %d fields, want %d", t.Kind, len(t.Fields), want)
	}
	return checkNested(t, path, depth)
}

func checkNested(t Type, path string, depth int) error {
	seen := map[string]bool{}
	for i, f := range t.Fields {
		inner := path + "." + f.Name
		switch {
		case t.Kind == Row:
			if err := CheckColumnName(f.Name); err != nil {
				return fmt.Errorf("in column %q: %w", path, err)
			}
			if seen[f.Name] {
				return columnError(inner, "the name occurs twice in one ROW")
			}
			seen[f.Name] = true
		case t.Kind == Map && i == 0 && !f.Type.NotNull:
			return columnError(inner, "a map's key must be NOT NULL")
		case t.Kind == Array && f.Name != ElementName,
			t.Kind == Map && i == 0 && f.Name != KeyName,
			t.Kind == Map && i == 1 && f.Name != ValueName:
			return columnError(inner, "the fields of %s have fixed names, use schema.ArrayOf or MapOf", t.Kind)
		}
		if err := checkType(f.Type, inner, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (d *Descriptor) checkFieldIDs() error {
	seen := map[mink.FieldID]bool{}
	var bad error
	check := func(name string, id mink.FieldID) {
		switch {
		case bad != nil:
		case id < 1:
			bad = columnError(name, "field id %d, want 1 or more", id)
		case id > d.HighestFieldID:
			bad = columnError(name, "field id %d is above highest_field_id %d", id, d.HighestFieldID)
		case seen[id]:
			bad = columnError(name, "field id %d occurs twice", id)
		}
		seen[id] = true
	}
	for _, c := range d.Schema.Columns {
		check(c.Name, c.ID)
		eachField(c.Type, func(f *Field) { check(c.Name+"."+f.Name, f.ID) })
	}
	return bad
}

// keyColumns checks that the names are distinct columns of types that keys can have.
func (d *Descriptor) keyColumns(what string, names []string) error {
	for i, name := range names {
		c, ok := d.Schema.Column(name)
		switch {
		case !ok:
			return columnError(name, "named by the %s, but the table has no such column%s", what, suggest(name, d.Schema.names()))
		case slices.Contains(names[:i], name):
			return columnError(name, "occurs twice in the %s", what)
		case c.Type.Nested():
			return columnError(name, "%s cannot be in the %s: nested types have no key form", c.Type, what)
		}
	}
	return nil
}

func (d *Descriptor) checkPrimaryKey() error {
	if err := d.keyColumns("primary key", d.PrimaryKey); err != nil {
		return err
	}
	for _, name := range d.PrimaryKey {
		if c, _ := d.Schema.Column(name); !c.Type.NotNull {
			return columnError(name, "a primary-key column must be NOT NULL")
		}
	}
	return nil
}

func (d *Descriptor) checkPartitionKeys() error {
	if err := d.keyColumns("partition keys", d.PartitionKeys); err != nil {
		return err
	}
	for _, name := range d.PartitionKeys {
		if c, _ := d.Schema.Column(name); c.Type.Kind == Decimal {
			return columnError(name, "%s cannot be a partition key", c.Type)
		}
		if len(d.PrimaryKey) > 0 && !slices.Contains(d.PrimaryKey, name) {
			return columnError(name, "a partition key must be part of the primary key (%s)", strings.Join(d.PrimaryKey, ", "))
		}
	}
	return nil
}

func (d *Descriptor) checkBuckets() error {
	if err := d.keyColumns("bucket keys", d.BucketKeys); err != nil {
		return err
	}
	for _, name := range d.BucketKeys {
		if slices.Contains(d.PartitionKeys, name) {
			return columnError(name, "a bucket key must not be a partition key: it has one value in each partition")
		}
		if len(d.PrimaryKey) > 0 && !slices.Contains(d.PrimaryKey, name) {
			return columnError(name, "a bucket key must be part of the primary key (%s)", strings.Join(d.PrimaryKey, ", "))
		}
	}
	if len(d.PrimaryKey) > 0 && len(d.BucketKeys) == 0 {
		return columnError(d.PrimaryKey[0], "the primary key needs a column that is not a partition key, to place rows in buckets")
	}
	if d.BucketCount < 1 || d.BucketCount > MaxBuckets {
		return fmt.Errorf("%w bucket count %d: it must be 1 to %d", mink.ErrInvalid, d.BucketCount, MaxBuckets)
	}
	if want := d.bucketFunction(); d.BucketFunction != want {
		return fmt.Errorf("%w bucket function %.50q: with %d bucket keys it is %q", mink.ErrInvalid, d.BucketFunction, len(d.BucketKeys), want)
	}
	return nil
}

func (d *Descriptor) checkAutoIncrement() error {
	first := ""
	for _, c := range d.Schema.Columns {
		switch {
		case !c.AutoIncrement:
		case first != "":
			return columnError(c.Name, "a table has at most one auto-increment column, and %q is one", first)
		case c.Type.Kind != Int && c.Type.Kind != BigInt:
			return columnError(c.Name, "an auto-increment column must be INT or BIGINT, not %s", c.Type)
		case len(d.PrimaryKey) == 0:
			return columnError(c.Name, "an auto-increment column needs a table with a primary key")
		case slices.Contains(d.PrimaryKey, c.Name):
			return columnError(c.Name, "an auto-increment column must not be part of the primary key")
		default:
			first = c.Name
		}
	}
	return nil
}

// checkTexts bounds what is free-form and keeps the JSON form exact: JSON cannot
// carry bytes that are not UTF-8.
func (d *Descriptor) checkTexts() error {
	if !utf8.ValidString(d.Comment) {
		return fmt.Errorf("%w comment: it is not UTF-8", mink.ErrInvalid)
	}
	for _, c := range d.Schema.Columns {
		if !utf8.ValidString(c.Comment) {
			return columnError(c.Name, "the comment is not UTF-8")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Properties)) {
		value := d.Properties[name]
		switch {
		case name == "" || !utf8.ValidString(name) || !utf8.ValidString(value):
			return fmt.Errorf("%w property %.50q: names must not be empty, names and values must be UTF-8", mink.ErrInvalid, name)
		case len(name)+len(value) > MaxPropertyBytes:
			return fmt.Errorf("%w property %.50q: %d bytes, at most %d are allowed", mink.ErrInvalid, name, len(name)+len(value), MaxPropertyBytes)
		}
	}
	if n := len(d.Encode()); n > MaxDescriptorBytes {
		return fmt.Errorf("%w descriptor: %d bytes of JSON, at most %d are allowed", mink.ErrInvalid, n, MaxDescriptorBytes)
	}
	return nil
}
