package schema

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/sdk/mink"
)

func TestOptionSpecs(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range OptionSpecs() {
		if seen[s.Name] {
			t.Errorf("%s occurs twice", s.Name)
		}
		seen[s.Name] = true
		if s.Doc == "" || s.Tables == "" || s.Type == "" || (s.Type == TypeEnum) != (len(s.Choices) > 0) {
			t.Errorf("%s is not documented: %+v", s.Name, s)
		}
		if s.Default != "" && !slices.Contains(s.Special, s.Default) {
			if err := s.checkForm(s.Default); err != nil {
				t.Errorf("default of %s: %v", s.Name, err)
			}
		}
	}
	if !seen["lake"] || !seen["max.message.bytes"] || seen["retention.ms"] {
		t.Error("list of options is wrong")
	}
	if _, err := ParseOptions(nil); err != nil {
		t.Errorf("defaults: %v", err)
	}
}

func TestParseOptions(t *testing.T) {
	o, err := ParseOptions(map[string]string{})
	if err != nil || o.LogTTL != 7*24*time.Hour || o.LogMaxBytes != 0 || o.MaxMessageBytes != 1048588 || o.TimestampType != CreateTime ||
		o.TimestampBefore != 0 || o.TimestampAfter != 0 || o.AutoPartition != (AutoPartition{Zone: "UTC", Precreate: 2, Retention: 7}) {
		t.Errorf("defaults: %+v, %v", o, err)
	}
	o, err = ParseOptions(map[string]string{
		"log_ttl": "forever", "log_max_bytes": "64MiB", "max.message.bytes": "10MiB", "message.timestamp.type": "LogAppendTime",
		"message.timestamp.before.max.ms": "5000", "message.timestamp.after.max.ms": "0", "compression.type": "zstd", "cleanup.policy": "delete", "lake": "false",
	})
	if err != nil || o.LogTTL != 0 || o.LogMaxBytes != 64<<20 || o.MaxMessageBytes != 10<<20 || o.TimestampType != LogAppendTime ||
		o.TimestampBefore != 5*time.Second || o.TimestampAfter != 1 {
		t.Errorf("%+v, %v", o, err)
	}
	if v, ok := o.Value("compression.type"); v != "zstd" || !ok {
		t.Error(v)
	}
	if v, ok := o.Value("segment.bytes"); v != "1073741824" || !ok {
		t.Error(v)
	}
	if _, ok := o.Value("nothing"); ok {
		t.Error("unknown option has a value")
	}
	for _, c := range []struct {
		name, value, want string
		class             error
	}{
		{"log_tll", "1d", `did you mean "log_ttl"?`, mink.ErrInvalid},
		{"retention.mz", "1", `did you mean "retention.ms"?`, mink.ErrInvalid},
		{strings.Repeat("x", 100000), "1", "no table option has this name", mink.ErrInvalid},
		{"log_ttl", "soon", "want a number and a unit", mink.ErrInvalid},
		{"log_ttl", "0s", "it must be 1ms or more", mink.ErrInvalid},
		{"log_max_bytes", "-1", "want a number and a unit", mink.ErrInvalid},
		{"max.message.bytes", "1GiB", "it must be 104857600 or less", mink.ErrInvalid},
		{"max.message.bytes", "0", "it must be 1 or more", mink.ErrInvalid},
		{"message.timestamp.type", "createtime", `did you mean "CreateTime"?`, mink.ErrInvalid},
		{"min.insync.replicas", "x", "it must be a whole number", mink.ErrInvalid},
		{"preallocate", "yes", "it must be true or false", mink.ErrInvalid},
		{"min.cleanable.dirty.ratio", "1.5", "it must be a number from 0 to 1", mink.ErrInvalid},
		{"auto_partition.time_unit", "week", "it must be one of hour, day", mink.ErrInvalid},
		{"auto_partition.num_precreate", "1001", "it must be 1000 or less", mink.ErrInvalid},
		{"cleanup.policy", "compacted", "it must be one of", mink.ErrInvalid},
		{"lake_attach", "db.t", "understood, but not built yet", mink.ErrUnsupported},
		{"lake", "maybe", "it must be true or false", mink.ErrInvalid},
		{"sink.Warehouse", "true", "options of a sink are", mink.ErrInvalid},
		{"sink.lake", "true", "options of a sink are", mink.ErrInvalid},
		{"sink.a.fresh", "1m", "options of a sink are", mink.ErrInvalid},
		{"sink.a.", "1m", "options of a sink are", mink.ErrInvalid},
		{"sink.a.options.", "x", "options of a sink are", mink.ErrInvalid},
		{"sink.NAME", "true", "options of a sink are", mink.ErrInvalid},
		{"sink.a", "yes", "it must be true or false", mink.ErrInvalid},
		{"sink.a.freshness", "10ms", "it must be 1s or more", mink.ErrInvalid},
		{"remote.storage.enable", "true", "understood, but not built yet", mink.ErrUnsupported},
		{"retention.ms", "-2", "it must be a whole number, -1 or more", mink.ErrInvalid},
	} {
		_, err := ParseOptions(map[string]string{c.name: c.value})
		if !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 3000 {
			t.Errorf("%.30s=%s: got %v, want %s", c.name, c.value, err, c.want)
		}
	}
}

func TestKafkaRetention(t *testing.T) {
	for _, c := range []struct{ name, value, to, text string }{
		{"retention.ms", "604800000", "log_ttl", "7d"},
		{"retention.ms", "-1", "log_ttl", "forever"},
		{"retention.ms", "9223372036854775807", "log_ttl", "forever"},
		{"retention.ms", "0", "log_ttl", "1ms"},
		{"retention.ms", "1001", "log_ttl", "1.001s"},
		{"retention.bytes", "-1", "log_max_bytes", "unlimited"},
		{"retention.bytes", "1048576", "log_max_bytes", "1MiB"},
		{"retention.bytes", "1000", "log_max_bytes", "1000"},
	} {
		got, err := canonicalOptions(map[string]string{c.name: c.value})
		if err != nil || len(got) != 1 || got[c.to] != c.text {
			t.Errorf("%s=%s: %v, %v", c.name, c.value, got, err)
		}
	}
	if _, err := canonicalOptions(map[string]string{"retention.ms": "1000", "log_ttl": "2s"}); !errors.Is(err, mink.ErrInvalid) {
		t.Errorf("contradiction: %v", err)
	}
	if _, err := canonicalOptions(map[string]string{"retention.ms": "1000", "log_ttl": "1s"}); err != nil {
		t.Errorf("agreement: %v", err)
	}
}

func TestOptionsOfTables(t *testing.T) {
	base := func() *Descriptor { d := table("day STRING", "n INT", "at DATE", "c CHAR(5)"); return d }
	for _, c := range []struct {
		want    string // "" valid
		keys    []string
		options string
	}{
		{"", []string{"day"}, "auto_partition.time_unit=day"},
		{"", []string{"at"}, "auto_partition.time_unit=day"},
		{"", []string{"day", "n"}, "auto_partition.time_unit=hour auto_partition.key=day auto_partition.num_precreate=0"},
		{"set auto_partition.time_unit too", []string{"day"}, "auto_partition.num_retention=3"},
		{"the table has no partition keys", nil, "auto_partition.time_unit=day"},
		{"set auto_partition.key to the partition key", []string{"day", "n"}, "auto_partition.time_unit=day"},
		{"it must be 0 with several partition keys", []string{"day", "n"}, "auto_partition.time_unit=day auto_partition.key=day"},
		{"it is not a partition key", []string{"day"}, "auto_partition.time_unit=day auto_partition.key=n"},
		{`column "n": automatic partitions by day need a STRING column`, []string{"n"}, "auto_partition.time_unit=day"},
		{`column "at": automatic partitions by month need a STRING column`, []string{"at"}, "auto_partition.time_unit=month"},
		{`column "c": automatic partitions by day need 10 characters`, []string{"c"}, "auto_partition.time_unit=day"},
		{"", []string{"c"}, "auto_partition.time_unit=year"},
		{"it must be an IANA time zone", []string{"day"}, "auto_partition.time_unit=day auto_partition.time_zone=Local"},
		{"it must be an IANA time zone", []string{"day"}, "auto_partition.time_unit=day auto_partition.time_zone=../../etc"},
		{"it must be an IANA time zone", []string{"day"}, "auto_partition.time_unit=day auto_partition.time_zone="},
		{"", []string{"day"}, "auto_partition.time_unit=day auto_partition.time_zone=America/Argentina/Buenos_Aires"},
		{"", []string{"day"}, "auto_partition.time_unit=day auto_partition.time_zone=Etc/GMT+5"},
		{"it is for tables with a primary key", nil, "merge_engine=last_write"},
	} {
		d := base()
		d.PartitionKeys, d.Options = c.keys, map[string]string{}
		for _, o := range strings.Fields(c.options) {
			name, value, _ := strings.Cut(o, "=")
			d.Options[name] = value
		}
		n, err := d.Normalize()
		if err == nil {
			err = n.Validate()
		}
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v %s: %v, want %q", c.keys, c.options, err, c.want)
		}
	}
}

func TestKafkaTopic(t *testing.T) {
	d, err := KafkaTopic("kafka", "events", 3, map[string]string{"retention.ms": "1000", "max.message.bytes": "10485760", "mink.log_max_bytes": "1MiB"})
	if err != nil {
		t.Fatal(err)
	}
	if !d.IsKafkaTopic() || !IsKafkaTopic(&d.Schema) || d.BucketCount != 3 || d.BucketFunction != BucketRoundRobin {
		t.Errorf("%s", d.Encode())
	}
	configs, err := d.KafkaConfigs()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]KafkaConfig{}
	for _, c := range configs {
		if _, twice := got[c.Name]; twice {
			t.Errorf("%s twice", c.Name)
		}
		got[c.Name] = c
	}
	for name, want := range map[string]string{"retention.ms": "1000", "retention.bytes": "1048576", "max.message.bytes": "10485760", "cleanup.policy": "delete",
		"segment.bytes": "1073741824", "min.insync.replicas": "1", "compression.type": "producer", "message.timestamp.type": "CreateTime",
		"message.timestamp.before.max.ms": maxKafkaMillis, "message.timestamp.after.max.ms": maxKafkaMillis, "delete.retention.ms": "86400000",
		"max.compaction.lag.ms": maxKafkaMillis, "unclean.leader.election.enable": "false", "remote.storage.enable": "false", "mink.auto_partition.time_zone": "UTC"} {
		if got[name].Value != want {
			t.Errorf("%s = %q, want %q", name, got[name].Value, want)
		}
	}
	if !got["retention.ms"].Set || got["segment.bytes"].Set {
		t.Error("Set is wrong")
	}
	checkCompacted(t)
	for _, buckets := range []int32{0, -1, 5000} {
		if _, err := KafkaTopic("kafka", "t", buckets, nil); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%d partitions: %v", buckets, err)
		}
	}
	for what, change := range map[string]func(*Descriptor){
		"name":         func(d *Descriptor) { d.Schema.Columns[0].Name = "k" },
		"type":         func(d *Descriptor) { d.Schema.Columns[1].Type.Kind = String },
		"precision":    func(d *Descriptor) { d.Schema.Columns[3].Type.Precision = 6 },
		"not null":     func(d *Descriptor) { d.Schema.Columns[1].Type.NotNull = true },
		"header value": func(d *Descriptor) { d.Schema.Columns[2].Type.Fields[0].Type.Fields[1].Type.NotNull = true },
		"more":         func(d *Descriptor) { d.Schema.Columns = append(d.Schema.Columns, Column{Name: "x"}) },
		"bucket key":   func(d *Descriptor) { d.BucketKeys = []string{"key"} },
		"partitions":   func(d *Descriptor) { d.PartitionKeys = []string{"key"} },
	} {
		c := d.Clone()
		change(c)
		if c.IsKafkaTopic() {
			t.Errorf("%s: still a topic", what)
		}
	}
	fromClient, err := FromArrow(d.Schema.Arrow())
	if err != nil || !IsKafkaTopic(fromClient) {
		t.Errorf("through Arrow: %v", err)
	}
}

// A typed table is a topic when it says so and a producer can choose its bucket.
func TestTypedTopic(t *testing.T) {
	base := func(options map[string]string) *Descriptor {
		return &Descriptor{Database: "d", Table: "t", Options: options, Schema: Schema{Columns: []Column{
			{Name: "id", Type: MustParseType("BIGINT NOT NULL")}, {Name: "day", Type: MustParseType("STRING NOT NULL")}}}}
	}
	json := map[string]string{"kafka.value.format": "json"}
	for _, c := range []struct {
		what    string
		options map[string]string
		change  func(*Descriptor)
		topic   bool
		want    string
	}{
		{"plain", nil, nil, false, ""},
		{"raw", map[string]string{"kafka.value.format": "raw"}, nil, false, ""},
		{"json", json, nil, true, ""},
		{"quarantine", map[string]string{"kafka.value.format": "json", "kafka.bad.records": "quarantine"}, nil, true, ""},
		{"quarantine alone", map[string]string{"kafka.bad.records": "quarantine"}, nil, false, "it is for tables with kafka.value.format = json"},
		{"avro", map[string]string{"kafka.value.format": "avro"}, nil, false, "one of raw, json"},
		{"bucket keys", json, func(d *Descriptor) { d.BucketKeys = []string{"id"} }, false, "bucket keys is no topic"},
		{"partitions", json, func(d *Descriptor) { d.PartitionKeys = []string{"day"} }, false, "partition columns is no topic"},
		{"primary key", json, func(d *Descriptor) { d.PrimaryKey = []string{"id"} }, false, "primary key is no topic"},
		{"four columns", json, func(d *Descriptor) { d.Schema = KafkaTopicSchema() }, true, "four columns of a topic"},
	} {
		d := base(c.options)
		if c.change != nil {
			c.change(d)
		}
		n, err := d.Normalize()
		if err == nil {
			err = n.Validate()
		}
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
		if got := n.IsKafkaTopic(); got != c.topic {
			t.Errorf("%s: topic %v", c.what, got)
		}
		if err != nil {
			continue
		}
		o, err := n.ParsedOptions()
		if err != nil || o.KafkaJSON != c.topic || o.QuarantineBad != (c.what == "quarantine") {
			t.Errorf("%s: %+v, %v", c.what, o, err)
		}
	}
	// A change of columns must not turn one kind of topic into the other.
	d := base(json)
	d.Schema = KafkaTopicSchema()
	d.Schema.Columns = append(d.Schema.Columns, Column{Name: "x", Type: MustParseType("INT")})
	n, err := d.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Validate(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Apply([]Change{{Op: DropColumn, Name: "x"}}); !errors.Is(err, mink.ErrInvalid) {
		t.Errorf("five columns become four: %v", err)
	}
}

// Options are read or refused by a class; what is read is read again from its
// canonical form, to the same.
func FuzzParseOptions(f *testing.F) {
	for name, spec := range optionTable {
		f.Add(name, spec.Default)
		f.Add(name, "1")
		for _, v := range spec.Special {
			f.Add(name, v)
		}
	}
	for _, v := range []string{"7d", "500ms", "-1", "1e3", "64MiB", "forever", "99999999999999999999d", "a,b", "Europe/Berlin"} {
		f.Add("log_ttl", v)
		f.Add("max.message.bytes", v)
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		o, err := ParseOptions(map[string]string{name: value})
		if err != nil {
			if !errors.Is(err, mink.ErrInvalid) && !errors.Is(err, mink.ErrUnsupported) {
				t.Errorf("%q = %q: %v has no class", name, value, err)
			}
			return
		}
		again, err := ParseOptions(o.values)
		if err != nil || !reflect.DeepEqual(o, again) {
			t.Errorf("%q = %q is read as %+v, and from there as %+v, %v", name, value, o, again, err)
		}
	})
}

func checkCompacted(t *testing.T) {
	t.Helper()
	parsed := func(configs map[string]string) (Options, error) {
		d, err := KafkaTopic("kafka", "t", 1, configs)
		if err != nil {
			return Options{}, err
		}
		return d.ParsedOptions()
	}
	for _, c := range []struct {
		policy        string
		compact, only bool
	}{{"delete", false, false}, {"compact", true, true}, {"compact,delete", true, false}, {"delete,compact", true, false}} {
		o, err := parsed(map[string]string{"cleanup.policy": c.policy, "delete.retention.ms": "0", "min.compaction.lag.ms": "1500", "min.cleanable.dirty.ratio": "0.25"})
		if err != nil || o.Compact != c.compact || o.CompactOnly != c.only {
			t.Errorf("%s: %+v, %v", c.policy, o, err)
		}
		if o.DeleteRetention != 0 || o.MinCompactionLag != 1500*time.Millisecond || o.MaxCompactionLag != math.MaxInt64 || o.MinDirtyRatio != 0.25 {
			t.Errorf("%+v", o)
		}
	}
	if o, err := parsed(map[string]string{"delete.retention.ms": maxKafkaMillis}); err != nil || o.DeleteRetention != math.MaxInt64 {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := parsed(map[string]string{"cleanup.policy": "compact", "min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}); !errors.Is(err, mink.ErrInvalid) {
		t.Errorf("lags that exclude each other: %v", err)
	}
	typed := &Descriptor{Database: "d", Table: "t", Schema: Schema{Columns: []Column{{Name: "a", Type: MustParseType("INT")}}}, Options: map[string]string{"cleanup.policy": "compact"}}
	for _, json := range []string{"raw", "json"} {
		typed.Options[OptionValueFormat] = json
		if err := checked(typed); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), "four columns of a topic") {
			t.Errorf("a typed table, %s: %v", json, err)
		}
	}
	typed.PrimaryKey, typed.Options[OptionValueFormat] = []string{"a"}, "raw"
	if err := checked(typed); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), "primary key") {
		t.Errorf("a table with a primary key: %v", err)
	}
}

func checked(d *Descriptor) error {
	n, err := d.Normalize()
	if err != nil {
		return err
	}
	return n.Validate()
}
