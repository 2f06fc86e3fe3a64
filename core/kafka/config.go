package kafka

import (
	"fmt"
	"net"
	"time"

	"github.com/mink-project/mink/sdk/mink"
)

// Config of the listener. Sizes are bytes.
type Config struct {
	// Listen is the host:port to bind; port 0 picks one. The address that clients
	// are told is the node's registered Kafka address, from the metadata.
	Listen string
	// ClusterID is what Metadata answers; stable for the life of the cluster.
	ClusterID string
	// Database holds the topics that have bare names.
	Database string
	// LogDir is what tools are told of where the records are.
	LogDir string

	// AutoCreateTopics lets Metadata create a topic when the client allows it.
	AutoCreateTopics bool
	// DefaultPartitions of a topic that is created without a count.
	DefaultPartitions int32

	// ConnectionsMax: further connections are closed at once.
	ConnectionsMax int
	// IdleTimeout closes a connection without a request in flight. Kafka's
	// connections.max.idle.ms.
	IdleTimeout time.Duration
	// FrameBytesMax is the largest Produce request. Kafka's socket.request.max.bytes.
	FrameBytesMax int
	// SmallFrameBytesMax is the largest request of any other kind: names and
	// numbers, which grow when decoded.
	SmallFrameBytesMax int
	// TransferTimeout bounds the rest of a frame once its first byte came, and
	// the writing of one answer, each on top of one second per MiB.
	TransferTimeout time.Duration
	// InFlightMax is how many requests of a connection may await their answer;
	// then the reader stops reading.
	InFlightMax int
	// InFlightBytesMax is how many bytes of unanswered requests a connection may hold.
	InFlightBytesMax int
	// UnansweredBytesMax is how much memory the unanswered requests of all
	// connections may take, beyond UnansweredAllowance of each connection.
	UnansweredBytesMax, UnansweredAllowance int64
	// UnansweredPatience is how long a request waits for that memory before the
	// connection that holds the most of it is closed.
	UnansweredPatience time.Duration
	// ReceiveBytesMax is how many bytes of frames above 1 MiB all connections
	// may hold at once.
	ReceiveBytesMax int64
	// DecodeBytesMax bounds what the decoders of all connections may allocate at
	// once for requests above 64 KiB: a small frame can claim a great many things.
	DecodeBytesMax int64
	// DrainTimeout is how long a stopping listener waits for the answers of
	// requests it has read.
	DrainTimeout time.Duration

	// ProducePartitionsMax is the most partitions of one Produce request.
	ProducePartitionsMax int
	// ProduceTimeout is used when a Produce request names none.
	ProduceTimeout time.Duration
	// HoldTime is how long a Produce request waits for room, or for a bucket to
	// open, before it is refused with a retriable error; the connection is read no
	// further meanwhile. 0: refuse at once.
	HoldTime time.Duration
	// ThrottleTime is what a client is asked to wait when the node is overloaded.
	ThrottleTime time.Duration

	// FetchBytesMax caps the record bytes of one Fetch response, whatever the
	// client allows (one batch may exceed it). Kafka's fetch.max.bytes.
	FetchBytesMax int
	// ColdReadsMax is how many reads from the object store run at once;
	// ColdReadBytesMax how much one of them asks for.
	ColdReadsMax     int
	ColdReadBytesMax int
	// ColdKeep is how long a finished read waits for the fetch that comes back
	// for it.
	ColdKeep time.Duration

	// GroupInitialDelay is how long the first rebalance of an empty consumer group
	// waits for more members. Kafka's group.initial.rebalance.delay.ms.
	GroupInitialDelay time.Duration
	// GroupSessionMin and GroupSessionMax bound the session time-out that members
	// ask for. Kafka's group.min.session.timeout.ms and group.max.session.timeout.ms.
	GroupSessionMin, GroupSessionMax time.Duration
	// GroupMembersMax is the most members of one group. Kafka's group.max.size.
	GroupMembersMax int
	// GroupsMax is how many groups may have members here, GroupBytesMax how many
	// bytes of metadata and assignments all of them.
	GroupsMax     int
	GroupBytesMax int

	// QueryTimeout bounds ListOffsets by timestamp, CreateTopics and other
	// requests that wait, when the request names no time.
	QueryTimeout time.Duration
	// ReadyWait bounds how long the answer about a new topic waits for its
	// buckets to open here.
	ReadyWait time.Duration
	// LookupWait bounds how long a request that names what this node does not know waits
	// for the metadata to be asked; what is pipelined behind it waits too. 0: they are not.
	LookupWait time.Duration
}

// Default is the configuration of a stand-alone node.
func Default() Config {
	return Config{
		Listen: "127.0.0.1:9092", ClusterID: "mink", Database: "kafka", LogDir: "object-store",
		AutoCreateTopics: true, DefaultPartitions: 1,
		ConnectionsMax: 2000, IdleTimeout: 10 * time.Minute,
		FrameBytesMax: 100 << 20, SmallFrameBytesMax: 1 << 20,
		TransferTimeout: 30 * time.Second,
		InFlightMax:     128, InFlightBytesMax: 4 << 20, ReceiveBytesMax: 512 << 20, DecodeBytesMax: 512 << 20,
		UnansweredBytesMax: 256 << 20, UnansweredAllowance: 80 << 10, UnansweredPatience: 5 * time.Second,
		DrainTimeout:         10 * time.Second,
		ProducePartitionsMax: 20_000, ProduceTimeout: 30 * time.Second, HoldTime: time.Second, ThrottleTime: 200 * time.Millisecond,
		FetchBytesMax: 55 << 20,
		ColdReadsMax:  64, ColdReadBytesMax: 4 << 20, ColdKeep: 30 * time.Second,
		GroupInitialDelay: 3 * time.Second, GroupSessionMin: 6 * time.Second, GroupSessionMax: 30 * time.Minute,
		GroupMembersMax: 2000, GroupsMax: 20_000, GroupBytesMax: 256 << 20,
		QueryTimeout: 30 * time.Second, ReadyWait: 5 * time.Second, LookupWait: time.Second,
	}
}

// Validate says which field is wrong and what it may be.
func (c Config) Validate() error {
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("kafka listen address %q is not host:port: %w", c.Listen, mink.ErrInvalid)
	}
	if c.Database == "" || c.ClusterID == "" || c.LogDir == "" {
		return fmt.Errorf("kafka database, cluster id and log dir must not be empty: %w", mink.ErrInvalid)
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"default partitions", int64(c.DefaultPartitions)}, {"connections max", int64(c.ConnectionsMax)},
		{"idle timeout", int64(c.IdleTimeout)}, {"small frame bytes max", int64(c.SmallFrameBytesMax)},
		{"transfer timeout", int64(c.TransferTimeout)}, {"in-flight max", int64(c.InFlightMax)},
		{"unanswered bytes max", c.UnansweredBytesMax}, {"unanswered allowance", c.UnansweredAllowance}, {"unanswered patience", int64(c.UnansweredPatience)},
		{"produce partitions max", int64(c.ProducePartitionsMax)}, {"produce timeout", int64(c.ProduceTimeout)},
		{"fetch bytes max", int64(c.FetchBytesMax)}, {"cold reads max", int64(c.ColdReadsMax)},
		{"cold read bytes max", int64(c.ColdReadBytesMax)}, {"cold keep", int64(c.ColdKeep)},
		{"query timeout", int64(c.QueryTimeout)}, {"group session min", int64(c.GroupSessionMin)},
		{"group members max", int64(c.GroupMembersMax)}, {"groups max", int64(c.GroupsMax)}, {"group bytes max", int64(c.GroupBytesMax)},
	} {
		if f.value <= 0 {
			return fmt.Errorf("kafka %s must be above 0: %w", f.name, mink.ErrInvalid)
		}
	}
	if c.FrameBytesMax < c.SmallFrameBytesMax || c.FrameBytesMax > 1<<30 {
		return fmt.Errorf("kafka frame bytes max %d must be between the small frame limit %d and 1 GiB: %w", c.FrameBytesMax, c.SmallFrameBytesMax, mink.ErrInvalid)
	}
	if c.InFlightBytesMax < c.SmallFrameBytesMax {
		return fmt.Errorf("kafka in-flight bytes max %d is below the small frame limit %d: %w", c.InFlightBytesMax, c.SmallFrameBytesMax, mink.ErrInvalid)
	}
	if c.ReceiveBytesMax < int64(c.FrameBytesMax) {
		return fmt.Errorf("kafka receive bytes max %d is below the frame limit %d: %w", c.ReceiveBytesMax, c.FrameBytesMax, mink.ErrInvalid)
	}
	if c.DecodeBytesMax < int64(c.SmallFrameBytesMax)*decodeGrowth {
		return fmt.Errorf("kafka decode bytes max %d is below %d times the small frame limit %d: %w", c.DecodeBytesMax, decodeGrowth, c.SmallFrameBytesMax, mink.ErrInvalid)
	}
	if c.GroupSessionMax < c.GroupSessionMin || c.GroupInitialDelay < 0 {
		return fmt.Errorf("kafka group session max %v must not be below the min %v, the initial delay %v not negative: %w", c.GroupSessionMax, c.GroupSessionMin, c.GroupInitialDelay, mink.ErrInvalid)
	}
	if c.HoldTime < 0 || c.ThrottleTime < 0 || c.DrainTimeout < 0 || c.ReadyWait < 0 || c.LookupWait < 0 {
		return fmt.Errorf("kafka hold time, throttle time, drain timeout, ready wait and lookup wait must not be negative: %w", mink.ErrInvalid)
	}
	return nil
}
