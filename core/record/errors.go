package record

import (
	"fmt"

	"github.com/mink-project/mink/sdk/mink"
)

// Kind says what is wrong with a batch that a client sent; the edges map it to
// their own codes.
type Kind uint8

// The kinds of BatchError. In parentheses the Kafka error that fits.
const (
	KindCorrupt           Kind = iota + 1 // bytes damaged or cut: the client may send them again (CORRUPT_MESSAGE)
	KindInvalidRecord                     // well transported, but never acceptable (INVALID_RECORD)
	KindUnsupportedFormat                 // an old Kafka message format (UNSUPPORTED_FOR_MESSAGE_FORMAT)
	KindCompression                       // codec unknown or not allowed for this request (UNSUPPORTED_COMPRESSION_TYPE)
	KindTimestamp                         // a timestamp outside the allowed window (INVALID_TIMESTAMP)
	KindTooLarge                          // over the table's limit (MESSAGE_TOO_LARGE)
	KindSchema                            // does not fit the table's schema (INVALID_RECORD)
	KindUnsupported                       // understood, but not built (INVALID_REQUEST)
)

var kindNames = [...]string{"", "corrupt batch", "invalid record", "unsupported message format", "unsupported compression",
	"invalid timestamp", "batch too large", "batch does not fit the schema", "not supported"}

// String is a few words for logs.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// BatchError refuses a batch. errors.Is sees mink.ErrTooLarge, mink.ErrUnsupported
// or mink.ErrInvalid through it, by Kind.
type BatchError struct {
	Kind    Kind
	Record  int     // index of the first bad record, -1: the batch as a whole
	Records []int32 // the bad records when each was looked at, the first RecordsMax of them; else nil
	Why     string
	Whys    []string // of the first WhysMax of Records, where each has a reason of its own; else nil
}

// The bounds of BatchError.Records and BatchError.Whys.
const (
	RecordsMax = 10_000
	WhysMax    = 100
)

// Error names the kind, the record when there is one, and the reason.
func (e *BatchError) Error() string {
	switch {
	case e.Record < 0:
		return fmt.Sprintf("%s: %s", e.Kind, e.Why)
	case len(e.Records) > 1:
		return fmt.Sprintf("%s: record %d and %d more: %s", e.Kind, e.Record, len(e.Records)-1, e.Why)
	default:
		return fmt.Sprintf("%s: record %d: %s", e.Kind, e.Record, e.Why)
	}
}

// Is maps the kind to the error class of sdk/mink.
func (e *BatchError) Is(target error) bool {
	switch e.Kind {
	case KindTooLarge:
		return target == mink.ErrTooLarge
	case KindUnsupported, KindUnsupportedFormat:
		return target == mink.ErrUnsupported
	default:
		return target == mink.ErrInvalid
	}
}

// Errorf builds a BatchError about the batch as a whole.
func Errorf(kind Kind, format string, args ...any) *BatchError {
	return &BatchError{Kind: kind, Record: -1, Why: fmt.Sprintf(format, args...)}
}

// RecordErrorf builds a BatchError about one record.
func RecordErrorf(kind Kind, i int, format string, args ...any) *BatchError {
	return &BatchError{Kind: kind, Record: i, Why: fmt.Sprintf(format, args...)}
}
