package sink

import (
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// The error sentinels of the contract, shared with the other kinds of plugin.
var (
	// ErrNotExist: the round is gone, open or staged; nothing was committed, and
	// the worker runs it again under another id.
	ErrNotExist = objstore.ErrNotExist
	// ErrAlreadyExists: Open, the place is taken by something that is not this table.
	ErrAlreadyExists = objstore.ErrAlreadyExists
	// ErrConflict: another round was committed since the worker looked, or the
	// schema is older than the target's. Nothing was changed: Recover and plan anew.
	ErrConflict = objstore.ErrConflict
	// ErrFenced: a worker with a higher fence was here. Nothing was changed: the
	// worker stops.
	ErrFenced = mink.ErrFenced
	// ErrInvalid: the request can never succeed as written.
	ErrInvalid = objstore.ErrInvalid
	// ErrUnauthorized: the target refuses the sink's credentials.
	ErrUnauthorized = objstore.ErrUnauthorized
	// ErrThrottled: the target asks for a pause; see objstore.ThrottledError.
	ErrThrottled = objstore.ErrThrottled
	// ErrUnavailable: not now; nothing was changed, the same call may succeed later.
	ErrUnavailable = objstore.ErrUnavailable
	// ErrUnknownOutcome: Commit may have happened, or may yet: Recover says whether.
	ErrUnknownOutcome = objstore.ErrUnknownOutcome
	// ErrCorrupt: what the target holds fails its checks. The table stops until a
	// person looked.
	ErrCorrupt = objstore.ErrCorrupt
	// ErrNoSpace: the target is full.
	ErrNoSpace = objstore.ErrNoSpace
	// ErrReadOnly: the target takes no writes.
	ErrReadOnly = objstore.ErrReadOnly
	// ErrUnimplemented: the sink cannot do this at all: a type, changes of rows, a
	// change of schema.
	ErrUnimplemented = objstore.ErrUnimplemented
)
