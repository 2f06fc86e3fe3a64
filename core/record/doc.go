// Package record is the Mink batch: the unit in which records are appended,
// stored and read. A batch is a fixed header, an optional change vector and a
// payload in one of two encodings (record/kafkabatch, record/arrowipc):
//
//	off size field
//	  0    8 base offset                                  S
//	  8    4 length: bytes after this field
//	 12    4 leader epoch                                 S
//	 16    8 commit timestamp, ms, never falls in a log   S
//	 24    4 crc32c
//	 28    1 magic = 1                                    C
//	 29    1 encoding: 1 arrow, 2 kafka                   C
//	 30    2 attributes                                   C
//	 32    4 schema id                                    C
//	 36    4 last offset delta = offsets taken - 1        C
//	 40    4 record count                                 C
//	 44    4 bytes of the change vector: 0 or the count   C
//	 48    8 max record timestamp, ms                     C
//	 56    8 writer id, -1: none                          C
//	 64    4 first sequence, -1: none                     C
//	 68    4 last sequence                                C
//	 72    2 writer epoch                                 C
//	 74    2 zero                                         C
//	 76    4 bytes of the Arrow metadata, 0 for kafka     C
//	 80      change vector, zeros up to a multiple of 8   C
//	         arrow: message flatbuffer, zeros up to a multiple of 8, message body   C
//	         kafka: one Kafka v2 record batch, verbatim
//
// All integers are little endian. S: assigned by the server at append, outside
// the CRC. C: covered, in this order: what follows the header, then header
// bytes [28, 80), so that a field decided late costs 52 bytes and not the
// payload. A kafka payload carries its own CRC32C over the same bytes: there
// Mink's covers the 4 bytes of Kafka's CRC in place of the payload, so that no
// byte is summed twice. Kafka's base offset and partition leader epoch are
// outside both sums and are patched at append.
//
// A batch always takes at least one offset: one without records (a write that
// changed nothing still advances its writer) has count 0.
package record
