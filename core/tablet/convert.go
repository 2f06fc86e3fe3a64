package tablet

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/sdk/mink"
)

// KafkaBatch answers b as a Kafka v2 batch: a kafka payload verbatim (it aliases
// b), the rows of an arrow batch encoded anew, one record per offset: of four
// columns as they are, else as JSON objects without keys. Offsets without records
// become an empty batch, so that consumers move on; so does a batch that cannot be
// decoded or encoded, which is quarantined. mink.ErrUnsupported for a table that
// is not a topic.
func (l *Log) KafkaBatch(b record.Batch) ([]byte, error) {
	if b.Encoding() == record.EncodingKafka {
		return b.Kafka(), nil
	}
	lay, err := l.layoutOf(b)
	if err != nil {
		return nil, err
	}
	if !l.settings.Load().isTopic(lay) {
		return nil, fmt.Errorf("bucket %s: %w: Kafka clients read tables with a topic's four columns, or with kafka.value.format = json", l.cfg.Bucket, mink.ErrUnsupported)
	}
	if b.Count() > 0 {
		out, err := l.encodeKafka(b, lay)
		if err == nil {
			return out, nil
		}
		l.poisoned(b, err)
	}
	return kafkabatch.EncodeValues(nil, 0, nil, encodingOf(b))
}

func encodingOf(b record.Batch) kafkabatch.Encoding {
	return kafkabatch.Encoding{
		Base:            b.BaseOffset(),
		LeaderEpoch:     b.LeaderEpoch(),
		LastOffsetDelta: int32(b.LastOffset() - b.BaseOffset()),
		CommitMs:        b.CommitTimestamp(),
		LogAppendTime:   b.Attributes()&record.AttrLogAppendTime != 0,
	}
}

// encodeKafka writes the rows of an arrow batch as a Kafka batch.
func (l *Log) encodeKafka(b record.Batch, lay *layout) (out []byte, err error) {
	err = l.codecs.withArrow(func(d *arrowipc.Decoder) error {
		meta, body := b.Arrow()
		rows, err := d.Decode(lay.Layout, meta, body, nil)
		if err != nil {
			return err
		}
		defer rows.Release()
		room := make([]byte, 0, len(b)+len(b)/8)
		if lay.topic {
			out, err = kafkabatch.Encode(room, rows, encodingOf(b))
		} else {
			out, err = kafkabatch.EncodeValues(room, int(rows.NumRows()), jsonValues(rows), encodingOf(b))
		}
		return err
	})
	return out, err
}

func noRows(s *arrow.Schema) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	return b.NewRecordBatch()
}

func (l *Log) layoutOf(b record.Batch) (*layout, error) {
	lay, ok := l.settings.Load().layout(b.SchemaID())
	if !ok {
		return nil, fmt.Errorf("bucket %s, offset %d: schema %d is not known here yet: %w", l.cfg.Bucket, b.BaseOffset(), b.SchemaID(), mink.ErrUnavailable)
	}
	return lay, nil
}

// Rows decodes b to rows under the schema version that it was written with;
// columns chooses and orders them by place in that version, nil: all. One row
// per offset, from the batch's base; none for a batch without records. Rows may
// alias b. Release them.
//
// skip lists the offsets, in order, that have no row, though one that is to be left out
// may keep the others at their places: whose record is quarantined, or, with an empty
// Why, was taken by a cleaning.
//
// *QuarantineError: the batch cannot be decoded; go on at its Last + 1.
func (l *Log) Rows(b record.Batch, columns []int) (rows arrow.RecordBatch, skip []Quarantined, err error) {
	lay, err := l.layoutOf(b)
	if err != nil {
		return nil, nil, err
	}
	rows, skip, err = lay.rows(l.codecs, b, columns)
	if err != nil {
		return nil, nil, l.quarantined(b, err)
	}
	l.noteBad(skip)
	return rows, skip, nil
}

// noteBad keeps those of the ranges that are quarantined.
func (l *Log) noteBad(skip []Quarantined) {
	for _, q := range skip {
		if q.Why != "" {
			l.quarantine.add(q, l.cfg.QuarantineMax)
		}
	}
}

// rawRows are the four columns of a topic, and the offsets whose row only keeps a place.
func rawRows(lay *layout, v kafkabatch.View, d *kafkabatch.Decoder) (arrow.RecordBatch, []kafkabatch.DeltaRun, error) {
	gone, err := kafkabatch.Missing(v, d)
	if err != nil {
		return nil, nil, err
	}
	c, err := kafkabatch.NewColumns(memory.DefaultAllocator, lay.Schema())
	if err != nil {
		return nil, nil, err
	}
	defer c.Release()
	if err := c.Append(v, d); err != nil {
		return nil, nil, err
	}
	return c.Take(), gone, nil
}

// choose takes rows over and answers some of its columns.
func choose(rows arrow.RecordBatch, columns []int) (arrow.RecordBatch, error) {
	if columns == nil {
		return rows, nil
	}
	defer rows.Release()
	fields, cols := make([]arrow.Field, len(columns)), make([]arrow.Array, len(columns))
	for i, c := range columns {
		if c < 0 || int64(c) >= rows.NumCols() {
			return nil, fmt.Errorf("%w: column %d of %d", mink.ErrInvalid, c, rows.NumCols())
		}
		fields[i], cols[i] = rows.Schema().Field(c), rows.Column(c)
	}
	md := rows.Schema().Metadata()
	return array.NewRecordBatch(arrow.NewSchema(fields, &md), cols, rows.NumRows()), nil
}

// Message answers b as an Arrow IPC message under the schema version that it
// was written with: the stored bytes as they are, or columns cut out of them by
// place; a kafka batch is decoded and encoded. Errors as for Rows, and
// mink.ErrUnsupported for one of which Rows skips records.
func (l *Log) Message(b record.Batch, columns []int) (arrowipc.Cut, error) {
	lay, err := l.layoutOf(b)
	if err != nil {
		return arrowipc.Cut{}, err
	}
	if b.Encoding() == record.EncodingArrow && b.Count() > 0 {
		meta, body := b.Arrow()
		if columns == nil {
			return arrowipc.Cut{Metadata: meta, Body: [][]byte{body}, BodyLen: int64(len(body))}, nil
		}
		cut, err := arrowipc.Project(lay.Layout, meta, body, columns)
		if err != nil {
			return arrowipc.Cut{}, l.quarantined(b, err)
		}
		return cut, nil
	}
	rows, skip, err := l.Rows(b, columns)
	if err != nil {
		return arrowipc.Cut{}, err
	}
	defer rows.Release()
	if len(skip) > 0 {
		return arrowipc.Cut{}, fmt.Errorf("bucket %s, offset %d: %w: one message of rows with gaps", l.cfg.Bucket, skip[0].First, mink.ErrUnsupported)
	}
	meta, body, err := arrowipc.Encode(rows)
	if err != nil {
		return arrowipc.Cut{}, fmt.Errorf("bucket %s, offset %d: %w", l.cfg.Bucket, b.BaseOffset(), err)
	}
	return arrowipc.Cut{Metadata: meta, Body: [][]byte{body}, BodyLen: int64(len(body))}, nil
}

// quarantined notes a stored batch that cannot be decoded; see cannotDecode.
func (l *Log) quarantined(b record.Batch, err error) error {
	if errors.As(err, new(*record.BatchError)) {
		l.poisoned(b, err)
	}
	return cannotDecode(l.cfg.Bucket, b, err)
}

func (l *Log) poisoned(b record.Batch, err error) {
	l.quarantine.add(Quarantined{b.BaseOffset(), b.LastOffset(), b.Encoding(), err.Error()}, l.cfg.QuarantineMax)
}

// Quarantined is a range of offsets whose batch cannot be decoded, or whose
// records are no rows of the table.
type Quarantined struct {
	First, Last mink.Offset
	Encoding    record.Encoding
	Why         string
}

// quarantine lists bad batches, each once. It is rebuilt by those who read them.
type quarantine struct {
	mu struct {
		sync.Mutex
		ranges []Quarantined // by First
		count  int64
		past   mink.Offset // beyond the list's size: the highest that was counted
	}
}

func (q *quarantine) add(r Quarantined, limit int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i, found := slices.BinarySearchFunc(q.mu.ranges, r, func(a, b Quarantined) int {
		return int(min(max(a.First-b.First, -1), 1))
	})
	switch {
	case found:
	case len(q.mu.ranges) < limit:
		q.mu.ranges = slices.Insert(q.mu.ranges, i, r)
		q.mu.count++
	case r.Last >= q.mu.past:
		q.mu.past = r.Last + 1
		q.mu.count++
	}
}

func (q *quarantine) list() ([]Quarantined, int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.mu.ranges), q.mu.count
}
