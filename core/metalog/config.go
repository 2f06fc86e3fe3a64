package metalog

import (
	"fmt"
	"time"

	"github.com/mink-project/mink/sdk/mink"
)

// Config tunes a Replica.
type Config struct {
	// FeatureLevel of this binary, stamped on every batch it writes. >= 1.
	FeatureLevel uint32
	// WriterVersion names this binary in the log, for the error message of an
	// older one that does not know a command.
	WriterVersion string
	// PollInterval is how often the log is looked at when no wake-up comes.
	// Default 2 s: wake-ups carry the normal case, the poll only lost ones.
	PollInterval time.Duration
	// AppendTimeout bounds one attempt of a proposal's transaction, whose outcome
	// is then found out by reading, and one read. Default 10 s.
	AppendTimeout time.Duration
	// ReloadTimeout bounds reading a whole snapshot. Default 5 min: hundreds of MB.
	ReloadTimeout time.Duration
	// RetryBackoff is the first pause after a failed attempt, doubling to
	// RetryBackoffMax. Defaults 20 ms and 2 s.
	RetryBackoff, RetryBackoffMax time.Duration
	// QueueMax bounds the proposals that wait; further callers block. Default 1024.
	QueueMax int
	// BatchCommandsMax and BatchBytesMax bound one batch. Defaults 4096 and 4 MiB;
	// a single larger proposal is its own batch up to PayloadBytesMax.
	BatchCommandsMax, BatchBytesMax int
	// ReadEntriesMax and ReadBytesMax bound what is read and applied between two
	// published views. Defaults 1024 and 8 MiB.
	ReadEntriesMax, ReadBytesMax int
}

// Default is the configuration for a running node.
func Default() Config {
	return Config{
		FeatureLevel:     1,
		WriterVersion:    "dev",
		PollInterval:     2 * time.Second,
		AppendTimeout:    10 * time.Second,
		ReloadTimeout:    5 * time.Minute,
		RetryBackoff:     20 * time.Millisecond,
		RetryBackoffMax:  2 * time.Second,
		QueueMax:         1024,
		BatchCommandsMax: 4096,
		BatchBytesMax:    4 << 20,
		ReadEntriesMax:   1024,
		ReadBytesMax:     8 << 20,
	}
}

// Validate names the first field that makes no sense.
func (c Config) Validate() error {
	switch {
	case c.FeatureLevel == 0:
		return fmt.Errorf("metalog: FeatureLevel must be >= 1: %w", mink.ErrInvalid)
	case c.PollInterval <= 0 || c.AppendTimeout <= 0 || c.ReloadTimeout <= 0 || c.RetryBackoff <= 0 || c.RetryBackoffMax < c.RetryBackoff:
		return fmt.Errorf("metalog: PollInterval, AppendTimeout, ReloadTimeout and RetryBackoff must be positive, RetryBackoffMax >= RetryBackoff: %w", mink.ErrInvalid)
	case c.QueueMax < 1 || c.BatchCommandsMax < 1 || c.ReadEntriesMax < 1:
		return fmt.Errorf("metalog: QueueMax, BatchCommandsMax and ReadEntriesMax must be >= 1: %w", mink.ErrInvalid)
	case c.BatchBytesMax < 1 || c.BatchBytesMax > PayloadBytesMax || c.ReadBytesMax < 1:
		return fmt.Errorf("metalog: BatchBytesMax must be 1..%d and ReadBytesMax >= 1: %w", PayloadBytesMax, mink.ErrInvalid)
	}
	return nil
}
