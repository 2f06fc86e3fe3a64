package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/sdk/sink"
	"github.com/mink-project/mink/sdk/sink/sinktest"
)

// TestConformance runs the kit in this process: quick, and good with a debugger.
// `mink plugin test` runs it on the executable, whose processes it kills.
func TestConformance(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		dir := t.TempDir() // an empty target for each check
		return sinktest.Target{Start: func(context.Context) (sink.Sink, func(), error) {
			s, err := open(dir)
			return s, func() {}, err
		}}
	})
}

// An option of a table that the sink does not know, such as a mistyped one, is refused
// and not passed over; the table can be dropped all the same.
func TestTableOptions(t *testing.T) {
	s, err := open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	spec := sink.TableSpec{
		ID: 7, Database: "shop", Name: "orders", BucketCount: 1, Options: map[string]string{"tabel": "x"},
		Schema: sink.Schema{ID: 1, Arrow: arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)},
	}
	if _, err := s.Open(t.Context(), sink.OpenRequest{Table: spec}); !errors.Is(err, sink.ErrInvalid) || !strings.Contains(err.Error(), "tabel") {
		t.Errorf("open: %v", err)
	}
	table, err := s.Open(t.Context(), sink.OpenRequest{Table: spec, Drop: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = table.Close() }()
	if _, err := table.Drop(t.Context(), sink.DropRequest{}); err != nil {
		t.Error(err)
	}
}
