package sink

import "context"

type progressKey struct{}

// WithProgress lets a long call of a sink show that it lives: f is called, often, while it
// works. Mink gives up a round that shows nothing for a while.
func WithProgress(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, progressKey{}, f)
}

// Progress says that the call whose context this is goes on. A sink calls it in work that may
// take long and waits for nothing, such as a merge, once for every few MiB; waits and requests
// of their own have deadlines. From a plugin it reaches the host at most once a second, of calls
// that take longer than some seconds. Without a listener it does nothing.
func Progress(ctx context.Context) {
	if f, ok := ctx.Value(progressKey{}).(func()); ok {
		f()
	}
}
