// Package arrowipc checks, cuts, decodes and writes the Arrow encoding of a
// batch: one Arrow IPC record-batch message, as two pieces (the Message
// flatbuffer and the body), without the schema.
//
//	Message     { version i16 = V5, header_type u8 = RecordBatch, header, bodyLength i64 }
//	RecordBatch { length i64, nodes [{length, nullCount}], buffers [{offset, length}], compression? }
//	body        buffers at offsets that are multiples of 8; compressed: i64 plain
//	            length (-1: this one is not compressed), then an LZ4 or ZSTD frame
//
// The flatbuffer is read by bounds-checked code of our own: the generated
// readers trust their input. What Check accepts, Decode and every conforming
// Arrow reader can read in full. Format: Arrow's Message.fbs and Schema.fbs,
// "Encapsulated message format".
package arrowipc
