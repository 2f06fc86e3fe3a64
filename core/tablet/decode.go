package tablet

import (
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/record/jsonrow"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/sdk/mink"
)

// layout is one schema version, compiled.
type layout struct {
	*arrowipc.Layout
	topic bool         // the four columns of a Kafka topic: its values are raw
	json  *valueReader // else what reads Kafka values as rows
}

func newLayout(s *schema.Schema) (*layout, error) {
	as := s.Arrow()
	a, err := arrowipc.NewLayout(as)
	if err != nil {
		return nil, fmt.Errorf("schema %d: %w", s.ID, err)
	}
	if schema.IsKafkaTopic(s) {
		return &layout{Layout: a.WithTimestamp(kafkabatch.ColTimestamp), topic: true}, nil
	}
	return &layout{Layout: a, json: &valueReader{mapper: jsonrow.New(as)}}, nil
}

// rows decodes a batch of this version; see Log.Rows. A *record.BatchError: it cannot be
// decoded.
func (lay *layout) rows(codecs *Codecs, b record.Batch, columns []int) (rows arrow.RecordBatch, skip []Quarantined, err error) {
	var bad badRecords
	var gone []kafkabatch.DeltaRun
	switch {
	case b.Count() == 0:
		rows, err = choose(noRows(lay.Schema()), columns)
	case b.Encoding() == record.EncodingKafka:
		err = codecs.withKafka(func(d *kafkabatch.Decoder) error {
			var all arrow.RecordBatch
			var err error
			if lay.topic {
				all, gone, err = rawRows(lay, kafkabatch.View(b.Kafka()), d)
			} else {
				all, bad, err = lay.jsonRows(kafkabatch.View(b.Kafka()), d)
			}
			if err != nil {
				return err
			}
			rows, err = choose(all, columns)
			return err
		})
	default:
		err = codecs.withArrow(func(d *arrowipc.Decoder) error {
			meta, body := b.Arrow()
			rows, err = d.Decode(lay.Layout, meta, body, columns)
			return err
		})
	}
	if err != nil {
		return nil, nil, err
	}
	base := b.BaseOffset()
	skip = bad.at(base)
	for _, r := range gone {
		skip = append(skip, Quarantined{First: base + mink.Offset(r.First), Last: base + mink.Offset(r.Last), Encoding: record.EncodingKafka})
	}
	return rows, skip, nil
}

// Decoder decodes stored batches of one schema version of a table, of any of its buckets,
// without a log. Safe for concurrent use.
type Decoder struct {
	layout *layout
	codecs *Codecs
}

// NewDecoder compiles a schema version. codecs is scratch memory that may be shared;
// nil: own.
func NewDecoder(s *schema.Schema, codecs *Codecs) (*Decoder, error) {
	lay, err := newLayout(s)
	if err != nil {
		return nil, err
	}
	if codecs == nil {
		codecs = &Codecs{}
	}
	return &Decoder{lay, codecs}, nil
}

// Batch views a frame of a bucket's stream as the batch that it is. mink.ErrCorrupt.
func Batch(f *stream.Frame) (record.Batch, error) { return viewFrame(f) }

// Rows is Log.Rows without the log's count of what is quarantined: the caller's business.
// b must be of the decoder's version.
func (d *Decoder) Rows(bucket mink.BucketRef, b record.Batch, columns []int) (rows arrow.RecordBatch, skip []Quarantined, err error) {
	rows, skip, err = d.layout.rows(d.codecs, b, columns)
	if err != nil {
		return nil, nil, cannotDecode(bucket, b, err)
	}
	return rows, skip, nil
}

// cannotDecode turns what is wrong with a stored batch into a *QuarantineError; a wrong
// column number of the caller's is passed on.
func cannotDecode(bucket mink.BucketRef, b record.Batch, err error) error {
	if errors.As(err, new(*record.BatchError)) {
		return &QuarantineError{Bucket: bucket, First: b.BaseOffset(), Last: b.LastOffset(), Why: err.Error()}
	}
	return fmt.Errorf("bucket %s, offset %d: %w", bucket, b.BaseOffset(), err)
}
