package gorow

import (
	"fmt"
	"math/bits"
	"reflect"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/sdk/mink"
)

const secondsPerDay = 24 * 60 * 60

// wallClock is the time in UTC whose clock and calendar show what t's do.
func wallClock(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

func timeCodec(dt arrow.DataType) Value {
	ts, isTimestamp := dt.(*arrow.TimestampType)
	return Value{
		func(b array.Builder, v reflect.Value) error {
			t := v.Interface().(time.Time)
			if !isTimestamp {
				days := floorDiv(wallClock(t).Unix(), secondsPerDay)
				if int64(int32(days)) != days {
					return fmt.Errorf("%w value: %s is beyond DATE", mink.ErrInvalid, t)
				}
				b.(*array.Date32Builder).Append(arrow.Date32(days))
				return nil
			}
			if ts.TimeZone == "" {
				t = wallClock(t)
			}
			n, ok := ticks(t, ts.Unit)
			if !ok {
				return fmt.Errorf("%w value: %s is beyond what a timestamp in %s holds", mink.ErrInvalid, t, ts.Unit)
			}
			b.(*array.TimestampBuilder).Append(n)
			return nil
		},
		func(a arrow.Array, row int, v reflect.Value) error {
			if d, ok := a.(*array.Date32); ok {
				v.Set(reflect.ValueOf(time.Unix(int64(d.Value(row))*secondsPerDay, 0).UTC()))
				return nil
			}
			n, per := int64(a.(*array.Timestamp).Value(row)), perSecond(ts.Unit)
			seconds := floorDiv(n, per)
			v.Set(reflect.ValueOf(time.Unix(seconds, (n-seconds*per)*(int64(time.Second)/per)).UTC()))
			return nil
		},
	}
}

// ticks counts units since 1970; ok is false for a time that an int64 does not hold.
func ticks(t time.Time, u arrow.TimeUnit) (n arrow.Timestamp, ok bool) {
	per := perSecond(u)
	seconds := t.Unix()
	high, low := bits.Mul64(uint64(max(seconds, -(seconds+1))), uint64(per))
	if high != 0 || low > 1<<63-1-uint64(per) {
		return 0, false
	}
	return arrow.Timestamp(seconds*per + int64(t.Nanosecond())/(int64(time.Second)/per)), true
}

func perSecond(u arrow.TimeUnit) int64 { return int64(time.Second) / int64(u.Multiplier()) }

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// clockCodec is TIME as the time since midnight.
func clockCodec(u arrow.TimeUnit) Value {
	unit := u.Multiplier()
	return Value{
		func(b array.Builder, v reflect.Value) error {
			d := time.Duration(v.Int())
			if d < 0 || d >= 24*time.Hour {
				return fmt.Errorf("%w value: %s is no time of day", mink.ErrInvalid, d)
			}
			if b, ok := b.(*array.Time32Builder); ok {
				b.Append(arrow.Time32(d / unit))
				return nil
			}
			b.(*array.Time64Builder).Append(arrow.Time64(d / unit))
			return nil
		},
		func(a arrow.Array, row int, v reflect.Value) error {
			var n int64
			if short, ok := a.(*array.Time32); ok {
				n = int64(short.Value(row))
			} else {
				n = int64(a.(*array.Time64).Value(row))
			}
			v.SetInt(n * int64(unit))
			return nil
		},
	}
}
