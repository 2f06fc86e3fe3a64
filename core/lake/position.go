package lake

import (
	"context"
	"fmt"

	"github.com/mink-project/mink/sdk/sink"
)

func (r *round) newPositionDeletes(context.Context) (deleter, error) {
	return nil, fmt.Errorf("%w: position deletes", sink.ErrUnimplemented)
}
