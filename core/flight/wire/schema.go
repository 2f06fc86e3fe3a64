package wire

import (
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/mink"
)

// SchemaMessage is the flatbuffer of an IPC schema message: the header of the
// first FlightData of a stream.
func SchemaMessage(s *arrow.Schema) []byte {
	p := ipc.GetSchemaPayload(s, memory.DefaultAllocator)
	defer p.Release()
	m := p.Meta()
	defer m.Release()
	return slices.Clone(m.Bytes())
}

// SchemaResult is the schema as FlightInfo and SchemaResult carry it.
func SchemaResult(s *arrow.Schema) []byte {
	return flight.SerializeSchema(s, memory.DefaultAllocator)
}

// ReadSchema reads the schema message that a client's stream begins with. Errors: mink.ErrInvalid,
// mink.ErrTooLarge.
func ReadSchema(header []byte) (*arrow.Schema, error) {
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
