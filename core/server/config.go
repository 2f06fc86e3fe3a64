package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/toml/v2"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	gotoml "github.com/pelletier/go-toml/v2"

	"github.com/mink-project/mink/core/internal/units"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/nearest"
)

// Config is everything that a node can be told. Every field is also a TOML key,
// an environment variable MINK_<KEY> and a flag --<key with dashes>. The doc
// tags make the reference page and the flags' help.
type Config struct {
	NodeID    int32  `koanf:"node_id" doc:"Identity of this node in the cluster, 1 or more; also its Kafka broker id. Two running nodes never share one."`
	ClusterID string `koanf:"cluster_id" doc:"Name of the cluster, shown to clients."`
	DataDir   string `koanf:"data_dir" doc:"Directory of the embedded defaults (metadata, objects) and of the lock that keeps a second process out."`

	Listen         string `koanf:"listen" doc:"Arrow Flight address, host:port."`
	Advertise      string `koanf:"advertise" doc:"Flight address that clients are told; empty: the listen address."`
	KafkaListen    string `koanf:"kafka_listen" doc:"Kafka address, host:port; \"off\" for none."`
	KafkaAdvertise string `koanf:"kafka_advertise" doc:"Kafka address that clients are told; empty: the listen address."`
	HTTPListen     string `koanf:"http_listen" doc:"Address of health checks, metrics and profiles, host:port; \"off\" for none."`
	Insecure       bool   `koanf:"insecure" doc:"Allow listeners beyond loopback although there is no authentication yet: whoever reaches them can read and write everything."`

	MetaURL        string  `koanf:"meta_url" doc:"Metadata database: sqlite:PATH for one node, postgres://... for a cluster; empty: sqlite in data_dir." secret:"url"`
	StorageURI     string  `koanf:"storage_uri" doc:"Object store: file://PATH, or the scheme of an installed plugin, such as s3://BUCKET/PREFIX; empty: a directory in data_dir." secret:"url"`
	StorageOptions Options `koanf:"storage_options" doc:"Options of the object store's plugin: a table in TOML, name=value,name=value elsewhere. mink plugin info NAME lists them."`
	WALURI         string  `koanf:"wal_uri" doc:"Object store of the write-ahead log, when it has one of its own; empty: storage_uri." secret:"url"`
	WALOptions     Options `koanf:"wal_options" doc:"Options of the plugin of wal_uri; empty: storage_options, when both URIs have the same scheme."`

	LakeCatalog        string  `koanf:"lake_catalog" doc:"Catalog of the lake's tables: local, in lake_catalog_url and served at /iceberg on http_listen; the name of an installed catalog plugin, such as rest or glue; off: no lake. All nodes of a cluster have the same."`
	LakeCatalogOptions Options `koanf:"lake_catalog_options" doc:"Options of the catalog's plugin: a table in TOML, name=value,name=value elsewhere. mink plugin info NAME lists them."`
	LakeCatalogURL     string  `koanf:"lake_catalog_url" doc:"Database of the local catalog: sqlite:PATH or postgres://...; empty: the Postgres of meta_url, or catalog.db in data_dir. All nodes of a cluster have the same." secret:"url"`
	IcebergToken       string  `koanf:"iceberg_token" doc:"Bearer token that clients of /iceberg must give; empty: none is asked for, as on the other listeners." secret:"token"`

	Sinks Sinks `koanf:"sinks" doc:"Sinks that tables can be tiered to beside the lake, by name: tables [sinks.NAME] with plugin, and [sinks.NAME.options] in TOML, NAME.plugin=PLUGIN,NAME.options.OPTION=VALUE elsewhere. All nodes of a cluster have the same."`

	PluginDir          string     `koanf:"plugin_dir" doc:"Directories with plugins, separated by colons, first to last; empty: plugins beside the executable, ~/.mink/plugins, /usr/lib/mink/plugins."`
	PluginMemoryMax    units.Size `koanf:"plugin_memory_max" doc:"Resident memory above which a plugin's process is replaced. 0: half of the memory limit."`
	PluginTLS          bool       `koanf:"plugin_tls" doc:"Encrypt between the node and its plugins, with certificates made for each start. Without it whoever runs as the node's user or as root can talk to a plugin."`
	PluginSharedMemory bool       `koanf:"plugin_shared_memory" doc:"Pass objects of 64KiB to 8MiB through 64MiB of memory that node and plugin share, where both can (Linux): a tenth of the CPU time for reads, a third for writes. Without it they go over the socket."`

	AcceptMetadata string `koanf:"accept_metadata" doc:"Token from the message of a start that was refused because metadata database and object store do not fit: accept that mismatch, and what it loses, once. Later ones have other tokens."`

	LogLevel  string `koanf:"log_level" doc:"debug, info, warn or error."`
	LogFormat string `koanf:"log_format" doc:"text, json, or auto: text on a terminal."`

	LeaseTTL                 units.Duration `koanf:"lease_ttl" doc:"How long a silent node stays the leader of its buckets; heartbeats come at a quarter of it."`
	CoordinatorTick          units.Duration `koanf:"coordinator_tick" doc:"How often the lease holder looks for buckets without a leader, partitions to make or drop, and things that expired."`
	MetadataSnapshotInterval units.Duration `koanf:"metadata_snapshot_interval" doc:"How often the lease holder writes a snapshot of the metadata and truncates its log."`
	LogRetentionInterval     units.Duration `koanf:"log_retention_interval" doc:"How often leaders trim their buckets by log_ttl and log_max_bytes."`
	KVSnapshotInterval       units.Duration `koanf:"kv_snapshot_interval" doc:"How long a primary-key bucket that changed goes without a snapshot of its store; up to a fifth less, each bucket its own time. A snapshot is what a new leader starts from, and what lets the log be trimmed."`
	KVSnapshotBytes          units.Size     `koanf:"kv_snapshot_bytes" doc:"Changelog since the last snapshot that makes the next one due before its time: about what a new leader has to replay."`
	KVSnapshotsRetained      int32          `koanf:"kv_snapshots_retained" doc:"Snapshots kept of each primary-key bucket, 1 to 10. The log is kept from the oldest one on: an older one serves when a newer one turns out damaged."`
	ReadGrace                units.Duration `koanf:"read_grace" doc:"How long readers may use a snapshot of the lake after the next one: the log that it needs is kept so long, and the snapshot in the lake too. Recorded with each round of tiering."`
	UnionKeyMemory           units.Size     `koanf:"union_key_memory" doc:"Keys of the log that one union read of a bucket of a primary-key table holds in memory, at most; with more it reads the lake several times. Equality deletes of the lake may take four times as much. Sixteen such reads run at a time."`
	TopicCleaningInterval    units.Duration `koanf:"topic_cleaning_interval" doc:"How often leaders look for buckets of compacted topics that are due to be cleaned."`
	ProducerOffsetsTTL       units.Duration `koanf:"producer_offsets_ttl" doc:"How long the offsets of a named producer are kept after its last commit."`
	GroupOffsetsRetention    units.Duration `koanf:"group_offsets_retention" doc:"How long the offsets of a consumer group are kept after its last member left; those of a group that never had members, after their commit."`
	GroupCommitInterval      units.Duration `koanf:"group_commit_interval" doc:"Time between two metadata commands that commit offsets of consumer groups; commits are gathered meanwhile. Down to a tenth of it while a few clients wait for each commit before the next."`

	TieringWorkers    int32          `koanf:"tiering_workers" doc:"How many tables the lease holder writes to their sinks at once. A table that is slow or fails holds up one of them at most, if there are two."`
	TieringTimeout    units.Duration `koanf:"tiering_timeout" doc:"How long a round of tiering may go without any progress (a request to the lake, a file) before it is given up and begun anew."`
	TieringRoundBytes units.Size     `koanf:"tiering_round_bytes" doc:"A round of tiering ends when it has written so much of a table, as its rows are in memory; the next one begins at once."`

	NodeRetention units.Duration `koanf:"node_retention" doc:"How long a node that ended stays listed, unless mink cluster remove-node removes it before. 0s: for ever."`

	WALUploadInterval     units.Duration `koanf:"wal_upload_interval" doc:"How often write-ahead objects are gathered into stream objects."`
	WALBatchInterval      units.Duration `koanf:"wal_batch_interval" doc:"Shortest time between two write-ahead objects under load: bounds requests, which are the bill. 0: by the store, 5ms on a local directory, 200ms in a cloud."`
	WALBatchBytes         units.Size     `koanf:"wal_batch_bytes" doc:"A write-ahead object of this size is sent without waiting."`
	WALIdleWait           units.Duration `koanf:"wal_idle_wait" doc:"How long a lone append waits for company. 0: by the store, at once on a local directory, 5ms in a cloud."`
	ObjectGrace           units.Duration `koanf:"object_grace" doc:"How long an object that nothing names any more stays on the store before it is deleted; below 2m it also limits how long one read from the store may take."`
	CompactionInterval    units.Duration `koanf:"compaction_interval" doc:"How often small stream objects are looked for that are worth merging."`
	ObjectCleanupInterval units.Duration `koanf:"object_cleanup_interval" doc:"How often objects that nothing names any more, and whose grace is over, are deleted."`
	OrphanAge             units.Duration `koanf:"orphan_age" doc:"Age at which an object that a killed node left behind unnamed is deleted; also how often such are looked for."`
	LogCacheBytes         units.Size     `koanf:"log_cache_bytes" doc:"Memory for the newest records of every bucket. 0: a quarter of the memory limit, at most 1GiB."`
	BlockCacheBytes       units.Size     `koanf:"block_cache_bytes" doc:"Memory for blocks read back from the object store. 0: an eighth of the memory limit, at most 512MiB."`

	KVCacheBytes units.Size     `koanf:"kv_cache_bytes" doc:"Memory for the stores of primary-key buckets: their blocks and what they have not written to a file yet. 0: a sixteenth of the memory limit, at least 64MiB, at most 512MiB."`
	KVIdleClose  units.Duration `koanf:"kv_idle_close" doc:"How long after its last use the store of a primary-key bucket stays open. An open store takes about 1 MiB and a goroutine; opening one again reads what is new in its log."`

	KafkaDatabase     string `koanf:"kafka_database" doc:"Database whose tables are Kafka topics under their bare names."`
	AutoCreateTopics  bool   `koanf:"auto_create_topics" doc:"Create a topic when a Kafka client asks for its metadata and allows it."`
	DefaultPartitions int32  `koanf:"default_partitions" doc:"Partitions of an auto-created topic."`

	GroupInitialRebalanceDelay units.Duration `koanf:"group_initial_rebalance_delay" doc:"How long the first rebalance of an empty consumer group waits for more members."`
	GroupMembersMax            int32          `koanf:"group_members_max" doc:"Most members of one consumer group."`
	MessageBytesMax            units.Size     `koanf:"message_bytes_max" doc:"Largest gRPC message a Flight client may send or receive."`
}

// DefaultConfig runs one node on embedded parts, with nothing installed.
func DefaultConfig() Config {
	return Config{
		NodeID: 1, ClusterID: "mink", DataDir: "./data",
		Listen: "127.0.0.1:9123", KafkaListen: "127.0.0.1:9092", HTTPListen: "127.0.0.1:9190",
		LakeCatalog: catalogLocal, LogLevel: "info", LogFormat: "auto",
		LeaseTTL: dur(30 * time.Second), CoordinatorTick: dur(5 * time.Second),
		MetadataSnapshotInterval: dur(30 * time.Second), LogRetentionInterval: dur(5 * time.Minute),
		KVSnapshotInterval: dur(10 * time.Minute), KVSnapshotBytes: 64 << 20, KVSnapshotsRetained: 2, ReadGrace: dur(time.Hour), UnionKeyMemory: 64 << 20, TopicCleaningInterval: dur(time.Minute),
		ProducerOffsetsTTL: dur(24 * time.Hour), GroupOffsetsRetention: dur(7 * 24 * time.Hour), NodeRetention: dur(7 * 24 * time.Hour),
		GroupCommitInterval: dur(100 * time.Millisecond), WALUploadInterval: dur(10 * time.Second),
		WALBatchBytes: 4 << 20, ObjectGrace: dur(5 * time.Minute),
		CompactionInterval: dur(time.Minute), ObjectCleanupInterval: dur(30 * time.Second), OrphanAge: dur(time.Hour),
		TieringWorkers: 2, TieringRoundBytes: 1 << 30, TieringTimeout: dur(10 * time.Minute),
		KVIdleClose: dur(10 * time.Minute), KafkaDatabase: "kafka", AutoCreateTopics: true, DefaultPartitions: 1,
		GroupInitialRebalanceDelay: dur(3 * time.Second), GroupMembersMax: 2000,
		MessageBytesMax: 64 << 20, PluginTLS: true, PluginSharedMemory: true,
	}
}

func dur(d time.Duration) units.Duration { return units.Duration(d) }

// Key is one configuration key, for flags and the reference page.
type Key struct {
	Name    string // as in TOML
	Flag    string
	Env     string
	Type    string // string, integer, boolean, duration, size, table
	Default string
	Doc     string
}

// Keys lists every key in the order of the reference page.
func Keys() []Key {
	def := reflect.ValueOf(DefaultConfig())
	var keys []Key
	for i := range def.NumField() {
		f := def.Type().Field(i)
		name := f.Tag.Get("koanf")
		k := Key{
			Name: name, Flag: strings.ReplaceAll(name, "_", "-"), Env: "MINK_" + strings.ToUpper(name),
			Default: fmt.Sprint(def.Field(i).Interface()), Doc: f.Tag.Get("doc"),
		}
		switch def.Field(i).Interface().(type) {
		case string:
			k.Type = "string"
		case bool:
			k.Type = "boolean"
		case units.Duration:
			k.Type = "duration"
		case units.Size:
			k.Type = "size"
		case Options, Sinks:
			k.Type = "table"
		default:
			k.Type = "integer"
		}
		keys = append(keys, k)
	}
	return keys
}

// LoadConfig layers defaults, the TOML file ("" for none), MINK_* of environ
// (nil: the process's) and set flags by key name. An unknown key is an error
// that names the nearest known one.
func LoadConfig(path string, environ func() []string, flags map[string]string) (Config, error) {
	k := koanf.New("\x00")
	if path != "" {
		if err := k.Load(file.Provider(path), toml.Parser()); err != nil {
			return Config{}, fmt.Errorf("configuration file %s: %w", path, where(err))
		}
	}
	err := k.Load(env.Provider("\x00", env.Opt{
		Prefix: "MINK_", EnvironFunc: environ,
		TransformFunc: func(key, value string) (string, any) {
			if slices.Contains(clientVariables, key) || strings.HasPrefix(key, "MINK_TEST_") {
				return "", nil
			}
			return strings.ToLower(strings.TrimPrefix(key, "MINK_")), value
		},
	}), nil)
	if err != nil {
		return Config{}, fmt.Errorf("environment: %w", err)
	}
	set := map[string]any{}
	for name, v := range flags {
		set[name] = v
	}
	if err := k.Load(confmap.Provider(set, "\x00"), nil); err != nil {
		return Config{}, err
	}
	if err := refuseUnknown(k.Keys()); err != nil {
		return Config{}, err
	}
	c := DefaultConfig()
	err = k.UnmarshalWithConf("", &c, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		Result: &c, WeaklyTypedInput: true, TagName: "koanf",
		DecodeHook: mapstructure.ComposeDecodeHookFunc(wantUnit, optionTable, sinkTables, mapstructure.TextUnmarshallerHookFunc()),
	}})
	if err != nil {
		return Config{}, fmt.Errorf("configuration: %w", oneLine(err))
	}
	return c, c.Validate()
}

// clientVariables are MINK_* variables that are not a node's.
var clientVariables = []string{"MINK_BOOTSTRAP"}

func refuseUnknown(names []string) error {
	var known, tables []string
	for _, k := range Keys() {
		known = append(known, k.Name)
		if k.Type == "table" {
			tables = append(tables, k.Name)
		}
	}
	for _, name := range names {
		table, _, _ := strings.Cut(name, "\x00")
		if slices.Contains(known, name) || slices.Contains(tables, table) {
			continue
		}
		name = strings.ReplaceAll(name, "\x00", ".")
		return fmt.Errorf("unknown configuration key %q; the nearest known one is %q", name, nearest.Of(name, known))
	}
	return nil
}

// Validate checks what can be checked without I/O.
func (c Config) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.NodeID < 1 {
		fail("node_id is %d; it must be 1 or more", c.NodeID)
	}
	if c.ClusterID == "" {
		fail("cluster_id is empty")
	}
	if c.DataDir == "" {
		fail("data_dir is empty")
	}
	if c.DefaultPartitions < 1 || c.DefaultPartitions > 4096 {
		fail("default_partitions is %d; it must be within 1..4096", c.DefaultPartitions)
	}
	if c.KVSnapshotsRetained < 1 || c.KVSnapshotsRetained > kvplan.RetainMax {
		fail("kv_snapshots_retained is %d; it must be within 1..%d", c.KVSnapshotsRetained, kvplan.RetainMax)
	}
	if c.KVSnapshotBytes < 1<<20 {
		fail("kv_snapshot_bytes is %s; it must be at least 1MiB", c.KVSnapshotBytes)
	}
	if c.TieringWorkers < 1 || c.TieringWorkers > 64 {
		fail("tiering_workers is %d; it must be within 1..64", c.TieringWorkers)
	}
	if c.TieringRoundBytes < 1<<20 {
		fail("tiering_round_bytes is %s; it must be at least 1MiB", c.TieringRoundBytes)
	}
	if c.GroupMembersMax < 1 {
		fail("group_members_max is %d; it must be 1 or more", c.GroupMembersMax)
	}
	for _, d := range []struct {
		key string
		v   units.Duration
		min time.Duration
	}{
		{"lease_ttl", c.LeaseTTL, time.Second}, {"coordinator_tick", c.CoordinatorTick, 100 * time.Millisecond},
		{"metadata_snapshot_interval", c.MetadataSnapshotInterval, time.Second},
		{"log_retention_interval", c.LogRetentionInterval, 100 * time.Millisecond},
		{"kv_snapshot_interval", c.KVSnapshotInterval, time.Second},
		{"read_grace", c.ReadGrace, 0},
		{"topic_cleaning_interval", c.TopicCleaningInterval, 100 * time.Millisecond},
		{"producer_offsets_ttl", c.ProducerOffsetsTTL, time.Second},
		{"group_offsets_retention", c.GroupOffsetsRetention, time.Second},
		{"node_retention", c.NodeRetention, 0},
		{"group_commit_interval", c.GroupCommitInterval, time.Millisecond},
		{"group_initial_rebalance_delay", c.GroupInitialRebalanceDelay, 0},
		{"wal_upload_interval", c.WALUploadInterval, 10 * time.Millisecond},
		{"compaction_interval", c.CompactionInterval, 100 * time.Millisecond},
		{"object_cleanup_interval", c.ObjectCleanupInterval, 100 * time.Millisecond},
		{"orphan_age", c.OrphanAge, time.Second},
		{"kv_idle_close", c.KVIdleClose, time.Second},
		{"tiering_timeout", c.TieringTimeout, time.Second},
	} {
		if time.Duration(d.v) < d.min {
			fail("%s is %s; it must be at least %s", d.key, d.v, d.min)
		}
	}
	if c.WALBatchBytes < 64<<10 || c.WALBatchBytes > 64<<20 {
		fail("wal_batch_bytes is %s; it must be within 64KiB..64MiB", c.WALBatchBytes)
	}
	if c.KVCacheBytes < 0 || c.KVCacheBytes > 0 && c.KVCacheBytes < 1<<20 {
		fail("kv_cache_bytes is %s; it must be 0 or at least 1MiB", c.KVCacheBytes)
	}
	if c.UnionKeyMemory < 1<<20 {
		fail("union_key_memory is %s; it must be 1MiB or more", c.UnionKeyMemory)
	}
	if c.MessageBytesMax < 1<<20 || c.MessageBytesMax > 1<<30 {
		fail("message_bytes_max is %s; it must be within 1MiB..1GiB", c.MessageBytesMax)
	}
	if c.LogCacheBytes != 0 && c.LogCacheBytes < logCacheMin {
		fail("log_cache_bytes is %s; it must be at least %s, so that the longest record fits, or 0", c.LogCacheBytes, units.Size(logCacheMin))
	}
	for _, err := range []error{c.checkOptions(), c.checkSinks(), c.checkAdvertised()} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	if c.KafkaListen != off {
		if err := schema.CheckName("kafka_database: database", c.KafkaDatabase); err != nil {
			errs = append(errs, err)
		}
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.LogLevel) {
		fail("log_level is %q; it must be debug, info, warn or error", c.LogLevel)
	}
	if err := c.checkLakeCatalog(); err != nil {
		errs = append(errs, err)
	}
	if !slices.Contains([]string{"text", "json", "auto"}, c.LogFormat) {
		fail("log_format is %q; it must be text, json or auto", c.LogFormat)
	}
	for _, l := range []struct{ key, addr string }{
		{"listen", c.Listen}, {"kafka_listen", c.KafkaListen}, {"http_listen", c.HTTPListen},
	} {
		if l.addr == off && l.key != "listen" {
			continue
		}
		if err := c.checkListener(l.key, l.addr); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// logCacheMin is the least log cache of stream.Default: any machine has it.
const logCacheMin = 32 << 20

// off as a listener's address means that it is not opened.
const off = "off"

func (c Config) checkListener(key, addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%s is %q; want host:port, such as 127.0.0.1:9123", key, addr)
	}
	ip := net.ParseIP(host)
	if host == "localhost" || (ip != nil && ip.IsLoopback()) || c.Insecure {
		return nil
	}
	return fmt.Errorf("%s is %s, beyond loopback, and there is no authentication yet: whoever reaches it can read and write everything; listen on 127.0.0.1, or pass --insecure to accept that", key, addr)
}

// Redacted lists every key and its value in effect, passwords hidden.
func (c Config) Redacted() map[string]string {
	v := reflect.ValueOf(c)
	out := map[string]string{}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		s := fmt.Sprint(v.Field(i).Interface())
		switch {
		case f.Tag.Get("secret") == "url":
			s = redactURL(s)
		case f.Tag.Get("secret") == "token" && s != "":
			s = "(set)"
		}
		if o, ok := v.Field(i).Interface().(Options); ok {
			s = o.redacted(func(string) bool { return true })
		}
		out[f.Tag.Get("koanf")] = s
	}
	return out
}

// metaURL, storageURI and walURI answer the URL in effect.
func (c Config) metaURL() string {
	if c.MetaURL != "" {
		return c.MetaURL
	}
	return "sqlite:" + filepath.Join(c.DataDir, "meta.db")
}

func (c Config) storageURI() string {
	if c.StorageURI != "" {
		return c.StorageURI
	}
	return "file://" + filepath.Join(c.DataDir, "objects")
}

func (c Config) walURI() string {
	if c.WALURI != "" {
		return c.WALURI
	}
	return c.storageURI()
}

// wantUnit refuses a bare number where a duration is meant: 30 would silently be
// 30 nanoseconds.
func wantUnit(from, to reflect.Type, value any) (any, error) {
	if to != reflect.TypeFor[units.Duration]() || from.Kind() == reflect.String || from == to {
		return value, nil
	}
	return nil, fmt.Errorf("duration %v: want a number and a unit in quotes, such as \"500ms\", \"10s\", \"5m\" or \"7d\"", value)
}

// where adds the line of a TOML error; a missing file's error names it already.
func where(err error) error {
	if d := (*gotoml.DecodeError)(nil); errors.As(err, &d) {
		line, column := d.Position()
		return fmt.Errorf("line %d, column %d: %w", line, column, err)
	}
	if p := (*os.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}

// oneLine takes the decoder's several-line report apart: one reason, or all of
// them joined by semicolons.
func oneLine(err error) error {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "*"))
		if line != "" && !strings.HasPrefix(line, "decoding failed") {
			lines = append(lines, line)
		}
	}
	return errors.New(strings.Join(lines, "; "))
}
