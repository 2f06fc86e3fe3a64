package schema

import (
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/mink-project/mink/sdk/mink"
)

// ParseType reads a type's text.
func ParseType(text string) (Type, error) { panic("not built yet") }

// MustParseType is ParseType for constants; it panics on bad text.
func MustParseType(text string) Type { panic("not built yet") }

// Arrow is the Arrow type (nullability is the field's).
func (t Type) Arrow() arrow.DataType { panic("not built yet") }

// Arrow is the schema with field ids in the metadata.
func (s *Schema) Arrow() *arrow.Schema { panic("not built yet") }

// FromArrow is the schema of a table created from an Arrow schema.
func FromArrow(as *arrow.Schema) (*Schema, error) { panic("not built yet") }

// CheckArrow checks a client's Arrow schema against the table's.
func (s *Schema) CheckArrow(as *arrow.Schema) error { panic("not built yet") }

// Column finds a column by name.
func (s *Schema) Column(name string) (Column, bool) { panic("not built yet") }

// Index is the position of the named column, -1 when absent.
func (s *Schema) Index(name string) int { panic("not built yet") }

// ByID finds a top-level column by field id; its position or -1.
func (s *Schema) ByID(id mink.FieldID) int { panic("not built yet") }

// Clone copies deeply.
func (s *Schema) Clone() Schema { panic("not built yet") }

// Encode is the canonical JSON of one schema version.
func (s *Schema) Encode() []byte { panic("not built yet") }

// DecodeSchema reads what Encode wrote.
func DecodeSchema(data []byte) (*Schema, error) { panic("not built yet") }

// Encode is the canonical JSON.
func (d *Descriptor) Encode() []byte { panic("not built yet") }

// DecodeDescriptor reads JSON strictly; it neither normalizes nor validates.
func DecodeDescriptor(data []byte) (*Descriptor, error) { panic("not built yet") }

// Normalize returns a copy with field ids and defaults filled in.
func (d *Descriptor) Normalize() (*Descriptor, error) { panic("not built yet") }

// Validate checks every rule; the descriptor must be normalized.
func (d *Descriptor) Validate() error { panic("not built yet") }

// Clone copies deeply.
func (d *Descriptor) Clone() *Descriptor { panic("not built yet") }

// ParsedOptions are the typed options of a valid descriptor.
func (d *Descriptor) ParsedOptions() (Options, error) { return ParseOptions(d.Options) }

// Change is one step of an alter.
type Change struct {
	Op         ChangeOp          `json:"op"`
	Name       string            `json:"name,omitempty"`    // the column
	To         string            `json:"to,omitempty"`      // rename_column
	Column     *Column           `json:"column,omitempty"`  // add_column
	Type       *Type             `json:"type,omitempty"`    // modify_column
	Comment    *string           `json:"comment,omitempty"` // modify_column, set_comment
	Options    map[string]string `json:"options,omitempty"`
	Properties map[string]string `json:"properties,omitempty"`
	Names      []string          `json:"names,omitempty"` // reset_options, remove_properties
}

// ChangeOp names what a Change does.
type ChangeOp string

// The operations.
const (
	AddColumn        ChangeOp = "add_column"
	DropColumn       ChangeOp = "drop_column"
	RenameColumn     ChangeOp = "rename_column"
	ModifyColumn     ChangeOp = "modify_column"
	SetOptions       ChangeOp = "set_options"
	ResetOptions     ChangeOp = "reset_options"
	SetProperties    ChangeOp = "set_properties"
	RemoveProperties ChangeOp = "remove_properties"
	SetComment       ChangeOp = "set_comment"
)

// EncodeChanges is the canonical JSON.
func EncodeChanges(c []Change) []byte { panic("not built yet") }

// DecodeChanges reads JSON strictly.
func DecodeChanges(data []byte) ([]Change, error) { panic("not built yet") }

// Apply makes the altered descriptor; Schema.ID grows by one when the columns changed.
func (d *Descriptor) Apply(changes []Change) (*Descriptor, error) { panic("not built yet") }

// TimestampType says whose clock stamps a record.
type TimestampType uint8

// The timestamp types; Kafka's message.timestamp.type.
const (
	CreateTime TimestampType = iota
	LogAppendTime
)

// TimeUnit is the width of an automatic partition.
type TimeUnit string

// The units.
const (
	UnitHour    TimeUnit = "hour"
	UnitDay     TimeUnit = "day"
	UnitMonth   TimeUnit = "month"
	UnitQuarter TimeUnit = "quarter"
	UnitYear    TimeUnit = "year"
)

// AutoPartition is the auto_partition.* options. Unit "" means off.
type AutoPartition struct {
	Key       string // the partition key that holds the time; "": the only one
	Unit      TimeUnit
	Zone      string // IANA name
	Precreate int    // units ahead of now that exist already
	Retention int    // units behind now that are kept; 0: all
}

// Options are a table's typed options.
type Options struct {
	LogTTL          time.Duration // 0: forever
	LogMaxBytes     int64         // per bucket; 0: no limit
	MaxMessageBytes int           // largest batch, bytes
	TimestampType   TimestampType
	TimestampBefore time.Duration // how far a CreateTime may lie behind the clock; 0: any
	TimestampAfter  time.Duration // ... ahead of the clock; 0: any
	AutoPartition   AutoPartition
}

// ParseOptions reads a descriptor's options.
func ParseOptions(m map[string]string) (Options, error) { panic("not built yet") }

// KafkaTopicSchema is the four columns of a Kafka topic.
func KafkaTopicSchema() Schema { panic("not built yet") }

// KafkaTopic describes a topic's table; configs are Kafka topic configs.
func KafkaTopic(database, topic string, buckets int32, configs map[string]string) (*Descriptor, error) {
	panic("not built yet")
}

// IsKafkaTopic reports whether the schema is the four columns of a topic.
func IsKafkaTopic(s *Schema) bool { panic("not built yet") }
