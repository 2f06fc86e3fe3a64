package main

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/plugin"
	"github.com/mink-project/mink/sdk/plugintest"
	"github.com/mink-project/mink/sdk/sink"
	"github.com/mink-project/mink/sdk/sink/sinktest"
)

func TestConformance(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		path := filepath.Join(t.TempDir(), "lines")
		return sinktest.Target{Start: func(context.Context) (sink.Sink, func(), error) {
			s, err := open(path)
			return s, func() {}, err
		}}
	})
}

// TestConformanceAsPlugin kills real processes.
func TestConformanceAsPlugin(t *testing.T) {
	path := filepath.Join(t.TempDir(), plugin.FilePrefix+"sink-print")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		return plugintest.SinkTarget(host.Config{Path: path}, map[string]string{"file": filepath.Join(t.TempDir(), "lines")})
	})
}

// An option of a table that the sink does not know, such as a mistyped one, is refused
// and not passed over; the table can be dropped all the same.
func TestTableOptions(t *testing.T) {
	s, err := open(filepath.Join(t.TempDir(), "lines"))
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
