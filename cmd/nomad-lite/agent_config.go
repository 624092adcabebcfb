package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/hcl/v2"

	"github.com/nomad-lite/nomad-lite/builtin/artifact"
	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/builtin/template"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/fingerprint"
)

// load reads the configuration: files first, flags over them.
func (o agentOptions) load(s *streams) (*config.Config, error) {
	c, err := readConfig(o.configs, s)
	if err != nil {
		return nil, err
	}
	for _, flag := range []struct {
		value string
		field *string
	}{
		{o.dataDir, &c.DataDir},
		{o.bind, &c.BindAddr},
		{o.node, &c.Node.Name},
		{o.dc, &c.Node.Datacenter},
		{o.region, &c.Node.Region},
		{o.nodeClass, &c.Node.Class},
		{o.nodePool, &c.Node.Pool},
		{o.network, &c.Node.NetworkInterface},
		{o.pluginDir, &c.PluginDir},
		{o.logLevel, &c.LogLevel},
	} {
		if flag.value != "" {
			*flag.field = flag.value
		}
	}
	if c.Node.Meta == nil {
		c.Node.Meta = make(map[string]string)
	}
	maps.Copy(c.Node.Meta, o.meta)
	c.LogJSON = c.LogJSON || o.logJSON
	c.LogPlace = c.LogPlace || o.logPlace
	if c.LogLevel == "" {
		c.LogLevel = "info"
	}
	if hclog.LevelFromString(c.LogLevel) == hclog.NoLevel {
		return nil, fmt.Errorf("log-level %q: use trace, debug, info, warn or error", c.LogLevel)
	}
	if o.dev {
		if o.dataDir != "" {
			return nil, errors.New("-dev keeps nothing: leave out -data-dir, or -dev")
		}
		c.DataDir = ""
		return c, nil
	}
	if c.DataDir == "" {
		c.DataDir, err = defaultDataDir()
	}
	if err == nil {
		c.DataDir, err = filepath.Abs(c.DataDir)
	}
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	return c, nil
}

// readConfig reads the agent's configuration files, and prints their errors and warnings.
func readConfig(files []string, s *streams) (*config.Config, error) {
	c, diags := config.Load(files)
	for _, d := range diags {
		kind := "warning"
		if d.Severity == hcl.DiagError {
			kind = "error"
		}
		text := strings.TrimSuffix(d.Summary, ".")
		if d.Detail != "" {
			text += ": " + d.Detail
		}
		if d.Subject != nil {
			text = d.Subject.String() + ": " + kind + ": " + text
		}
		fmt.Fprintln(s.err, text)
	}
	if diags.HasErrors() {
		return nil, &exitError{code: 1}
	}
	return c, nil
}

// defaultDataDir returns the data directory of an agent without data_dir or -data-dir.
func defaultDataDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/nomad-lite", nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "nomad-lite"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".local", "state", "nomad-lite"), nil
}

// agentPlugins returns the plugins of an agent. A driver that runs commands without
// isolation must be enabled by the operator.
func agentPlugins(c *config.Config, dev bool, logger hclog.Logger) (*catalog.Catalog, error) {
	plugins := catalog.Config{Dir: c.PluginDir, Blocks: c.Plugins, Logger: logger}
	for _, name := range builtinNames() {
		named := slices.ContainsFunc(c.Plugins, func(b catalog.Block) bool { return b.Name == name })
		switch {
		case builtins[name].kind == base.TypeHook:
			// The plugin starts when a job needs it.
		case denied(c, name):
			continue
		case name != rawexec.Name && !named:
			continue // this driver exists for tests
		}
		builtin := catalog.Builtin{Name: name, Type: builtins[name].kind}
		if dev || c.RawExec && name == rawexec.Name {
			builtin.Config = devConfig[name]
		}
		plugins.Builtins = append(plugins.Builtins, builtin)
	}
	return catalog.New(plugins)
}

// denied reports whether the operator has disabled a driver.
func denied(c *config.Config, driver string) bool {
	return slices.Contains(c.DriverDeny, driver) || c.DriverAllow != nil && !slices.Contains(c.DriverAllow, driver)
}

func agentConfig(c *config.Config, plugins *catalog.Catalog, logger hclog.Logger) agent.Config {
	limits := allocrunner.Limits{
		MaxKillTimeout: c.MaxKillTimeout, UserDenylist: c.UserDenylist, UserCheckedDrivers: c.UserDrivers,
		NomadModes: c.NomadModes,
	}
	if os.Geteuid() == 0 { // an agent that is not root has one user for all downloads
		limits.DownloadUIDs = c.DownloadUIDs()
	}
	return agent.Config{
		DataDir:      c.DataDir,
		Node:         c.Node,
		Limits:       limits,
		EnvDenylist:  c.EnvDenylist,
		EnvAllowlist: c.EnvAllowlist,
		GC:           c.GC,
		Records:      c.Records,
		Plugins:      plugins,
		Hooks:        c.Hooks,
		HookLimits:   map[string]map[string]any{artifact.Name: c.Artifact, template.Name: c.Template},
		TaskProcess:  taskProcess,
		Memory:       pluginCache(),
		Version:      buildVersion(),
		Logger:       logger,
	}
}

// taskProcess returns the main process of a task of a builtin driver, from the state of
// the driver in the task's handle.
func taskProcess(driver string, state []byte) (process.ID, bool) {
	if driver != rawexec.Name {
		return process.ID{}, false
	}
	s, err := rawexec.ProcessOf(state)
	return process.ID{PID: s.PID, StartTime: s.StartTime}, err == nil && s.PID > 1
}

// pluginCache returns the file that keeps plugin descriptions between runs. Without the
// file, a start only takes longer.
func pluginCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "nomad-lite", "plugins.json")
}

// self returns the configuration that the API shows. It lists fields explicitly, and none
// of them holds a secret.
func (r *runningAgent) self() map[string]any {
	c, node, b := r.settings(), r.agent.Node(), readBuild()
	plugins := []map[string]any{}
	for _, p := range r.agent.Plugins() {
		plugins = append(plugins, map[string]any{"Name": p.Name})
	}
	_, port, _ := net.SplitHostPort(r.address)
	number, _ := strconv.Atoi(port) // port is "" without an address, and number then 0
	return map[string]any{
		"Region": node.Region, "Datacenter": node.Datacenter, "NodeName": node.Name, "BindAddr": c.BindAddr,
		"DataDir": r.agent.DataDir(), "LogLevel": c.LogLevel, "LogJson": c.LogJSON, "DevMode": r.options.dev,
		"EnableDebug": c.Debug, "PluginDir": c.PluginDir, "Plugins": plugins, "Hooks": r.hooks(),
		"LeaveOnInt": c.LeaveOnInterrupt, "LeaveOnTerm": c.LeaveOnTerminate,
		"ACL":            map[string]any{"Enabled": false},
		"AdvertiseAddrs": map[string]any{"HTTP": r.address, "RPC": "", "Serf": ""},
		"Client": map[string]any{
			"Enabled": true, "NodeClass": node.Class, "NodePool": node.Pool, "Meta": node.Meta,
			"GCInterval": c.GC.Interval, "GCMaxAllocs": c.GC.MaxAllocs, "GCDiskUsageThreshold": c.GC.DiskUsage,
			"GCDiskUsageMinAge": c.GC.DiskUsageMinAge,
		},
		"Ports":  map[string]any{"HTTP": number, "RPC": 0, "Serf": 0},
		"Server": map[string]any{"Enabled": true},
		"TLSConfig": map[string]any{
			"EnableHTTP": c.TLS.HTTP, "VerifyHTTPSClient": c.TLS.VerifyClient, "CAFile": c.TLS.CAFile, "CertFile": c.TLS.CertFile,
			"KeyFile": c.TLS.KeyFile,
		},
		"Telemetry": map[string]any{
			"PrometheusMetrics":        !c.Telemetry.NoPrometheus,
			"PublishAllocationMetrics": !c.Telemetry.NoAllocations,
			"PublishNodeMetrics":       !c.Telemetry.NoNode,
		},
		"UI":      map[string]any{"Enabled": false, "ShowCLIHints": false},
		"Version": map[string]any{"Version": fingerprint.NomadVersion, "VersionPrerelease": "", "VersionMetadata": b.metadata(), "Revision": b.Revision},
	}
}
