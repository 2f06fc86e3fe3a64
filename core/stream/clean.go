package stream

import "context"

// CleanNow is not built yet.
func (e *Engine) CleanNow(ctx context.Context) error { return nil }
