package flight

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/sdk/mink"
)

// allocator is of all rows that this package makes; tests count what it gives.
var allocator = memory.DefaultAllocator

// schemaMessage is the flatbuffer of an IPC schema message: the header of the
// first FlightData of a stream.
func schemaMessage(s *arrow.Schema) []byte {
	p := ipc.GetSchemaPayload(s, allocator)
	defer p.Release()
	m := p.Meta()
	defer m.Release()
	return slices.Clone(m.Bytes())
}

// schemaResult is the schema as FlightInfo and SchemaResult carry it.
func schemaResult(s *arrow.Schema) []byte {
	return flight.SerializeSchema(s, allocator)
}

// readSchema reads the schema message that a client's stream begins with.
func readSchema(header []byte) (*arrow.Schema, error) {
	if err := checkSchemaMessage(header); err != nil {
		return nil, err
	}
	r, err := ipc.NewReaderFromMessageReader(&oneMessage{header: header}) // recovers from panics
	if err != nil {
		return nil, fmt.Errorf("%w: the stream's schema cannot be read: %w", mink.ErrInvalid, err)
	}
	defer r.Release()
	return r.Schema(), nil
}

// oneMessage is an ipc.MessageReader of a message without a body.
type oneMessage struct {
	header []byte
	msg    *ipc.Message
}

func (o *oneMessage) Message() (*ipc.Message, error) {
	if o.msg == nil {
		o.msg = ipc.NewMessage(memory.NewBufferBytes(o.header), memory.NewBufferBytes(nil))
	}
	return o.msg, nil
}

func (o *oneMessage) Retain()  {}
func (o *oneMessage) Release() {}

// noRows makes a batch of zero rows.
func noRows(s *arrow.Schema) arrow.RecordBatch {
	cols := make([]arrow.Array, s.NumFields())
	for i, f := range s.Fields() {
		cols[i] = array.MakeArrayOfNull(allocator, f.Type, 0)
	}
	defer func() {
		for _, c := range cols {
			c.Release()
		}
	}()
	return array.NewRecordBatch(s, cols, 0)
}

// joinBody makes one slice of a cut body; a whole one is not copied.
func joinBody(c arrowipc.Cut) []byte {
	if len(c.Body) == 1 {
		return c.Body[0]
	}
	return bytes.Join(c.Body, nil)
}
