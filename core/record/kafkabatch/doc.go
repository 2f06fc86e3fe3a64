// Package kafkabatch reads, checks and writes the Kafka encoding of a batch:
// one Kafka v2 record batch, kept verbatim. Integers are big endian:
//
//	off size field
//	  0    8 base offset              patched at append, outside the CRC
//	  8    4 length: bytes after this field
//	 12    4 partition leader epoch   patched at append, outside the CRC
//	 16    1 magic = 2
//	 17    4 crc32c of [21, end)
//	 21    2 attributes: 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 delete horizon
//	 23    4 last offset delta
//	 27    8 base timestamp, ms; with attribute 6 the delete horizon of the tombstones
//	 35    8 max timestamp, ms
//	 43    8 producer id
//	 51    2 producer epoch
//	 53    4 base sequence
//	 57    4 record count
//	 61      records, compressed as one when the codec says so; each:
//	         length varint, attributes i8, timestamp delta varlong, offset delta varint,
//	         key (varint length, -1: null), value (same), header count varint,
//	         headers: key (varint length >= 0), value (varint length, -1: null)
//
// On the way in an uncompressed batch is walked record by record (framing only)
// and a compressed one is checked by its header, unless a deep check is asked
// for. What a cleaning has left of a batch (Clean) keeps its offsets: some deltas are
// missing, or there is no record at all. Decompression is bounded, see Limits. Format and rules: Kafka's
// DefaultRecordBatch, DefaultRecord and LogValidator.
package kafkabatch
