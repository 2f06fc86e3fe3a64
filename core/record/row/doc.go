// Package row is the compact form of one row of a primary-key table: the value
// under its key in the store. A row says which schema version it was written
// under, and a column is read from it in constant time, without allocating.
//
//	row     = format (1 byte: 1)  schema id (uvarint, 1..)  record
//	record  = [w]  nulls  fixed  [ends  bytes]
//
//	          w      1 byte, 2 or 4: the width of each end; only in a record with variable fields
//	          nulls  1 bit per field, lowest bit first, 1: null; padded with 0 to whole bytes
//	          fixed  the fields of fixed width, in order; a null one is zeros
//	          ends   per variable field, in order: where it ends in bytes (little endian)
//	          bytes  the variable fields, one after the other; a null one is empty
//
//	fixed     1 byte      BOOLEAN (0, 1), TINYINT
//	          2, 4, 8     SMALLINT, INT, BIGINT; FLOAT, DOUBLE (IEEE bits as they came, NaN's too)
//	          4           DATE, TIME(0..3)
//	          8           TIME(4..9), TIMESTAMP, TIMESTAMP_LTZ
//	          16          DECIMAL, the unscaled value
//	          n           BINARY(n), n <= 16
//	variable  the bytes   CHAR, STRING (UTF-8), BYTES, BINARY(n) with n > 16
//	          list        ARRAY: count (uvarint)  vector of elements
//	          map         MAP:   count (uvarint)  vector of keys  vector of values
//	          record      ROW
//	vector  = nulls  fixed            of count elements, as in a record; nothing when there are none
//	        | nulls  w  ends  bytes
//
// All numbers are little endian and two's complement, as Arrow has them: a
// fixed-width field is a copy of Arrow's bytes. Example, (a INT, b STRING, c
// BOOLEAN) = (7, "hi", null) under schema 3:
//
//	01  03  02  04  07 00 00 00  00  02 00  68 69
//	    id  w   c   a            c   end    "hi"
//
// Equal rows have equal bytes, but for the bits of NaN and the sign of zero: w is 4
// exactly when the bytes are more than 65535. A record may have null in a NOT NULL
// field: rows with values for some columns only are made on the way. There is no
// checksum: the store has one over each block.
//
// What may read a row is told by who made it: Codec.Row checks as much as reading
// needs and never reads outside the value, Codec.Check looks at every byte. Bytes
// that no row has wrap mink.ErrCorrupt.
package row
