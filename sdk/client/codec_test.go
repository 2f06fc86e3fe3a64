package client

import (
	"database/sql"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// columnsOf makes an Arrow schema from "name TYPE" texts.
func columnsOf(texts ...string) *arrow.Schema {
	s := schema.Schema{}
	for _, text := range texts {
		name, typ, _ := strings.Cut(text, " ")
		s.Columns = append(s.Columns, schema.Column{Name: name, Type: schema.MustParseType(typ)})
	}
	return s.Arrow()
}

type spot struct {
	X    int32    `mink:"x"`
	Tags []string `mink:"tags"`
}

type base struct {
	ID int64 `mink:"id"`
}

type allTypes struct {
	base
	Yes      bool             `mink:"yes"`
	Tiny     int8             `mink:"tiny"`
	Small    uint16           `mink:"small"`
	Number   int              `mink:"number"`
	Real     float32          `mink:"real"`
	Double   float64          `mink:"double"`
	Money    string           `mink:"money"`
	Huge     decimal128.Num   `mink:"huge"`
	Text     string           `mink:"text"`
	Fixed    [4]byte          `mink:"fixed"`
	Bytes    []byte           `mink:"bytes"`
	Day      time.Time        `mink:"day"`
	Clock    time.Duration    `mink:"clock"`
	ClockNs  time.Duration    `mink:"clock_ns"`
	AtS      time.Time        `mink:"at_s"`
	AtNs     time.Time        `mink:"at_ns"`
	Instant  time.Time        `mink:"instant"`
	Words    []string         `mink:"words"`
	Counts   map[string]int   `mink:"counts"`
	Place    spot             `mink:"place"`
	Maybe    *int64           `mink:"maybe"`
	MaybeSQL sql.Null[string] `mink:"maybe_sql"`
	MaybeInt sql.NullInt32    `mink:"maybe_int"`
	MaybeRow *spot            `mink:"maybe_row"`
	Ignored  chan int
}

var allColumns = columnsOf("id BIGINT NOT NULL", "yes BOOLEAN", "tiny TINYINT", "small SMALLINT", "number INT", "real FLOAT", "double DOUBLE",
	"money DECIMAL(20,4)", "huge DECIMAL(38,0)", "text STRING", "fixed BINARY(4)", "bytes BYTES", "day DATE", "clock TIME(0)", "clock_ns TIME(9)",
	"at_s TIMESTAMP(0)", "at_ns TIMESTAMP(9)", "instant TIMESTAMP_LTZ(6)", "words ARRAY<STRING>", "counts MAP<STRING, INT>",
	"place ROW<x INT, tags ARRAY<STRING>, more STRING>", "maybe BIGINT", "maybe_sql STRING", "maybe_int INT", "maybe_row ROW<x INT, tags ARRAY<STRING>>", "other STRING")

// Values of every type come back as they were, as far as the column keeps them.
func TestStructsComeBack(t *testing.T) {
	epoch := time.Unix(0, 0).UTC()
	full := allTypes{
		base: base{math.MinInt64}, Yes: true, Tiny: -128, Small: 32767, Number: math.MinInt32, Real: 1.5, Double: math.Inf(-1), Money: "-1234567890123456.7890",
		Huge: decimal128.FromI64(-7), Text: "grüße\x00", Fixed: [4]byte{1, 2, 3, 255}, Bytes: []byte{0, 1}, Day: time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC),
		Clock: 23*time.Hour + 59*time.Second, ClockNs: 24*time.Hour - 1, AtS: time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC), AtNs: time.Date(1969, 1, 31, 7, 5, 0, 123456789, time.UTC),
		Instant: time.Date(2026, 1, 31, 10, 0, 0, 1000, time.UTC), Words: []string{"a", ""}, Counts: map[string]int{"x": 1, "y": -2},
		Place: spot{7, []string{"t"}}, Maybe: ptr(int64(9)), MaybeSQL: sql.Null[string]{V: "v", Valid: true}, MaybeInt: sql.NullInt32{Int32: 3, Valid: true}, MaybeRow: &spot{X: 1},
	}
	least := allTypes{Money: "0.0000", Day: epoch, AtS: epoch, AtNs: epoch, Instant: epoch, Bytes: []byte{}, Words: []string{}, Counts: map[string]int{}}
	nulls := least
	nulls.Bytes, nulls.Words, nulls.Counts = nil, nil, nil
	rec := mustEncode(t, allColumns, []allTypes{full, least, nulls})
	got, err := Decode[allTypes](rec)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []allTypes{full, least, nulls} {
		if !reflect.DeepEqual(got[i], want) {
			t.Errorf("row %d: got %+v, want %+v", i, got[i], want)
		}
	}
	if c := rec.Column(rec.Schema().FieldIndices("bytes")[0]); c.IsNull(1) || !c.IsNull(2) {
		t.Error("empty bytes must be a value, nil null")
	}
	if one, err := Decode[float64](mustEncode(t, columnsOf("x DOUBLE"), []float64{1, 2})); err != nil || one[1] != 2 {
		t.Errorf("single values: %v, %v", one, err)
	}
}

// Zones and digits that a column does not keep.
func TestTimesAreCut(t *testing.T) {
	type times struct {
		Day     time.Time `mink:"day"`
		At      time.Time `mink:"at"`
		Instant time.Time `mink:"instant"`
	}
	late := time.Date(1960, 3, 1, 0, 30, 0, 1999, time.FixedZone("CET", 3600))
	rec := mustEncode(t, columnsOf("day DATE", "at TIMESTAMP(6)", "instant TIMESTAMP_LTZ(0)"), []times{{late, late, late}})
	want := times{time.Date(1960, 3, 1, 0, 0, 0, 0, time.UTC), time.Date(1960, 3, 1, 0, 30, 0, 1000, time.UTC), time.Date(1960, 2, 29, 23, 30, 0, 0, time.UTC)}
	if got, err := Decode[times](rec); err != nil || got[0] != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

func mustEncode[T any](t *testing.T, s *arrow.Schema, rows []T) arrow.RecordBatch {
	t.Helper()
	rec, err := Encode(s, rows)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// tryEncode encodes values of T.
func tryEncode[T any](s *arrow.Schema, v ...T) error {
	_, err := Encode(s, v)
	return err
}

func tryDecode[T any](rec arrow.RecordBatch) error {
	_, err := Decode[T](rec)
	return err
}

func TestStructMismatchesAreNamed(t *testing.T) {
	type named struct {
		A string `mink:"a"`
	}
	type pair struct {
		A int `mink:"a"`
		B int `mink:"a"`
	}
	type hidden struct {
		a int `mink:"a"`
	}
	type untagged struct{ A int }
	type viaPointer struct{ *base }
	type onlyA struct {
		A int `mink:"a"`
	}
	two := columnsOf("a INT NOT NULL", "b STRING NOT NULL")
	for want, err := range map[string]error{
		`column "a" is INT, which client.named.A of type string cannot hold; use int32`:              tryEncode(columnsOf("a INT"), named{}),
		`column "a" is TIMESTAMP(3), which client.named.A of type string cannot hold; use time.Time`: tryEncode(columnsOf("a TIMESTAMP(3)"), named{}),
		`column "a" is ARRAY<INT>, which client.named.A of type string cannot hold; use a slice`:     tryEncode(columnsOf("a ARRAY<INT>"), named{}),
		`client.named.A is column "a", which is not there; there are price, total`:                   tryEncode(columnsOf("price INT", "total INT"), named{}),
		`client.pair.A and client.pair.B are both column "a"`:                                        tryEncode(columnsOf("a INT"), pair{}),
		`client.hidden.a is not exported`:                                                            tryEncode(columnsOf("a INT"), hidden{a: 1}),
		`client.untagged has no field with a`:                                                        tryEncode(columnsOf("a INT"), untagged{}),
		`client.viaPointer.ID is in a struct that is embedded by pointer`:                            tryEncode(columnsOf("id BIGINT"), viaPointer{}),
		`column "b" is NOT NULL and no field of client.onlyA has its tag`:                            tryEncode(two, onlyA{}),
		`stands for one column, wanted are a, b`:                                                     tryEncode(two, 1),
		`row 0, int, column "a": invalid value: 128 does not fit`:                                    tryEncode(columnsOf("a TINYINT"), 128),
		`18446744073709551615 does not fit`:                                                          tryEncode(columnsOf("a BIGINT"), uint64(math.MaxUint64)),
		`"1000" is no DECIMAL(2, 1)`:                                                                 tryEncode(columnsOf("a DECIMAL(2,1)"), "1000"),
		`"1.23" is no DECIMAL(3, 1)`:                                                                 tryEncode(columnsOf("a DECIMAL(3,1)"), "1.23"),
		`1000 has more than 3 digits`:                                                                tryEncode(columnsOf("a DECIMAL(3,0)"), decimal128.FromI64(1000)),
		`3 bytes, want 4`:                                                                            tryEncode(columnsOf("a BINARY(4)"), []byte{1, 2, 3}),
		`25h0m0s is no time of day`:                                                                  tryEncode(columnsOf("a TIME(0)"), 25*time.Hour),
		`is beyond what a timestamp in ns holds`:                                                     tryEncode(columnsOf("a TIMESTAMP(9)"), time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC)),
		`is beyond DATE`:                                                                             tryEncode(columnsOf("a DATE"), time.Unix(math.MaxInt32*86401, 0)),
		`null, and the column is NOT NULL`:                                                           tryEncode(columnsOf("a INT NOT NULL"), (*int)(nil)),
		`row 0, column "a", int: null invalid: int cannot be null; use *int or sql.Null[int]`:        tryDecode[int](mustEncode(t, columnsOf("a INT"), []*int{nil})),
		`row 1, column "a", int8: invalid value: 200 does not fit into int8`:                         tryDecode[int8](mustEncode(t, columnsOf("a INT"), []int{1, 200})),
		`-1 does not fit into uint`:                                                                  tryDecode[uint](mustEncode(t, columnsOf("a INT"), []int{-1})),
		`element 1: null invalid`:                                                                    tryDecode[[]int](mustEncode(t, columnsOf("a ARRAY<INT>"), [][]*int{{ptr(1), nil}})),
	} {
		if !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
