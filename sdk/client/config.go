package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// Config tunes a client.
type Config struct {
	// Bootstrap lists nodes to start from, "grpc://host:port" or "host:port". Any
	// one that answers is enough; the leaders of a table that is read or written, and
	// the nodes of DescribeCluster, are asked too when those are gone. Default grpc://127.0.0.1:9123.
	Bootstrap []string
	// MessageBytesMax bounds one gRPC message each way; keep it at the nodes'
	// message_bytes_max or below. Default 64 MiB.
	MessageBytesMax int
	// RetryTimeout is how long a call or an append is tried again while nodes are
	// away or still opening buckets. Default 2 m: a restart is ridden out.
	RetryTimeout time.Duration
	// RetryWait is the first pause before a retry; it doubles up to RetryWaitMax,
	// with jitter. Defaults 50 ms and 2 s.
	RetryWait, RetryWaitMax time.Duration
	// LookAfter is how long a node may be silent before others are asked beside it: for
	// the answer, when they have it too; else who leads the bucket by now. Default 2 s.
	LookAfter time.Duration
	// A connection with calls on it that was silent for PingAfter is pinged, and dead
	// without an answer within PingTimeout. PingAfter is 10 s or more: nodes refuse
	// pings that come more often. Defaults 10 s and 5 s.
	PingAfter, PingTimeout time.Duration
	// DiscoverInterval is how often a tail, or a Bootstrap that follows, looks for
	// partitions and buckets that were made since. Default 5 s.
	DiscoverInterval time.Duration
	// Dial connects to host:port, and resolves the host; nil: TCP.
	Dial   func(ctx context.Context, address string) (net.Conn, error)
	Logger *slog.Logger // nil: silent
}

// Default is a client of a node on this machine.
func Default() Config {
	return Config{
		Bootstrap: []string{"grpc://127.0.0.1:9123"}, MessageBytesMax: 64 << 20,
		RetryTimeout: 2 * time.Minute, RetryWait: 50 * time.Millisecond, RetryWaitMax: 2 * time.Second,
		LookAfter: 2 * time.Second, PingAfter: 10 * time.Second, PingTimeout: 5 * time.Second, DiscoverInterval: 5 * time.Second,
	}
}

// Validate names the first field that makes no sense.
func (c Config) Validate() error {
	switch {
	case len(c.Bootstrap) == 0:
		return errors.New("client: Bootstrap names no node")
	case c.MessageBytesMax < 1<<20:
		return fmt.Errorf("client: MessageBytesMax is %d, must be 1 MiB or more", c.MessageBytesMax)
	case c.RetryTimeout < 0 || c.RetryWait <= 0 || c.RetryWaitMax < c.RetryWait:
		return errors.New("client: RetryTimeout must be 0 or more, RetryWait positive, RetryWaitMax not below it")
	case c.DiscoverInterval <= 0:
		return fmt.Errorf("client: DiscoverInterval is %s, must be positive", c.DiscoverInterval)
	case c.LookAfter <= 0 || c.PingAfter < 10*time.Second || c.PingTimeout <= 0:
		return errors.New("client: LookAfter and PingTimeout must be positive, PingAfter 10 s or more")
	}
	return nil
}
