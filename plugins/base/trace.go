package base

import "context"

type traceparentContextKey struct{}

// WithTraceparent returns a context whose plugin calls belong to a span of a trace: each call has the
// metadata traceparent. The value has the format of the HTTP header traceparent. For hosts only.
func WithTraceparent(ctx context.Context, traceparent string) context.Context {
	return context.WithValue(ctx, traceparentContextKey{}, traceparent)
}

// Traceparent returns the value that WithTraceparent has set, or "". For hosts only.
func Traceparent(ctx context.Context) string {
	traceparent, _ := ctx.Value(traceparentContextKey{}).(string)
	return traceparent
}
