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
		// The caller's view is older: it takes a new one.
		return source{}, fmt.Errorf("object %+v left the metadata: %w", id, objstore.ErrNotExist)
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
			flights := e.claim(src, blocks, flight, end, window)
			return e.fetch(ctx, src, blocks[:len(flights)], flights)
		}
		frames, retry, err := flight.Wait(ctx)
		if !retry {
			return frames, err
		}
	}
}

type flight = *cache.Flight[blockKey, []Frame]

// claim takes on the blocks that follow blocks[0] as long as nobody has them.
func (e *Engine) claim(src source, blocks []object.BlockInfo, first flight, end mink.Offset, window int64) []flight {
	flights := []flight{first}
	size := blocks[0].Len()
	for k := 1; k < len(blocks) && blocks[k].Start < end && size+blocks[k].Len() <= window; k++ {
		_, _, f, mine := e.blocks.Begin(blockKey{src.object.ID, blocks[k].Pos})
		if !mine {
			break
		}
		flights = append(flights, f)
		size += blocks[k].Len()
	}
	return flights
}

// fetch reads adjoining blocks with one GET and ends their flights. It answers
// the first one's frames.
func (e *Engine) fetch(ctx context.Context, src source, blocks []object.BlockInfo, flights []flight) ([]Frame, error) {
	from, last := blocks[0].Pos, blocks[len(blocks)-1]
	data, err := e.get(ctx, src.object, from, last.Pos+last.Len()-from)
	if err != nil {
		err = fmt.Errorf("object %s, block of stream %d at %d: %w", src.object.Key(), blocks[0].Stream, blocks[0].Start, err)
	}
	var first []Frame
	var firstErr error
	for k, f := range flights {
		frames, err := decode(src, blocks[k], data, from, err, len(blocks) > 1)
		f.Done(frames, blocks[k].Len()+int64(len(frames))*frameSize, err)
		if k == 0 {
			first, firstErr = frames, err
		}
	}
	return first, firstErr
}

func decode(src source, b object.BlockInfo, data []byte, from int64, err error, shared bool) ([]Frame, error) {
	if err != nil {
		return nil, err
	}
	raw := data[b.Pos-from : b.Pos-from+b.Len()]
	if shared { // or one cached block would keep its neighbours' bytes
		raw = slices.Clone(raw)
	}
	frames, err := object.DecodeBlock(b, raw)
	if err != nil {
		return nil, fmt.Errorf("object %s, block of stream %d at %d: %w", src.object.Key(), b.Stream, b.Start, err)
	}
	return frames, nil
}
