package mink

// Keys of the metadata of Arrow fields, nested ones included.
const (
	MetaFieldID        = "mink.field_id"    // decimal FieldID
	MetaParquetFieldID = "PARQUET:field_id" // the same number, for Parquet writers
	MetaType           = "mink.type"        // Mink's type as text: CHAR(n) and precisions are not in the Arrow type
	MetaComment        = "mink.comment"     // the user's
)
