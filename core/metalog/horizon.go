package metalog

import (
	"context"
	"fmt"
)

// ReadHorizon is the smallest metadata index that every read of every live node has
// seen: as their heartbeats report it, and at most the replica's own. What was
// destroyed at or below it is named by no view that is still read.
func ReadHorizon(ctx context.Context, log Log, r *Replica) (uint64, error) {
	rows, err := log.Heartbeats(ctx)
	if err != nil {
		return 0, fmt.Errorf("read horizons of the nodes: %w", err)
	}
	horizon := r.View().Index()
	for _, row := range rows {
		if !row.Marked {
			horizon = min(horizon, row.Applied)
		}
	}
	return horizon, nil
}
