package stream

import "context"

// SweepNow is not built yet.
func (e *Engine) SweepNow(ctx context.Context) error { return nil }
