package tiering

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// errDead is what a process that was killed is told; nobody hears it.
var errDead = errors.New("the process is gone")

// fate is what becomes of a call.
type fate int

const (
	succeeds     fate = iota
	killedBefore      // the process ends, the call was not made
	killedAfter       // the call was made, the process ends before it hears the answer
	refused           // ErrUnavailable, and nothing was done
	hangs             // until its context ends
	lost              // commits: it happened, and the answer is ErrUnknownOutcome
	late              // commits: ErrUnknownOutcome, and it happens some time later
	never             // commits: ErrUnknownOutcome, and it did not happen
	unspecified       // commits: it happened, and the answer is an error of no class
)

// proc is a process: a Tiering whose every call to the world may be its last.
type proc struct {
	long    func(ctx context.Context) // what a call does for long, before it does its work
	t       testing.TB
	w       *world
	tiering *Tiering
	// fate says what becomes of a call, after it took its time. Called for each.
	fate func(p *proc, point string) fate
	// short says whether a read of the log ends before its end, without an error; nil:
	// none does.
	short func() bool

	mu struct {
		sync.Mutex
		dead   bool
		belief mink.LeaseEpoch // that it holds; 0: none
		seen   int             // its view
		// lag is how many views the process's own may be behind.
		lag func() int
	}
	cancel context.CancelFunc
	done   chan struct{}
	late   sync.WaitGroup
}

// startProc starts a process. It ends with kill or stop.
func startProc(t testing.TB, w *world, cfg Config, f faults, fates func(*proc, string) fate) *proc {
	p := &proc{t: t, w: w, fate: fates, done: make(chan struct{})}
	p.mu.lag = func() int { return 0 }
	s := &procSink{p: p, s: w.place}
	var err error
	p.tiering, err = New(cfg, Deps{Meta: p, Source: p, Sinks: map[string]sink.Sink{"lake": s, "other": s}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	p.tiering.faults = f
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() {
		defer close(p.done)
		if err := p.tiering.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	return p
}

// kill ends the process without a word.
func (p *proc) kill() {
	p.mu.Lock()
	p.mu.dead = true
	p.mu.Unlock()
	p.cancel()
}

// stop ends it in good order, and waits.
func (p *proc) stop() {
	p.cancel()
	<-p.done
	p.late.Wait()
}

func (p *proc) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.dead
}

func (p *proc) setLag(lag func() int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.lag = lag
}

// believe is what the process thinks of the lease.
func (p *proc) believe(lease mink.LeaseEpoch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.belief = lease
}

// takeLease gives the process the lease, as all learn at once.
func (p *proc) takeLease() {
	p.w.mu.Lock()
	p.w.lease++
	lease := p.w.lease
	p.w.mu.Unlock()
	p.believe(lease)
}

// call makes one call to the world.
func (p *proc) call(ctx context.Context, point string, do func() error) error {
	return p.callWith(ctx, p.fate(p, point), do)
}

func (p *proc) callWith(ctx context.Context, f fate, do func() error) error {
	if p.isDead() {
		return errDead
	}
	switch f {
	case killedBefore:
		p.kill()
		return errDead
	case refused:
		return sink.ErrUnavailable
	case hangs:
		<-ctx.Done()
		return ctx.Err()
	}
	if p.long != nil {
		p.long(ctx)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err := do()
	if f == killedAfter {
		p.kill()
		return errDead
	}
	return err
}

func (p *proc) View() View {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.seen = max(p.mu.seen, len(p.w.views)-1-p.mu.lag())
	return p.w.views[p.mu.seen]
}

func (p *proc) Lease() (mink.LeaseEpoch, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.belief, p.mu.belief != 0
}

func (p *proc) CommitRound(ctx context.Context, r Round) error {
	return p.call(ctx, "record", func() error {
		err := p.w.commitRound(r)
		p.caughtUp()
		return err
	})
}

func (p *proc) ForgetDropped(ctx context.Context, t Target, lease mink.LeaseEpoch) error {
	return p.call(ctx, "forget", func() error {
		err := p.w.forgetDropped(t, lease)
		p.caughtUp()
		return err
	})
}

// caughtUp: a proposal is answered when it is applied here.
func (p *proc) caughtUp() {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.seen = len(p.w.views) - 1
}

func (p *proc) ReadLog(ctx context.Context, v View, b mink.BucketRef, from, to mink.Offset) iter.Seq2[Rows, error] {
	return func(yield func(Rows, error) bool) {
		for n := 1; from < to; n = n%5 + 1 {
			var rows Rows
			err := p.call(ctx, "read", func() (err error) {
				rows, err = p.w.readLog(v.(*wView), b, from, to, n)
				return err
			})
			if err != nil {
				yield(Rows{}, err)
				return
			}
			more := yield(rows, nil)
			rows.Batch.Release()
			if !more {
				return
			}
			if from = rows.End; p.short != nil && p.short() {
				return // as if there were no more
			}
		}
	}
}

func (p *proc) ReadKVSnapshot(ctx context.Context, v View, b mink.BucketRef) (at mink.Offset, rows iter.Seq2[Rows, error], err error) {
	var batches []Rows
	if err := p.call(ctx, "read snapshot", func() error {
		at, batches = p.w.readSnapshot(v.(*wView), b)
		return nil
	}); err != nil {
		return 0, nil, err
	}
	return at, func(yield func(Rows, error) bool) {
		for _, r := range batches {
			err := p.call(ctx, "read", func() error { return nil })
			more := yield(r, err)
			r.Batch.Release()
			if !more || err != nil {
				return
			}
		}
	}, nil
}

// procSink is a process's sink.
type procSink struct {
	p *proc
	s sink.Sink
}

func (s *procSink) Describe() sink.Description { return s.s.Describe() }
func (s *procSink) Close() error               { return nil }

func (s *procSink) Open(ctx context.Context, req sink.OpenRequest) (table sink.Table, err error) {
	err = s.p.call(ctx, "open "+req.Table.Name, func() error {
		table, err = s.s.Open(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &procTable{s.p, table, req.Table.Name}, nil
}

type procTable struct {
	p     *proc
	table sink.Table
	name  string
}

func callTable[Q, R any](ctx context.Context, t *procTable, point string, req Q, do func(context.Context, Q) (R, error)) (resp R, err error) {
	err = t.p.call(ctx, point+" "+t.name, func() error {
		resp, err = do(ctx, req)
		return err
	})
	return resp, err
}

func (t *procTable) Recover(ctx context.Context, req sink.RecoverRequest) (sink.RecoverResponse, error) {
	return callTable(ctx, t, "recover", req, t.table.Recover)
}

func (t *procTable) BeginRound(ctx context.Context, req sink.BeginRoundRequest) (sink.BeginRoundResponse, error) {
	return callTable(ctx, t, "begin", req, t.table.BeginRound)
}

func (t *procTable) Write(ctx context.Context, req sink.WriteRequest) (sink.WriteResponse, error) {
	return callTable(ctx, t, "write", req, t.table.Write)
}

func (t *procTable) Prepare(ctx context.Context, req sink.PrepareRequest) (sink.PrepareResponse, error) {
	return callTable(ctx, t, "prepare", req, t.table.Prepare)
}

func (t *procTable) Abort(ctx context.Context, req sink.AbortRequest) (sink.AbortResponse, error) {
	return callTable(ctx, t, "abort", req, t.table.Abort)
}

func (t *procTable) SchemaChange(ctx context.Context, req sink.SchemaChangeRequest) (sink.SchemaChangeResponse, error) {
	return callTable(ctx, t, "schema", req, t.table.SchemaChange)
}

func (t *procTable) Drop(ctx context.Context, req sink.DropRequest) (sink.DropResponse, error) {
	return callTable(ctx, t, "drop", req, t.table.Drop)
}

func (t *procTable) Close() error { return nil }

// lateAfter is when a commit of fate late happens.
const lateAfter = 7 * time.Second

func (t *procTable) Commit(ctx context.Context, req sink.CommitRequest) (resp sink.CommitResponse, err error) {
	f := t.p.fate(t.p, "commit "+t.name)
	err = t.p.callWith(ctx, f, func() error {
		switch f {
		case late:
			t.p.late.Go(func() {
				time.Sleep(lateAfter)
				_, _ = t.table.Commit(context.WithoutCancel(ctx), req)
			})
			return sink.ErrUnknownOutcome
		case never:
			return sink.ErrUnknownOutcome
		}
		if resp, err = t.table.Commit(ctx, req); err != nil {
			return err
		}
		switch f {
		case lost:
			return sink.ErrUnknownOutcome
		case unspecified:
			return errors.New("500 Internal Server Error")
		}
		return nil
	})
	return resp, err
}
