package stream

import (
	"context"
	"fmt"
	"slices"

	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// merger reads the live ranges of the sources in (stream, offset) order and
// writes them to objects that are cut at stream boundaries, or within a stream
// that is too large for one.
//
//	sources   A: s1[0,10) s2[0,5)    B: s1[10,20) s3[0,9)
//	output       s1[0,10) s1[10,20)  s2[0,5)  s3[0,9)       one run
//
// What must be in the outputs is said by the metadata's ranges, never by the
// sources' indexes: an offset of a range that no frame holds is corruption, and
// ends the merge. Memory: one buffer per source that is being read (of a run, one
// object at a time), the indexes, and the output being made, or a part of it.
type merger struct {
	outputs
	view    View
	job     plan.Job
	sources map[plan.ObjectID]*input
}

func newMerger(e *Engine, view View, job plan.Job) *merger {
	m := &merger{outputs: newOutputs(e, plan.KindStream, job.Tier), view: view, job: job, sources: map[plan.ObjectID]*input{}}
	for _, id := range job.Sources {
		if id.Kind != plan.KindStream {
			m.kind = plan.KindStreamSet
		}
	}
	return m
}

func (m *merger) run(ctx context.Context) (plan.ReplaceObjects, error) {
	streams := map[mink.StreamID]bool{}
	for _, id := range m.job.Sources {
		src, err := m.engine.openSource(ctx, id, false)
		if err != nil {
			return plan.ReplaceObjects{}, &sourceError{id, err}
		}
		m.sources[id] = newInput(m.engine, src)
		for _, r := range m.view.ObjectRanges(id) {
			streams[r.Stream] = true
		}
	}
	ids := make([]mink.StreamID, 0, len(streams))
	for id := range streams {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if err := m.stream(ctx, id); err != nil {
			return plan.ReplaceObjects{}, err
		}
	}
	if err := m.finish(ctx); err != nil {
		return plan.ReplaceObjects{}, err
	}
	return plan.ReplaceObjects{WAL: m.engine.deps.WAL, BasedOn: m.view.Index(), Sources: m.job.Sources, Objects: m.objects, Items: m.items}, nil
}

// stream copies one stream's part.
func (m *merger) stream(ctx context.Context, id mink.StreamID) error {
	v, ok := m.view.Stream(id)
	if !ok {
		return nil
	}
	if err := m.makeRoom(ctx, m.bytes(v)); err != nil {
		return err
	}
	for _, r := range v.Ranges {
		if in := m.sources[r.Object]; in != nil {
			if err := m.copyRange(ctx, in, v, r); err != nil {
				return err
			}
		}
	}
	in := m.sources[v.Checkpoint]
	if in == nil {
		return nil
	}
	data, err := in.checkpoint(ctx, v)
	if err != nil {
		return err
	}
	if err := m.output().b.AddCheckpoint(id, v.CheckEnd, data); err != nil {
		return err
	}
	m.items = append(m.items, plan.Item{Stream: id, Object: m.id(), Start: v.CheckEnd, End: v.CheckEnd, Checkpoint: true})
	return nil
}

// bytes is about what the stream has in the sources.
func (m *merger) bytes(v plan.Stream) (n int64) {
	for _, r := range v.Ranges {
		if in := m.sources[r.Object]; in != nil {
			live, _ := liveBytes(in.source, []plan.ObjectRange{{Stream: v.ID, Start: max(r.Start, v.Start), End: r.End}})
			n += live
		}
	}
	return n
}

// copyRange copies the frames of r that are not trimmed. A block that is live
// from end to end, and large enough to stay a block, is copied as it is.
func (m *merger) copyRange(ctx context.Context, in *input, v plan.Stream, r plan.Range) error {
	at := max(r.Start, v.Start)
	first := true
	blocks := in.index.BlocksFrom(v.ID, at)
	for k := range blocks {
		b := &blocks[k]
		if b.Start >= r.End {
			break
		}
		raw, err := in.block(ctx, b)
		if err != nil {
			return err
		}
		if err := m.makeRoom(ctx, b.Len()); err != nil {
			return err
		}
		whole := b.Start >= r.Start && b.Start >= v.Start && b.End() <= r.End
		if whole && b.EncLen >= object.BlockTarget/2 {
			if at, first, err = in.expect(v.ID, b.Start, b.End(), at, first, r); err != nil {
				return err
			}
			if err := m.output().b.AddEncodedBlock(*b, raw); err != nil {
				return in.wrong(v.ID, b.Start, err)
			}
			m.place(v.ID, b.Start, b.End())
			if err := m.out.send(ctx); err != nil {
				return err
			}
			continue
		}
		frames, err := object.DecodeBlock(*b, raw)
		if err != nil {
			return in.wrong(v.ID, b.Start, err)
		}
		for i := range frames {
			f := &frames[i]
			if f.End() <= at || f.Start >= r.End {
				continue
			}
			if at, first, err = in.expect(v.ID, f.Start, f.End(), at, first, r); err != nil {
				return err
			}
			if err := m.output().b.AddFrame(v.ID, f); err != nil {
				return err
			}
			m.place(v.ID, f.Start, f.End())
		}
		if m.out != nil {
			if err := m.out.send(ctx); err != nil {
				return err
			}
		}
	}
	if at != r.End {
		return in.wrong(v.ID, at, fmt.Errorf("metadata says [%d, %d): %w", r.Start, r.End, mink.ErrCorrupt))
	}
	return nil
}

// input reads one source front to back, through two buffers: blocks and
// checkpoints each come in order.
type input struct {
	source
	engine      *Engine
	blocks      window
	checkpoints window
}

// window is [pos, pos+len(data)) of the object.
type window struct {
	pos  int64
	data []byte
}

func newInput(e *Engine, src source) *input { return &input{source: src, engine: e} }

// read answers n bytes at pos; what lies behind them, below limit, is fetched
// along. The bytes are never overwritten.
func (in *input) read(ctx context.Context, w *window, pos, n, limit int64) ([]byte, error) {
	if pos < w.pos || pos+n > w.pos+int64(len(w.data)) {
		size := max(n, min(in.engine.cfg.CompactReadBytes, limit-pos))
		data, err := in.engine.get(ctx, in.object, pos, size)
		if err != nil {
			return nil, err
		}
		w.pos, w.data = pos, data
	}
	from := pos - w.pos
	return w.data[from : from+n : from+n], nil
}

func (in *input) block(ctx context.Context, b *object.BlockInfo) ([]byte, error) {
	raw, err := in.read(ctx, &in.blocks, b.Pos, b.Len(), in.object.IndexPos)
	if err != nil {
		return nil, in.wrong(b.Stream, b.Start, err)
	}
	if b.Pos == in.index.Blocks[len(in.index.Blocks)-1].Pos {
		in.blocks = window{} // a run of many objects holds one buffer at a time
	}
	return raw, nil
}

func (in *input) checkpoint(ctx context.Context, v plan.Stream) ([]byte, error) {
	info, ok := in.index.CheckpointOf(v.ID)
	if !ok || info.End != v.CheckEnd {
		return nil, in.wrong(v.ID, v.CheckEnd, fmt.Errorf("no checkpoint there: %w", mink.ErrCorrupt))
	}
	raw, err := in.read(ctx, &in.checkpoints, info.Pos, int64(info.Len), in.object.IndexPos)
	if err != nil {
		return nil, in.wrong(v.ID, v.CheckEnd, err)
	}
	if last := in.index.Checkpoints[len(in.index.Checkpoints)-1]; info.Pos == last.Pos {
		in.checkpoints = window{}
	}
	data, err := object.DecodeCheckpoint(info, raw)
	if err != nil {
		return nil, in.wrong(v.ID, v.CheckEnd, err)
	}
	return data, nil
}

// expect checks that [start, end) goes on at `at`; the first frame may begin
// below it (a trim within it).
func (in *input) expect(id mink.StreamID, start, end, at mink.Offset, first bool, r plan.Range) (mink.Offset, bool, error) {
	if start > at || start < at && !first || end <= at || end > r.End {
		return at, first, in.wrong(id, start, fmt.Errorf("found [%d, %d) where %d was expected, range [%d, %d): %w", start, end, at, r.Start, r.End, mink.ErrCorrupt))
	}
	return end, false, nil
}

func (in *input) wrong(id mink.StreamID, at mink.Offset, err error) error {
	return &sourceError{in.object.ID, fmt.Errorf("object %s, stream %d at %d: %w", in.object.Key(), id, at, err)}
}
