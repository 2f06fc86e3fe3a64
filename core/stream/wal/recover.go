package wal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
	"golang.org/x/sync/errgroup"
)

// ErrRecovered says that somebody else's recovery of the log is on record.
var ErrRecovered = errors.New("log is recovered already")

// FromCommittedEnd is the Start of a gap that begins at the stream's committed
// end, which the log does not know.
const FromCommittedEnd mink.Offset = -1

// RecoverConfig says which log to close and recover. Its epoch must be sealed:
// metadata refuses every command of it, so that From can no longer rise.
type RecoverConfig struct {
	Store objstore.Store
	WAL   plan.WALID
	// From is the committed trim: slots below it are not looked at.
	From uint64
	// Window is the writer's, as far as known (at least 1). A larger one in the log
	// does no harm: it may only cost more tombstones.
	Window int
	// Nonce tells this recoverer's tombstones from others'; random.
	Nonce uint64
	// StillNeeded answers false once a RecoverWAL of this log is applied. It is
	// asked before each tombstone, may be called often and must be quick.
	StillNeeded func() bool
	// AcceptLost names slots that a person has given up: when they are corrupt or
	// missing, the log goes on behind them.
	AcceptLost []uint64
	// AttemptTimeout, RetryMin, RetryMax: as in Config; 0 its defaults. Recover
	// retries until its context ends.
	AttemptTimeout     time.Duration
	RetryMin, RetryMax time.Duration
	// Logger, nil: none.
	Logger *slog.Logger
}

// Result is what a log holds.
type Result struct {
	// End is the first slot that is not in the log; it holds a tombstone, for ever.
	End uint64
	// Objects are the bulks of [From, End), in slot order.
	Objects []plan.Object
	// Items say which offsets are in them: in slot order, then by stream, so that
	// those of one stream are in offset order. They may begin below a stream's
	// committed end and be of leader epochs that are over: applying clips.
	Items []plan.Item
	// Lost are the slots of [From, End) that hold nothing readable: all of them in
	// RecoverConfig.AcceptLost.
	Lost []uint64
	// Gaps are the offsets that the lost slots may have held, where later items of
	// the same stream show it. A stream without later items just ends sooner.
	Gaps []StreamGap
}

// StreamGap is a range of offsets that was lost. Start may be FromCommittedEnd;
// then there is no gap if that is End.
type StreamGap struct {
	Stream     mink.StreamID
	Start, End mink.Offset
}

// Recover closes the log and says what is in it. It can be stopped anywhere and
// run again, by anybody, any number of times at once, as long as the log is not
// recovered: all that finish agree. Errors: CorruptSlotError; ErrRecovered;
// mink.ErrUnsupported (a bulk of a later version; a store without create-only
// Put); the end of ctx. Store failures are retried until ctx ends.
func Recover(ctx context.Context, cfg RecoverConfig) (Result, error) {
	d, err := newDriver(cfg)
	if err != nil {
		return Result{}, err
	}
	return d.run(ctx, newRecovery(cfg.WAL, cfg.From, uint64(cfg.Window), cfg.AcceptLost))
}

// driver asks the store what a recovery wants to know.
type driver struct {
	cfg    RecoverConfig
	jitter float64
}

func newDriver(cfg RecoverConfig) (*driver, error) {
	def := Default()
	if cfg.AttemptTimeout == 0 {
		cfg.AttemptTimeout = def.AttemptTimeout
	}
	if cfg.RetryMin == 0 {
		cfg.RetryMin = def.RetryMin
	}
	if cfg.RetryMax == 0 {
		cfg.RetryMax = max(def.RetryMax, cfg.RetryMin)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	check := def
	check.Window, check.AttemptTimeout, check.RetryMin, check.RetryMax = cfg.Window, cfg.AttemptTimeout, cfg.RetryMin, cfg.RetryMax
	if err := check.Validate(); err != nil {
		return nil, err
	}
	if cfg.StillNeeded == nil {
		return nil, fmt.Errorf("wal: %w: RecoverConfig.StillNeeded is missing", mink.ErrInvalid)
	}
	if cfg.From > maxSlot {
		return nil, fmt.Errorf("wal: %w: recover from slot %d", mink.ErrInvalid, cfg.From)
	}
	if err := needCreateOnly(cfg.Store); err != nil {
		return nil, err
	}
	return &driver{cfg: cfg, jitter: backoff.DefaultRandomizationFactor}, nil
}

func (d *driver) run(ctx context.Context, r *recovery) (Result, error) {
	for {
		o := r.next()
		switch o.kind {
		case opDone:
			return r.result(), nil
		case opMoot:
			return Result{}, fmt.Errorf("wal %s: %w", d.cfg.WAL, ErrRecovered)
		case opFail:
			return Result{}, o.err
		case opNeeded:
			r.needed(d.cfg.StillNeeded())
		default:
			if err := d.ask(ctx, r, o); err != nil {
				return Result{}, fmt.Errorf("recover wal %s: %w", d.cfg.WAL, err)
			}
		}
	}
}

func (d *driver) ask(ctx context.Context, r *recovery, o op) error {
	switch o.kind {
	case opList:
		p, err := retry(ctx, d, func(ctx context.Context) (page, error) {
			return listPage(ctx, d.cfg.Store, d.cfg.WAL, d.cfg.From, o.after)
		})
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		r.listedPage(p)
	case opRead:
		contents := make([]content, len(o.slots))
		g, ctx := errgroup.WithContext(ctx)
		for k, s := range o.slots {
			size := r.slots[s].size
			g.Go(func() (err error) {
				contents[k], err = d.readSlot(ctx, s, size)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		r.read(contents)
	case opTombstone:
		free, err := d.putTombstone(ctx, o.slots[0])
		if err != nil {
			return err
		}
		d.cfg.Logger.Info("write-ahead log: tombstone", "wal", d.cfg.WAL.String(), "slot", o.slots[0], "created", free)
		r.created(o.slots[0], free)
	}
	return nil
}

// permanent store errors are not retried.
func permanent(err error) bool {
	return errors.Is(err, objstore.ErrInvalid) || errors.Is(err, objstore.ErrUnimplemented) ||
		errors.Is(err, objstore.ErrReadOnly) || errors.Is(err, objstore.ErrCorrupt) || errors.Is(err, objstore.ErrNotExist) || errors.Is(err, objstore.ErrAlreadyExists)
}

// retry repeats f until it succeeds, fails for good, or ctx ends.
func retry[T any](ctx context.Context, d *driver, f func(context.Context) (T, error)) (T, error) {
	p := newPause(d.cfg.RetryMin, d.cfg.RetryMax, d.jitter)
	for {
		v, err := once(ctx, d, f)
		if err == nil || permanent(err) {
			return v, err
		}
		d.cfg.Logger.Warn("write-ahead log recovery retries", "wal", d.cfg.WAL.String(), "error", err)
		if !sleep(ctx, p.after(err)) {
			return v, fmt.Errorf("%w, last error: %w", context.Cause(ctx), err)
		}
	}
}

func once[T any](ctx context.Context, d *driver, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.AttemptTimeout)
	defer cancel()
	return f(ctx)
}
