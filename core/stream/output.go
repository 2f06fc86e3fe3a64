package stream

import (
	"context"
	"fmt"
	"math"

	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
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
