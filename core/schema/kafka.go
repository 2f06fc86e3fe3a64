package schema

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mink-project/mink/core/internal/units"
	"github.com/mink-project/mink/sdk/mink"
)

// Kafka's spellings of log_ttl and log_max_bytes; -1 means no limit.
const (
	kafkaRetentionMs    = "retention.ms"
	kafkaRetentionBytes = "retention.bytes"
)

const optionCleanup = "cleanup.policy"

// The options of typed topics.
const (
	OptionValueFormat = "kafka.value.format"
	optionBadRecords  = "kafka.bad.records"
)

// canonicalOptions replaces Kafka's spellings by Mink's. Both spellings of one
// option with different values are an error.
func canonicalOptions(m map[string]string) (map[string]string, error) {
	out := maps.Clone(m)
	for _, name := range []string{kafkaRetentionMs, kafkaRetentionBytes} {
		value, ok := m[name]
		if !ok {
			continue
		}
		to, text, err := fromKafkaRetention(name, value)
		if err != nil {
			return nil, err
		}
		if set, both := m[to]; both && set != text {
			return nil, optionError(name, value, "it contradicts %s = %q: set one of them", to, set)
		}
		delete(out, name)
		out[to] = text
	}
	return out, nil
}

// canonicalName is the option behind Kafka's spelling; other names stay.
func canonicalName(name string) string {
	switch name {
	case kafkaRetentionMs:
		return "log_ttl"
	case kafkaRetentionBytes:
		return "log_max_bytes"
	}
	return name
}

func fromKafkaRetention(name, value string) (option, text string, err error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < -1 {
		return "", "", optionError(name, value, "it must be a whole number, -1 or more")
	}
	if name == kafkaRetentionBytes {
		if n == -1 {
			return "log_max_bytes", "unlimited", nil
		}
		return "log_max_bytes", units.FormatSize(n), nil
	}
	if n == -1 || n > math.MaxInt64/int64(time.Millisecond) { // 292 years: as good as forever
		return "log_ttl", "forever", nil
	}
	return "log_ttl", units.FormatDuration(time.Duration(max(n, 1)) * time.Millisecond), nil
}

// kafkaMillis reads a checked time limit in which a huge value means no limit (0).
func kafkaMillis(text string) time.Duration {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > math.MaxInt64/int64(time.Millisecond) {
		return 0
	}
	// 0 ms is a limit, not its absence.
	return max(time.Duration(n)*time.Millisecond, 1)
}

// kafkaSpan reads a checked time; one that is too long for a Duration is the longest.
func kafkaSpan(text string) time.Duration {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Millisecond
}

// KafkaConfig is one topic config as Kafka's DescribeConfigs reports it.
type KafkaConfig struct {
	Name    string
	Value   string
	Default string
	Set     bool // by the table, not by default
	// Informative: stored and reported, without effect.
	Informative bool
	Type        ValueType
	Doc         string
}

// KafkaConfigs lists the topic configs of a table, sorted by name: Kafka's own
// names, retention.ms and retention.bytes derived from Mink's options, and Mink's
// other options as "mink.<name>".
func (d *Descriptor) KafkaConfigs() ([]KafkaConfig, error) {
	o, err := d.ParsedOptions()
	if err != nil {
		return nil, err
	}
	var list []KafkaConfig
	for _, s := range OptionSpecs() {
		if s.PerSink {
			continue
		}
		value, _ := o.Value(s.Name)
		_, set := o.values[s.Name]
		c := KafkaConfig{Name: s.Name, Value: value, Default: s.Default, Set: set, Informative: s.Informative, Type: s.Type, Doc: s.Doc}
		switch {
		case s.Name == "log_ttl":
			c.Name, c.Value, c.Default, c.Type = kafkaRetentionMs, "-1", "604800000", TypeInt
			if o.LogTTL > 0 {
				c.Value = strconv.FormatInt(o.LogTTL.Milliseconds(), 10)
			}
		case s.Name == "log_max_bytes":
			c.Name, c.Value, c.Default, c.Type = kafkaRetentionBytes, "-1", "-1", TypeInt
			if value != "unlimited" {
				c.Value = strconv.FormatInt(o.LogMaxBytes, 10)
			}
		case s.Type == TypeSize && s.Kafka: // Kafka's tools want plain numbers
			n, err := units.ParseSize(value)
			if err != nil {
				return nil, err
			}
			c.Value, c.Type = strconv.FormatInt(n, 10), TypeInt
		case !s.Kafka && s.Tables != AllTables, s.Unbuilt && !s.Kafka:
			continue
		case !s.Kafka:
			c.Name = "mink." + s.Name
		}
		list = append(list, c)
	}
	for name, value := range o.values {
		if spec, ok := findSinkOption(name); ok {
			list = append(list, KafkaConfig{Name: "mink." + name, Value: value, Default: spec.Default, Set: true, Type: spec.Type, Doc: spec.Doc})
		}
	}
	slices.SortFunc(list, func(a, b KafkaConfig) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// KafkaOption maps the name of a Kafka topic config to the option's name in
// Descriptor.Options and Change: Kafka's names stay, "mink.x" is x.
func KafkaOption(config string) string { return strings.TrimPrefix(config, "mink.") }

// The columns of a Kafka topic, in this order.
const (
	KafkaKeyColumn       = "key"
	KafkaValueColumn     = "value"
	KafkaHeadersColumn   = "headers"
	KafkaTimestampColumn = "timestamp"
)

// KafkaTopicSchema is the four columns of a Kafka topic, without field ids.
func KafkaTopicSchema() Schema {
	return Schema{Columns: []Column{
		{Name: KafkaKeyColumn, Type: Type{Kind: Bytes}},
		{Name: KafkaValueColumn, Type: Type{Kind: Bytes}},
		{Name: KafkaHeadersColumn, Type: ArrayOf(RowOf(
			Field{Name: "key", Type: Type{Kind: String}},
			Field{Name: "value", Type: Type{Kind: Bytes}}))},
		{Name: KafkaTimestampColumn, Type: Type{Kind: TimestampLTZ, Precision: 3}},
	}}
}

// KafkaTopic is the normalized and validated descriptor of a topic's table.
// configs are Kafka topic configs. buckets is the number of Kafka's partitions.
func KafkaTopic(database, topic string, buckets int32, configs map[string]string) (*Descriptor, error) {
	d := &Descriptor{Database: database, Table: topic, Schema: KafkaTopicSchema(), BucketCount: buckets, Options: map[string]string{}}
	if buckets < 1 { // 0 would become the default
		return nil, fmt.Errorf("%w topic %s: %d partitions, it must be 1 to %d", mink.ErrInvalid, topic, buckets, MaxBuckets)
	}
	for name, value := range configs {
		d.Options[KafkaOption(name)] = value
	}
	n, err := d.Normalize()
	if err != nil {
		return nil, err
	}
	return n, n.Validate()
}

// IsKafkaTopic reports whether the columns are a topic's four, by name, order and
// type. NOT NULL is accepted only where Kafka has no null: headers and timestamp.
func IsKafkaTopic(s *Schema) bool {
	want := KafkaTopicSchema().Columns
	if len(s.Columns) != len(want) {
		return false
	}
	for i, c := range s.Columns {
		if c.Name != want[i].Name || !c.Type.SameShape(want[i].Type) || c.Type.NotNull && i < 2 {
			return false
		}
	}
	headerValue := s.Columns[2].Type.Fields[0].Type.Fields[1]
	return !headerValue.Type.NotNull
}

// IsKafkaTopic reports whether Kafka clients see the table as a topic: the four
// columns, or kafka.value.format = json, and no keys, since a Kafka producer
// chooses the bucket itself.
func (d *Descriptor) IsKafkaTopic() bool {
	return (IsKafkaTopic(&d.Schema) || d.Options[OptionValueFormat] == "json") &&
		len(d.PrimaryKey) == 0 && len(d.PartitionKeys) == 0 && len(d.BucketKeys) == 0
}
