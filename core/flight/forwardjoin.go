package flight

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// Rows of a log table that wait while laneWindow batches are on their way are put
// together into one batch, as a leader puts what waits into one object: a slow store
// would else let five small batches through per round. Puts of keys are not joined: a
// batch of theirs applies whole or not at all, so that one client's row would refuse
// another's.

// joinBytesMax bounds what is joined, as sent and unpacked; a table that takes less
// bounds it further.
const joinBytesMax = 1 << 20

// joiner makes one batch of several. It belongs to one lane.
type joiner struct {
	arrow   *arrow.Schema
	limit   int // bytes of the parts
	layout  *arrowipc.Layout
	decoder *arrowipc.Decoder
}

func newJoiner(s *arrow.Schema, limit int) *joiner {
	return &joiner{arrow: s, limit: min(joinBytesMax, limit/4*3), decoder: arrowipc.NewDecoder(joinBytesMax)} // a quarter is for padding
}

// count is how many parts from the first on go into one batch; 1 at least.
func (j *joiner) count(queue []*farPart) int {
	n, size := 1, queue[0].size()
	for n < len(queue) && size+queue[n].size() <= j.limit {
		size += queue[n].size()
		n++
	}
	return n
}

// join makes one part of several, or answers nil when they had better go as they are.
func (j *joiner) join(parts []*farPart) *farPart {
	header, body, err := j.encode(parts)
	if err != nil {
		return nil
	}
	whole := &farPart{header: header, body: body, lane: parts[0].lane, since: parts[0].since, sequence: -1, joined: parts}
	for _, p := range parts {
		whole.rows += p.rows
	}
	return whole
}

func (j *joiner) encode(parts []*farPart) (header, body []byte, err error) {
	if j.layout == nil {
		if j.layout, err = arrowipc.NewLayout(j.arrow); err != nil {
			return nil, nil, err
		}
	}
	columns := make([]arrow.Array, 0, j.arrow.NumFields())
	recs := make([]arrow.RecordBatch, 0, len(parts))
	defer func() {
		for _, c := range columns {
			c.Release()
		}
		for _, r := range recs {
			r.Release()
		}
	}()
	rows := int64(0)
	for _, p := range parts {
		rec, err := j.decoder.Decode(j.layout, p.header, p.body, nil)
		if err != nil {
			return nil, nil, err
		}
		recs, rows = append(recs, rec), rows+rec.NumRows()
	}
	chunks := make([]arrow.Array, len(recs))
	for i := range j.arrow.NumFields() {
		for k, rec := range recs {
			chunks[k] = rec.Column(i)
		}
		c, err := array.Concatenate(chunks, allocator)
		if err != nil {
			return nil, nil, err
		}
		columns = append(columns, c)
	}
	rec := array.NewRecordBatch(j.arrow, columns, rows)
	defer rec.Release()
	return arrowipc.Encode(rec)
}

// share gives each of the parts that were joined its outcome: their rows have offsets
// one behind the other.
func (p *farPart) share(res tablet.AppendResult, err error) {
	at := res.First
	for _, q := range p.joined {
		mine := res
		if err == nil && at >= 0 {
			mine.First, mine.Last = at, at+mink.Offset(q.rows)-1
			at += mink.Offset(q.rows)
		}
		q.finish(mine, err)
	}
}

// apart sends each of the parts that were joined on its own: one of them was refused.
func (l *lane) apart(p *farPart) {
	for _, q := range p.joined {
		q.sequence = -1
	}
	l.unacked = slices.Replace(l.unacked, 0, 1, p.joined...)
}
