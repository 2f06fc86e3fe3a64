// Package storescan finds what the object store holds and a state of the metadata
// does not name. After the metadata were restored, or went back, that is all there
// is of the entries that they lost:
//
//	data/  objects that were uploaded or merged since
//	wal/   slots of logs of nodes that registered since; what is left of the logs
//	       that the state waits for
//	kv/    snapshots of primary-key buckets that were taken since
//
// Nothing here writes.
package storescan

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/core/tablet/kv/kvsnap"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Stores are where the objects are; WAL may be Objects.
type Stores struct {
	Objects, WAL objstore.Store
	Logger       *slog.Logger
}

// Found is one object that the state does not name.
type Found struct {
	Key   string
	Bytes int64
	// WAL of the node epoch that wrote it; of a file of a KV snapshot only its Nonce.
	WAL plan.WALID
	// Slot of the log, where the object is one.
	Slot      uint64
	IsSlot    bool
	Tombstone bool
	Window    uint64 // of a slot's writer
	// Pending: a slot that the state still waits for; its log's recovery reads it.
	Pending bool
	// Items are the offsets that it holds; of the head of a KV snapshot the range
	// from 0 to the snapshot's offset.
	Items []plan.Item
	// Damage is why its content cannot be told; nil: it can.
	Damage error
}

// readers is how many objects are read at a time.
const readers = 16

// attempts, firstPause: how often a store that does not answer is asked.
const (
	attempts   = 6
	firstPause = 200 * time.Millisecond
)

// Scan lists both stores and calls each, one call at a time and in no order, for
// every object that the state does not name, with what its index says; objects that
// are on their way to being deleted are not unknown. Errors: each's, ctx's, and a
// store's that does not answer.
func Scan(ctx context.Context, s Stores, state *cluster.State, each func(Found) error) error {
	named := map[plan.ObjectID]bool{}
	for d := range state.Destroyed() {
		named[d.Object.ID] = true
	}
	sc := &scan{Stores: s, state: state, destroyed: named}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	var mu sync.Mutex
	hand := func(f Found, read func(context.Context, *Found) error) {
		g.Go(func() error {
			if read != nil {
				switch err := read(gctx, &f); {
				case errors.Is(err, objstore.ErrNotExist):
					return nil // deleted since it was listed
				case errors.Is(err, mink.ErrCorrupt), errors.Is(err, objstore.ErrCorrupt), errors.Is(err, objstore.ErrInvalid), errors.Is(err, mink.ErrUnsupported):
					f.Damage = err
				case err != nil:
					return fmt.Errorf("read %s: %w", f.Key, err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			return each(f)
		})
	}
	var err error
	for _, part := range []struct {
		store  objstore.Store
		prefix string
		look   func(objstore.ObjectInfo, func(Found, func(context.Context, *Found) error))
	}{
		{s.Objects, "data/", sc.data}, {s.WAL, "wal/", sc.slot}, {s.Objects, kvplan.Prefix, sc.kv},
	} {
		lerr := objstore.All(gctx, part.store, part.prefix, "", func(o objstore.ObjectInfo) bool {
			part.look(o, hand)
			return gctx.Err() == nil
		})
		if lerr != nil {
			err = fmt.Errorf("list %s: %w", part.prefix, lerr)
			break
		}
	}
	if werr := g.Wait(); werr != nil {
		return werr
	}
	return errors.Join(err, ctx.Err())
}

type scan struct {
	Stores
	state     *cluster.State
	destroyed map[plan.ObjectID]bool
}

type hander = func(Found, func(context.Context, *Found) error)

// parseKey takes "<node>/<epoch>-<nonce>/<rest>" apart.
func parseKey(key, prefix string) (w plan.WALID, rest string, ok bool) {
	f := strings.SplitN(strings.TrimPrefix(key, prefix), "/", 3)
	if len(f) != 3 {
		return w, "", false
	}
	epoch, nonce, ok := strings.Cut(f[1], "-")
	n, e1 := strconv.ParseInt(f[0], 10, 32)
	e, e2 := strconv.ParseInt(epoch, 10, 64)
	x, e3 := strconv.ParseUint(nonce, 16, 64)
	w = plan.WALID{Node: mink.NodeID(n), Epoch: mink.NodeEpoch(e), Nonce: x}
	return w, f[2], ok && errors.Join(e1, e2, e3) == nil && strings.HasPrefix(key, prefix+w.String()+"/")
}

// registered is the log in the state, when it is that very one.
func (s *scan) registered(w plan.WALID) (plan.WAL, bool) {
	have, ok := s.state.WAL(w.Epoch)
	return have, ok && have.ID == w
}

func (s *scan) known(id plan.ObjectID) bool {
	_, named := s.state.Object(id)
	return named || s.destroyed[id]
}

func (s *scan) data(o objstore.ObjectInfo, hand hander) {
	w, rest, ok := parseKey(o.Key, "data/")
	digits, kind, isKind := strings.Cut(rest, "-")
	seq, isSeq := plan.ParseSeq(digits)
	id := plan.ObjectID{Epoch: w.Epoch, Kind: plan.KindStreamSet, Seq: seq}
	if kind == "so" {
		id.Kind = plan.KindStream
	}
	if !ok || !isKind || !isSeq || plan.Key(w, id.Kind, seq) != o.Key {
		return
	}
	if _, registered := s.registered(w); registered && s.known(id) {
		return
	}
	hand(Found{Key: o.Key, Bytes: o.Size, WAL: w}, func(ctx context.Context, f *Found) error {
		return s.index(ctx, s.Objects, id, f)
	})
}

func (s *scan) slot(o objstore.ObjectInfo, hand hander) {
	w, rest, ok := parseKey(o.Key, "wal/")
	seq, isSeq := plan.ParseSeq(rest)
	if !ok || !isSeq {
		return
	}
	id := plan.ObjectID{Epoch: w.Epoch, Kind: plan.KindWAL, Seq: seq}
	have, registered := s.registered(w)
	if registered && (have.Recovered && seq == have.End || s.known(id) && have.Recovered) {
		return
	}
	f := Found{Key: o.Key, Bytes: o.Size, WAL: w, Slot: seq, IsSlot: true, Pending: registered && !have.Recovered && seq >= have.Trim}
	if registered && !have.Recovered && !f.Pending {
		return // below the trim: what it held is committed
	}
	hand(f, func(ctx context.Context, f *Found) error { return s.index(ctx, s.WAL, id, f) })
}

func (s *scan) kv(o objstore.ObjectInfo, hand hander) {
	file, ok := kvplan.ParseKey(o.Key)
	if !ok {
		return
	}
	id, found := s.state.StreamOf(file.Bucket)
	if found && s.state.KVBucket(id).Names(file.File) || s.state.KVDestroyed(file) {
		return
	}
	hand(Found{Key: o.Key, Bytes: o.Size, WAL: plan.WALID{Nonce: file.Nonce}}, func(ctx context.Context, f *Found) error {
		begin, err := s.get(ctx, s.Objects, o.Key, 0, min(o.Size, int64(len(kvsnap.HeadPrefix))))
		if err != nil || string(begin) != kvsnap.HeadPrefix || o.Size > kvsnap.HeadBytesMax || !found {
			return err
		}
		whole, err := s.get(ctx, s.Objects, o.Key, 0, o.Size)
		if err != nil {
			return err
		}
		if bucket, offset, ok := kvsnap.HeadOffset(whole); ok && bucket == file.Bucket {
			f.Items = []plan.Item{{Stream: id, End: offset}}
			return nil
		}
		return fmt.Errorf("head of a KV snapshot that cannot be read: %w", mink.ErrCorrupt)
	})
}

// tailBytes is read of an object's end at first: most indexes are shorter.
const tailBytes = 64 << 10

// index reads what an object says of itself.
func (s *scan) index(ctx context.Context, store objstore.Store, id plan.ObjectID, f *Found) error {
	if f.Bytes < object.HeaderLen {
		return fmt.Errorf("%d bytes are less than a header: %w", f.Bytes, mink.ErrCorrupt)
	}
	head, err := s.get(ctx, store, f.Key, 0, object.HeaderLen)
	if err != nil {
		return err
	}
	h, err := object.ParseHeader(head)
	if err != nil {
		return err
	}
	if h.WAL != f.WAL || h.Seq != id.Seq {
		return fmt.Errorf("it belongs to %s, number %d: %w", h.WAL, h.Seq, mink.ErrCorrupt)
	}
	f.Window = uint64(h.Window)
	if h.Kind == plan.KindTombstone {
		f.Tombstone = true
		return nil
	}
	for n := min(f.Bytes, tailBytes); ; {
		tail, err := s.get(ctx, store, f.Key, f.Bytes-n, n)
		if err != nil {
			return err
		}
		_, x, need, err := object.ReadFooterAndIndex(head, tail, f.Bytes)
		if err != nil {
			return err
		}
		if need == 0 {
			f.Items = x.Items(id)
			return nil
		}
		if need > f.Bytes || need <= n {
			return fmt.Errorf("an index of %d bytes in an object of %d: %w", need, f.Bytes, mink.ErrCorrupt)
		}
		n = need
	}
}

// get reads exactly n bytes.
func (s *scan) get(ctx context.Context, store objstore.Store, key string, at, n int64) ([]byte, error) {
	pause := firstPause
	for try := 1; ; try++ {
		r, err := store.GetRange(ctx, objstore.GetRangeRequest{Key: key, Offset: at, Length: n})
		if err == nil && int64(len(r.Data)) != n {
			err = fmt.Errorf("%d bytes of %d: %w", len(r.Data), n, objstore.ErrUnavailable)
		}
		if err == nil {
			return r.Data, nil
		}
		if try == attempts || !errors.Is(err, objstore.ErrUnavailable) && !errors.Is(err, objstore.ErrThrottled) {
			return nil, err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		}
		pause *= 2
	}
}
