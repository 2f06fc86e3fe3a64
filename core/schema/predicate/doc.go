// Package predicate is the filter of a read: a condition on the columns of a row, in a
// small part of SQL.
//
//	filter     = and { OR and }
//	and        = not { AND not }
//	not        = { NOT } ( "(" filter ")" | condition )
//	condition  = column ( "=" | "<>" | "!=" | "<" | "<=" | ">" | ">=" ) literal
//	           | column [ NOT ] IN "(" literal { "," literal } ")"
//	           | column [ NOT ] BETWEEN literal AND literal
//	           | column IS [ NOT ] NULL
//	column     = name | "\"" name "\""            a quote inside is doubled
//	literal    = 12 | -1.5e3 | 'text' | TRUE | FALSE | X'c0ffee'
//	           | DATE '2024-01-31' | TIME '07:05:00.25'
//	           | TIMESTAMP '2024-01-31 07:05:00' | TIMESTAMP '2024-01-31T07:05:00Z'
//
// Words are read in either case, names of columns as they are. A literal takes the type
// of its column; text stands for dates, times, instants, numbers and (hexadecimal) bytes
// too. A literal that the column's type cannot hold exactly, such as 300 for a TINYINT
// or a microsecond for a TIMESTAMP(3), is an error, never rounded.
//
// Null follows SQL: a comparison with a null is unknown, NOT of unknown is unknown, and
// only rows for which the filter is true come. CHAR and STRING compare by their bytes,
// FALSE is below TRUE, and of FLOAT and DOUBLE -0 equals 0 and NaN equals NaN and is above
// all else: the order of keys. Columns of nested types take IS NULL alone.
package predicate
