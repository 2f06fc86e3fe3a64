package kv

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/mink-project/mink/core/record/row"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// Table is what a tablet needs to know of its table; Reconfigure brings later ones.
type Table struct {
	// Descriptor is the table's of now. It is not written to.
	Descriptor *schema.Descriptor
	// Schemas are the table's schema versions, by id - 1; the last is current.
	Schemas []*schema.Schema
}

// Config is one tablet's. Start from Default.
type Config struct {
	Table
	// Shared is what the stores of the node share.
	Shared *Shared
	// Dir is the store's directory. What another tablet of the same leadership and the
	// same process left there is taken up again; a damaged store is removed.
	Dir string
	// Restore fills dir, which does not exist, with the store of the newest snapshot,
	// and answers the snapshot's offset; ok is false when there is none. refused, when not
	// nil, is why the one that it answered before is of no use: then another one, or
	// ok false: the log from its start, or an error. nil: there are no snapshots.
	Restore func(ctx context.Context, dir string, refused error) (at mink.Offset, ok bool, err error)
	// LeaseIDs takes n numbers of the auto-increment column that nobody else gets.
	// nil: the table has no such column.
	LeaseIDs func(ctx context.Context, n int64) (first, last int64, err error)

	// MayAnswer says whether what was just read of the store may be answered: not when
	// another node may lead the bucket by now. It does not wait. nil: always.
	MayAnswer func() error

	// LeaseMin is how many numbers are leased at least. Default 10,000.
	LeaseMin int64
	// ReplayBytes is how much of the log one step of Open reads. Default 4 MiB.
	ReplayBytes int
	// PendingBytesMax bounds the rows of this tablet that wait for the log; puts beyond
	// it are refused. Default 64 MiB.
	PendingBytesMax int64
	// PutBytesMax bounds the rows of one put, unpacked, and the changelog that it
	// makes. Default 15 MiB: what a stream takes as one frame, and room for the header.
	PutBytesMax int
	// LookupBytesMax bounds the rows of one Lookup as Arrow has them, where a null may
	// take as much as a value. Default 256 MiB.
	LookupBytesMax int
	// FlushBytes is how much goes into one batch of the store, from more than one put.
	// Default 1 MiB.
	FlushBytes int
	// Now is the clock of Tablet.Idle. Default time.Now.
	Now func() time.Time
	// Logger is told what the tablet mends by itself.
	Logger *slog.Logger
}

// Default is a Config that lacks Table, Shared and Dir.
func Default() Config {
	return Config{
		LeaseMin: 10_000, ReplayBytes: 4 << 20, PendingBytesMax: 64 << 20, PutBytesMax: 15 << 20,
		LookupBytesMax: row.MaxBatchBytes, FlushBytes: 1 << 20,
		Now: time.Now, Logger: slog.New(slog.DiscardHandler),
	}
}

// Validate reports the first field that is out of range.
func (c *Config) Validate() error {
	switch {
	case c.Descriptor == nil, len(c.Schemas) == 0, c.Shared == nil, c.Dir == "":
		return fmt.Errorf("kv config: %w: Table, Shared and Dir are needed", mink.ErrInvalid)
	case c.LeaseMin < 1, c.ReplayBytes < 1, c.PendingBytesMax < 1, c.PutBytesMax < 1, c.LookupBytesMax < 1, c.FlushBytes < 1, c.Now == nil, c.Logger == nil:
		return fmt.Errorf("kv config: %w: start from Default()", mink.ErrInvalid)
	}
	return nil
}
