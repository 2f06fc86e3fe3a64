package cluster

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/schema"
)

// Whatever a command says, the state after it can be written as a snapshot:
// protobuf takes no text that is cut within a character, and a record has a limit.
func TestEveryStateIsEncodable(t *testing.T) {
	s := NewState()
	apply := func(epoch int64, counter uint64, c *clusterpb.Command) *clusterpb.Result {
		t.Helper()
		next, results, err := s.Apply(s.Index()+1, 0, &clusterpb.Batch{Epoch: epoch, Counter: counter, Commands: []*clusterpb.Command{c}})
		if err != nil {
			t.Fatal(err)
		}
		s = next
		largest := 0
		if err := s.EncodeSnapshot(func(r []byte) error { largest = max(largest, len(r)); return nil }); err != nil {
			t.Fatalf("after entry %d: %v", s.Index(), err)
		}
		if largest > 64<<10 {
			t.Errorf("after entry %d a record of the snapshot has %d bytes", s.Index(), largest)
		}
		return results[0]
	}
	apply(0, 0, registerCmd(1, 11))
	long := apply(1, 1, &clusterpb.Command{Kind: &clusterpb.Command_CreatePartition{CreatePartition: &clusterpb.CreatePartition{
		Table: 7, Values: []string{strings.Repeat("ü", 1<<20)},
	}}})
	if long.GetCode() != clusterpb.Code_NOT_EXIST || !strings.Contains(long.GetMessage(), "create partition") || !utf8.ValidString(long.GetMessage()) {
		t.Errorf("answered %v %.80q", long.GetCode(), long.GetMessage())
	}
	for cut := range 3 {
		apply(0, 0, registerCmd(1, uint64(100+cut)))
		epoch := int64(s.Index())
		r := apply(epoch, 1, &clusterpb.Command{Kind: &clusterpb.Command_SealNode{SealNode: &clusterpb.SealNode{
			Epoch: epoch, Reason: strings.Repeat("x", cut) + strings.Repeat("世", 400),
		}}})
		if err := ResultError(r); err != nil {
			t.Error(err)
		}
		if _, err := DecodeSnapshot(records(snapshot(s))); err != nil {
			t.Error(err)
		}
	}
}

// A table's schemas are kept for ever: their sum is bounded, so that the table
// stays one record.
func TestSchemaHistoryIsBounded(t *testing.T) {
	d := descriptor("db", "t", 1, false, false)
	table, err := newTable(d.Encode())
	if err != nil {
		t.Fatal(err)
	}
	big := make([]byte, maxSchemaHistory/2)
	table.schemaJSON = append(table.schemaJSON, big, big)
	add := schema.EncodeChanges([]schema.Change{{Op: schema.AddColumn, Column: &schema.Column{Name: "c", Type: schema.MustParseType("INT")}}})
	if _, err := table.altered(add); err == nil || !strings.Contains(err.Error(), "make a new table") {
		t.Errorf("altered past the limit: %v", err)
	}
	table.schemaJSON = table.schemaJSON[:1]
	if _, err := table.altered(add); err != nil {
		t.Error(fmt.Errorf("within the limit: %w", err))
	}
}
