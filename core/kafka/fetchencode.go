package kafka

import (
	"encoding/binary"
	"math"
	"net"

	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/sdk/mink"
)

// A Fetch response is written as a skeleton, encoded once into one buffer, with
// the stored batches between its pieces: none is copied, writev sends them from
// the caches they lie in.
//
//	skeleton [0,a) | batch | batch | skeleton [a,b) | batch | skeleton [b,end)
//
// Small batches are copied into the skeleton instead: they cost less than the
// system's bookkeeping for one more piece.
const copyBelow = 2 << 10

// seam is a place in the skeleton where batches go.
type seam struct {
	at      int
	batches [][]byte
}

// fetchPartBytes is about what one partition takes in the skeleton.
const fetchPartBytes = 64

// encode appends the skeleton to dst, whose first `head` bytes are the frame's,
// and returns it and all pieces in order. dst stays the owner of the skeleton.
func (a *fetchAnswer) encode(dst []byte, head int) ([]byte, net.Buffers) {
	if need := head + len(a.parts)*fetchPartBytes; cap(dst) < need {
		dst = append(make([]byte, 0, need), dst...)
	}
	var seams []seam
	flexible := a.version >= 12
	dst = binary.BigEndian.AppendUint32(dst, 0) // throttle
	if a.version >= 7 {
		dst = binary.BigEndian.AppendUint16(dst, uint16(a.code))
		dst = binary.BigEndian.AppendUint32(dst, 0) // no session
	}
	dst = appendCount(dst, len(a.topics), flexible)
	for i, k := 0, 0; i < len(a.topics); i++ {
		t := &a.topics[i]
		if a.version >= fetchTopicIDs {
			dst = append(dst, t.TopicID[:]...)
		} else {
			dst = appendText(dst, t.Topic, flexible)
		}
		dst = appendCount(dst, len(t.Partitions), flexible)
		for range t.Partitions {
			dst, seams = a.appendPart(dst, seams, &a.parts[k])
			k++
		}
		if flexible {
			dst = append(dst, 0)
		}
	}
	if flexible {
		dst = a.appendBrokers(dst)
	}
	if seams == nil {
		return dst, nil
	}
	pieces := make(net.Buffers, 0, 2*len(seams)+1)
	from := 0
	for _, s := range seams {
		if s.at > from {
			pieces = append(pieces, dst[from:s.at:s.at])
			from = s.at
		}
		pieces = append(pieces, s.batches...)
	}
	return dst, append(pieces, dst[from:])
}

// appendPart encodes one partition:
//
//	index i32 | error i16 | high watermark i64 | last stable offset i64 | log start i64 (v5+)
//	| aborted transactions: none | preferred replica i32 = -1 (v11+) | records | tags (v12+)
//
// Records are never null: librdkafka takes a null for a broken response.
func (a *fetchAnswer) appendPart(dst []byte, seams []seam, p *fetchPart) ([]byte, []seam) {
	be := binary.BigEndian
	flexible := a.version >= 12
	dst = be.AppendUint32(dst, uint32(p.req.Partition))
	dst = be.AppendUint16(dst, uint16(p.code))
	dst = be.AppendUint64(dst, uint64(p.hwm))
	dst = be.AppendUint64(dst, uint64(p.hwm)) // without transactions, all below is stable
	if a.version >= 5 {
		dst = be.AppendUint64(dst, uint64(p.start))
	}
	dst = appendCount(dst, 0, flexible)
	if a.version >= 11 {
		dst = be.AppendUint32(dst, math.MaxUint32)
	}
	if flexible {
		dst = binary.AppendUvarint(dst, uint64(p.bytes)+1)
	} else {
		dst = be.AppendUint32(dst, uint32(p.bytes))
	}
	dst, seams = appendBatches(dst, seams, p.batches)
	if !flexible {
		return dst, seams
	}
	if p.leader < 0 {
		return append(dst, 0), seams
	}
	// One tagged field: 1, the current leader, 9 bytes.
	dst = append(dst, 1, 1, 9)
	dst = be.AppendUint32(dst, uint32(p.leader))
	dst = be.AppendUint32(dst, uint32(p.epoch))
	return append(dst, 0), seams
}

func appendBatches(dst []byte, seams []seam, batches [][]byte) ([]byte, []seam) {
	for i := 0; i < len(batches); {
		if len(batches[i]) < copyBelow {
			dst = append(dst, batches[i]...)
			i++
			continue
		}
		first := i
		for i < len(batches) && len(batches[i]) >= copyBelow {
			i++
		}
		seams = append(seams, seam{len(dst), batches[first:i]})
	}
	return dst, seams
}

// appendBrokers ends the response: its tagged field 0, from version 16 on, is
// the addresses of the leaders that partitions name.
func (a *fetchAnswer) appendBrokers(dst []byte) []byte {
	if a.version < fetchNodes || len(a.brokers) == 0 {
		return append(dst, 0)
	}
	var list []byte
	list = appendCount(list, len(a.brokers), true)
	for _, e := range a.brokers {
		list = binary.BigEndian.AppendUint32(list, uint32(e.id))
		list = appendText(list, e.host, true)
		list = binary.BigEndian.AppendUint32(list, uint32(e.port))
		if e.rack == nil {
			list = append(list, 0)
		} else {
			list = appendText(list, *e.rack, true)
		}
		list = append(list, 0)
	}
	dst = append(dst, 1, 0)
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	return append(dst, list...)
}

func appendCount(dst []byte, n int, flexible bool) []byte {
	if flexible {
		return binary.AppendUvarint(dst, uint64(n)+1)
	}
	return binary.BigEndian.AppendUint32(dst, uint32(n))
}

func appendText(dst []byte, s string, flexible bool) []byte {
	if flexible {
		dst = binary.AppendUvarint(dst, uint64(len(s))+1)
	} else {
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(s)))
	}
	return append(dst, s...)
}

// emptyBatch is a v2 batch without records that covers [from, next), at most
// 2^31-1 offsets: what a cleaning leaves of a batch, which clients skip.
func emptyBatch(from, next mink.Offset, epoch mink.LeaderEpoch) []byte {
	return kafkabatch.EmptyBatch(from, int32(min(next-from, math.MaxInt32)-1), epoch)
}
