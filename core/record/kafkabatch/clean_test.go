package kafkabatch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"

	"pgregory.net/rapid"
)

// plainRecord is a record without its place in memory.
type plainRecord struct {
	delta      int32
	ts         int64
	key, value string
	tombstone  bool
	headers    string
}

func recordsOf(t interface{ Fatal(...any) }, b []byte) []plainRecord {
	v, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if v.Sum() != v.CRC() {
		t.Fatal("wrong crc")
	}
	var out []plainRecord
	err = NewCleaner(DefaultLimits()).Each(v, func(r *Record) {
		p := plainRecord{delta: r.Delta, ts: r.Timestamp, key: string(r.Key), value: string(r.Value), tombstone: r.Value == nil}
		for h := r.Headers(); ; {
			k, v, ok := h.Next()
			if !ok {
				break
			}
			p.headers += fmt.Sprintf("%q=%q ", k, v)
		}
		out = append(out, p)
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Whatever is kept comes out as it went in, at its offset and time, in every codec,
// and a batch that was cleaned can be cleaned again.
func TestCleanKeepsRecords(t *testing.T) {
	const due = t0 + 86_400_000
	c := NewCleaner(DefaultLimits()) // one for all: nothing may stick to it
	rapid.Check(t, func(t *rapid.T) {
		b := newBuilt(rapid.IntRange(1, 40).Draw(t, "records"))
		b.ProducerID, b.ProducerEpoch, b.FirstSequence = 77, 3, 12
		for i := range b.recs {
			if rapid.Bool().Draw(t, "tombstone") {
				b.recs[i].Value = nil
			}
			b.recs[i].TimestampDelta64 = rapid.Int64Range(-1000, 1<<40).Draw(t, "time")
		}
		b.MaxTimestamp = t0
		if rapid.Bool().Draw(t, "log append time") {
			b.Attributes |= attrLogAppendTime
		}
		batch := b.compressed(rapid.SampledFrom([]Codec{CodecNone, CodecGzip, CodecSnappy, CodecLZ4, CodecZstd}).Draw(t, "codec"))
		binary.BigEndian.PutUint64(batch, 1000)
		horizon, marked := int64(0), false
		for round := range 3 {
			before := recordsOf(t, batch)
			var want []plainRecord
			tombstones := false
			drop := map[int32]bool{}
			for _, r := range before {
				if rapid.IntRange(0, 3).Draw(t, "drop") == 0 {
					drop[r.delta] = true
					continue
				}
				want = append(want, r)
				tombstones = tombstones || r.tombstone
			}
			v := View(batch)
			res, err := c.Clean(v, func(r *Record) bool { return !drop[r.Delta] }, due+int64(round))
			if err != nil {
				t.Fatal(err)
			}
			if tombstones && !marked {
				horizon, marked = due+int64(round), true
			}
			if res.Batch == nil {
				if len(want) != len(before) {
					t.Fatalf("%d of %d records are wanted, the batch stays", len(want), len(before))
				}
				res.Batch = batch
			}
			got := recordsOf(t, res.Batch)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("round %d: got %v, want %v", round, got, want)
			}
			top := int64(-1)
			for _, r := range want {
				top = max(top, r.ts)
			}
			w := View(res.Batch)
			at, ok := w.DeleteHorizon()
			switch {
			case int(res.Count) != len(want) || res.Count != w.Count() || res.MaxTimestamp != top:
				t.Fatalf("%+v of %d records, the largest time %d", res, len(want), top)
			case w.BaseOffset() != 1000 || w.LastOffsetDelta() != v.LastOffsetDelta():
				t.Fatalf("offsets %d + %d became %d + %d", v.BaseOffset(), v.LastOffsetDelta(), w.BaseOffset(), w.LastOffsetDelta())
			case res.Tombstones != tombstones || tombstones && res.DueMs != horizon:
				t.Fatalf("%+v, tombstones: %v, due %d", res, tombstones, horizon)
			case len(want) == 0:
				if len(res.Batch) != HeaderSize || w.MaxTimestamp() != -1 || w.Codec() != CodecNone {
					t.Fatalf("an empty batch of %d bytes, %x", len(res.Batch), res.Batch)
				}
				return
			case ok != marked || ok && at != horizon:
				t.Fatalf("horizon %d, %v; want %d, %v", at, ok, horizon, marked)
			case w.Codec() != v.Codec() || w.ProducerID() != 77 || w.ProducerEpoch() != 3 || w.BaseSequence() != 12 || w.LogAppendTime() != v.LogAppendTime():
				t.Fatalf("codec %s, producer %d", w.Codec(), w.ProducerID())
			}
			batch = bytes.Clone(res.Batch)
		}
	})
}

// FuzzClean: any stored bytes are cleaned or refused, and what comes out can be read.
func FuzzClean(f *testing.F) {
	for _, codec := range []Codec{CodecNone, CodecGzip, CodecSnappy, CodecLZ4, CodecZstd} {
		f.Add(newBuilt(5).compressed(codec), uint64(0b10110))
	}
	b := newBuilt(3)
	b.LastOffsetDelta = 9
	b.recs[2].OffsetDelta = 8
	f.Add(b.plain(), uint64(1))
	c := NewCleaner(Limits{MaxBytes: 1 << 20, MaxRatio: 1000, FreeBytes: 1 << 16})
	f.Fuzz(func(t *testing.T, data []byte, keep uint64) {
		v, err := Parse(data)
		if err != nil {
			return
		}
		n := 0
		res, err := c.Clean(v, func(r *Record) bool { n++; return keep>>(r.Delta&63)&1 == 1 }, t0)
		if err != nil || res.Batch == nil {
			return
		}
		w, err := Parse(res.Batch)
		if err != nil || w.Sum() != w.CRC() || w.Count() != res.Count || int(res.Count) > n {
			t.Fatalf("%v, %+v of %d", err, res, n)
		}
		again, err := NewCleaner(DefaultLimits()).Clean(w, func(*Record) bool { return true }, t0)
		if err != nil || again.Batch != nil || again.Count != res.Count {
			t.Fatalf("cleaned again: %+v, %v, before %+v", again, err, res)
		}
	})
}

// A batch of very many small records takes little more memory than their bytes.
func TestCleanOfManyRecordsIsSmall(t *testing.T) {
	b := newBuilt(1)
	rec := b.recs[0]
	rec.Key, rec.Value, rec.Headers = []byte{}, nil, nil
	b.recs = b.recs[:0]
	const n = 200_000
	for i := range n {
		rec.OffsetDelta = int32(i)
		b.recs = append(b.recs, rec)
	}
	b.LastOffsetDelta, b.NumRecords = n-1, n
	batch := b.plain()
	c := NewCleaner(DefaultLimits())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	res, err := c.Clean(View(batch), func(r *Record) bool { return r.Delta > 0 }, t0)
	runtime.ReadMemStats(&after)
	if err != nil || res.Count != n-1 {
		t.Fatalf("%+v, %v", res, err)
	}
	if took := int(after.TotalAlloc - before.TotalAlloc); took > 8*len(batch) {
		t.Fatalf("%d bytes were allocated for a batch of %d", took, len(batch))
	}
}
