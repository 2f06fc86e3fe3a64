// Package jsonrow reads and writes rows as JSON objects, exactly. It is how the
// command line and typed Kafka topics read JSON.
//
// An object's members are matched with the columns by name. An absent column is
// null; null in a NOT NULL column, a member that no column has, and a member that
// occurs twice are errors, inside ROW too. What a type cannot hold exactly is an
// error: nothing is rounded, cut or taken for something else.
//
//	BOOLEAN            true, false
//	TINYINT .. BIGINT  number without a fraction (1, 1.0, 1e3), or that in quotes
//	FLOAT, DOUBLE      number, or that in quotes; "NaN", "+Inf", "-Inf"
//	DECIMAL            number, or that in quotes, with no more digits than the type has; written in quotes
//	CHAR, STRING       text; CHAR(n) at most n characters
//	BINARY, BYTES      base64 with padding
//	DATE               "2026-01-31"
//	TIME               "07:05:00.123", "07:05"
//	TIMESTAMP          "2026-01-31T07:05:00.123", also with a blank for T, or shorter: "2026-01-31"
//	TIMESTAMP_LTZ      the same with a zone: Z, +01, +0100, +01:00
//	ARRAY              list
//	MAP                list of {"key": ..., "value": ...}; read from an object too when the keys are text
//	ROW                object
//
// A fraction of seconds may have more digits than the type when they are zeros.
//
// Input is read in one pass and is bounded by its own size: its depth is that of
// the columns' types, and nothing is believed that it announces.
package jsonrow
