package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentconfig"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/pluginreport"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/pluginstatus"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/version"
	"github.com/nomad-lite/nomad-lite/internal/datadir"
	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
)

// loadConfig reads the configuration from the files and the flags, at the start or for a reload. Flags override files.
func (o options) loadConfig(reload bool, s *cli.Streams) (*config.Config, error) {
	c, warningCount, err := agentconfig.ReadFiles(o.configPaths, o.servers, reload, s)
	if err == nil && o.rejectWarnings && warningCount > 0 {
		err = errors.New("with -strict, each warning is an error: correct the settings, or leave out -strict")
	}
	if err != nil {
		return nil, err
	}
	for _, flag := range []struct {
		value string
		field *string
	}{
		{o.dataDir, &c.DataDir},
		{o.bindAddr, &c.BindAddr},
		{o.node.name, &c.Node.Name},
		{o.node.datacenter, &c.Node.Datacenter},
		{o.node.region, &c.Node.Region},
		{o.node.class, &c.Node.Class},
		{o.node.pool, &c.Node.Pool},
		{o.node.networkInterface, &c.Node.Interface.Name},
		{o.pluginDir, &c.PluginDir},
		{o.logLevel, &c.LogLevel},
		{o.introductionToken, &c.Cluster.IntroductionToken},
	} {
		if flag.value != "" {
			*flag.field = flag.value
		}
	}
	if len(o.servers) > 0 && c.Cluster.ServerEnabled {
		return nil, errors.New("-servers: the configuration has server.enabled = true, with which an agent schedules for itself: set it to false")
	}
	if c.Node.Meta == nil {
		c.Node.Meta = make(map[string]string)
	}
	maps.Copy(c.Node.Meta, o.node.meta)
	c.LogJSON = c.LogJSON || o.logJSON
	c.LogSourceLocation = c.LogSourceLocation || o.logSourceLocation
	if c.LogLevel == "" {
		c.LogLevel = "info"
	}
	if hclog.LevelFromString(c.LogLevel) == hclog.NoLevel {
		return nil, fmt.Errorf("log-level %q: use trace, debug, info, warn or error", c.LogLevel)
	}
	if o.devMode {
		if o.dataDir != "" {
			return nil, errors.New("-dev keeps nothing: leave out -data-dir, or -dev")
		}
		c.DataDir = ""
		if c.Node.Interface.Name == "" && !c.Cluster.IsNode() { // other nodes of a cluster could not reach the services of this one
			c.Node.Interface.Name = fingerprint.LoopbackInterface()
		}
		return c, nil
	}
	if c.DataDir == "" {
		c.DataDir, err = datadir.Default()
	}
	if err == nil {
		c.DataDir, err = filepath.Abs(c.DataDir)
	}
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	return c, nil
}

// configForAPI returns the configuration that the API shows. It lists the fields explicitly, so that
// no field with a secret is shown.
func (r *runningAgent) configForAPI() map[string]any {
	c, node, b := r.currentConfig(), r.agent.Node().TaskEnvNode(), version.ReadBuild()
	_, port, _ := net.SplitHostPort(r.advertisedTCPAddress)
	isNodeOfCluster := c.Cluster.IsNode()
	number, _ := strconv.Atoi(port) // without an address, port is "" and number is 0
	// Browsers cannot open the address of a unix socket, so it is no hint.
	webPage := map[string]any{"Enabled": !c.DisableWebPage, "ShowCLIHints": !c.DisableWebPage && !c.HideWebPageURLs && r.advertisedTCPAddress != ""}
	if c.WebPageLabel.Text != "" {
		webPage["Label"] = c.WebPageLabel
	}
	return map[string]any{
		"Region": node.Region, "Datacenter": node.Datacenter, "NodeName": node.Name, "BindAddr": c.BindAddr,
		"DataDir": r.agent.DataDir(), "LogLevel": c.LogLevel, "LogJson": c.LogJSON, "DevMode": r.flags.devMode,
		"EnableDebug": c.EnableDebug, "PluginDir": c.PluginDir, "Plugins": r.describePluginProcesses(), "Hooks": r.hookStatuses(),
		"LeaveOnInt": c.LeaveOnInterrupt, "LeaveOnTerm": c.LeaveOnTerminate,
		"ACL":            map[string]any{"Enabled": c.Cluster.AccessControl},
		"AdvertiseAddrs": map[string]any{"HTTP": r.advertisedTCPAddress, "RPC": "", "Serf": ""},
		"Client": map[string]any{
			"Enabled": true, "NodeClass": node.Class, "NodePool": node.Pool, "Meta": node.Meta,
			"GCInterval": c.GC.DiskCheckInterval, "GCMaxAllocs": c.GC.MaxAllocsOnDisk, "GCDiskUsageThreshold": c.GC.MaxDiskUsagePercent,
			"GCDiskUsageMinAge": c.GC.MinEndedTimeForDiskUsageGC,
		},
		"Ports":  map[string]any{"HTTP": number, "RPC": 0, "Serf": 0},
		"Server": map[string]any{"Enabled": !isNodeOfCluster},
		"TLSConfig": map[string]any{
			"EnableHTTP": c.TLS.ServeHTTPS, "VerifyHTTPSClient": c.TLS.VerifyClient, "CAFile": c.TLS.CAFile, "CertFile": c.TLS.CertFile,
			"KeyFile": c.TLS.KeyFile,
		},
		"Telemetry": telemetryConfigForAPI(&c.Telemetry),
		"UI":        webPage,
		"Version":   map[string]any{"Version": fingerprint.NomadVersion, "VersionPrerelease": "", "VersionMetadata": b.SemverMetadata(), "Revision": b.Revision},
	}
}

// pluginReport returns the states of the plugin processes and hooks of the agent, for the API.
func (r *runningAgent) pluginReport() pluginstatus.Report {
	return pluginstatus.Report{Hooks: r.hookStatuses(), Processes: r.describePluginProcesses()}
}

// telemetryConfigForAPI returns the settings of the telemetry block, by the field names of Nomad's API.
func telemetryConfigForAPI(s *metrics.Settings) map[string]any {
	t := map[string]any{
		"PrometheusMetrics":             !s.OmitPrometheusFormat,
		"PublishAllocationMetrics":      !s.OmitAllocationMetrics,
		"PublishNodeMetrics":            !s.OmitNodeMetrics,
		"DisableHostname":               s.OmitHost,
		"CollectionInterval":            s.Interval().String(),
		"PrefixFilter":                  s.Filter.Rules,
		"FilterDefault":                 !s.Filter.OmitDefault,
		"IncludeAllocMetadataInMetrics": s.IncludeAllocMetadata,
		"AllowedMetadataKeysInMetrics":  s.AllowedMetadataKeys,
	}
	names := map[metrics.Protocol]string{metrics.Statsd: "StatsdAddr", metrics.Statsite: "StatsiteAddr", metrics.Datadog: "DataDogAddr"}
	for _, sink := range s.Sinks {
		t[names[sink.Protocol]] = sink.Address
	}
	return t
}

// describePluginsTimeout limits how long describePluginProcesses waits for the descriptions of the running plugins.
const describePluginsTimeout = time.Second

// describePluginProcesses returns the states of the plugins of the agent, with the descriptions of those that run. It
// does not start a plugin that has no process.
func (r *runningAgent) describePluginProcesses() []pluginstatus.Process {
	ctx, cancel := context.WithTimeout(context.Background(), describePluginsTimeout)
	defer cancel()
	plugins, fingerprints := r.agent.Supervisor().Plugins(), pluginreport.LatestFingerprints{DriverInfoByName: r.agent.Supervisor().DriverInfoByName(), DeviceGroups: r.agent.Supervisor().DeviceGroups()}
	processes := make([]pluginstatus.Process, len(plugins))
	var described sync.WaitGroup
	running := make(map[int]bool)
	for i, p := range plugins {
		processes[i] = pluginreport.DescribePluginProcess(p, fingerprints)
		if p.PID == 0 || p.Serves.Name == "" || p.SupersededBy != "" {
			continue
		}
		running[p.PID] = true
		described.Go(func() {
			if d := r.describePluginCached(ctx, p); d != nil {
				pluginreport.AddSchemasAndCapabilities(&processes[i], d, os.Geteuid() == 0)
			}
		})
	}
	described.Wait()
	r.descriptionsByPluginPID.Range(func(pid, _ any) bool {
		if !running[pid.(int)] {
			r.descriptionsByPluginPID.Delete(pid)
		}
		return true
	})
	return processes
}

// describePluginCached returns the description that a plugin gives of itself, or nil if the call fails. It caches the
// description by pid, because commands read the configuration of the agent often, and a call wakes an idle plugin.
func (r *runningAgent) describePluginCached(ctx context.Context, p supervisor.PluginStatus) *supervisor.Description {
	if known, ok := r.descriptionsByPluginPID.Load(p.PID); ok {
		return known.(*supervisor.Description)
	}
	d, err := r.agent.Supervisor().Describe(ctx, p.Serves)
	if err != nil {
		return nil
	}
	r.descriptionsByPluginPID.Store(p.PID, d)
	return d
}
