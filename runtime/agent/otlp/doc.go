// Package otlp exports the time lines of allocations as traces, and metrics, with the OpenTelemetry protocol over HTTP or
// gRPC.
//
// A [TraceExporter] has a bounded queue of spans and one goroutine, which sends them in batches. Recording a
// span never blocks: spans that the collector does not accept in time are dropped, and the log has their
// number. A [MetricsExporter] sends readings of metrics. The package also reads the environment variables of OpenTelemetry.
package otlp
