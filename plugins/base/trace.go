package base

import (
	"context"

	"google.golang.org/grpc/metadata"
)

// traceparentKey is the gRPC metadata with the trace context of a call, which W3C Trace Context and the
// instrumentation of gRPC define.
const traceparentKey = "traceparent"

type traceparentContextKey struct{}

// WithTraceparent returns a context whose plugin calls belong to a span of a trace: each call has the
// metadata traceparent. The value has the format of the HTTP header traceparent.
func WithTraceparent(ctx context.Context, traceparent string) context.Context {
	return context.WithValue(ctx, traceparentContextKey{}, traceparent)
}

// Traceparent returns the value that WithTraceparent has set, or "".
func Traceparent(ctx context.Context) string {
	traceparent, _ := ctx.Value(traceparentContextKey{}).(string)
	return traceparent
}

// withTraceMetadata adds the traceparent of ctx to the metadata of a call.
func withTraceMetadata(ctx context.Context) context.Context {
	traceparent := Traceparent(ctx)
	if traceparent == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, traceparentKey, traceparent)
}

// IncomingTraceparent returns the traceparent of the call that a plugin is handling under ctx, or "".
func IncomingTraceparent(ctx context.Context) string {
	values := metadata.ValueFromIncomingContext(ctx, traceparentKey)
	if len(values) == 0 {
		return ""
	}
	return values[0]
}
