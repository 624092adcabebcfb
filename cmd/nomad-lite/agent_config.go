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
	"github.com/nomad-lite/nomad-lite/plugins/keeper"
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

// readConfig reads files of an agent's configuration, and tells what is wrong with
// them.
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

// defaultDataDir is where an agent keeps everything unless somebody says
// otherwise.
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

// agentPlugins are the plugins of an agent. What runs commands as they are must
// be enabled by somebody.
func agentPlugins(c *config.Config, dev bool, logger hclog.Logger) (*catalog.Catalog, error) {
	plugins := catalog.Config{Dir: c.PluginDir, Blocks: c.Plugins, Logger: logger}
	for _, name := range builtinNames() {
		named := slices.ContainsFunc(c.Plugins, func(b catalog.Block) bool { return b.Name == name })
		switch {
		case builtins[name].kind == base.TypeHook:
			// It starts when a job needs it.
		case denied(c, name):
			continue
		case name != rawexec.Name && !named:
			continue // it is there for tests
		}
		builtin := catalog.Builtin{Name: name, Type: builtins[name].kind}
		if dev || c.RawExec && name == rawexec.Name {
			builtin.Config = devConfig[name]
		}
		plugins.Builtins = append(plugins.Builtins, builtin)
	}
	return catalog.New(plugins)
}

// denied tells whether the operator wants a driver not to be there.
func denied(c *config.Config, driver string) bool {
	return slices.Contains(c.DriverDeny, driver) || c.DriverAllow != nil && !slices.Contains(c.DriverAllow, driver)
}

func agentConfig(c *config.Config, plugins *catalog.Catalog, logger hclog.Logger) agent.Config {
	limits := allocrunner.Limits{
		MaxKillTimeout: c.MaxKillTimeout, UserDenylist: c.UserDenylist, UserCheckedDrivers: c.UserDrivers,
		NomadModes: c.NomadModes,
	}
	if os.Geteuid() == 0 { // else there is one user for all
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
func taskProcess(driver string, state []byte) (keeper.Process, bool) {
	if driver != rawexec.Name {
		return keeper.Process{}, false
	}
	s, err := rawexec.ProcessOf(state)
	return keeper.Process{PID: s.PID, StartTime: s.StartTime}, err == nil && s.PID > 1
}

// pluginCache is the file in which it is kept between runs what plugins are. To be
// without it only takes time.
func pluginCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "nomad-lite", "plugins.json")
}

// self is the configuration for everybody to see: what is named here has no
// secrets.
func (r *runningAgent) self() map[string]any {
	c, node := r.settings(), r.agent.Node()
	plugins := []map[string]any{}
	for _, p := range r.agent.Plugins() {
		plugins = append(plugins, map[string]any{"Name": p.Name})
	}
	_, port, _ := net.SplitHostPort(r.address)
	number, _ := strconv.Atoi(port) // without an address there is no port
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
		"Version": map[string]any{"Version": fingerprint.NomadVersion, "VersionPrerelease": "", "VersionMetadata": "lite." + buildVersion(), "Revision": ""},
	}
}
