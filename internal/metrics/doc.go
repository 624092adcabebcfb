// Package metrics defines the metrics of the agent and their formats.
//
// It has the table of all metrics, the settings that select metrics, the counters and histograms that other
// packages update, and the conversions to the formats of clients: families for Prometheus, and the summary
// of Nomad's API. It reads no state of the agent: package collect does, and adds what it reads to a [Set].
package metrics
