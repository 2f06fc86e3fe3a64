package group

import "time"

// Error is a result by Kafka's error number.
type Error int16

// The errors of a group.
const (
	None                  Error = 0
	NotCoordinator        Error = 16 // for Close
	IllegalGeneration     Error = 22
	InconsistentProtocol  Error = 23
	UnknownMember         Error = 25
	InvalidSessionTimeout Error = 26
	RebalanceInProgress   Error = 27
	MemberIDRequired      Error = 79
	MaxSizeReached        Error = 81
	FencedInstance        Error = 82
)

// State of a group.
type State uint8

// The states.
const (
	Empty      State = iota // no members; ids may be pending
	Preparing               // joins wait for every member, or the time-out
	Completing              // joins are answered; syncs wait for the leader's
	Stable                  // every member has, or can get, its assignment
)

// String is Kafka's name of the state.
func (s State) String() string {
	return [...]string{"Empty", "PreparingRebalance", "CompletingRebalance", "Stable"}[s]
}

// Token names a request that waits, for the caller; never 0.
type Token uint64

// Config of every group. Durations are of the caller's clock.
type Config struct {
	// InitialDelay is how long the first rebalance of an empty group waits for
	// more members; each new one extends it, up to the rebalance time-out.
	InitialDelay time.Duration
	// SessionMin and SessionMax bound what members may ask for.
	SessionMin, SessionMax time.Duration
	// NewMemberTimeout ends the wait of a new member's join: it has no session.
	NewMemberTimeout time.Duration
	// MembersMax is the most members of a group, and the most pending ids.
	MembersMax int
	// NewMemberID makes an id that was never given out, from a prefix.
	NewMemberID func(prefix string) string
	// SameInterest tells whether a static member that comes back with new
	// metadata wants the same as before, so that nobody else need be disturbed.
	// nil: equal bytes.
	SameInterest func(protocolType string, before, now []byte) bool
}

// MaxAdoptedID bounds the ids, in bytes, that members of an earlier coordinator
// bring; those that are given out here are shorter.
const MaxAdoptedID = 512

// Protocol is one that a member speaks, with its metadata for the leader.
type Protocol struct {
	Name     string
	Metadata []byte
}

// JoinRequest is a member's wish to be in the next generation. The group keeps
// Protocols.
type JoinRequest struct {
	MemberID   string // "" before the group gave one
	InstanceID string // "" for a dynamic member
	ClientID   string
	ClientHost string

	ProtocolType string
	Protocols    []Protocol // in order of preference

	Session, Rebalance time.Duration

	// RequireID: a new dynamic member is told its id and must come again with it.
	RequireID bool
	// CanSkip: the client knows to skip the assignment when told.
	CanSkip bool
}

// Bytes is about what a group takes for the member that the request makes.
func (r *JoinRequest) Bytes() int {
	return memberBytes + len(r.MemberID) + len(r.InstanceID) + len(r.ClientID) + len(r.ClientHost) + protocolsSize(r.Protocols)
}

// JoinMember is what the leader learns of a member.
type JoinMember struct {
	MemberID, InstanceID string
	Metadata             []byte // of the chosen protocol
}

// JoinResult answers a join. On an error Generation is -1.
type JoinResult struct {
	Err            Error
	Generation     int32
	ProtocolType   string
	Protocol       string
	Leader         string
	MemberID       string
	SkipAssignment bool
	Members        []JoinMember // for the leader
}

// SyncRequest asks for the member's assignment, and from the leader brings all.
// "" as ProtocolType or Protocol is not compared.
type SyncRequest struct {
	MemberID, InstanceID string
	Generation           int32
	ProtocolType         string
	Protocol             string
	Assignments          map[string][]byte // by member id; kept
}

// SyncResult answers a sync.
type SyncResult struct {
	Err          Error
	ProtocolType string
	Protocol     string
	Assignment   []byte
}

// Reply answers a waiting request: one of Join and Sync is set.
type Reply struct {
	Token Token
	Join  *JoinResult
	Sync  *SyncResult
}

// Leaving names one member to remove: by its id, or by its instance id alone.
type Leaving struct {
	MemberID, InstanceID string
}

// Info describes a group.
type Info struct {
	State        State
	Generation   int32
	ProtocolType string
	Protocol     string // "" unless Stable
	Leader       string
	Members      []MemberInfo
}

// MemberInfo describes a member; Metadata and Assignment only of a stable group.
type MemberInfo struct {
	MemberID, InstanceID string
	ClientID, ClientHost string
	Metadata, Assignment []byte
}
