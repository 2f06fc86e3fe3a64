package schema

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mink-project/mink/core/internal/units"
	"github.com/mink-project/mink/sdk/mink"
)

// TimestampType says whose clock stamps a record.
type TimestampType uint8

// The timestamp types of Kafka's message.timestamp.type.
const (
	CreateTime    TimestampType = iota // the producer's
	LogAppendTime                      // the bucket leader's, at append
)

// String is Kafka's name.
func (t TimestampType) String() string {
	if t == LogAppendTime {
		return "LogAppendTime"
	}
	return "CreateTime"
}

// TimeUnit is the width of an automatic partition.
type TimeUnit string

// The units; "" means that the table has no automatic partitions.
const (
	UnitHour    TimeUnit = "hour"
	UnitDay     TimeUnit = "day"
	UnitMonth   TimeUnit = "month"
	UnitQuarter TimeUnit = "quarter"
	UnitYear    TimeUnit = "year"
)

// AutoPartition is the auto_partition.* options; schema/partition does its
// calendar arithmetic.
type AutoPartition struct {
	Key       string   // the partition key that holds the time
	Unit      TimeUnit // "": off
	Zone      string   // IANA name, not yet looked up: that reads files
	Precreate int      // units ahead of the current one that exist already
	Retention int      // units behind the current one that are kept; 0: all
}

// Options are a table's options, typed, with defaults filled in.
type Options struct {
	LogTTL          time.Duration // 0: forever
	LogMaxBytes     int64         // per bucket; 0: no limit
	MaxMessageBytes int           // largest batch, bytes, with its header
	TimestampType   TimestampType
	TimestampBefore time.Duration // how far a CreateTime may lie behind the leader's clock; 0: any
	TimestampAfter  time.Duration // how far ahead of it; 0: any
	DeepKafka       bool          // decompress and walk Kafka batches before they are taken
	KafkaJSON       bool          // values of Kafka records are JSON objects of the columns
	QuarantineBad   bool          // with KafkaJSON: records that do not fit the columns are taken and kept out of them
	AutoPartition   AutoPartition

	MergeEngine    MergeEngine
	VersionColumn  string         // of Versioned; else ""
	DeleteBehavior DeleteBehavior // DeleteDisable where the merge engine takes no deletes
	WALImage       bool           // an update's old row is not in the changelog

	Compact          bool          // records go that a later one of the same key supersedes
	CompactOnly      bool          // and none by LogTTL and LogMaxBytes
	DeleteRetention  time.Duration // how long a tombstone stays that a cleaning has met
	MinCompactionLag time.Duration // how long a record stays whatever comes after it
	MaxCompactionLag time.Duration // how long a superseded record stays at most
	MinDirtyRatio    float64       // share of bytes not cleaned yet at which a cleaning begins

	Lake          bool          // tiered to the Iceberg lake
	LakeFreshness time.Duration // how old the lake's copy may become
	LakeDeletes   LakeDeletes   // of a table with a primary key
	// Maintenance of the lake table. Ages of 0: for ever.
	LakeCompaction  bool
	LakeSnapshotAge time.Duration
	LakeOrphanAge   time.Duration
	StallLimit      time.Duration // how long rows wait for a lake that takes none; 0: for ever

	values map[string]string
}

// Options of the lake.
const (
	OptionLake            = "lake"
	OptionLakeGeneration  = "lake_generation"
	optionLakeFreshness   = "lake_freshness"
	optionLakeDeletes     = "lake_deletes"
	optionLakeCompaction  = "lake_auto_compaction"
	optionLakeSnapshotAge = "lake_snapshot_age"
	optionLakeOrphanAge   = "lake_orphan_age"
	optionStallLimit      = "lake_stall_limit"
)

// LakeDeletes is how updates and deletes are written to the lake.
type LakeDeletes string

// The kinds of deletes in the lake.
const (
	EqualityDeletes LakeDeletes = "equality"
	PositionDeletes LakeDeletes = "position"
)

// Value is the text of an option: as set, else its default. ok is false for a
// name that no table option has.
func (o Options) Value(name string) (value string, ok bool) {
	spec, ok := FindOption(name)
	if !ok {
		return "", false
	}
	if v, set := o.values[spec.Name]; set {
		return v, true
	}
	return spec.Default, true
}

// ValueType is how an option's text is read.
type ValueType string

// The value types, as the reference manual names them.
const (
	TypeBool     ValueType = "boolean"  // true | false
	TypeInt      ValueType = "integer"  // whole number
	TypeFloat    ValueType = "number"   // decimal number
	TypeDuration ValueType = "duration" // 7d, 12h, 500ms
	TypeSize     ValueType = "size"     // 64MiB, 1048588
	TypeEnum     ValueType = "one of"   // Choices
	TypeList     ValueType = "list"     // separated by commas
	TypeText     ValueType = "text"
)

// TableKind says which tables an option is for.
type TableKind string

// The kinds of tables.
const (
	AllTables        TableKind = "all"
	LogTables        TableKind = "log"
	PrimaryKeyTables TableKind = "primary key"
)

// OptionSpec documents one option.
type OptionSpec struct {
	Name    string
	Type    ValueType
	Default string
	Choices []string // TypeEnum
	Min     int64    // TypeInt, TypeSize, TypeDuration (ms)
	Max     int64    // 0: no limit
	Special []string // words accepted beside Type: "forever", "unlimited", "-1"
	Tables  TableKind
	Kafka   bool // a Kafka topic config
	// PerSink: the name has NAME in the place of a sink's.
	PerSink bool
	// Unbuilt: any value but the default is refused with mink.ErrUnsupported.
	Unbuilt bool
	// Fixed: cannot change after the table was created.
	Fixed bool
	// Informative: stored and reported, without effect.
	Informative bool
	Doc         string
}

// OptionSpecs lists every option: Mink's first, then Kafka's, each sorted by name.
func OptionSpecs() []OptionSpec {
	specs := slices.Concat(minkOptions(), sinkSpecs(), kafkaOptions())
	slices.SortFunc(specs, func(a, b OptionSpec) int {
		if a.Kafka != b.Kafka {
			if a.Kafka {
				return 1
			}
			return -1
		}
		return strings.Compare(a.Name, b.Name)
	})
	return specs
}

// FindOption finds an option by name. retention.ms and retention.bytes are other
// spellings of log_ttl and log_max_bytes and are not found here.
func FindOption(name string) (OptionSpec, bool) {
	if spec, ok := optionTable[name]; ok {
		return spec, true
	}
	return findSinkOption(name)
}

// optionTable is OptionSpecs by name, without those of further sinks; never written
// after start.
var optionTable = func() map[string]OptionSpec {
	m := map[string]OptionSpec{}
	for _, s := range OptionSpecs() {
		if !s.PerSink {
			m[s.Name] = s
		}
	}
	return m
}()

func optionError(name, value, why string, args ...any) error {
	return fmt.Errorf("%w option %s = %.100q: %s", mink.ErrInvalid, name, value, fmt.Sprintf(why, args...))
}

func unknownOption(name string) error {
	if strings.HasPrefix(name, sinkPrefix) {
		return fmt.Errorf("%w option %.100q: options of a sink are sink.NAME and sink.NAME. with freshness, retain, stall_limit, generation or options.KEY; NAME is 1 to 63 of a-z, 0-9, _ and -, and not lake", mink.ErrInvalid, name)
	}
	known := slices.Concat(slices.Sorted(maps.Keys(optionTable)), []string{kafkaRetentionMs, kafkaRetentionBytes})
	return fmt.Errorf("%w option %.100q: no table option has this name%s", mink.ErrInvalid, name, suggest(name, known))
}

// ParseOptions reads options and fills in defaults. An unknown name is an error
// with the nearest known name. Rules that need the rest of the descriptor are
// Descriptor.Validate's.
func ParseOptions(m map[string]string) (Options, error) {
	values, err := canonicalOptions(m)
	if err != nil {
		return Options{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		spec, ok := FindOption(name)
		if !ok {
			return Options{}, unknownOption(name)
		}
		if err := spec.check(values[name]); err != nil {
			return Options{}, err
		}
	}
	o := Options{values: values}
	return o, o.fill()
}

// check reads the value by the option's type.
func (s OptionSpec) check(value string) error {
	if value == s.Default || slices.Contains(s.Special, value) {
		return nil
	}
	if err := s.checkForm(value); err != nil {
		return err
	}
	if s.Unbuilt {
		return fmt.Errorf("%w: option %s = %.100q is understood, but not built yet", mink.ErrUnsupported, s.Name, value)
	}
	return nil
}

func (s OptionSpec) checkForm(value string) error {
	n, form := int64(0), error(nil)
	switch s.Type {
	case TypeBool:
		if value != "true" && value != "false" {
			return optionError(s.Name, value, "it must be true or false")
		}
	case TypeEnum:
		if !slices.Contains(s.Choices, value) {
			return optionError(s.Name, value, "it must be one of %s%s", strings.Join(s.Choices, ", "), suggest(value, s.Choices))
		}
	case TypeInt:
		if n, form = strconv.ParseInt(value, 10, 64); form != nil {
			return optionError(s.Name, value, "it must be a whole number")
		}
	case TypeFloat:
		if f, err := strconv.ParseFloat(value, 64); err != nil || f < 0 || f > 1 {
			return optionError(s.Name, value, "it must be a number from 0 to 1")
		}
	case TypeSize:
		if n, form = units.ParseSize(value); form != nil {
			return fmt.Errorf("%w option %s: %w", mink.ErrInvalid, s.Name, form)
		}
	case TypeDuration:
		d, err := units.ParseDuration(value)
		if err != nil {
			return fmt.Errorf("%w option %s: %w", mink.ErrInvalid, s.Name, err)
		}
		n = d.Milliseconds()
	}
	counted := s.Type == TypeInt || s.Type == TypeSize || s.Type == TypeDuration
	show := func(n int64) string {
		if s.Type == TypeDuration {
			return units.FormatDuration(time.Duration(n) * time.Millisecond)
		}
		return strconv.FormatInt(n, 10)
	}
	if counted && n < s.Min {
		return optionError(s.Name, value, "it must be %s or more", show(s.Min))
	}
	if counted && s.Max > 0 && n > s.Max {
		return optionError(s.Name, value, "it must be %s or less", show(s.Max))
	}
	return nil
}

// fill sets the typed members from values that have been checked.
func (o *Options) fill() error {
	text := func(name string) string { v, _ := o.Value(name); return v }
	var err error
	number := func(name string) int {
		n, e := strconv.Atoi(text(name))
		if e != nil && err == nil {
			err = optionError(name, text(name), "out of range")
		}
		return n
	}
	if v := text("log_ttl"); v != "forever" {
		if o.LogTTL, err = units.ParseDuration(v); err != nil {
			return err
		}
	}
	if v := text("log_max_bytes"); v != "unlimited" {
		if o.LogMaxBytes, err = units.ParseSize(v); err != nil {
			return err
		}
	}
	size, sizeErr := units.ParseSize(text("max.message.bytes"))
	if sizeErr != nil {
		return sizeErr
	}
	o.MaxMessageBytes = int(size)
	if text("message.timestamp.type") == LogAppendTime.String() {
		o.TimestampType = LogAppendTime
	}
	o.Lake, o.LakeDeletes = text(OptionLake) == "true", LakeDeletes(text(optionLakeDeletes))
	if o.LakeFreshness, err = units.ParseDuration(text(optionLakeFreshness)); err != nil {
		return err
	}
	o.LakeCompaction = text(optionLakeCompaction) == "true"
	for name, to := range map[string]*time.Duration{optionStallLimit: &o.StallLimit, optionLakeSnapshotAge: &o.LakeSnapshotAge, optionLakeOrphanAge: &o.LakeOrphanAge} {
		if v := text(name); v != "forever" {
			if *to, err = units.ParseDuration(v); err != nil {
				return err
			}
		}
	}
	o.DeepKafka = text("kafka.validate") == "deep"
	o.KafkaJSON = text(OptionValueFormat) == "json"
	o.QuarantineBad = text(optionBadRecords) == "quarantine"
	policy := text(optionCleanup)
	o.Compact, o.CompactOnly = strings.Contains(policy, "compact"), policy == "compact"
	o.DeleteRetention = kafkaSpan(text("delete.retention.ms"))
	o.MinCompactionLag = kafkaSpan(text("min.compaction.lag.ms"))
	o.MaxCompactionLag = kafkaSpan(text("max.compaction.lag.ms"))
	ratio, ratioErr := strconv.ParseFloat(text("min.cleanable.dirty.ratio"), 64)
	if ratioErr != nil {
		return ratioErr
	}
	o.MinDirtyRatio = ratio
	o.TimestampBefore = kafkaMillis(text("message.timestamp.before.max.ms"))
	o.TimestampAfter = kafkaMillis(text("message.timestamp.after.max.ms"))
	if mergeErr := o.fillMerge(); mergeErr != nil {
		return mergeErr
	}
	o.AutoPartition = AutoPartition{
		Key:       text("auto_partition.key"),
		Unit:      TimeUnit(text("auto_partition.time_unit")),
		Zone:      text("auto_partition.time_zone"),
		Precreate: number("auto_partition.num_precreate"),
		Retention: number("auto_partition.num_retention"),
	}
	return err
}

// ParsedOptions are the descriptor's options, typed. AutoPartition.Key is filled
// in when the table has one partition key. It does no more checks than
// ParseOptions: a descriptor from the metadata log was validated.
func (d *Descriptor) ParsedOptions() (Options, error) {
	o, err := ParseOptions(d.Options)
	if err == nil && o.AutoPartition.Unit != "" && o.AutoPartition.Key == "" && len(d.PartitionKeys) == 1 {
		o.AutoPartition.Key = d.PartitionKeys[0]
	}
	return o, err
}

func (d *Descriptor) checkOptions() error {
	o, err := d.ParsedOptions()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(d.Options)) {
		spec, ok := FindOption(name)
		switch {
		case !ok: // ParseOptions took it for another spelling
			return optionError(name, d.Options[name], "normalize the descriptor first")
		case spec.Tables == PrimaryKeyTables && len(d.PrimaryKey) == 0:
			return optionError(name, d.Options[name], "it is for tables with a primary key")
		case spec.Tables == LogTables && len(d.PrimaryKey) > 0:
			return optionError(name, d.Options[name], "it is for tables without a primary key")
		}
	}
	if err := d.checkKafkaJSON(&o); err != nil {
		return err
	}
	if err := d.checkCompact(&o); err != nil {
		return err
	}
	if err := d.checkMerge(&o); err != nil {
		return err
	}
	if err := d.checkSinks(); err != nil {
		return err
	}
	return d.checkAutoPartition(o.AutoPartition)
}

// checkKafkaJSON holds typed topics to what a Kafka producer can do: it chooses
// the bucket itself, and sends a key or none.
func (d *Descriptor) checkKafkaJSON(o *Options) error {
	keys := ""
	switch {
	case !o.KafkaJSON && o.QuarantineBad:
		return optionError(optionBadRecords, "quarantine", "it is for tables with %s = json", OptionValueFormat)
	case !o.KafkaJSON:
		return nil
	case IsKafkaTopic(&d.Schema):
		return optionError(OptionValueFormat, "json", "the table has the four columns of a topic with raw values")
	case len(d.PrimaryKey) > 0:
		keys = "a primary key"
	case len(d.PartitionKeys) > 0:
		keys = "partition columns"
	case len(d.BucketKeys) > 0:
		keys = "bucket keys"
	default:
		return nil
	}
	return optionError(OptionValueFormat, "json", "a table with %s is no topic, as Kafka's producers choose the bucket themselves", keys)
}

// checkCompact: a cleaning goes by the keys of Kafka records, and rewrites what is
// left as such.
func (d *Descriptor) checkCompact(o *Options) error {
	policy, _ := o.Value(optionCleanup)
	switch {
	case !o.Compact:
		return nil
	case len(d.PrimaryKey) > 0:
		return optionError(optionCleanup, policy, "a table with a primary key keeps the latest row of each key by itself")
	case !IsKafkaTopic(&d.Schema):
		return optionError(optionCleanup, policy, "only tables with the four columns of a topic (key, value, headers, timestamp) can be compacted: rows of other columns have no key, and a deletion is no row")
	case o.MinCompactionLag > o.MaxCompactionLag:
		return optionError("min.compaction.lag.ms", o.values["min.compaction.lag.ms"], "it must not be above max.compaction.lag.ms")
	}
	return nil
}

func (d *Descriptor) checkAutoPartition(a AutoPartition) error {
	if a.Unit == "" {
		for _, name := range slices.Sorted(maps.Keys(d.Options)) {
			if strings.HasPrefix(name, "auto_partition.") {
				return optionError(name, d.Options[name], "set auto_partition.time_unit too, it switches automatic partitions on")
			}
		}
		return nil
	}
	if a.Zone == "Local" || !zonePattern.MatchString(a.Zone) { // Local would differ from node to node
		return optionError("auto_partition.time_zone", a.Zone, "it must be an IANA time zone such as UTC or Europe/Berlin")
	}
	if len(d.PartitionKeys) == 0 {
		return optionError("auto_partition.time_unit", string(a.Unit), "the table has no partition keys")
	}
	if len(d.PartitionKeys) > 1 {
		// The other keys' values are not known ahead, so nothing could be made ahead.
		if a.Key == "" {
			return optionError("auto_partition.time_unit", string(a.Unit), "set auto_partition.key to the partition key that holds the time")
		}
		if a.Precreate > 0 {
			return optionError("auto_partition.num_precreate", strconv.Itoa(a.Precreate), "it must be 0 with several partition keys: the others' values are not known ahead")
		}
	}
	if !slices.Contains(d.PartitionKeys, a.Key) {
		return optionError("auto_partition.key", a.Key, "it is not a partition key%s", suggest(a.Key, d.PartitionKeys))
	}
	c, _ := d.Schema.Column(a.Key)
	switch {
	case c.Type.Kind == String || c.Type.Kind == Char:
	case c.Type.Kind == Date && a.Unit == UnitDay:
	default:
		return columnError(a.Key, "automatic partitions by %s need a STRING column (DATE for day), not %s", a.Unit, c.Type)
	}
	if n := autoNameLength[a.Unit]; c.Type.Kind == Char && c.Type.Length < n {
		return columnError(a.Key, "automatic partitions by %s need %d characters, %s has fewer", a.Unit, n, c.Type)
	}
	return nil
}

// zonePattern is the form of zone names. Whether the zone exists is for the caller
// that looks it up: the zones known differ from machine to machine.
var zonePattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_+/-]{0,63}$`)

// autoNameLength is the length of the names that schema/partition makes.
var autoNameLength = map[TimeUnit]int{UnitHour: 13, UnitDay: 10, UnitMonth: 7, UnitQuarter: 7, UnitYear: 4}
