package lake

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/sink"
)

// Keys of the summary of every snapshot that a round made (of rows or of a compaction), and, with the last
// round's values, of the table's properties.
const (
	keyTableID     = "mink.table-id"
	keyRound       = "mink.round-id"
	keyEpoch       = "mink.epoch"
	keyOffsets     = "mink.offsets"      // JSON of sink.Committed without its snapshot
	keyOffsetsFile = "mink.offsets-file" // instead, when that is longer than inlineOffsets: its location
	keyOffsetsCRC  = "mink.offsets-crc32c"
	keySchemaID    = "mink.schema-id" // property only: Mink's version of the columns
)

// inlineOffsets is the longest offsets that stand in a summary, in bytes: every
// snapshot's summary is in every metadata file.
const inlineOffsets = 4 << 10

// maxOffsets bounds what is read of a side file: sink.RangesMax buckets.
const maxOffsets = 16 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// roundProperties are the keys of a round. put writes the side file, when there
// must be one, under a name relative to the table's directory and answers its
// location.
func roundProperties(tableID string, c sink.Committed, put func(name string, data []byte) (string, error)) (iceberg.Properties, error) {
	c.Snapshot = ""
	text, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("offsets of round %s: %w", c.Round, err)
	}
	props := iceberg.Properties{keyTableID: tableID, keyRound: string(c.Round), keyEpoch: strconv.FormatInt(int64(c.Fence), 10)}
	if len(text) <= inlineOffsets {
		props[keyOffsets] = string(text)
		return props, nil
	}
	crc := fmt.Sprintf("%08x", crc32.Checksum(text, castagnoli))
	location, err := put(fmt.Sprintf("%s_mink-offsets-%s-%s.json", metadataDir, c.Round, crc), text)
	if err != nil {
		return nil, fmt.Errorf("offsets of round %s: %w", c.Round, err)
	}
	props[keyOffsetsFile], props[keyOffsetsCRC] = location, crc
	return props, nil
}

// SnapshotOffsets is how far Mink's tiering had come in a snapshot: what the newest
// of it and its ancestors says that was made by a round; snapshots that other
// engines made carry the state of the round before on. Committed.Snapshot is that
// ancestor's id. Zero when no round was ever committed. When the table's properties
// say that there was one and no ancestor has it, because another engine expired the
// snapshot or replaced the history, the error wraps sink.ErrCorrupt: it is never
// taken for zero.
func SnapshotOffsets(ctx context.Context, tbl *table.Table, snapshotID int64) (sink.Committed, error) {
	name := fmt.Sprint(tbl.Identifier())
	s := tbl.SnapshotByID(snapshotID)
	if s == nil {
		return sink.Committed{}, fmt.Errorf("lake table %s: snapshot %d: %w", name, snapshotID, sink.ErrNotExist)
	}
	return ancestorOffsets(ctx, tbl, s)
}

// currentOffsets is SnapshotOffsets of the current snapshot, which may be absent.
func currentOffsets(ctx context.Context, tbl *table.Table) (sink.Committed, error) {
	return ancestorOffsets(ctx, tbl, tbl.CurrentSnapshot())
}

func ancestorOffsets(ctx context.Context, tbl *table.Table, from *table.Snapshot) (sink.Committed, error) {
	props := tbl.Properties()
	for s, steps := from, len(tbl.Metadata().Snapshots()); s != nil && steps >= 0; steps-- {
		if s.Summary != nil && s.Summary.Properties[keyRound] != "" && s.Summary.Properties[keyTableID] == props[keyTableID] {
			return readOffsets(ctx, tbl, s)
		}
		if s.ParentSnapshotID == nil {
			break
		}
		s = tbl.SnapshotByID(*s.ParentSnapshotID)
	}
	if round := props[keyRound]; round != "" {
		return sink.Committed{}, fmt.Errorf("lake table %v: %w: round %s was committed, but the snapshot that says how far it went is no ancestor of the one read: another engine expired or rolled it back; "+
			"roll the table back to a snapshot of Mink's, or raise the table option lake_generation to begin it anew", tbl.Identifier(), sink.ErrCorrupt, round)
	}
	return sink.Committed{}, nil
}

func readOffsets(ctx context.Context, tbl *table.Table, s *table.Snapshot) (sink.Committed, error) {
	fail := func(err error) (sink.Committed, error) {
		return sink.Committed{}, fmt.Errorf("lake table %v: offsets of snapshot %d: %w", tbl.Identifier(), s.SnapshotID, err)
	}
	p := s.Summary.Properties
	text := []byte(p[keyOffsets])
	if location := p[keyOffsetsFile]; location != "" {
		var err error
		if text, err = readSmall(ctx, tbl, location); err != nil {
			return fail(err)
		}
		if crc := fmt.Sprintf("%08x", crc32.Checksum(text, castagnoli)); crc != p[keyOffsetsCRC] {
			return fail(fmt.Errorf("%w: CRC32C of %s is %s, want %s", sink.ErrCorrupt, location, crc, p[keyOffsetsCRC]))
		}
	}
	var c sink.Committed
	if err := json.Unmarshal(text, &c); err != nil {
		return fail(fmt.Errorf("%w: %w", sink.ErrCorrupt, err))
	}
	if string(c.Round) != p[keyRound] || strconv.FormatInt(int64(c.Fence), 10) != p[keyEpoch] {
		return fail(fmt.Errorf("%w: they are of round %s, epoch %d, the summary is of round %s, epoch %s", sink.ErrCorrupt, c.Round, c.Fence, p[keyRound], p[keyEpoch]))
	}
	c.Snapshot = strconv.FormatInt(s.SnapshotID, 10)
	return c, nil
}

func readSmall(ctx context.Context, tbl *table.Table, location string) ([]byte, error) {
	fs, err := tbl.FS(ctx)
	if err != nil {
		return nil, err
	}
	f, err := fs.Open(location)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxOffsets+1))
	if err == nil && len(data) > maxOffsets {
		err = fmt.Errorf("%w: %s is larger than %d bytes", sink.ErrCorrupt, location, maxOffsets)
	}
	return data, err
}
