package sdk

import (
	"context"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
)

// Traceparent returns the trace context of the call whose context is ctx, for a method of a driver or a hook. It has
// the format of the HTTP header traceparent of W3C Trace Context, and is the parent for spans that the plugin exports.
// The trace is that of the allocation. The result is empty if the host exports no traces.
//
// With OpenTelemetry for Go:
//
//	carrier := propagation.MapCarrier{"traceparent": sdk.Traceparent(ctx)}
//	ctx = propagation.TraceContext{}.Extract(ctx, carrier)
func Traceparent(ctx context.Context) string { return basewire.IncomingTraceparent(ctx) }
