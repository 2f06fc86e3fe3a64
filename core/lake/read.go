package lake

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// Read calls yield with the rows of the current snapshot, as the Iceberg library
// reads them: deletes applied, columns by their current names.
func (s *Sink) Read(ctx context.Context, req sink.ReadRequest, yield func(batch arrow.RecordBatch, changes []mink.Change) bool) error {
	if err := s.read(ctx, req.Table, yield); err != nil {
		return fmt.Errorf("read lake table %s: %w", req.Table.FullName(), sinkError(err))
	}
	return nil
}

func (s *Sink) read(ctx context.Context, spec sink.TableSpec, yield func(arrow.RecordBatch, []mink.Change) bool) error {
	t := &lakeTable{sink: s, store: s.w.Store(), spec: spec, dir: tableDir(spec), id: identifier(spec)}
	tbl, err := s.w.Load(ctx, t.id)
	if errors.Is(err, sink.ErrNotExist) || errors.Is(err, mink.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if t.own(tbl) != nil || tbl.CurrentSnapshot() == nil {
		return nil
	}
	_, batches, err := tbl.Scan().ToArrowRecords(ctx)
	if err != nil {
		return err
	}
	for batch, err := range batches {
		if err != nil {
			return err
		}
		more := yield(batch, nil)
		batch.Release()
		if !more {
			break
		}
	}
	return nil
}
