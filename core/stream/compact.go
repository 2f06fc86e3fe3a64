package stream

import "context"

// CompactNow is not built yet.
func (e *Engine) CompactNow(ctx context.Context) error { return nil }
