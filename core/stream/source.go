package stream

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/mink-project/mink/core/stream/cache"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

const (
	frameSize     = int64(unsafe.Sizeof(Frame{}))
	blockInfoSize = int64(unsafe.Sizeof(object.BlockInfo{}))
)

// errLeft: the object left the metadata after the caller's view, which must take a new one.
var errLeft = fmt.Errorf("it left the metadata: %w", objstore.ErrNotExist)

// source is an object with its index.
type source struct {
	object plan.Object
	index  *object.Index
}

type blockKey struct {
	object plan.ObjectID
	pos    int64
}

// storeOf answers the store that holds an object: WAL slots may live elsewhere.
func (e *Engine) storeOf(id plan.ObjectID) objstore.Store {
	if id.Kind == plan.KindWAL {
		return e.deps.WALStore
	}
	return e.deps.Objects
}

// openSource answers the index of an object that the current view names.
func (e *Engine) openSource(ctx context.Context, id plan.ObjectID, cachedOnly bool) (source, error) {
	o, ok := e.deps.Meta.View().Object(id)
	if !ok {
		return source{}, fmt.Errorf("object %+v: %w", id, errLeft)
	}
	if cachedOnly {
		x, ok := e.indexes.Get(id)
		if !ok {
			return source{}, mink.ErrNotCached
		}
		return source{o, x}, nil
	}
	x, err := e.indexes.Load(ctx, id, func(ctx context.Context) (*object.Index, int64, error) {
		resp, err := e.get(ctx, o, o.IndexPos, o.IndexLen)
		if err != nil {
			return nil, 0, fmt.Errorf("index of object %s: %w", o.Key(), err)
		}
		x, err := object.ParseIndexOf(resp, o.IndexPos, o.IndexCRC)
		if err != nil {
			return nil, 0, fmt.Errorf("object %s: %w", o.Key(), err)
		}
		return x, int64(len(x.Blocks))*blockInfoSize + int64(len(x.Checkpoints))*32 + 64, nil
	})
	return source{o, x}, err
}

func (e *Engine) get(ctx context.Context, o plan.Object, pos, n int64) ([]byte, error) {
	limited, cancel := context.WithTimeout(ctx, e.cfg.ReadTimeout)
	defer cancel()
	resp, err := e.storeOf(o.ID).GetRange(limited, objstore.GetRangeRequest{Key: o.Key(), Offset: pos, Length: n})
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		// Not the caller's deadline: those who wait for the same bytes must not
		// take it for theirs.
		return nil, fmt.Errorf("no answer within %s: %w", e.cfg.ReadTimeout, objstore.ErrUnavailable)
	}
	if err != nil {
		return nil, err
	}
	if int64(len(resp.Data)) != n {
		return nil, fmt.Errorf("object %s: %d bytes at %d, asked for %d: %w", o.Key(), len(resp.Data), pos, n, objstore.ErrUnavailable)
	}
	e.stats.gets.Add(1)
	e.stats.getBytes.Add(n)
	return resp.Data, nil
}

// block answers the frames of blocks[0], from the cache or by one ranged GET
// that takes up to window bytes of its neighbours that start below end along.
func (e *Engine) block(ctx context.Context, src source, blocks []object.BlockInfo, end mink.Offset, cachedOnly bool, window int64) ([]Frame, error) {
	key := blockKey{src.object.ID, blocks[0].Pos}
	for {
		if cachedOnly {
			if f, ok := e.blocks.Get(key); ok {
				return f, nil
			}
			return nil, mink.ErrNotCached
		}
		frames, cached, flight, mine := e.blocks.Begin(key)
		if cached {
			return frames, nil
		}
		if mine {
			if src.object.ID.Kind == plan.KindWAL && src.object.Size <= e.cfg.ReadaheadMax {
				return e.fetch(ctx, src, e.claimAll(src, blocks[0], flight), blocks[0].Pos)
			}
			return e.fetch(ctx, src, e.claim(src, blocks, flight, end, window), blocks[0].Pos)
		}
		frames, retry, err := flight.Wait(ctx)
		if !retry {
			return frames, err
		}
	}
}

type flight = *cache.Flight[blockKey, []Frame]

// claimed is a block that this reader fetches for all.
type claimed struct {
	info   object.BlockInfo
	flight flight
}

// claim takes on the blocks that follow blocks[0] as long as nobody has them.
func (e *Engine) claim(src source, blocks []object.BlockInfo, first flight, end mink.Offset, window int64) []claimed {
	list := []claimed{{blocks[0], first}}
	size := blocks[0].Len()
	for k := 1; k < len(blocks) && blocks[k].Start < end && size+blocks[k].Len() <= window; k++ {
		_, _, f, mine := e.blocks.Begin(blockKey{src.object.ID, blocks[k].Pos})
		if !mine {
			break
		}
		list = append(list, claimed{blocks[k], f})
		size += blocks[k].Len()
	}
	return list
}

// claimAll takes on every block of a bulk that nobody has. Who leads one stream
// of a dead node is likely to open its others too: each bulk is then read once,
// not once per stream.
func (e *Engine) claimAll(src source, want object.BlockInfo, first flight) []claimed {
	var list []claimed
	for _, b := range src.index.Blocks {
		if b.Pos == want.Pos {
			list = append(list, claimed{b, first})
		} else if _, _, f, mine := e.blocks.Begin(blockKey{src.object.ID, b.Pos}); mine {
			list = append(list, claimed{b, f})
		}
	}
	return list
}

// fetch reads blocks, in the order of their positions, with one GET and ends
// their flights. It answers the frames of the one at want.
func (e *Engine) fetch(ctx context.Context, src source, list []claimed, want int64) (frames []Frame, err error) {
	from, last := list[0].info.Pos, list[len(list)-1].info
	data, failed := e.get(ctx, src.object, from, last.Pos+last.Len()-from)
	for _, c := range list {
		b := c.info
		var f []Frame
		derr := failed
		if derr == nil {
			f, derr = object.DecodeBlock(b, bytesOf(b, data, from, len(list) > 1))
		}
		if derr != nil {
			derr = fmt.Errorf("object %s, block of stream %d at %d: %w", src.object.Key(), b.Stream, b.Start, derr)
		}
		c.flight.Done(f, b.Len()+int64(len(f))*frameSize, derr)
		if b.Pos == want {
			frames, err = f, derr
		}
	}
	return frames, err
}

// bytesOf cuts a block out of what was fetched from position `from` on; as a copy
// when it was fetched with others, or one cached block would keep them all.
func bytesOf(b object.BlockInfo, data []byte, from int64, shared bool) []byte {
	raw := data[b.Pos-from : b.Pos-from+b.Len()]
	if shared {
		return slices.Clone(raw)
	}
	return raw
}
