package stream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

const (
	// wholeBytesMax is where outputs are cut that are put whole: they are built in
	// memory.
	wholeBytesMax = 128 << 20
	// outputBlocksMax and outputCheckpointsMax bound what stays in memory until an
	// output is finished whatever its size: its index, and its checkpoints (bytes).
	// Whoever reads an object needs the whole index, and the index cache of a small
	// node keeps none that is much larger.
	outputBlocksMax      = 64 << 10
	outputCheckpointsMax = 32 << 20
	// tailBytesMax is more than comes behind the last part that is sent early: a
	// block, the checkpoints with one more, the index.
	tailBytesMax = 4 * object.MaxBody
)

// partsOf says how merges write to the store: its multipart side (nil: there is
// none that fits), the size of a part and the size at which outputs are cut.
func partsOf(store objstore.Store, cfg Config) (parts objstore.Multiparter, partBytes, objectBytes int64) {
	c := store.Capabilities()
	objectBytes = cfg.Compaction.ObjectBytes
	parts, ok := objstore.Multipart(store)
	partBytes = max(cfg.CompactPartBytes, c.PartSizeMin, objectBytes/(objstore.PartNumberMax/2))
	if !ok || partBytes > math.MaxInt64-tailBytesMax || partBytes+tailBytesMax > c.PartSizeMax {
		return nil, cfg.CompactPartBytes, min(objectBytes, wholeBytesMax, c.PutSizeMax)
	}
	return parts, partBytes, objectBytes
}

// output is one object that a merge makes. Where the store takes parts, they are
// sent as the object grows; a small one is put whole all the same, which is one
// request and not three.
type output struct {
	engine *Engine
	header object.Header
	b      *object.Builder
	upload objstore.UploadID // "": not started
	sent   []objstore.Part
}

func (e *Engine) newOutput(h object.Header) *output {
	return &output{engine: e, header: h, b: object.NewBuilder(0)}
}

func (o *output) key() string { return plan.Key(o.header.WAL, o.header.Kind, o.header.Seq) }

// full says that n more bytes of blocks belong into another object.
func (o *output) full(n int64) bool {
	has := o.b.Len()
	return has > 0 && has+n > o.engine.cfg.Compaction.ObjectBytes ||
		o.b.Blocks() >= outputBlocksMax || o.b.CheckpointLen() >= outputCheckpointsMax
}

// send writes what is finished, if it makes a part. An error ends the output.
func (o *output) send(ctx context.Context) error {
	e := o.engine
	if e.parts == nil || o.b.Ready() < e.cfg.CompactPartBytes {
		return nil
	}
	if o.upload == "" {
		err := e.retryWrite(ctx, func() (err error) {
			o.upload, err = e.parts.StartUpload(ctx, o.key())
			return err
		})
		if err != nil {
			o.upload = "" // one whose answer was lost is the store's to clean up
			return fmt.Errorf("start the upload of object %s: %w", o.key(), classify(err))
		}
	}
	chunks, err := o.b.Take(o.header)
	if err != nil {
		return err
	}
	return o.put(ctx, chunks)
}

func (o *output) put(ctx context.Context, chunks [][]byte) error {
	e := o.engine
	req := objstore.PutPartRequest{
		Key: o.key(), Upload: o.upload, Number: len(o.sent) + 1, Chunks: chunks,
		CRC32C: objstore.Checksum(chunks...), HasCRC32C: true,
	}
	var part objstore.Part
	err := e.retryWrite(ctx, func() (err error) {
		part, err = e.parts.PutPart(ctx, req)
		return err
	})
	if err != nil {
		return fmt.Errorf("part %d of object %s, %d bytes: %w", req.Number, req.Key, objstore.SizeOf(chunks), classify(err))
	}
	o.sent = append(o.sent, part)
	return nil
}

// finish writes the rest and makes the object visible.
func (o *output) finish(ctx context.Context, as plan.Object, rest [][]byte, crc uint32) error {
	e := o.engine
	if o.upload == "" {
		return e.putObject(ctx, as, rest, crc)
	}
	if err := o.put(ctx, rest); err != nil {
		return err
	}
	err := e.retryWrite(ctx, func() error {
		_, err := e.parts.CompleteUpload(ctx, objstore.CompleteUploadRequest{Key: o.key(), Upload: o.upload, Parts: o.sent})
		if err == nil {
			return nil
		}
		// This attempt or the one before may have done it, whatever it answered: the
		// key belongs to these bytes alone.
		if have, herr := e.deps.Objects.Head(ctx, o.key()); herr == nil && have.Size == as.Size {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("complete object %s, %d bytes in %d parts: %w", o.key(), as.Size, len(o.sent), classify(err))
	}
	e.stats.puts.Add(1)
	e.stats.putBytes.Add(as.Size)
	return nil
}

// abort drops the parts of an output that will not be finished, now or by the
// sweep. Those of a process that dies are the store's to clean up.
func (o *output) abort(ctx context.Context) {
	if o.upload == "" {
		return
	}
	if ctx.Err() == nil && o.engine.parts.AbortUpload(ctx, o.key(), o.upload) == nil {
		return
	}
	o.engine.leave(leftover{key: o.key(), upload: o.upload})
}

// outputs are the objects that one job makes, one after the other, and what its
// command says of them.
type outputs struct {
	engine  *Engine
	kind    plan.ObjectKind
	tier    uint8
	created int64 // the same for all of them: they are one run

	out     *output // nil: none is begun
	items   []plan.Item
	objects []plan.Object
	written []plan.Object
}

func newOutputs(e *Engine, kind plan.ObjectKind, tier uint8) outputs {
	return outputs{engine: e, kind: kind, tier: tier, created: time.Now().UnixMilli()}
}

// makeRoom finishes the output if so many bytes of blocks more are too many.
func (o *outputs) makeRoom(ctx context.Context, n int64) error {
	if o.out == nil || !o.out.full(n) {
		return nil
	}
	return o.finish(ctx)
}

func (o *outputs) output() *output {
	if o.out == nil {
		o.out = o.engine.newOutput(object.Header{
			Kind: o.kind, WAL: o.engine.deps.WAL, Seq: o.engine.uploads.objectSeq.Add(1), Nonce: rand.Uint64(), CreatedMs: o.created,
		})
	}
	return o.out
}

// id is that of the output, which is begun.
func (o *outputs) id() plan.ObjectID {
	return plan.ObjectID{Epoch: o.engine.deps.WAL.Epoch, Kind: o.kind, Seq: o.out.header.Seq}
}

// place notes that the output holds [start, end).
func (o *outputs) place(id mink.StreamID, start, end mink.Offset) {
	if n := len(o.items); n > 0 {
		last := &o.items[n-1]
		if last.Stream == id && last.Object == o.id() && last.End == start && !last.Checkpoint {
			last.End = end
			return
		}
	}
	o.items = append(o.items, plan.Item{Stream: id, Object: o.id(), Start: start, End: end})
}

// finish writes the output, if there is one.
func (o *outputs) finish(ctx context.Context) error {
	if o.out == nil {
		return nil
	}
	chunks, sum, err := o.out.b.Finish(o.out.header)
	if err != nil {
		return err
	}
	made := sum.Object(o.tier)
	o.written = append(o.written, made)
	if err := o.out.finish(ctx, made, chunks, sum.CRC); err != nil {
		return err
	}
	o.out = nil
	o.objects = append(o.objects, made)
	return nil
}

// settle looks after the outputs once their command was answered: they are named, or
// refused and deleted again, or left to the sweep when nobody knows.
func (o *outputs) settle(ctx context.Context, err error) {
	switch {
	case err == nil:
	case errors.Is(err, mink.ErrFenced):
		o.engine.fail(fmt.Errorf("objects of wal %s: %w", o.engine.deps.WAL, err))
	case refused(err):
		keys := make([]string, 0, len(o.written))
		for _, w := range o.written {
			keys = append(keys, w.Key())
		}
		if _, derr := deleteEach(ctx, o.engine.deps.Objects, keys); derr != nil {
			o.engine.abandon(o.written)
		}
	default:
		o.engine.abandon(o.written)
	}
}

// giveUp leaves what was written to the sweep, after an error.
func (o *outputs) giveUp(ctx context.Context) {
	o.engine.abandon(o.written)
	if o.out != nil {
		o.out.abort(ctx)
	}
}
