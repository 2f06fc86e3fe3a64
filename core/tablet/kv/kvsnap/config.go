package kvsnap

import (
	"fmt"
	"time"

	"github.com/mink-project/mink/sdk/mink"
)

// Config bounds what transfers use.
type Config struct {
	// Requests is how many requests of one upload or restore are under way at once,
	// and how many files are read. Default 4.
	Requests int
	// RequestBytes is how much one request carries: larger files are sent in parts
	// and read in ranges. A multiple of ChunkBytes. Memory is Requests times this.
	// Default 8 MiB.
	RequestBytes int64
	// WholeBytesMax bounds a file that a store without multipart uploads takes: it is
	// in memory whole. Default 256 MiB.
	WholeBytesMax int64
	// Tries is how often a request is made that fails in a way that may pass, with
	// pauses from RetryMin to RetryMax between. Defaults 5, 100 ms, 5 s.
	Tries              int
	RetryMin, RetryMax time.Duration
}

// Default is the configuration of a running node.
func Default() Config {
	return Config{Requests: 4, RequestBytes: 8 << 20, WholeBytesMax: 256 << 20, Tries: 5, RetryMin: 100 * time.Millisecond, RetryMax: 5 * time.Second}
}

// Validate names the first field that makes no sense.
func (c Config) Validate() error {
	switch {
	case c.Requests < 1 || c.Tries < 1 || c.RetryMin <= 0 || c.RetryMax < c.RetryMin || c.WholeBytesMax < 1:
		return fmt.Errorf("kvsnap: Requests, Tries, RetryMin, RetryMax and WholeBytesMax must be positive: %w", mink.ErrInvalid)
	case c.RequestBytes < ChunkBytes || c.RequestBytes%ChunkBytes != 0:
		return fmt.Errorf("kvsnap: RequestBytes is %d, must be a multiple of %d: %w", c.RequestBytes, ChunkBytes, mink.ErrInvalid)
	}
	return nil
}
