package flight

import (
	"fmt"
	"time"

	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// Config is the listener's. Start from Default.
type Config struct {
	// Listen is the address to bind, host:port. Default 127.0.0.1:9123.
	Listen string
	// ClusterID and Version are shown by describe_cluster.
	ClusterID, Version string
	// LeaseTTL is shown by health: all nodes of a cluster have the same.
	LeaseTTL time.Duration
	// MessageBytesMax bounds one message each way; a client that sends a larger
	// batch is told to split it. 1 MiB .. 1 GiB, default 64 MiB.
	MessageBytesMax int
	// ReadBytes is about how much of a log one step of a scan holds in memory.
	// Default 1 MiB.
	ReadBytes int
	// InFlightMax is how many batches of one DoPut are appended and not yet
	// acknowledged; the stream is read no further meanwhile. Default 64.
	InFlightMax int
	// StreamsMax bounds the calls of one connection. Default 1000.
	StreamsMax uint32
	// PartsMax bounds how many buckets one table-addressed batch may touch.
	// Default 4096.
	PartsMax int
	// ThrottleWait is how long an append waits for an overloaded engine, and one by
	// a table's path for a bucket that opens, before it is refused. Default 10 s.
	ThrottleWait time.Duration
	// ForwardWait is how long rows of a table-addressed put wait for the leader of
	// their bucket, when that is another node: a failover, with lease_ttl, should end
	// within it. Default 1 m.
	ForwardWait time.Duration
	// ForwardBytesMax bounds such rows on their way, of one bucket to a quarter of it;
	// puts wait when it is reached. Default 64 MiB.
	ForwardBytesMax int
	// ForwardStreamsMax bounds the streams to other nodes, one for each bucket and
	// list of columns; idle ones make room. Below StreamsMax. Default 500.
	ForwardStreamsMax int
	// RelaysMax bounds the calls of clients that are sent on to one other node at the same
	// time. With ForwardStreamsMax below StreamsMax. Default 400.
	RelaysMax int
	// ForwardIdle is how long such a stream stays open without rows. Default 1 m.
	ForwardIdle time.Duration
	// Inflation bounds the compressed batches of puts that are unpacked at a time. nil:
	// one of this server alone, as tablet.DefaultInflation.
	Inflation *tablet.Inflation
	// AppliedWait is how long a call waits for mink-min-applied-index. Default 10 s.
	AppliedWait time.Duration
	// UnionKeyBytes bounds the keys that one union read of a primary-key bucket holds in
	// memory; with more it makes several passes. 1 MiB or more, default 64 MiB.
	UnionKeyBytes int64
	// TailWaitMax bounds max_wait_ms of a tail. Default 1 m.
	TailWaitMax time.Duration
	// DrainTimeout is how long calls may go on after Run's context is done.
	// Default 10 s.
	DrainTimeout time.Duration
}

// Default is a listener on this machine's loopback.
func Default() Config {
	return Config{
		Listen: "127.0.0.1:9123", ClusterID: "mink", Version: "dev",
		MessageBytesMax: 64 << 20, ReadBytes: 1 << 20, InFlightMax: 64, StreamsMax: 1000, PartsMax: 4096,
		ForwardWait: time.Minute, ForwardBytesMax: 64 << 20, ForwardStreamsMax: 500, RelaysMax: 400, ForwardIdle: time.Minute,
		UnionKeyBytes: 64 << 20, ThrottleWait: 10 * time.Second, AppliedWait: 10 * time.Second, TailWaitMax: time.Minute, DrainTimeout: 10 * time.Second,
	}
}

// Validate names the first field that makes no sense.
func (c Config) Validate() error {
	switch {
	case c.Listen == "":
		return fmt.Errorf("flight: %w: Listen is empty", mink.ErrInvalid)
	case c.MessageBytesMax < 1<<20 || c.MessageBytesMax > 1<<30:
		return fmt.Errorf("flight: %w: MessageBytesMax is %d, must be within 1 MiB..1 GiB", mink.ErrInvalid, c.MessageBytesMax)
	case c.ReadBytes < 1 || c.InFlightMax < 1 || c.StreamsMax < 1 || c.PartsMax < 1:
		return fmt.Errorf("flight: %w: ReadBytes, InFlightMax, StreamsMax and PartsMax must be positive", mink.ErrInvalid)
	case c.UnionKeyBytes < 1<<20:
		return fmt.Errorf("flight: %w: UnionKeyBytes is %d, must be 1 MiB or more", mink.ErrInvalid, c.UnionKeyBytes)
	case c.ForwardWait <= 0 || c.ForwardIdle <= 0 || c.ForwardBytesMax < 1 || c.ForwardStreamsMax < 1 || c.RelaysMax < 1:
		return fmt.Errorf("flight: %w: ForwardWait, ForwardIdle, ForwardBytesMax, ForwardStreamsMax and RelaysMax must be positive", mink.ErrInvalid)
	case c.ThrottleWait < 0 || c.AppliedWait <= 0 || c.TailWaitMax <= 0 || c.DrainTimeout <= 0:
		return fmt.Errorf("flight: %w: AppliedWait, TailWaitMax and DrainTimeout must be positive, ThrottleWait not negative", mink.ErrInvalid)
	}
	return nil
}

// overhead is what a message may hold beside a batch: descriptor, app_metadata,
// framing. A batch is that much smaller than MessageBytesMax, so that it can be
// sent back under the same limit.
const overhead = 64 << 10

// batchBytesMax bounds header and body of one batch.
func (c Config) batchBytesMax() int { return c.MessageBytesMax - overhead }
