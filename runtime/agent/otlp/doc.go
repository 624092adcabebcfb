// Package otlp exports allocations' time lines as traces, and metrics, with the OpenTelemetry protocol over HTTP or gRPC.
//
// A [TraceExporter] has a bounded span queue and one goroutine, which sends the spans in batches. Recording a span never blocks:
// spans that the collector does not accept in time are dropped, and the log has their number. A [MetricsExporter] sends metric
// readings. The package also reads OpenTelemetry's environment variables.
package otlp
