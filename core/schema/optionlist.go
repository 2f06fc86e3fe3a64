package schema

import "math"

// minkOptions are Mink's own table options.
func minkOptions() []OptionSpec {
	return []OptionSpec{
		{Name: "log_ttl", Type: TypeDuration, Default: "7d", Special: []string{"forever"}, Min: 1, Tables: AllTables,
			Doc: "How long records stay in the log, by their commit time. forever keeps them all. Records that a sink or a snapshot still needs stay longer. Kafka's retention.ms (-1: forever) sets it too."},
		{Name: "log_max_bytes", Type: TypeSize, Default: "unlimited", Special: []string{"unlimited"}, Tables: AllTables,
			Doc: "How many bytes of log each bucket keeps; the oldest go first. Kafka's retention.bytes (-1: unlimited) sets it too."},
		{Name: "auto_partition.time_unit", Type: TypeEnum, Choices: []string{"hour", "day", "month", "quarter", "year"}, Tables: AllTables,
			Doc: "Switches automatic partitions on: one partition per hour, day, month, quarter or year, made ahead and dropped by age. Names are 2024-03-31-07, 2024-03-31, 2024-03, 2024-Q1, 2024."},
		{Name: "auto_partition.key", Type: TypeText, Tables: AllTables,
			Doc: "The partition key that holds the time. Needed only with several partition keys."},
		{Name: "auto_partition.time_zone", Type: TypeText, Default: "UTC", Tables: AllTables,
			Doc: "The IANA time zone that says when a unit begins, such as Europe/Berlin."},
		{Name: "auto_partition.num_precreate", Type: TypeInt, Default: "2", Max: 1000, Tables: AllTables,
			Doc: "How many partitions exist ahead of the current one. Must be 0 with several partition keys."},
		{Name: "auto_partition.num_retention", Type: TypeInt, Default: "7", Max: 1_000_000, Tables: AllTables,
			Doc: "How many partitions before the current one are kept; older ones are dropped and writes to them refused. 0 keeps all."},
		{Name: optionMergeEngine, Type: TypeText, Default: "last_write", Tables: PrimaryKeyTables, Fixed: true,
			Doc: "How a write meets the row that is there: last_write, first_row, versioned:<column>, aggregation. See [merge engines](#merge-engines)."},
		{Name: optionDeletes, Type: TypeEnum, Choices: []string{"allow", "ignore", "disable"}, Default: "allow", Tables: PrimaryKeyTables,
			Doc: "What a delete does: allow, ignore (nothing), disable (an error for the whole batch). With first_row and versioned:<column> a delete is an error unless this is ignore."},
		{Name: optionImage, Type: TypeEnum, Choices: []string{"full", "wal"}, Default: "full", Tables: PrimaryKeyTables, Fixed: true,
			Doc: "What the changelog shows of an update: full (old and new row) or wal (the new row). See [changelog](#changelog)."},
		{Name: OptionLake, Type: TypeBool, Default: "false", Tables: AllTables,
			Doc: "Tiers the table to the Iceberg lake. The log keeps what the lake does not have yet, whatever log_ttl and log_max_bytes say. Switched off, the lake table stays as it is and nothing waits for it; switched on again, it goes on there, without what the log let go of meanwhile (a table with a primary key is refused then). Dropping the table drops the lake table. See [tiering](#tiering)."},
		{Name: optionLakeFreshness, Type: TypeDuration, Default: "3m", Min: 1000, Tables: AllTables,
			Doc: "How old the lake's copy may become: the longest time between rounds of tiering while rows arrive."},
		{Name: optionStallLimit, Type: TypeDuration, Default: "forever", Special: []string{"forever"}, Min: 1000, Tables: LogTables,
			Doc: "Gives rows up for the lake: when it took no round for this long, retention lets go of rows that old by log_ttl and log_max_bytes although the lake does not have them. They are lost for the lake and for union reads, for good; the metadata note the gap. forever: the log grows until the lake takes them. Tables without a primary key."},
		{Name: OptionLakeGeneration, Type: TypeInt, Default: "0", Tables: AllTables,
			Doc: "Begins the lake table anew when it is raised: what the lake has of the table is dropped there, then the lake gets what the log still has; of a table with a primary key, all rows. For a lake table that was lost, or damaged from outside. Lowering it does nothing."},
		{Name: optionLakeCompaction, Type: TypeBool, Default: "true", Tables: AllTables,
			Doc: "Merges small files of the lake table and applies or merges its deletes between rounds, when a bucket has three small files of about one size, or a file more than ten delete files or a tenth of its rows deleted. Readers see the same rows. See [maintenance](lake.md#maintenance)."},
		{Name: optionLakeSnapshotAge, Type: TypeDuration, Default: "1d", Special: []string{"forever"}, Min: 1000, Tables: AllTables,
			Doc: "How long a snapshot of the lake table stays after a newer one took its place, for time travel and for long reads of other engines; at least twice read_grace. The newest ten and those that a branch or tag names stay. forever: nothing is expired, and metadata grow with every round."},
		{Name: optionLakeOrphanAge, Type: TypeDuration, Default: "3d", Special: []string{"forever"}, Min: 3600 * 1000, Tables: AllTables,
			Doc: "How old a file below the lake table's location must be that no snapshot names, before it is deleted: longer than any write of another engine takes from its first file to its commit. forever: none is deleted, not even those of expired snapshots."},
		{Name: "lake_attach", Type: TypeText, Tables: AllTables, Unbuilt: true, Fixed: true,
			Doc: "An existing lake table to attach to."},
		{Name: optionLakeDeletes, Type: TypeEnum, Choices: []string{"equality", "position"}, Default: "position", Tables: PrimaryKeyTables,
			Doc: "How updates and deletes of a table with a primary key are written to the lake: position deletes (read by nearly all engines; each round reads key columns of the files that are there) or equality deletes (cheap to write, not read by pyiceberg and others)."},
		{Name: "kafka.validate", Type: TypeEnum, Choices: []string{"header", "deep"}, Default: "header", Tables: AllTables,
			Doc: "How far a compressed Kafka batch is checked before it is taken: header, or deep, which decompresses it and walks its records (10 to 60 times dearer) and refuses what readers would have to skip. Uncompressed batches are always walked. The topic config is mink.kafka.validate."},
		{Name: OptionValueFormat, Type: TypeEnum, Choices: []string{"raw", "json"}, Default: "raw", Tables: AllTables,
			Doc: "json makes a typed table a Kafka topic: a record's value is a JSON object of the columns. For tables without a primary key, partition columns and bucket keys. raw: only tables with a topic's four columns are topics."},
		{Name: optionBadRecords, Type: TypeEnum, Choices: []string{"refuse", "quarantine"}, Default: "refuse", Tables: AllTables,
			Doc: "What happens to a Kafka record whose value does not fit the columns, with kafka.value.format = json: refuse (the batch, naming the records), or quarantine (it is stored and goes to Kafka consumers, readers of the table skip it and say why)."},
	}
}

// maxKafkaMillis is Kafka's Long.MAX_VALUE, which means "no limit" for times.
const maxKafkaMillis = "9223372036854775807"

// MaxMessageBytesLimit is the most that max.message.bytes can be: Kafka's default
// limit of a request (socket.request.max.bytes).
const MaxMessageBytesLimit = 100 << 20

// kafkaOptions are the topic configs of Kafka 3.9 that a table stores. Defaults
// are Kafka's where the value is only reported.
func kafkaOptions() []OptionSpec {
	const ms, whole = math.MaxInt64, math.MaxInt32
	list := []OptionSpec{
		{Name: "max.message.bytes", Type: TypeSize, Default: "1048588", Min: 1, Max: MaxMessageBytesLimit,
			Doc: "The largest batch that is accepted, in bytes with its header, from any protocol."},
		{Name: "message.timestamp.type", Type: TypeEnum, Choices: []string{"CreateTime", "LogAppendTime"}, Default: "CreateTime",
			Doc: "Whether records keep the producer's time or get the time of their append."},
		{Name: "message.timestamp.before.max.ms", Type: TypeInt, Default: maxKafkaMillis, Max: ms,
			Doc: "How far a record's time may lie behind the leader's clock, in milliseconds."},
		{Name: "message.timestamp.after.max.ms", Type: TypeInt, Default: maxKafkaMillis, Max: ms,
			Doc: "How far a record's time may lie ahead of the leader's clock, in milliseconds."},
		{Name: optionCleanup, Type: TypeEnum, Choices: []string{"delete", "compact", "compact,delete", "delete,compact"}, Default: "delete",
			Doc: "delete: old records go by log_ttl and log_max_bytes. compact: of each key the latest record is kept, see [compacted topics](#compacted-topics). Both: both. Only tables with a topic's four columns can be compacted."},
		{Name: "delete.retention.ms", Type: TypeInt, Default: "86400000", Max: ms,
			Doc: "How long a tombstone, a record without a value, stays in a compacted topic after the first cleaning that met it, in milliseconds."},
		{Name: "min.compaction.lag.ms", Type: TypeInt, Default: "0", Max: ms,
			Doc: "How old a record of a compacted topic is, by its commit time, before a cleaning may take it, in milliseconds."},
		{Name: "max.compaction.lag.ms", Type: TypeInt, Default: maxKafkaMillis, Min: 1, Max: ms,
			Doc: "How old the oldest record that no cleaning has looked at may become before one begins, whatever min.cleanable.dirty.ratio says, in milliseconds."},
		{Name: "min.cleanable.dirty.ratio", Type: TypeFloat, Default: "0.5",
			Doc: "The share of a bucket's bytes, appended since its last cleaning, at which the next one begins."},
		{Name: "remote.storage.enable", Type: TypeBool, Default: "false", Unbuilt: true,
			Doc: "Kafka's tiered storage; Mink keeps every record in the object store anyway."},
	}
	informative := []OptionSpec{
		{Name: "compression.type", Type: TypeEnum, Choices: []string{"producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd"}, Default: "producer", Doc: "Batches are stored as the producer compressed them."},
		{Name: "min.insync.replicas", Type: TypeInt, Default: "1", Min: 1, Max: whole, Doc: "An acknowledged record is in the object store, whatever this says."},
		{Name: "unclean.leader.election.enable", Type: TypeBool, Default: "false", Doc: "A new leader always has every acknowledged record."},
		{Name: "segment.bytes", Type: TypeInt, Default: "1073741824", Min: 14, Max: whole, Doc: "Mink has no segment files."},
		{Name: "segment.ms", Type: TypeInt, Default: "604800000", Min: 1, Max: ms, Doc: "Mink has no segment files."},
		{Name: "segment.jitter.ms", Type: TypeInt, Default: "0", Max: ms, Doc: "Mink has no segment files."},
		{Name: "segment.index.bytes", Type: TypeInt, Default: "10485760", Min: 4, Max: whole, Doc: "Mink has no segment files."},
		{Name: "index.interval.bytes", Type: TypeInt, Default: "4096", Max: whole, Doc: "Mink has no segment files."},
		{Name: "preallocate", Type: TypeBool, Default: "false", Doc: "Mink has no segment files."},
		{Name: "file.delete.delay.ms", Type: TypeInt, Default: "60000", Max: ms, Doc: "Objects are deleted after the cluster's grace period."},
		{Name: "flush.messages", Type: TypeInt, Default: maxKafkaMillis, Min: 1, Max: ms, Doc: "Every acknowledged record is durable."},
		{Name: "flush.ms", Type: TypeInt, Default: maxKafkaMillis, Max: ms, Doc: "Every acknowledged record is durable."},
		{Name: "local.retention.ms", Type: TypeInt, Default: "-2", Min: -2, Max: ms, Doc: "For remote.storage.enable."},
		{Name: "local.retention.bytes", Type: TypeInt, Default: "-2", Min: -2, Max: ms, Doc: "For remote.storage.enable."},
		{Name: "message.downconversion.enable", Type: TypeBool, Default: "true", Doc: "Batches are served in the format in which they were written."},
		{Name: "message.timestamp.difference.max.ms", Type: TypeInt, Default: maxKafkaMillis, Max: ms, Doc: "Deprecated by Kafka: use message.timestamp.before.max.ms and after.max.ms."},
		{Name: "message.format.version", Type: TypeText, Default: "3.0-IV1", Doc: "Deprecated by Kafka."},
		{Name: "leader.replication.throttled.replicas", Type: TypeList, Doc: "Mink's leaders do not replicate to followers."},
		{Name: "follower.replication.throttled.replicas", Type: TypeList, Doc: "Mink's leaders do not replicate to followers."},
	}
	for _, s := range informative {
		s.Informative = true
		s.Doc = "Stored and reported for Kafka's tools, without effect. " + s.Doc
		list = append(list, s)
	}
	for i := range list {
		list[i].Kafka, list[i].Tables = true, AllTables
	}
	return list
}
