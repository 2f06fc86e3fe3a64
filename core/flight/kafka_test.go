package flight_test

import (
	"encoding/binary"
	"hash/crc32"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

func grpcHeader(md *metadata.MD) []grpc.CallOption { return []grpc.CallOption{grpc.Header(md)} }

// kafkaBatch writes a v2 record batch of key, value pairs by hand, so that the
// test does not trust the code under test.
func kafkaBatch(t *testing.T, attributes uint16, pairs ...string) []byte {
	t.Helper()
	var records []byte
	n := len(pairs) / 2
	for i := range n {
		var r []byte
		r = append(r, 0)                       // attributes
		r = binary.AppendVarint(r, 0)          // timestamp delta
		r = binary.AppendVarint(r, int64(i))   // offset delta
		for _, s := range pairs[2*i : 2*i+2] { // key, value
			r = binary.AppendVarint(r, int64(len(s)))
			r = append(r, s...)
		}
		r = binary.AppendVarint(r, 0) // headers
		records = binary.AppendVarint(records, int64(len(r)))
		records = append(records, r...)
	}
	return sealKafka(attributes, n, records)
}

// poisonBatch claims gzip and holds no such thing: the header is fine, the
// records are not.
func poisonBatch(t *testing.T, n int) []byte {
	t.Helper()
	return sealKafka(1, n, []byte("this is not gzip at all"))
}

func sealKafka(attributes uint16, n int, records []byte) []byte {
	be := binary.BigEndian
	now := uint64(time.Now().UnixMilli())
	body := be.AppendUint16(nil, attributes)
	body = be.AppendUint32(body, uint32(n-1))
	body = be.AppendUint64(body, now)
	body = be.AppendUint64(body, now)
	body = be.AppendUint64(body, 1<<64-1) // no producer
	body = be.AppendUint16(body, 1<<16-1)
	body = be.AppendUint32(body, 1<<32-1)
	body = be.AppendUint32(body, uint32(n))
	body = append(body, records...)
	b := be.AppendUint64(nil, 0)
	b = be.AppendUint32(b, uint32(9+len(body)))
	b = be.AppendUint32(b, 0)
	b = append(b, 2)
	b = be.AppendUint32(b, crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
	return append(b, body...)
}
