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
}

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

func ok() *clusterpb.Result { return &clusterpb.Result{} }

func okID(id int64, ids ...int64) *clusterpb.Result { return &clusterpb.Result{Id: id, Ids: ids} }

func okNote(format string, args ...any) *clusterpb.Result {
	return &clusterpb.Result{Message: fmt.Sprintf(format, args...)}
}

func refuse(code clusterpb.Code, format string, args ...any) *clusterpb.Result {
	return &clusterpb.Result{Code: code, Message: fmt.Sprintf(format, args...)}
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
