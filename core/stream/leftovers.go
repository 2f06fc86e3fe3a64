package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/objstore"
)

// leftovers are objects of this living epoch that were written, or may yet be,
// and that no accepted command names as far as is known; and multipart uploads
// that could not be dropped.
type leftovers struct {
	sync.Mutex
	list []leftover
}

type leftover struct {
	key    string
	object plan.ObjectID
	upload objstore.UploadID // "": the object, else only this upload of its key
	since  time.Time
}

// abandon leaves objects to the sweep.
func (e *Engine) abandon(objects []plan.Object) {
	for _, o := range objects {
		e.leave(leftover{key: o.Key(), object: o.ID})
	}
}

func (e *Engine) leave(l leftover) {
	l.since = time.Now()
	e.left.add(l)
}

func (l *leftovers) add(list ...leftover) {
	l.Lock()
	defer l.Unlock()
	l.list = append(l.list, list...)
}

// takeDue takes out what has been left since before `before`.
func (l *leftovers) takeDue(before time.Time) (due []leftover) {
	l.Lock()
	defer l.Unlock()
	var young []leftover
	for _, x := range l.list {
		if x.since.After(before) {
			young = append(young, x)
		} else {
			due = append(due, x)
		}
	}
	l.list = young
	return due
}

// sweepLeftovers deletes what has been left for OrphanAge and is still not named.
//
// A command that names an object may have been accepted though its proposer was
// told that nobody knows, and this node's view may be behind, for as long as the
// metadata log is away. So an empty command is proposed first: once this node has
// applied that, it has applied every earlier command of its own too, and what is
// not named then never will be.
func (e *Engine) sweepLeftovers(ctx context.Context) error {
	due := e.left.takeDue(time.Now().Add(-e.cfg.OrphanAge))
	if len(due) == 0 {
		return nil
	}
	if err := e.deps.Meta.ForgetObjects(ctx, nil); err != nil {
		e.left.add(due...)
		return fmt.Errorf("sweep %d uncommitted objects: find out that they stay so: %w", len(due), err)
	}
	known := knownIn(e.deps.Meta.View())
	var errs []error
	var keys []string
	objects := map[string]leftover{}
	for _, l := range due {
		switch {
		case l.upload != "":
			if err := e.parts.AbortUpload(ctx, l.key, l.upload); err != nil {
				e.left.add(l)
				errs = append(errs, err)
			}
		case !known(l.object): // otherwise it was committed after all
			keys, objects[l.key] = append(keys, l.key), l
		}
	}
	left, err := deleteEach(ctx, e.deps.Objects, keys)
	for _, k := range left {
		e.left.add(objects[k])
	}
	e.stats.orphansDeleted.Add(int64(len(keys) - len(left)))
	return errors.Join(append(errs, err)...)
}
