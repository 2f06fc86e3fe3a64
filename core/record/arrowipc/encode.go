package arrowipc

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
)

// Encode writes rows as one uncompressed record-batch message, in fresh memory.
// Pass options of arrow-go's ipc package for compression.
func Encode(rows arrow.RecordBatch, opts ...ipc.Option) (metadata, body []byte, err error) {
	p, err := ipc.GetRecordBatchPayload(rows, opts...)
	if err != nil {
		return nil, nil, fmt.Errorf("encode arrow batch: %w", err)
	}
	defer p.Release()
	meta := p.Meta()
	metadata = slices.Clone(meta.Bytes())
	meta.Release()
	var buf bytes.Buffer
	if err := p.SerializeBody(&buf); err != nil {
		return nil, nil, fmt.Errorf("encode arrow batch: %w", err)
	}
	return metadata, buf.Bytes(), nil
}
