package lake

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

type fold struct{}

func newFold(SinkConfig, *schema.Schema, []string, *arrow.Schema) (*fold, error) {
	return nil, fmt.Errorf("%w: primary-key tables", sink.ErrUnimplemented)
}
func (f *fold) add(context.Context, arrow.RecordBatch, arrow.RecordBatch, []mink.Change) error {
	return nil
}
func (f *fold) close()                                  {}
func (r *round) writeFold(context.Context, *fold) error { return nil }
