package main

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/glue"
	"github.com/aws/aws-sdk-go-v2/service/glue/types"

	"github.com/mink-project/mink/sdk/catalog"
)

// putHive puts a table of another format into Glue.
func putHive(t *testing.T, c *glueCatalog, id catalog.Identifier) {
	t.Helper()
	_, err := c.glue.CreateTable(t.Context(), &glue.CreateTableInput{
		DatabaseName: aws.String(id.Namespace[0]),
		TableInput:   &types.TableInput{Name: aws.String(id.Name), TableType: aws.String("EXTERNAL_TABLE"), Parameters: map[string]string{"classification": "parquet"}},
	})
	if err != nil {
		t.Fatal(err)
	}
}
