package flight

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

var joinSchema = arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)

// partsOf makes a part per list of ids, on a lane of their own.
func partsOf(t *testing.T, ids ...[]int64) []*farPart {
	t.Helper()
	l := &lane{of: newForwards(nil)}
	t.Cleanup(l.of.close)
	var out []*farPart
	for _, some := range ids {
		b := array.NewInt64Builder(allocator)
		b.AppendValues(some, nil)
		rec := array.NewRecordBatch(joinSchema, []arrow.Array{b.NewArray()}, int64(len(some)))
		header, body, err := arrowipc.Encode(rec)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, &farPart{rows: rec.NumRows(), header: header, body: body, done: make(chan struct{}), lane: l, since: time.Now(), sequence: -1})
		rec.Release()
		b.Release()
	}
	return out
}

// Parts that are joined keep their order, stay below the limit, and each hears of its own
// rows; of a failure all hear.
func TestJoinedPartsHearOfTheirOwnRows(t *testing.T) {
	parts := partsOf(t, []int64{1, 2}, []int64{3}, []int64{4, 5, 6})
	j := newJoiner(joinSchema, 1<<20)
	if n := j.count(parts); n != 3 {
		t.Errorf("%d of 3 small parts are joined", n)
	}
	if n := newJoiner(joinSchema, 1).count(parts); n != 1 {
		t.Errorf("%d parts are joined of a table that takes less", n)
	}
	whole := j.join(parts)
	if whole == nil || whole.rows != 6 {
		t.Fatalf("joined: %+v", whole)
	}
	rec, err := j.decoder.Decode(j.layout, whole.header, whole.body, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	if got := rec.Column(0).(*array.Int64).Int64Values(); !slices.Equal(got, []int64{1, 2, 3, 4, 5, 6}) {
		t.Errorf("joined rows %v", got)
	}
	whole.finish(tablet.AppendResult{First: 100, Last: 105}, nil)
	for i, want := range [][2]mink.Offset{{100, 101}, {102, 102}, {103, 105}} {
		<-parts[i].Done()
		if r, err := parts[i].Result(); err != nil || r.First != want[0] || r.Last != want[1] {
			t.Errorf("part %d: %+v, %v, want %v", i, r, err, want)
		}
	}
	parts = partsOf(t, []int64{1}, []int64{2})
	j.join(parts).finish(tablet.AppendResult{First: -1, Last: -1}, mink.ErrUnknownOutcome)
	for i, p := range parts {
		if _, err := p.Result(); !errors.Is(err, mink.ErrUnknownOutcome) {
			t.Errorf("part %d: %v", i, err)
		}
	}
}
