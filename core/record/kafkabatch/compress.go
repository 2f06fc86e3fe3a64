package kafkabatch

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// compressor writes records in Kafka's codecs, in forms that every client reads.
type compressor struct {
	buf  bytes.Buffer
	gzip *gzip.Writer
	lz4  *lz4.Writer
	zstd *zstd.Encoder
}

// snappyBlock is how much the Java client puts in one xerial block.
const snappyBlock = 32 << 10

// append adds the compressed src to dst.
func (c *compressor) append(dst []byte, codec Codec, src []byte) ([]byte, error) {
	c.buf.Reset()
	if c.buf.Cap() > keepBytes {
		c.buf = bytes.Buffer{}
	}
	var err error
	switch codec {
	case CodecNone:
		return append(dst, src...), nil
	case CodecGzip:
		if c.gzip == nil {
			c.gzip = gzip.NewWriter(&c.buf)
		}
		c.gzip.Reset(&c.buf)
		if _, err = c.gzip.Write(src); err == nil {
			err = c.gzip.Close()
		}
	case CodecSnappy:
		return appendXerial(dst, src), nil
	case CodecLZ4:
		if c.lz4 == nil {
			c.lz4 = lz4.NewWriter(&c.buf)
			if err = c.lz4.Apply(lz4.BlockSizeOption(lz4.Block64Kb)); err != nil {
				return dst, err
			}
		}
		c.lz4.Reset(&c.buf)
		if _, err = c.lz4.Write(src); err == nil {
			err = c.lz4.Close()
		}
	case CodecZstd:
		if c.zstd == nil {
			// Concurrency 1 encodes in the caller: no goroutine is left behind.
			c.zstd, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(1<<20))
			if err != nil {
				return dst, err
			}
		}
		return c.zstd.EncodeAll(src, dst), nil
	default:
		return dst, fmt.Errorf("unknown codec %d", codec)
	}
	if err != nil {
		return dst, err
	}
	return append(dst, c.buf.Bytes()...), nil
}

// appendXerial frames snappy blocks as the Java client does, the only form it reads.
func appendXerial(dst, src []byte) []byte {
	dst = append(dst, xerial...)
	dst = binary.BigEndian.AppendUint32(dst, 1) // version
	dst = binary.BigEndian.AppendUint32(dst, 1) // oldest version that reads it
	for len(src) > 0 {
		n := min(len(src), snappyBlock)
		block := snappy.Encode(nil, src[:n])
		dst = append(binary.BigEndian.AppendUint32(dst, uint32(len(block))), block...)
		src = src[n:]
	}
	return dst
}
