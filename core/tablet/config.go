package tablet

import (
	"fmt"
	"sync"
	"time"

	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// Config is one log tablet's. Start from Default.
type Config struct {
	// Bucket names the bucket in errors.
	Bucket mink.BucketRef
	// LeaderEpoch is the leadership under which this tablet appends; >= 0.
	LeaderEpoch mink.LeaderEpoch
	// Schemas are the table's schema versions, by id - 1; the last is current.
	// They are not written to. Log.Reconfigure brings later ones.
	Schemas []*schema.Schema
	// Options are the table's: retention, sizes, timestamps.
	Options schema.Options
	// Closed: the partition takes no more rows; appends are refused.
	Closed bool
	// PrimaryKey: the log is the changelog of a primary-key table. Only Log.Changelog
	// appends to it.
	PrimaryKey bool
	// ReplayBytes is how much of the log one step of OpenLog reads. Default 4 MiB.
	ReplayBytes int
	// QuarantineMax is how many bad ranges are kept by name for Stats; all are
	// counted. Default 1000.
	QuarantineMax int
	// Now is the clock of commit timestamps. Default time.Now.
	Now func() time.Time
	// Codecs is scratch memory that the tablets of a node share; nil: own.
	Codecs *Codecs
}

// Default is a Config that lacks Bucket, LeaderEpoch, Schemas and Options.
func Default() Config {
	return Config{ReplayBytes: 4 << 20, QuarantineMax: 1000, Now: time.Now}
}

// Validate reports the first field that is out of range.
func (c *Config) Validate() error {
	switch {
	case len(c.Schemas) == 0:
		return fmt.Errorf("tablet config: %w: no schema", mink.ErrInvalid)
	case c.LeaderEpoch < 0:
		return fmt.Errorf("tablet config: %w: leader epoch %d", mink.ErrInvalid, c.LeaderEpoch)
	case c.ReplayBytes < 1, c.QuarantineMax < 0, c.Now == nil:
		return fmt.Errorf("tablet config: %w: start from Default()", mink.ErrInvalid)
	}
	return nil
}

// Codecs pools decompression and checking state. Safe for concurrent use; the
// zero value is ready.
type Codecs struct{ kafka, check, arrow sync.Pool }

func (c *Codecs) withKafka(use func(*kafkabatch.Decoder) error) error {
	d, ok := c.kafka.Get().(*kafkabatch.Decoder)
	if !ok {
		d = kafkabatch.NewDecoder(kafkabatch.DefaultLimits())
	}
	defer c.kafka.Put(d)
	return use(d)
}

func (c *Codecs) checker() *arrowipc.Checker {
	if k, ok := c.check.Get().(*arrowipc.Checker); ok {
		return k
	}
	return arrowipc.NewChecker(arrowipc.DefaultMaxBytes)
}

func (c *Codecs) withArrow(use func(*arrowipc.Decoder) error) error {
	d, ok := c.arrow.Get().(*arrowipc.Decoder)
	if !ok {
		d = arrowipc.NewDecoder(arrowipc.DefaultMaxBytes)
	}
	defer c.arrow.Put(d)
	return use(d)
}
