package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/mink-project/mink/core/kafka/group"
	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// code is a Kafka error code.
type code int16

// The codes that this listener answers, and nothing else, except what a group
// answers its members (package group).
const (
	codeNone                    code = 0
	codeUnknownServerError      code = -1
	codeOffsetOutOfRange        code = 1
	codeCorruptMessage          code = 2
	codeUnknownTopicOrPartition code = 3
	codeLeaderNotAvailable      code = 5
	codeNotLeader               code = 6
	codeRequestTimedOut         code = 7
	codeMessageTooLarge         code = 10
	codeOffsetMetadataTooLarge  code = 12
	codeCoordinatorLoading      code = 14
	codeCoordinatorNotAvailable code = 15
	codeNotCoordinator               = code(group.NotCoordinator)
	codeInvalidTopic            code = 17
	codeNotEnoughReplicas       code = 19
	codeInvalidRequiredAcks     code = 21
	codeIllegalGeneration            = code(group.IllegalGeneration)
	codeInconsistentProtocol         = code(group.InconsistentProtocol)
	codeInvalidGroupID          code = 24
	codeUnknownMember                = code(group.UnknownMember)
	codeRebalanceInProgress          = code(group.RebalanceInProgress)
	codeInvalidCommitOffsetSize code = 28
	codeInvalidTimestamp        code = 32
	codeUnsupportedVersion      code = 35
	codeTopicExists             code = 36
	codeInvalidPartitions       code = 37
	codeInvalidReplication      code = 38
	codeInvalidAssignment       code = 39
	codeInvalidConfig           code = 40
	codeInvalidRequest          code = 42
	codeUnsupportedFormat       code = 43
	codePolicyViolation         code = 44
	codeOutOfOrderSequence      code = 45
	codeDuplicateSequence       code = 46
	codeInvalidProducerEpoch    code = 47
	codeTransactionalID         code = 53
	codeStorageError            code = 56
	codeNonEmptyGroup           code = 68
	codeGroupIDNotFound         code = 69
	codeFetchSessionNotFound    code = 70
	codeFencedLeaderEpoch       code = 74
	codeUnknownLeaderEpoch      code = 75
	codeUnsupportedCompression  code = 76
	codeGroupSubscribed         code = 86
	codeInvalidRecord           code = 87
	codeThrottlingQuota         code = 89
	codeUnknownTopicID          code = 100
	codeMismatchedEndpoint      code = 114
	codeUnsupportedEndpoint     code = 115
)

// bucketCode maps an error of a bucket's log, or of finding it, for reads and
// appends alike.
func bucketCode(err error) code {
	var batch *record.BatchError
	var notLeader *mink.NotLeaderError
	var writer *tablet.WriterFencedError
	switch {
	case err == nil:
		return codeNone
	case errors.As(err, &batch):
		return batchCode(batch.Kind)
	case errors.As(err, &notLeader):
		return codeNotLeader
	case errors.As(err, &writer):
		return codeInvalidProducerEpoch
	case errors.Is(err, mink.ErrOutOfOrder):
		return codeOutOfOrderSequence
	case errors.Is(err, mink.ErrOutOfRange):
		return codeOffsetOutOfRange
	case errors.Is(err, mink.ErrCorrupt):
		return codeStorageError
	// A rejected append that was not written: the clients' retriable "not enough
	// replicas" says exactly that, in every version.
	case errors.Is(err, mink.ErrThrottled):
		return codeNotEnoughReplicas
	case errors.Is(err, mink.ErrNotExist):
		return codeUnknownTopicOrPartition
	case errors.Is(err, mink.ErrTooLarge):
		return codeMessageTooLarge
	// The log of this leadership is gone or not open yet: look the leader up again.
	case errors.Is(err, mink.ErrFenced), errors.Is(err, mink.ErrClosed), errors.Is(err, mink.ErrUnavailable):
		return codeNotLeader
	case errors.Is(err, mink.ErrUnknownOutcome), errors.Is(err, context.DeadlineExceeded):
		return codeRequestTimedOut
	case errors.Is(err, mink.ErrUnsupported), errors.Is(err, mink.ErrInvalid):
		return codeInvalidRequest
	default:
		return codeUnknownServerError
	}
}

func batchCode(k record.Kind) code {
	switch k {
	case record.KindCorrupt:
		return codeCorruptMessage
	case record.KindUnsupportedFormat:
		return codeUnsupportedFormat
	case record.KindCompression:
		return codeUnsupportedCompression
	case record.KindTimestamp:
		return codeInvalidTimestamp
	case record.KindTooLarge:
		return codeMessageTooLarge
	case record.KindUnsupported:
		return codeInvalidRequest
	default: // KindInvalidRecord, KindSchema
		return codeInvalidRecord
	}
}

// catalogCode maps an error of creating or dropping a topic.
func catalogCode(err error) code {
	switch {
	case err == nil:
		return codeNone
	case errors.Is(err, mink.ErrExists):
		return codeTopicExists
	case errors.Is(err, mink.ErrNotExist):
		return codeUnknownTopicOrPartition
	case errors.Is(err, mink.ErrThrottled):
		return codeThrottlingQuota
	case errors.Is(err, mink.ErrUnsupported):
		return codePolicyViolation
	case errors.Is(err, mink.ErrInvalid), errors.Is(err, mink.ErrTooLarge):
		return codeInvalidRequest
	case errors.Is(err, mink.ErrUnavailable), errors.Is(err, mink.ErrUnknownOutcome), errors.Is(err, mink.ErrClosed),
		errors.Is(err, mink.ErrConflict), errors.Is(err, mink.ErrFenced),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return codeRequestTimedOut
	default:
		return codeUnknownServerError
	}
}

// topicError is an error that already knows its code.
type topicError struct {
	code code
	why  string
}

func (e *topicError) Error() string { return e.why }

func topicErrorf(c code, format string, args ...any) *topicError {
	return &topicError{code: c, why: fmt.Sprintf(format, args...)}
}
