package lake

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"

	"github.com/mink-project/mink/sdk/catalog"
)

// metadataMax bounds a metadata file, unpacked. A snapshot takes some 700 bytes.
const metadataMax = 256 << 20

// codecs of metadata files, by the ends of their names: what is written has the first.
var codecs = []struct {
	property string
	suffixes []string
}{
	{table.MetadataCompressionCodecGzip, []string{".gz.metadata.json", ".metadata.json.gz"}},
	{table.MetadataCompressionCodecZstd, []string{".zstd.metadata.json", ".metadata.json.zstd"}},
	{table.MetadataCompressionCodecNone, []string{".metadata.json"}},
}

// errMissing: damage, unless the catalog names another file by now.
var errMissing = errors.New("is missing")

// readMetadata reads a metadata file, or remembers it.
func (w *Warehouse) readMetadata(ctx context.Context, location string) (table.Metadata, error) {
	if meta, ok := w.parsed.get(location); ok {
		return meta, nil
	}
	packed, err := w.files.With(ctx).ReadFile(location)
	if errors.Is(err, catalog.ErrNotExist) {
		return nil, fmt.Errorf("metadata file %s, which the catalog names, %w: %w", location, errMissing, catalog.ErrCorrupt)
	}
	if err != nil {
		return nil, fmt.Errorf("metadata file: %w", err)
	}
	raw, err := unpack(location, packed)
	var meta table.Metadata
	if err == nil {
		meta, err = parseMetadata(raw)
	}
	if err != nil {
		return nil, fmt.Errorf("metadata file %s: %w: %w", location, catalog.ErrCorrupt, err)
	}
	w.parsed.put(location, meta, int64(len(raw)))
	return meta, nil
}

func parseMetadata(raw []byte) (meta table.Metadata, err error) {
	defer recovered(&err)
	return table.ParseMetadataBytes(raw)
}

func unpack(location string, packed []byte) ([]byte, error) {
	var r io.Reader
	switch codecOf(location) {
	case table.MetadataCompressionCodecGzip:
		gz, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return nil, err
		}
		r = gz
	case table.MetadataCompressionCodecZstd:
		dec, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(metadataMax))
		if err != nil {
			return nil, err
		}
		defer dec.Close()
		r = dec
	default:
		r = bytes.NewReader(packed)
	}
	raw, err := io.ReadAll(io.LimitReader(r, metadataMax+1))
	if err == nil && len(raw) > metadataMax {
		err = fmt.Errorf("it has more than %d bytes", metadataMax)
	}
	return raw, err
}

func codecOf(location string) string {
	for _, c := range codecs {
		for _, suffix := range c.suffixes {
			if strings.HasSuffix(location, suffix) {
				return c.property
			}
		}
	}
	return table.MetadataCompressionCodecNone
}

// writeMetadata writes a new metadata file, <version>-<uuid>.metadata.json, and answers
// the metadata as everybody will read it. Nothing that could not be read again is written.
func (w *Warehouse) writeMetadata(ctx context.Context, meta table.Metadata, version int) (location string, _ table.Metadata, err error) {
	raw, err := json.Marshal(meta)
	if err != nil {
		return "", nil, invalid(err)
	}
	if len(raw) > metadataMax {
		return "", nil, fmt.Errorf("%w: the table's metadata would have %d bytes, the limit is %d; expire snapshots", catalog.ErrInvalid, len(raw), metadataMax)
	}
	again, err := parseMetadata(raw)
	if err != nil {
		return "", nil, fmt.Errorf("the table could not be read any more: %w", invalid(err))
	}
	codec := meta.Properties().Get(table.MetadataCompressionKey, table.MetadataCompressionDefault)
	packed, suffix, err := pack(codec, raw)
	if err != nil {
		return "", nil, err
	}
	dir := meta.Location() + "/metadata"
	if p, ok := meta.Properties()[table.WriteMetadataPathKey]; ok {
		dir = strings.TrimRight(p, "/")
	}
	location = fmt.Sprintf("%s/%05d-%s%s", dir, version, uuid.NewString(), suffix)
	if err := w.files.With(ctx).WriteFile(location, packed); err != nil {
		return "", nil, fmt.Errorf("metadata file: %w", notChanged(err))
	}
	w.parsed.put(location, again, int64(len(raw)))
	return location, again, nil
}

func pack(codec string, raw []byte) (packed []byte, suffix string, err error) {
	var buf bytes.Buffer
	var z io.WriteCloser
	switch codec {
	case table.MetadataCompressionCodecNone:
		return raw, codecs[2].suffixes[0], nil
	case table.MetadataCompressionCodecGzip:
		z, suffix = gzip.NewWriter(&buf), codecs[0].suffixes[0]
	case table.MetadataCompressionCodecZstd:
		z, err = zstd.NewWriter(&buf, zstd.WithEncoderConcurrency(1))
		suffix = codecs[1].suffixes[0]
	default:
		err = fmt.Errorf("%w: property %s is %q, must be none, gzip or zstd", catalog.ErrInvalid, table.MetadataCompressionKey, codec)
	}
	if err != nil {
		return nil, "", err
	}
	_, err = z.Write(raw)
	if err := errors.Join(err, z.Close()); err != nil {
		return nil, "", err
	}
	return buf.Bytes(), suffix, nil
}
