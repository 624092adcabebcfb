package extras

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp"
	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
)

// traceExport exports the spans of allocations to an OpenTelemetry collector.
type traceExport struct {
	config   otlp.Config
	exporter *otlp.TraceExporter // nil before Open, or if Open has failed
}

var _ agent.AllocTracer = (*traceExport)(nil)

// AppendTraceExport appends an extension that exports the spans of allocations, if the configuration enables it.
func AppendTraceExport(list []agent.Extension, c otlp.Config) []agent.Extension {
	if !c.IsExportEnabled() {
		return list
	}
	return append(list, &traceExport{config: c})
}

// Name implements agent.Extension.
func (*traceExport) Name() string { return "traces" }

// Open implements agent.Extension.
func (t *traceExport) Open(in agent.ExtensionInput) (err error) {
	t.exporter, err = otlp.NewTraceExporter(t.config, otlp.AgentFacts{
		Version: in.Version, NodeID: in.NodeID, NodeName: in.Settings.Name, Datacenter: in.Settings.Datacenter, Region: in.Settings.Region, HostName: in.Host.Hostname,
	}, in.Logger)
	return err
}

// NewAllocTrace implements agent.AllocTracer.
func (t *traceExport) NewAllocTrace(alloc *api.Allocation) timeline.Trace {
	return t.exporter.NewAllocTrace(alloc)
}

// Run implements agent.Extension. The exporter sends spans until Close.
func (*traceExport) Run(context.Context, *agent.Agent) {}

// Close implements agent.Extension. It waits until the collector has the last spans, for two seconds at most.
func (t *traceExport) Close() error {
	if t.exporter != nil {
		t.exporter.Close()
	}
	return nil
}
