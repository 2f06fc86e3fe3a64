package wal

import (
	"fmt"
	"math"
	"time"

	"github.com/mink-project/mink/sdk/mink"
)

// Config of a Writer.
type Config struct {
	// Window is the most unacknowledged slots, 1..1024. It bounds how far ahead a
	// writer that was fenced can have written, and is stored in every bulk.
	Window int
	// AttemptTimeout ends one Put or Get, > 0. A Put that is given up may still
	// land; the slot is looked at before it is tried again.
	AttemptTimeout time.Duration
	// GiveUpAfter is how long after its submission a bulk may stay unwritten
	// before the writer fails, > 0: two lease times.
	GiveUpAfter time.Duration
	// RetryMin and RetryMax bound the pause between attempts, which doubles and
	// has a jitter of a half.
	RetryMin, RetryMax time.Duration
}

// Default is for a store behind a network and a lease of 10 s.
func Default() Config {
	return Config{
		Window:         8,
		AttemptTimeout: 10 * time.Second,
		GiveUpAfter:    20 * time.Second,
		RetryMin:       20 * time.Millisecond,
		RetryMax:       time.Second,
	}
}

// Validate says what is out of range.
func (c Config) Validate() error {
	switch {
	case c.Window < 1 || c.Window > 1024:
		return fmt.Errorf("wal: %w: window is %d, must be 1 to 1024", mink.ErrInvalid, c.Window)
	case c.AttemptTimeout <= 0 || c.GiveUpAfter <= 0:
		return fmt.Errorf("wal: %w: attempt timeout %s and give-up time %s must be positive", mink.ErrInvalid, c.AttemptTimeout, c.GiveUpAfter)
	case c.RetryMin <= 0 || c.RetryMax < c.RetryMin || c.RetryMax > math.MaxInt64/2:
		return fmt.Errorf("wal: %w: retry pause from %s to %s", mink.ErrInvalid, c.RetryMin, c.RetryMax)
	}
	return nil
}
