package storehead

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// ErrMismatch: metadata database and object store do not belong together, or one
// of them went back. The error says which, and what to do.
var ErrMismatch = errors.New("metadata database and object store do not fit")

// Deps is what Open works on; it closes none of it.
type Deps struct {
	Objects  objstore.Store
	WALStore objstore.Store // may be Objects
	Log      metalog.Log
	Logger   *slog.Logger
	// FindLost makes the command by which metadata that lack their newest entries take
	// an incarnation. nil: the stores hold nothing that metadata could lack.
	FindLost func(ctx context.Context, state *cluster.State, incarnation uint64) (*clusterpb.SetIncarnation, error)
}

func (d Deps) ownWAL() bool { return d.WALStore != d.Objects }

// attempts bounds how often Open starts again because another process was faster,
// an answer was lost, or a store or the database did not answer.
const attempts = 10

// Open opens the metadata replica and checks that database and stores belong
// together; a new pair is tied together before Open returns. accept is "" or the
// token of an ErrMismatch that a person has read: that mismatch, as it was then, is
// accepted, and the metadata takes a new incarnation.
//
// Errors: ErrMismatch (also metalog.ErrWentBack when the database went back), those
// of metalog.Open, and those of the store. Nothing was registered, and a start that
// was cut off anywhere is gone on with by the next.
func Open(ctx context.Context, deps Deps, cfg metalog.Config, accept string) (*metalog.Replica, *Keeper, error) {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = cfg.RetryBackoff, cfg.RetryBackoffMax
	var suspect *object
	for n := 1; ; n++ {
		replica, err := metalog.Open(ctx, deps.Log, cfg, deps.Logger)
		if err != nil {
			return nil, nil, err
		}
		o := opening{Deps: deps, cfg: cfg, accept: accept, replica: replica, suspect: suspect}
		keeper, err := o.step(ctx)
		suspect = o.suspect
		switch {
		case err == nil && keeper != nil:
			return replica, keeper, nil
		case err != nil && !contended(err) && !passing(err) || n == attempts:
			if err == nil {
				err = fmt.Errorf("the head of the metadata log changes all the time: %w", mink.ErrUnavailable)
			}
			return nil, nil, fmt.Errorf("compare the metadata with the object store: %w", err)
		case err != nil:
			deps.Logger.Warn("comparing the metadata with the object store, again", "error", err)
			t := time.NewTimer(retry.NextBackOff())
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return nil, nil, ctx.Err()
			}
		}
	}
}

// contended errors are answered by looking again.
func contended(err error) bool {
	return errors.Is(err, metalog.ErrHeadMoved) || errors.Is(err, mink.ErrUnknownOutcome) ||
		errors.Is(err, objstore.ErrAlreadyExists) || errors.Is(err, objstore.ErrConflict) || errors.Is(err, objstore.ErrUnknownOutcome)
}

// passing errors are a hiccup, as far as one can tell: a start that ended with each
// of them would want a person, or a supervisor.
func passing(err error) bool {
	return errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, objstore.ErrThrottled) || errors.Is(err, mink.ErrUnavailable)
}

// opening is one look at both sides.
type opening struct {
	Deps
	cfg     metalog.Config
	accept  string
	replica *metalog.Replica
	// suspect is the object of the look before, which did not fit metadata that had
	// been read before it: another process may have tied or moved both in between.
	// Only what does not fit metadata read after it is a mismatch.
	suspect *object
}

// step takes one step towards a pair that fits; a Keeper when it does.
//
//	nothing --> pending(new, replaces 0) --> SetIncarnation --> settled
//	accepted mismatch --> pending(new, replaces what the state has) --> as above
func (o *opening) step(ctx context.Context) (*Keeper, error) {
	state, at := o.replica.ViewAt()
	again := o.suspect != nil
	var have object
	var err error
	if again {
		have = *o.suspect
	} else if have, err = read(ctx, o.Objects); err != nil {
		return nil, err
	}
	o.suspect = nil
	why, err := o.compare(ctx, state, at, have)
	if err != nil {
		return nil, err
	}
	if why == nil {
		why, err = o.checkWALStore(ctx, have)
		if err != nil {
			return nil, err
		}
	}
	switch {
	case why != nil && !again:
		o.suspect = &have
		return nil, nil
	case why != nil:
		return nil, o.refuse(ctx, state, at, have, why)
	case again:
		return nil, nil // it fits after all: look at both anew before anything is written
	case !have.found:
		incarnation, err := newIncarnation()
		if err != nil {
			return nil, err
		}
		return nil, write(ctx, o.Objects, have, Head{Incarnation: incarnation, Pending: true, OwnWAL: o.ownWAL(), Position: at})
	case have.OwnWAL != o.ownWAL(): // the stores fit, and an older binary did not say it
		h := have.Head
		h.OwnWAL = true
		return nil, write(ctx, o.Objects, have, h)
	case state.Incarnation() != have.Incarnation:
		return nil, o.setIncarnation(ctx, state, at, have.Head)
	case have.Pending:
		if err := write(ctx, o.Objects, have, Head{Incarnation: have.Incarnation, OwnWAL: have.OwnWAL, Position: at}); err != nil {
			return nil, err
		}
		o.Logger.Info("metadata database and object store belong together from here on", "incarnation", fmt.Sprintf("%016x", have.Incarnation), "index", at.Index)
	}
	return newKeeper(o.Deps, o.replica, have.Incarnation), nil
}

// mismatch is why a pair is refused.
type mismatch struct {
	what string // is wrong
	do   string // what a person should do first
	loss string // what accepting it costs
	back bool   // the database went back
}

// compare answers what is wrong, nil when the two sides may go together.
func (o *opening) compare(ctx context.Context, state *cluster.State, at metalog.Position, have object) (*mismatch, error) {
	now := state.Incarnation()
	switch {
	case have.damaged != nil:
		return &mismatch{ //nolint:nilerr // it says so
			what: fmt.Sprintf("the object store's memory of the metadata is damaged (%v)", have.damaged),
			do:   "look at the store's disk, and restore the object " + Key + " from a backup if there is one",
			loss: "whether the metadata is the newest can then not be told",
		}, nil
	case !have.found && now == 0:
		return nil, nil
	case !have.found:
		return &mismatch{
			what: fmt.Sprintf("the metadata database belongs to a cluster (incarnation %016x, at index %d) whose object store holds %s; this store does not", now, at.Index, Key),
			do:   "point storage_uri at the store that the cluster's other nodes use, or meta_url at a database of this node's own",
			loss: "everything that is not on this store",
		}, nil
	case now != have.Incarnation && !(have.Pending && now == have.Replaces):
		return &mismatch{
			what: fmt.Sprintf("the object store belongs to metadata of incarnation %016x (seen at index %d), the database holds incarnation %016x at index %d", have.Incarnation, have.Index, now, at.Index),
			do:   "point meta_url or storage_uri at the one that belongs to the other; if the database was lost or restored, restore its newest backup",
			loss: "every record and table that only the lost metadata knew",
		}, nil
	}
	ok, err := contains(ctx, o.Log, at, have.Position)
	if err != nil {
		return nil, err
	}
	if ok {
		return nil, nil
	}
	return &mismatch{
		what: fmt.Sprintf("the object store has seen it at %s, now it is at %s", have.Position, at),
		do:   "stop all nodes; it was restored from an older backup or failed over without its last commits: restore or promote the newest copy that there is",
		loss: fmt.Sprintf("what was recorded after index %d at the latest: records acknowledged since, tables made since", at.Index),
		back: true,
	}, nil
}

// checkWALStore ties a write-ahead store of its own to the cluster, and refuses a
// node that has none where the cluster has one: two nodes with different ones could
// not close each other's logs, and would take acknowledged records for absent.
func (o *opening) checkWALStore(ctx context.Context, have object) (*mismatch, error) {
	switch {
	case !have.found || !o.ownWAL() && !have.OwnWAL:
		return nil, nil
	case !o.ownWAL():
		return &mismatch{
			what: fmt.Sprintf("the cluster (incarnation %016x) has a store of its own for its write-ahead log, and this node has none", have.Incarnation),
			do:   "set wal_uri as it was when the cluster was made; to give it up, stop all nodes and copy what is below wal/ into the store of storage_uri",
			loss: "records that are only in write-ahead objects of that store",
		}, nil
	}
	wal, err := read(ctx, o.WALStore)
	switch {
	case err != nil:
		return nil, err
	case wal.found && wal.damaged == nil && wal.Incarnation == have.Incarnation:
		return nil, nil
	case !wal.found && have.Pending && have.OwnWAL:
		return nil, write(ctx, o.WALStore, wal, Head{Incarnation: have.Incarnation})
	}
	what := fmt.Sprintf("does not hold %s", Key)
	if wal.found {
		what = fmt.Sprintf("belongs to incarnation %016x", wal.Incarnation)
	}
	if wal.damaged != nil {
		what = wal.damaged.Error()
	}
	return &mismatch{
		what: fmt.Sprintf("the store of the write-ahead log is not that of the cluster (incarnation %016x): it %s", have.Incarnation, what),
		do:   "point wal_uri at the store that the cluster's write-ahead log was written to; to move it, stop all nodes and copy what is below wal/ and meta/",
		loss: "records that are only in write-ahead objects of another store",
	}, nil
}

// refuse answers the mismatch as an error, or accepts it when the token is that of
// this very mismatch.
func (o *opening) refuse(ctx context.Context, state *cluster.State, at metalog.Position, have object, why *mismatch) error {
	token := tokenOf(state.Incarnation(), at, have, why)
	refused := ErrMismatch
	if why.back {
		refused = fmt.Errorf("%w: %w", ErrMismatch, metalog.ErrWentBack)
	}
	if o.accept != token {
		other := ""
		if o.accept != "" {
			other = fmt.Sprintf(" (%s, which was given, is not for this mismatch)", o.accept)
		}
		return fmt.Errorf("%w: %s. First %s. Only if that is impossible: run, on one node, mink serve --accept-metadata=%s%s; that gives up %s",
			refused, why.what, why.do, token, other, why.loss)
	}
	lease, live, err := o.Log.ReadLease(ctx)
	if err != nil {
		return err
	}
	if live {
		return fmt.Errorf("%w: %s. It cannot be accepted while node %d runs on that database: stop all nodes first, and wait until its lease is over", refused, why.what, lease.Node)
	}
	o.Logger.Warn("metadata accepted as they are; a new incarnation begins", "index", at.Index, "mismatch", why.what)
	return o.begin(ctx, state, at, have)
}

// begin begins a new incarnation of metadata that may lack their newest entries.
func (o *opening) begin(ctx context.Context, state *cluster.State, at metalog.Position, have object) error {
	incarnation, err := newIncarnation()
	if err != nil {
		return err
	}
	if o.ownWAL() {
		wal, err := read(ctx, o.WALStore)
		if err == nil {
			err = write(ctx, o.WALStore, wal, Head{Incarnation: incarnation})
		}
		if err != nil {
			return err
		}
	}
	return write(ctx, o.Objects, have, Head{Incarnation: incarnation, Replaces: state.Incarnation(), Pending: true, Lost: true, OwnWAL: o.ownWAL(), Position: at})
}

// Adopt makes the stores belong to the metadata that the database holds, whatever
// they belonged to: as Open with the token of a mismatch, but also when the two fit.
// For metadata that were just restored; no node may run. Answers the state that
// nodes go on from. A run that was cut off is gone on with by the next start of a
// node, or by another Adopt.
func Adopt(ctx context.Context, deps Deps, cfg metalog.Config) (*metalog.Replica, error) {
	replica, err := metalog.Open(ctx, deps.Log, cfg, deps.Logger)
	if err != nil {
		return nil, err
	}
	have, err := read(ctx, deps.Objects)
	if err != nil {
		return nil, err
	}
	o := opening{Deps: deps, cfg: cfg, replica: replica}
	state, at := replica.ViewAt()
	if err := o.begin(ctx, state, at, have); err != nil {
		return nil, err
	}
	replica, _, err = Open(ctx, deps, cfg, "")
	return replica, err
}

// Look answers what a store remembers; false: nothing. Errors: mink.ErrCorrupt, and
// the store's.
func Look(ctx context.Context, store objstore.Store) (Head, bool, error) {
	o, err := read(ctx, store)
	if err == nil {
		err = o.damaged
	}
	return o.Head, o.found, err
}

// tokenOf names one mismatch: another database, store or head has another token,
// so that a token which stays in a configuration accepts nothing later.
func tokenOf(incarnation uint64, at metalog.Position, have object, why *mismatch) string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%x %d %x %x %s", incarnation, at.Index, at.Hash, have.raw, why.what) // a hash takes all
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// setIncarnation makes the metadata take the store's incarnation, if nothing else
// came between: then the next look decides.
func (o *opening) setIncarnation(ctx context.Context, state *cluster.State, at metalog.Position, have Head) error {
	set := &clusterpb.SetIncarnation{Incarnation: have.Incarnation, Lost: have.Lost}
	a := metalog.Append{Expect: &at}
	if have.Lost {
		for w := range state.WALs() {
			if !w.Sealed {
				a.Seal = append(a.Seal, w.ID.Epoch)
			}
		}
		if o.FindLost != nil {
			var err error
			if set, err = o.FindLost(ctx, state, have.Incarnation); err != nil {
				return fmt.Errorf("find what the object store has and the metadata lack: %w", err)
			}
		}
	}
	payload, err := metalog.EncodeBatch(o.cfg, &clusterpb.Batch{Commands: []*clusterpb.Command{{
		Kind: &clusterpb.Command_SetIncarnation{SetIncarnation: set},
	}}})
	if err != nil {
		return err
	}
	a.Payloads = [][]byte{payload}
	_, err = o.Log.Append(ctx, a)
	return err
}

func newIncarnation() (uint64, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("random incarnation: %w", err)
	}
	return binary.BigEndian.Uint64(b[:]) | 1, nil // 0 stands for none
}

// contains reports whether the log, applied up to at, has the entry at p. What is
// truncated counts: the head is moved on before each truncation.
func contains(ctx context.Context, log metalog.Log, at, p metalog.Position) (bool, error) {
	switch {
	case p.Index > at.Index:
		return false, nil
	case p.Index == at.Index:
		return p.Hash == at.Hash, nil
	case p.Index == 0:
		return p.Hash == metalog.Hash{}, nil
	}
	entries, err := log.Read(ctx, p.Index-1, 1, 1)
	switch {
	case errors.Is(err, metalog.ErrTruncated):
		return true, nil
	case err != nil:
		return false, err
	}
	return len(entries) > 0 && entries[0].Position() == p, nil
}
