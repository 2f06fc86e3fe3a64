package metalog

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/sdk/mink"
)

// SnapshotNow stores the present view as a snapshot, under the coordinator
// lease. Answers where it stands; when there is one already, that is no error.
func (r *Replica) SnapshotNow(ctx context.Context, lease Lease) (Position, error) {
	v := r.view.Load()
	if v.Index == 0 {
		return Position{}, nil
	}
	err := r.log.WriteSnapshot(ctx, SnapshotWrite{Position: v.Position, Lease: lease, Parts: encodeState(v.state)})
	if errors.Is(err, mink.ErrExists) {
		err = nil
	}
	if err != nil {
		return Position{}, fmt.Errorf("snapshot metadata at %d: %w", v.Index, err)
	}
	return v.Position, nil
}

// TruncateNow reads the newest snapshot back in full and then drops the entries
// behind the older one. through 0: fewer than SnapshotsKept snapshots yet,
// nothing was dropped.
func (r *Replica) TruncateNow(ctx context.Context, lease Lease) (through uint64, err error) {
	infos, err := r.log.Snapshots(ctx)
	if err != nil {
		return 0, fmt.Errorf("truncate metadata: %w", err)
	}
	if len(infos) < SnapshotsKept {
		return 0, nil
	}
	if _, err := r.readSnapshot(ctx, infos[0]); err != nil {
		return 0, fmt.Errorf("truncate metadata: nothing dropped, the newest snapshot cannot be read back: %w", err)
	}
	through = infos[SnapshotsKept-1].Index
	if err := r.log.Truncate(ctx, through, lease); err != nil {
		return 0, fmt.Errorf("truncate metadata: %w", err)
	}
	return through, nil
}

func encodeState(s *cluster.State) iter.Seq2[[]byte, error] {
	stop := errors.New("reader stopped")
	return func(yield func([]byte, error) bool) {
		w := newPartWriter(func(part []byte) error {
			if !yield(part, nil) {
				return stop
			}
			return nil
		})
		err := s.EncodeSnapshot(w.record)
		if err == nil {
			err = w.close()
		}
		if err != nil && !errors.Is(err, stop) {
			yield(nil, err)
		}
	}
}

func (r *Replica) readSnapshot(ctx context.Context, info SnapshotInfo) (*view, error) {
	state, err := cluster.DecodeSnapshot(records(r.log.ReadSnapshot(ctx, info.Index)))
	if err != nil {
		return nil, fmt.Errorf("snapshot at %d: %w", info.Index, err)
	}
	if state.Index() != info.Index {
		return nil, fmt.Errorf("snapshot at %d holds the state at %d: %w", info.Index, state.Index(), mink.ErrCorrupt)
	}
	return &view{state: state, Position: info.Position}, nil
}

// newestSnapshot is the newest one that can be read and is ahead of the view,
// or nil. An unreadable one is reported loudly: the one before it and the log
// that is kept for it hold everything. Those that are gone were replaced while they
// were read, if there is a newer one by then.
func (r *Replica) newestSnapshot(ctx context.Context) (*view, error) {
	for seen := uint64(0); ; {
		list, cancel := context.WithTimeout(ctx, r.cfg.AppendTimeout)
		infos, err := r.log.Snapshots(list)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("list snapshots: %w", err)
		}
		if len(infos) == 0 || infos[0].Index <= seen {
			return nil, nil
		}
		seen = infos[0].Index
		for _, info := range infos {
			if info.Index <= r.Applied().Index {
				continue
			}
			v, err := r.readSnapshot(ctx, info)
			if errors.Is(err, mink.ErrCorrupt) || errors.Is(err, mink.ErrNotExist) {
				r.logger.Error("a metadata snapshot cannot be read, trying another one", "index", info.Index, "error", err)
				continue
			}
			if err != nil {
				return nil, err
			}
			return v, nil
		}
	}
}

// reload goes on from a snapshot, because the log is truncated past the view.
func (r *Replica) reload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.ReloadTimeout)
	defer cancel()
	before := r.view.Load()
	after, err := r.newestSnapshot(ctx)
	if err != nil {
		return err
	}
	if after == nil {
		return fmt.Errorf("the metadata log is truncated past index %d and no readable snapshot is newer: %w", before.Index, mink.ErrCorrupt)
	}
	if before.Index > 0 && before.state.Incarnation() != after.state.Incarnation() {
		return wentBack("this node has applied %s of incarnation %x, the snapshot at %s is of incarnation %x",
			before.Position, before.state.Incarnation(), after.Position, after.state.Incarnation())
	}
	r.reloads.Add(1)
	r.publish(after, nil, nil)
	r.logger.Info("metadata reloaded from a snapshot", "from", before.Index, "to", after.Index)
	return nil
}
