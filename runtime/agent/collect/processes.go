package collect

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

// addPlugins adds the plugins' states. It omits superseded plugins, and plugins before their first run, because their type is
// unknown.
func (r *metricSetBuilder) addPlugins(plugins []supervisor.PluginStatus) {
	for _, p := range plugins {
		if p.Serves.Name == "" || p.SupersededBy != "" {
			continue
		}
		labels := metrics.NewLabels("plugin", p.Name, "type", p.Serves.Type.String())
		r.Add("nomad_lite_plugin_up", boolToFloat(p.PID != 0 || p.Idle), labels)
		r.Add("nomad_lite_plugin_restarts_total", float64(p.ExitCount), labels)
	}
}

// addOperations adds the operation counts of the agent and of plugins with counts.
func (r *metricSetBuilder) addOperations(plugins []supervisor.PluginStatus) {
	add := func(c opcount.Counts, labels metrics.Labels) {
		for _, k := range opcount.Kinds() {
			r.Add("nomad_lite_operations_total", float64(c[k]), labels.With("operation", k.String()))
		}
	}
	add(opcount.Read(), nil)
	for _, p := range plugins {
		if p.Operations != (opcount.Counts{}) {
			add(p.Operations, metrics.NewLabels("plugin", p.Name))
		}
	}
}

func (r *metricSetBuilder) addKeeper(k *keeper.Client) {
	if k == nil {
		return
	}
	status, labels := k.Status(), metrics.NewLabels("helper", "keeper")
	r.Add("nomad_lite_helper_up", boolToFloat(status.Connected), labels)
	r.Add("nomad_lite_helper_starts_total", float64(status.KeeperStarts), labels)
	r.Add("nomad_lite_keeper_descriptors", float64(status.StoredFDs), nil)
	if status.Connected {
		r.addHelperResidentMemory(status.KeeperProcess.PID, labels)
	}
}

// helperTimeout is the timeout for a request to a helper process.
const helperTimeout = time.Second

func (r *metricSetBuilder) addLogCollector(ctx context.Context, c *logs.CollectorClient) {
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	status, labels := c.Status(ctx), metrics.NewLabels("helper", "log_collector")
	r.Add("nomad_lite_helper_up", boolToFloat(status.Connected), labels)
	r.Add("nomad_lite_helper_starts_total", float64(status.ProcessStarts), labels)
	if status.Connected {
		r.addHelperResidentMemory(status.Process.PID, labels)
	}
	if status.HasCounts {
		r.Add("nomad_lite_log_collector_streams", float64(status.Streams), nil)
		r.Add("nomad_lite_log_collector_written_bytes_total", float64(status.WrittenBytes), nil)
		r.Add("nomad_lite_log_collector_lost_bytes_total", float64(status.LostBytes), nil)
	}
}

// addHelperResidentMemory adds a helper process's memory, unless the process has just exited.
func (r *metricSetBuilder) addHelperResidentMemory(pid int, labels metrics.Labels) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return
	}
	if fields := strings.Fields(string(text)); len(fields) > 1 {
		if pages, err := strconv.ParseInt(fields[1], 10, 64); err == nil && pages > 0 {
			r.Add("nomad_lite_helper_resident_memory_bytes", float64(pages)*float64(os.Getpagesize()), labels)
		}
	}
}

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
