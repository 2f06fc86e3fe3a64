package row

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/mink-project/mink/sdk/mink"
)

// MaxBatchBytes bounds the bytes of the rows that go into one batch, so that
// Arrow's 32-bit offsets hold them.
const MaxBatchBytes = 1 << 28

// Builder makes Arrow record batches of rows. Not safe for concurrent use.
type Builder struct {
	codec   *Codec
	columns []int
	schema  *arrow.Schema
	build   []column
	rows    int
	taken   int // bytes of rows
}

// Builder makes batches of the given columns, in that order; nil: all. The Arrow
// schema has field ids and Mink's types, as schema.Schema.Arrow.
func (c *Codec) Builder(columns []int) (*Builder, error) {
	whole := c.schema.Arrow()
	b := &Builder{codec: c, columns: columns, schema: whole}
	if columns == nil {
		for i := range c.schema.Columns {
			b.columns = append(b.columns, i)
		}
	} else {
		fields := make([]arrow.Field, len(columns))
		for i, at := range columns {
			if at < 0 || at >= len(c.schema.Columns) {
				return nil, fmt.Errorf("%w rows: column %d of %d is asked for", mink.ErrInvalid, at, len(c.schema.Columns))
			}
			fields[i] = whole.Field(at)
		}
		b.schema = arrow.NewSchema(fields, nil)
	}
	for _, at := range b.columns {
		b.build = append(b.build, newColumn(&c.rec.fields[at]))
	}
	return b, nil
}

// Schema is the Arrow schema of the batches.
func (b *Builder) Schema() *arrow.Schema { return b.schema }

// Len is the number of rows since the last batch.
func (b *Builder) Len() int { return b.rows }

// Bytes is how many bytes the next batch holds so far.
func (b *Builder) Bytes() int {
	n := 0
	for i := range b.build {
		n += b.build[i].size()
	}
	return n
}

// Append adds a row of the codec's schema version. A NOT NULL column may get a
// null, when the row has one. Bytes that no row has wrap mink.ErrCorrupt; after an
// error the Builder is as before.
func (b *Builder) Append(value []byte) error {
	r, err := b.codec.Row(value)
	if err != nil {
		return err
	}
	if b.rows == 0 {
		for i := range b.build {
			b.build[i].begin()
		}
	}
	if len(value) > MaxBatchBytes-b.taken {
		return fmt.Errorf("%w: batch of %d rows: with one more of %d bytes it has more than %d; take fewer rows", mink.ErrTooLarge, b.rows, len(value), MaxBatchBytes)
	}
	k := newChecker()
	for _, at := range b.columns {
		if f := &b.codec.rec.fields[at]; f.shape.nested() || f.shape == shapeBinary {
			if v := r.Field(at); v != nil && !k.value(f, v) {
				return k.err(b.codec)
			}
		}
	}
	for i, at := range b.columns {
		if v := r.Field(at); v != nil {
			b.build[i].append(v)
		} else {
			b.build[i].appendNull()
		}
	}
	b.taken += len(value)
	b.rows++
	return nil
}

// NewBatch is the rows since the last batch; the next one starts empty. The caller
// releases it.
func (b *Builder) NewBatch() arrow.RecordBatch {
	arrays := make([]arrow.Array, len(b.build))
	for i := range b.build {
		data := b.build[i].take(b.schema.Field(i).Type)
		arrays[i] = array.MakeFromData(data)
		data.Release()
	}
	rec := array.NewRecordBatch(b.schema, arrays, int64(b.rows))
	for _, a := range arrays {
		a.Release()
	}
	b.rows, b.taken = 0, 0
	return rec
}

// column collects the Arrow buffers of one field. Its values have been checked.
type column struct {
	f       *field
	n       int
	nulls   int
	valid   []byte // kept from the first null on
	data    []byte // bits, fixed values, bytes
	offsets []int32
	kids    []column
	expect  struct{ data, rows int } // as many as the batch before had
}

// expectMax bounds what is allocated before there are values, bytes of each kind.
const expectMax = 1 << 20

// begin comes before the first value of a batch.
func (c *column) begin() {
	if c.data == nil && c.expect.data > 0 {
		c.data = make([]byte, 0, c.expect.data)
	}
	if c.offsets == nil && c.hasOffsets() {
		c.offsets = make([]int32, 0, c.expect.rows+1)
	}
	for i := range c.kids {
		c.kids[i].begin()
	}
}

func newColumn(f *field) column {
	c := column{f: f}
	for i := range f.kids {
		c.kids = append(c.kids, newColumn(&f.kids[i]))
	}
	return c
}

func (c *column) hasOffsets() bool {
	return c.f.shape.variable() && c.f.shape != shapeBinary && c.f.shape != shapeRow
}

func (c *column) size() int {
	n := len(c.valid) + len(c.data) + 4*len(c.offsets)
	for i := range c.kids {
		n += c.kids[i].size()
	}
	return n
}

func setBit(bits []byte, i int, on bool) []byte {
	if i&7 == 0 {
		bits = append(bits, 0)
	}
	if on {
		bits[i>>3] |= 1 << (i & 7)
	}
	return bits
}

func (c *column) appendNull() {
	if c.nulls == 0 { // all before were valid
		c.valid = append(c.valid[:0], make([]byte, (c.n+7)/8)...)
		for i := range c.n {
			c.valid[i>>3] |= 1 << (i & 7)
		}
	}
	c.valid = setBit(c.valid, c.n, false)
	c.nulls++
	switch c.f.shape {
	case shapeBool:
		c.data = setBit(c.data, c.n, false)
	case shapeFixed, shapeBinary:
		c.data = appendZeros(c.data, c.f.width)
	case shapeRow:
		for i := range c.kids {
			c.kids[i].appendNull()
		}
	}
	c.next()
}

// next ends a value.
func (c *column) next() {
	c.n++
	if !c.hasOffsets() {
		return
	}
	if len(c.offsets) == 0 {
		c.offsets = append(c.offsets, 0)
	}
	end := len(c.data)
	if c.f.shape.nested() {
		end = c.kids[0].n
	}
	c.offsets = append(c.offsets, int32(end))
}

func (c *column) append(v []byte) {
	if c.nulls > 0 {
		c.valid = setBit(c.valid, c.n, true)
	}
	switch c.f.shape {
	case shapeBool:
		c.data = setBit(c.data, c.n, v[0] != 0)
	case shapeFixed, shapeText, shapeBytes, shapeBinary:
		c.data = append(c.data, v...)
	case shapeRow:
		r := Row{rec: c.f.rec, b: v}
		for i := range c.kids {
			if field := r.Field(i); field != nil {
				c.kids[i].append(field)
			} else {
				c.kids[i].appendNull()
			}
		}
	case shapeList, shapeMap:
		n, rest, _ := count(v)
		for i := range c.kids {
			var elems vector
			elems, rest, _ = openVector(c.kids[i].f, n, rest)
			for j := range n {
				if elems.isNull(j) {
					c.kids[i].appendNull()
				} else {
					c.kids[i].append(elems.value(j))
				}
			}
		}
	}
	c.next()
}

// take is the column's data of the type, and empties it.
func (c *column) take(dt arrow.DataType) arrow.ArrayData {
	buffer := memory.NewBufferBytes
	var valid *memory.Buffer
	if c.nulls > 0 {
		valid = buffer(c.valid)
	}
	var buffers []*memory.Buffer
	var children []arrow.ArrayData
	switch c.f.shape {
	case shapeBool, shapeFixed, shapeBinary:
		buffers = []*memory.Buffer{valid, buffer(c.data)}
	case shapeText, shapeBytes:
		buffers = []*memory.Buffer{valid, c.takeOffsets(), buffer(c.data)}
	case shapeRow:
		buffers = []*memory.Buffer{valid}
		for i := range c.kids {
			children = append(children, c.kids[i].take(dt.(*arrow.StructType).Field(i).Type))
		}
	case shapeList:
		buffers = []*memory.Buffer{valid, c.takeOffsets()}
		children = []arrow.ArrayData{c.kids[0].take(dt.(*arrow.ListType).Elem())}
	case shapeMap:
		buffers = []*memory.Buffer{valid, c.takeOffsets()}
		children = []arrow.ArrayData{c.takeEntries(dt.(*arrow.MapType))}
	}
	data := array.NewData(dt, c.n, buffers, children, c.nulls, 0)
	for _, k := range children {
		k.Release()
	}
	next := column{f: c.f, kids: c.kids}
	next.expect.data, next.expect.rows = min(len(c.data), expectMax), min(c.n, expectMax/4)
	*c = next
	return data
}

func (c *column) takeOffsets() *memory.Buffer {
	if len(c.offsets) == 0 {
		c.offsets = append(c.offsets, 0)
	}
	return memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(c.offsets))
}

func (c *column) takeEntries(dt *arrow.MapType) arrow.ArrayData {
	n := c.kids[0].n
	key, value := c.kids[0].take(dt.KeyType()), c.kids[1].take(dt.ItemType())
	defer key.Release()
	defer value.Release()
	return array.NewData(dt.Elem(), n, []*memory.Buffer{nil}, []arrow.ArrayData{key, value}, 0, 0)
}
