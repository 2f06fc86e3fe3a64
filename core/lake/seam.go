package lake

import (
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/catalog"
)

// CreateTable describes a table to make.
type CreateTable struct {
	ID         catalog.Identifier
	Schema     *iceberg.Schema
	Spec       iceberg.PartitionSpec
	SortOrder  table.SortOrder
	Location   string
	Properties iceberg.Properties
}
