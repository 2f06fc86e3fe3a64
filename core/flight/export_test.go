package flight

// For tests of the listener from outside.
var (
	SchemaMessage      = schemaMessage
	CheckSchemaMessage = checkSchemaMessage
	ReadSchema         = readSchema
)
