package tablet

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// produced is what a Kafka client sends; kmsg writes it.
type produced struct {
	pid    int64
	epoch  int16
	seq    int32
	stamps []int64 // one record each
	value  string
}

func (p produced) bytes() []byte {
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: int32(len(p.stamps) - 1), FirstTimestamp: p.stamps[0], MaxTimestamp: p.stamps[0],
		ProducerID: p.pid, ProducerEpoch: p.epoch, FirstSequence: p.seq, NumRecords: int32(len(p.stamps)),
	}
	for i, ts := range p.stamps {
		r := kmsg.Record{OffsetDelta: int32(i), TimestampDelta64: ts - p.stamps[0], Key: []byte("k"), Value: []byte(p.value)}
		full := r.AppendTo(nil)
		r.Length = int32(len(full) - 1)
		b.Records = r.AppendTo(b.Records)
		b.MaxTimestamp = max(b.MaxTimestamp, ts)
	}
	return sealed(b)
}

func sealed(b kmsg.RecordBatch) []byte {
	out := b.AppendTo(nil)
	binary.BigEndian.PutUint32(out[8:], uint32(len(out)-12))
	binary.BigEndian.PutUint32(out[17:], crc32.Checksum(out[21:], crc32.MakeTable(crc32.Castagnoli)))
	return out
}

// idem is n records of a producer from sequence seq on.
func idem(pid int64, epoch int16, seq int32, n int) []byte {
	return produced{pid: pid, epoch: epoch, seq: seq, stamps: make([]int64, n), value: "v"}.bytes()
}

// plain is one batch without a producer.
func plain(stamps ...int64) []byte {
	return produced{pid: -1, epoch: -1, seq: -1, stamps: stamps, value: "v"}.bytes()
}
