package cluster

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/sdk/mink"
)

// classes pairs the codes of a Result with the errors that callers branch on.
var classes = []struct {
	code  clusterpb.Code
	class error
}{
	{clusterpb.Code_NOT_EXIST, mink.ErrNotExist},
	{clusterpb.Code_EXISTS, mink.ErrExists},
	{clusterpb.Code_INVALID, mink.ErrInvalid},
	{clusterpb.Code_FENCED, mink.ErrFenced},
	{clusterpb.Code_CONFLICT, mink.ErrConflict},
	{clusterpb.Code_UNSUPPORTED, mink.ErrUnsupported},
	{clusterpb.Code_NOT_COORDINATOR, ErrNotCoordinator},
}

// ErrNotCoordinator: the proposer does not coordinate the consumer group at the
// command's index, or it lost and regained that since it loaded the group. Nothing
// of the group was changed; find its coordinator anew.
var ErrNotCoordinator = errors.New("not the coordinator of the group")

// resultError is a refusal; its text is the message that apply wrote.
type resultError struct {
	message string
	class   error
}

func (e *resultError) Error() string { return e.message }
func (e *resultError) Unwrap() error { return e.class }

// ResultError turns a verdict into an error that wraps the class of its code;
// nil for OK. A code that this binary does not know is mink.ErrUnsupported.
func ResultError(r *clusterpb.Result) error {
	if r.GetCode() == clusterpb.Code_OK {
		return nil
	}
	for _, c := range classes {
		if c.code == r.GetCode() {
			if r.GetMessage() == "" {
				return c.class
			}
			return &resultError{r.GetMessage(), c.class}
		}
	}
	return fmt.Errorf("result code %d is of a newer version: %s: %w", r.GetCode(), r.GetMessage(), mink.ErrUnsupported)
}

// PartError is ResultError of one part of a command that is decided in parts. A
// command that was refused as a whole refused each of them.
func PartError(r *clusterpb.Result, part int) error {
	switch {
	case part < len(r.GetParts()):
		return ResultError(r.GetParts()[part])
	case r.GetCode() == clusterpb.Code_OK:
		return fmt.Errorf("part %d of the command has no verdict: %w", part, mink.ErrUnknownOutcome)
	}
	return ResultError(r)
}

// inParts is the verdict on a command from those on its parts, of which there is
// at least one.
func inParts(parts []*clusterpb.Result) *clusterpb.Result {
	for _, p := range parts {
		if p.GetCode() == clusterpb.Code_OK {
			return &clusterpb.Result{Parts: parts}
		}
	}
	return &clusterpb.Result{Code: parts[0].GetCode(), Message: parts[0].GetMessage(), Parts: parts}
}

func ok() *clusterpb.Result { return &clusterpb.Result{} }

func okID(id int64, ids ...int64) *clusterpb.Result { return &clusterpb.Result{Id: id, Ids: ids} }

func okNote(format string, args ...any) *clusterpb.Result {
	return &clusterpb.Result{Message: message(format, args...)}
}

func refuse(code clusterpb.Code, format string, args ...any) *clusterpb.Result {
	return &clusterpb.Result{Code: code, Message: message(format, args...)}
}

// maxMessage bounds what a result says, bytes: the state keeps the last results
// of each node epoch, and commands quote what they were given.
const maxMessage = 4 << 10

func message(format string, args ...any) string {
	return cutText(fmt.Sprintf(format, args...), maxMessage)
}

// cutText is what fits of a text, and what protobuf takes: whole characters.
func cutText(s string, limit int) string {
	return strings.ToValidUTF8(s[:min(len(s), limit)], "")
}

func notExist(format string, args ...any) *clusterpb.Result {
	return refuse(clusterpb.Code_NOT_EXIST, format, args...)
}

func exists(format string, args ...any) *clusterpb.Result {
	return refuse(clusterpb.Code_EXISTS, format, args...)
}

func invalid(format string, args ...any) *clusterpb.Result {
	return refuse(clusterpb.Code_INVALID, format, args...)
}

func fenced(format string, args ...any) *clusterpb.Result {
	return refuse(clusterpb.Code_FENCED, format, args...)
}

func conflict(format string, args ...any) *clusterpb.Result {
	return refuse(clusterpb.Code_CONFLICT, format, args...)
}

// refuseErr is the verdict for an error of one of the pure packages.
func refuseErr(err error) *clusterpb.Result {
	for _, c := range classes {
		if errors.Is(err, c.class) {
			return refuse(c.code, "%s", strings.TrimSuffix(err.Error(), ": "+c.class.Error())) // the code says it
		}
	}
	return invalid("%s", err)
}
