package storehead

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// object is what a store holds under Key.
type object struct {
	Head
	found   bool
	damaged error // found, and not readable
	raw     []byte
	version string
}

// reads is how often a damaged answer is asked for again before it is believed.
const reads = 3

// read reads the object. A missing and a damaged one are answers, not errors.
func read(ctx context.Context, store objstore.Store) (object, error) {
	for n := 1; ; n++ {
		r, err := store.GetRange(ctx, objstore.GetRangeRequest{Key: Key, Length: -1})
		if errors.Is(err, objstore.ErrNotExist) {
			return object{}, nil
		}
		if err != nil {
			return object{}, fmt.Errorf("read %s: %w", Key, err)
		}
		o := object{found: true, raw: r.Data, version: r.Version}
		if o.Head, err = Decode(r.Data); err == nil {
			return o, nil
		}
		if errors.Is(err, mink.ErrUnsupported) {
			return object{}, err
		}
		if o.damaged = err; n == reads {
			return o, nil
		}
	}
}

// write replaces what was read, and nothing else where the store can tell.
func write(ctx context.Context, store objstore.Store, old object, h Head) error {
	req := objstore.PutRequest{Key: Key, Chunks: [][]byte{h.Encode()}, CreateOnly: !old.found}
	if old.found && store.Capabilities().CompareAndSwap {
		req.IfMatch = old.version
	}
	req.CRC32C, req.HasCRC32C = objstore.Checksum(req.Chunks...), true
	if _, err := store.Put(ctx, req); err != nil {
		return fmt.Errorf("write %s: %w", Key, err)
	}
	return nil
}

// Keeper keeps the head on the store. Safe for concurrent use.
type Keeper struct {
	store       objstore.Store
	log         metalog.Log
	replica     *metalog.Replica
	logger      *slog.Logger
	incarnation uint64
	ownWAL      bool
	turn        chan struct{} // one Keep at a time: two would take each other's write for another node's
	wanted      chan struct{}
}

func newKeeper(deps Deps, replica *metalog.Replica, incarnation uint64) *Keeper {
	return &Keeper{store: deps.Objects, log: deps.Log, replica: replica, incarnation: incarnation, ownWAL: deps.ownWAL(), logger: deps.Logger, turn: make(chan struct{}, 1), wanted: make(chan struct{}, 1)}
}

// Incarnation is that of database and store.
func (k *Keeper) Incarnation() uint64 { return k.incarnation }

// Keep moves the head on to what this node has applied; for the lease holder. It
// overwrites nothing that the database does not hold: ErrMismatch, or
// metalog.ErrWentBack.
func (k *Keeper) Keep(ctx context.Context) error {
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	state, at := k.replica.ViewAt()
	have, err := read(ctx, k.store)
	if err != nil {
		return err
	}
	if !have.found {
		k.logger.Warn("the object store has lost its memory of the metadata; it is written anew", "object", Key)
	} else if err := k.check(have); err != nil {
		return err
	}
	switch {
	case state.Incarnation() != k.incarnation:
		return fmt.Errorf("%w: the metadata took incarnation %016x while this node runs under %016x; restart it", ErrMismatch, state.Incarnation(), k.incarnation)
	case have.found && have.Index > at.Index:
		return nil // a newer holder's
	case have.found && !have.Pending && have.Position == at:
		return nil
	}
	if have.found {
		ok, err := contains(ctx, k.log, at, have.Position)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%w: the object store has seen the metadata at %s, which the database does not hold", metalog.ErrWentBack, have.Position)
		}
	}
	return write(ctx, k.store, have, Head{Incarnation: k.incarnation, OwnWAL: k.ownWAL, Position: at})
}

func (k *Keeper) check(have object) error {
	switch {
	case have.damaged != nil:
		return fmt.Errorf("%w: %w; a restart says how to go on", ErrMismatch, have.damaged)
	case have.Incarnation != k.incarnation:
		return fmt.Errorf("%w: the object store belongs to incarnation %016x by now, this node runs under %016x", ErrMismatch, have.Incarnation, k.incarnation)
	}
	return nil
}

// Covered is the index up to which the store remembers the log: what a later entry
// made deletable must stay.
func (k *Keeper) Covered(ctx context.Context) (uint64, error) {
	have, err := read(ctx, k.store)
	if err != nil {
		return 0, err
	}
	if !have.found {
		return 0, nil
	}
	if err := k.check(have); err != nil {
		return 0, err
	}
	if have.Index < k.replica.View().Index() {
		select {
		case k.wanted <- struct{}{}:
		default:
		}
	}
	return have.Index, nil
}

// Wanted has a value after Covered answered less than this node has applied:
// somebody waits to delete. For the lease holder, which may Keep sooner then.
func (k *Keeper) Wanted() <-chan struct{} { return k.wanted }
