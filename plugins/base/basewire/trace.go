package basewire

import (
	"context"

	"google.golang.org/grpc/metadata"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// traceparentKey is the gRPC metadata with the trace context of a call, which W3C Trace Context and the
// instrumentation of gRPC define.
const traceparentKey = "traceparent"

// withTraceMetadata adds the traceparent of ctx to the metadata of a call.
func withTraceMetadata(ctx context.Context) context.Context {
	traceparent := base.Traceparent(ctx)
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
