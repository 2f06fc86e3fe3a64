package arrowipc

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/sdk/mink"
)

// Decoder turns messages into record batches. Not for concurrent use.
type Decoder struct {
	maxBytes int
	inflate  inflater

	l    *Layout
	m    message
	body []byte
	left int
}

// NewDecoder makes a decoder; maxBytes bounds the decompressed bytes of one
// message (DefaultMaxBytes).
func NewDecoder(maxBytes int) *Decoder { return &Decoder{maxBytes: maxBytes} }

// Decode answers the rows of a message that Check has accepted under the same
// layout; columns chooses and orders columns by place, nil: all. Plain buffers
// alias body, which must stay unchanged as long as the batch is used; compressed
// ones are copied out. It checks bounds and lengths again, but not every offset:
// bytes that nobody has checked go through Check first. Errors are
// *record.BatchError.
func (d *Decoder) Decode(l *Layout, metadata, body []byte, columns []int) (arrow.RecordBatch, error) {
	m, bad := parseMessage(metadata)
	if bad == nil {
		bad = checkCounts(l, &m, body)
	}
	if bad != nil {
		return nil, bad
	}
	d.l, d.m, d.body, d.left = l, m, body, d.maxBytes
	defer func() { d.l, d.m, d.body = nil, message{}, nil }()
	schema, err := l.project(columns)
	if err != nil {
		return nil, err
	}
	if columns == nil {
		columns = l.all()
	}
	cols := make([]arrow.Array, 0, len(columns))
	defer func() {
		for _, c := range cols {
			c.Release()
		}
	}()
	for _, col := range columns {
		if n, _ := m.node(l.columns[col]); n != m.rows {
			return nil, record.Errorf(record.KindCorrupt, "column %s: %d values in %d rows", l.nodes[l.columns[col]].name, n, m.rows)
		}
		data, bad := d.data(l.columns[col])
		if bad != nil {
			return nil, bad
		}
		cols = append(cols, array.MakeFromData(data))
		data.Release()
	}
	return array.NewRecordBatch(schema, cols, m.rows), nil
}

func (l *Layout) all() []int {
	all := make([]int, len(l.columns))
	for i := range all {
		all[i] = i
	}
	return all
}

// project answers the schema of the chosen columns.
func (l *Layout) project(columns []int) (*arrow.Schema, error) {
	if columns == nil {
		return l.schema, nil
	}
	fields := make([]arrow.Field, len(columns))
	for i, c := range columns {
		if c < 0 || c >= len(l.columns) {
			return nil, fmt.Errorf("project: %w: column %d of %d", mink.ErrInvalid, c, len(l.columns))
		}
		fields[i] = l.schema.Field(c)
	}
	md := l.schema.Metadata()
	return arrow.NewSchema(fields, &md), nil
}

func (d *Decoder) data(i int) (*array.Data, *record.BatchError) {
	n := &d.l.nodes[i]
	length, nulls := d.m.node(i)
	if length < 0 || nulls < 0 || nulls > length {
		return nil, record.Errorf(record.KindCorrupt, "column %s: %d nulls of %d values", n.name, nulls, length)
	}
	buffers := make([]*memory.Buffer, n.shape.buffers())
	defer func() {
		for _, b := range buffers {
			if b != nil {
				b.Release()
			}
		}
	}()
	for k := range buffers {
		raw, bad := d.buffer(n.buf + k)
		if bad == nil {
			bad = n.enough(k, raw, length, nulls)
		}
		if bad != nil {
			bad.Why = "column " + n.name + ": " + bad.Why
			return nil, bad
		}
		if k == 0 && nulls == 0 {
			continue // all valid: no bitmap
		}
		if k == 1 && len(raw) == 0 && n.hasOffsets() {
			raw = make([]byte, 4) // no values: the one offset that older writers leave out
		}
		buffers[k] = memory.NewBufferBytes(raw)
	}
	children := make([]arrow.ArrayData, 0, n.children)
	defer func() {
		for _, c := range children {
			c.Release()
		}
	}()
	for child := i + 1; child < n.end; child = d.l.nodes[child].end {
		c, bad := d.data(child)
		if bad != nil {
			return nil, bad
		}
		children = append(children, c)
		if n.shape == shapeStruct && int64(c.Len()) != length {
			return nil, record.Errorf(record.KindCorrupt, "column %s: %d values in a struct of %d", d.l.nodes[child].name, c.Len(), length)
		}
	}
	if n.hasOffsets() && length > 0 {
		last := int64(int32(binary.LittleEndian.Uint32(buffers[1].Bytes()[4*length:])))
		limit := int64(0)
		if n.shape == shapeList {
			limit = int64(children[0].Len())
		} else {
			limit = int64(buffers[2].Len())
		}
		if last < 0 || last > limit {
			return nil, record.Errorf(record.KindCorrupt, "column %s: last offset %d of %d", n.name, last, limit)
		}
	}
	return array.NewData(n.typ, int(length), buffers, slices.Clone(children), int(nulls), 0), nil
}

func (n *node) hasOffsets() bool {
	return n.shape == shapeBinary || n.shape == shapeText || n.shape == shapeList
}

// enough checks that buffer k of n is as long as its values need.
func (n *node) enough(k int, raw []byte, length, nulls int64) *record.BatchError {
	need := int64(0)
	switch {
	case k == 0 && nulls > 0, k == 1 && n.shape == shapeBits:
		need = (length + 7) / 8
	case k == 1 && n.shape == shapeFixed:
		need = length * int64(n.width)
	case k == 1 && n.hasOffsets() && length > 0:
		need = 4 * (length + 1)
	}
	if int64(len(raw)) < need {
		return record.Errorf(record.KindCorrupt, "buffer %d has %d bytes of %d", n.buf+k, len(raw), need)
	}
	return nil
}

func (d *Decoder) buffer(k int) ([]byte, *record.BatchError) {
	raw, bad := cut(&d.m, k, d.body)
	if bad != nil || d.m.codec == codecNone || len(raw) == 0 {
		return raw, bad
	}
	size, raw, bad := plainSize(raw, d.left)
	if bad != nil || size < 0 {
		return raw, bad
	}
	d.left -= size
	out := make([]byte, size)
	if err := d.inflate.into(out, raw, d.m.codec); err != nil {
		return nil, record.Errorf(record.KindInvalidRecord, "buffer %d: %v", k, err)
	}
	return out, nil
}

// Rows answers the row count of a message without a look at its buffers.
func Rows(metadata []byte) (int64, error) {
	m, bad := parseMessage(metadata)
	if bad != nil {
		return 0, bad
	}
	return m.rows, nil
}

// PlainSize answers how many bytes the compressed buffers of a message say they expand
// to, which is what Check and Decode take for it: 0 for a message without compression.
// It looks at no more than the lengths; what is wrong with them Check says. Only a
// damaged flatbuffer is an error, a *record.BatchError.
func PlainSize(metadata, body []byte) (int64, error) {
	m, bad := parseMessage(metadata)
	if bad != nil {
		return 0, bad
	}
	if m.codec == codecNone {
		return 0, nil
	}
	sum := int64(0)
	for k := range len(m.buffers) / structSize {
		raw, bad := cut(&m, k, body)
		if bad != nil {
			continue
		}
		n, _, bad := plainSize(raw, math.MaxInt)
		if bad == nil && n > 0 {
			sum += min(int64(n), math.MaxInt64-sum)
		}
	}
	return sum, nil
}

// Cut is a message with some of a message's columns. Body lists slices of the
// original body, to be sent one after the other; they number BodyLen bytes.
type Cut struct {
	Metadata []byte
	Body     [][]byte
	BodyLen  int64
}

// Project cuts columns out of a message, by place and in the given order,
// without looking at values: the flatbuffer is written anew, the body is slices
// of the old one. Without columns the row count remains. The message must have
// been accepted by Check under the same layout.
func Project(l *Layout, metadata, body []byte, columns []int) (Cut, error) {
	m, bad := parseMessage(metadata)
	if bad == nil {
		bad = checkCounts(l, &m, body)
	}
	if bad != nil {
		return Cut{}, bad
	}
	var out Cut
	var nodes, buffers []byte
	for _, col := range columns {
		if col < 0 || col >= len(l.columns) {
			return Cut{}, fmt.Errorf("project: %w: column %d of %d", mink.ErrInvalid, col, len(l.columns))
		}
		i := l.columns[col]
		nodes = append(nodes, m.nodes[i*structSize:l.nodes[i].end*structSize]...)
		for k := l.nodes[i].buf; k < l.buffersEnd(i); k++ {
			raw, bad := cut(&m, k, body)
			if bad != nil {
				return Cut{}, bad
			}
			buffers = binary.LittleEndian.AppendUint64(buffers, uint64(out.BodyLen))
			buffers = binary.LittleEndian.AppendUint64(buffers, uint64(len(raw)))
			out.add(raw)
		}
	}
	out.Metadata = appendMessage(nil, m.rows, out.BodyLen, m.codec, nodes, buffers)
	return out, nil
}

func (c *Cut) add(raw []byte) {
	if len(raw) == 0 {
		return
	}
	c.Body = append(c.Body, raw)
	if pad := record.Padding(len(raw)); len(pad) > 0 {
		c.Body = append(c.Body, pad)
	}
	c.BodyLen += int64(len(raw) + len(record.Padding(len(raw))))
}
