package tiering

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// Config tunes the work.
type Config struct {
	// Workers bounds how many tables are written at once. Default 2.
	Workers int
	// Tick is how often due tables are looked for. Default 1 s.
	Tick time.Duration
	// DueBytes of one bucket that are not at the sink make it due before its
	// freshness. Default 16 MiB.
	DueBytes int64
	// RoundBytes cuts a round, as Arrow has the rows in memory. The rest is the next
	// round's, at once. Default 1 GiB.
	RoundBytes int64
	// CompactBytes bounds the files that one compaction replaces, in stored bytes: rounds
	// of the table wait for it. Default 256 MiB.
	CompactBytes int64
	// Silence is how long a round may show no progress before it is given up: one call
	// of the sink, one read. The restore of a KV snapshot may take six times as long.
	// Default 10 m.
	Silence time.Duration
	// GivenUpMax bounds the rounds that were given up and have not returned yet: they keep
	// their memory. With as many no round begins. Default 8.
	GivenUpMax int
	// RetryMin and RetryMax bound the pauses after failures of one table. Defaults 1 s
	// and 5 m.
	RetryMin, RetryMax time.Duration
	// Settle is how long a dropped table is remembered after its sink has dropped it: a
	// worker that has not noticed yet that its lease is lost may make its place again.
	// Default 2 m.
	Settle time.Duration
}

// Default is the configuration of a running node.
func Default() Config {
	return Config{
		Workers: 2, Tick: time.Second, DueBytes: 16 << 20, RoundBytes: 1 << 30, CompactBytes: 256 << 20,
		Silence: 10 * time.Minute, GivenUpMax: 8, RetryMin: time.Second, RetryMax: 5 * time.Minute, Settle: 2 * time.Minute,
	}
}

// Validate names what makes no sense.
func (c Config) Validate() error {
	if c.Workers < 1 || c.Tick <= 0 || c.DueBytes < 1 || c.RoundBytes < 1 || c.CompactBytes < 1 || c.Silence <= 0 || c.GivenUpMax < 1 || c.RetryMin <= 0 || c.RetryMax < c.RetryMin || c.Settle < 0 {
		return fmt.Errorf("tiering: every field must be positive and RetryMax at least RetryMin: %+v: %w", c, mink.ErrInvalid)
	}
	return nil
}

// Deps is what the package needs of its node. All of it is safe for concurrent use.
type Deps struct {
	Meta   Meta
	Source Source
	// Sinks are by name. A table that names another one fails until its node has it.
	Sinks  map[string]sink.Sink
	Logger *slog.Logger
}

// Meta is the metadata log.
type Meta interface {
	View() View
	// Lease is the coordinator lease that this node holds as far as it knows; false:
	// another one does.
	Lease() (mink.LeaseEpoch, bool)
	// CommitRound records a round that the sink has. mink.ErrFenced: the lease is
	// another's. mink.ErrConflict: the base is not the recorded round.
	// mink.ErrNotExist: the table was dropped, or does not name the sink any more.
	// Recording the same round again changes nothing.
	CommitRound(ctx context.Context, r Round) error
	// ForgetDropped records that the sink has nothing of the table any more.
	ForgetDropped(ctx context.Context, t Target, lease mink.LeaseEpoch) error
}

// Target is one table at one sink.
type Target struct {
	Table mink.TableID
	Sink  string
}

// String is "table 7 at sink lake".
func (t Target) String() string { return fmt.Sprintf("table %d at sink %s", t.Table, t.Sink) }

// Round is a committed round, as the metadata log records it.
type Round struct {
	Target   Target
	Lease    mink.LeaseEpoch // of the proposer, which need not be the round's own
	Round    sink.RoundID
	Base     sink.RoundID // the round recorded before; "": none
	Snapshot string
	Ends     map[mink.BucketRef]mink.Offset // some may be of partitions that are gone
}

// View is the metadata at one index; immutable.
type View interface {
	// Targets are the tables with a sink, each with each of its sinks.
	Targets() iter.Seq[Target]
	// Job answers what there is to do; false: the table was dropped, or does not name
	// the sink any more.
	Job(t Target) (Job, bool)
	// Spec is the table as a sink needs to know it, with its newest schema.
	Spec(t Target) (sink.TableSpec, error)
	// SinkFence is the fence that sinks get of the holder of a lease.
	SinkFence(lease mink.LeaseEpoch) mink.LeaseEpoch
	// Dropped are the targets whose sink still holds a dropped table.
	Dropped() iter.Seq[Dropped]
}

// Dropped is a table that is gone, and its sink has not been told.
type Dropped struct {
	Target Target
	Spec   sink.TableSpec
}

// Job is one table at one sink in one view.
type Job struct {
	Name      string // database.table
	Schema    mink.SchemaID
	Keyed     bool // it has a primary key
	Freshness time.Duration
	Retains   bool   // the log keeps what the sink has not
	Anew      string // the table option that begins the table anew at the sink
	// Stopped says why nothing is to be written, for people; "": it is.
	Stopped string
	// The last recorded round; zero before the first.
	Round     sink.RoundID
	Snapshot  string
	Committed time.Time
	Buckets   []Bucket
	Upkeep    Upkeep
}

// Bucket is one bucket of a job. Offsets below Tiered are at the sink, those from Start to End can be
// read, End is the committed end of its stream.
type Bucket struct {
	Ref       mink.BucketRef
	Partition []string // values, one for each partition key
	Closed    bool     // no row will come
	Remade    bool     // the sink has rows of an earlier partition of the same values, perhaps of the same keys
	// Base is where tiering of the bucket begins, Tiered where the last recorded round
	// ended: Base before the first one that named the bucket.
	Base, Tiered mink.Offset
	Start, End   mink.Offset
	Gaps         []Gap       // trimmed by hand, by offset: may be missing at the sink
	Snapshot     mink.Offset // offset of the newest KV snapshot; 0: none
	Bytes        int64       // estimate of [Tiered, End)
}

// Gap is a range of offsets.
type Gap struct{ Start, End mink.Offset }

// Source reads committed history of any bucket.
type Source interface {
	// ReadLog answers the rows of [from, to) in the columns of the target's newest
	// schema in the view, in order and without a gap.
	ReadLog(ctx context.Context, v View, b mink.BucketRef, from, to mink.Offset) iter.Seq2[Rows, error]
	// ReadKVSnapshot answers what a primary-key bucket held at an offset, in the same
	// columns. The rows are read once, or not at all.
	ReadKVSnapshot(ctx context.Context, v View, b mink.BucketRef) (at mink.Offset, rows iter.Seq2[Rows, error], err error)
}

// Rows are some of one bucket: row i has offset Start + i, offsets from the last row to End
// have none. The batch is the source's: it is released when the next one is asked for.
type Rows struct {
	Batch      arrow.RecordBatch
	Changes    []mink.Change // one for each row; nil: appends
	Start, End mink.Offset   // not of a KV snapshot
}
