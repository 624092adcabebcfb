package agentconfig

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/builtin/artifact"
	"github.com/nomad-lite/nomad-lite/builtin/docker"
	"github.com/nomad-lite/nomad-lite/builtin/exec"
	"github.com/nomad-lite/nomad-lite/builtin/hostprocess"
	"github.com/nomad-lite/nomad-lite/builtin/java"
	"github.com/nomad-lite/nomad-lite/builtin/qemu"
	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/builtin/template"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/builtins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/version"
	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/agent/clusternode"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
	"github.com/nomad-lite/nomad-lite/runtime/agent/datadirectory"
	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/workload"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
)

// ReadFiles reads the agent's configuration files, as [config.Load] does, and prints their errors and warnings. It returns
// the number of warnings.
func ReadFiles(files, servers []string, reload bool, s *cli.Streams) (c *config.Config, warningCount int, err error) {
	c, diags := config.Load(files, servers, reload)
	for _, d := range diags {
		kind := "warning"
		if d.Severity == hcl.DiagError {
			kind = "error"
		} else {
			warningCount++
		}
		text := strings.TrimSuffix(d.Summary, ".")
		if d.Detail != "" {
			text += ": " + d.Detail
		}
		if d.Subject != nil {
			text = d.Subject.String() + ": " + kind + ": " + text
		}
		fmt.Fprintln(s.Err, text)
	}
	if diags.HasErrors() {
		return nil, warningCount, &cli.ExitError{Code: 1}
	}
	return c, warningCount, nil
}

// NewPluginCatalog returns the plugins of an agent. The driver raw_exec is enabled if the operator has
// enabled it, or if only root can submit jobs. The other drivers need a plugin block, except docker if there is an engine,
// qemu if there is an emulator and raw_exec is enabled, and, if the agent is root, exec, and java if there is a Java runtime.
func NewPluginCatalog(c *config.Config, dev bool, logger hclog.Logger) (*catalog.Catalog, error) {
	plugins := catalog.Config{PluginDir: c.PluginDir, Blocks: c.Plugins, Logger: logger}
	for _, name := range builtins.Names() {
		named := slices.ContainsFunc(c.Plugins, func(b catalog.PluginBlock) bool { return b.Name == name })
		builtin := catalog.Builtin{Name: name, Type: builtins.All[name].Kind, OptionDefaults: BuiltinDeniedUsersOptions(c, name), TasksAreHostProcesses: IsHostProcessDriver(name)}
		if builtin.Type == base.TypeDriver {
			builtin.PredictFingerprint = func(options map[string]any) (driver.Fingerprint, bool) {
				return builtins.PredictFingerprint(name, options)
			}
		}
		switch {
		case builtin.Type == base.TypeHook:
			// A builtin hook is always available: its plugin starts when a job needs it.
		case IsDriverDeniedByLists(c, name):
			continue
		case !named:
			builtin.NotStartedReason = builtinNotStartedReason(c, name)
		}
		if !named {
			builtin.StopsAfterFingerprint = builtin.TasksAreHostProcesses
			builtin.NodeReadyWithoutFingerprint = name == java.Name || name == qemu.Name // the fingerprint starts a program
		}
		switch {
		case dev || name == docker.Name || name == rawexec.Name && isRawExecEnabledWithoutBlock(c):
			builtin.ConfigWithoutBlock = EnabledConfigWithoutBlock(c, name)
		case name == rawexec.Name && c.Cluster.IsNode(): // also without root: each user of the cluster would be the agent's user
			builtin.ConfigWithoutBlock = map[string]any{"enabled": false}
			if !named && logger != nil {
				logger.Info("raw_exec is disabled, because users of the cluster can submit jobs: this block enables it", "block", `plugin "raw_exec" { config { enabled = true } }`)
			}
		}
		if name == template.Name {
			builtin.ChildrenAreNeverTasks = true // its child process starts the evaluators of templates
			if uids, _ := c.ArtifactSettings["download_uids"].(string); uids != "" {
				builtin.Args = []string{"plugin", "serve", name, uids} // templates are evaluated under one of these ids
			}
		}
		plugins.Builtins = append(plugins.Builtins, builtin)
	}
	return catalog.New(plugins)
}

// EnabledConfigWithoutBlock returns the configuration of an enabled builtin plugin without a plugin block: docker's legacy
// client options, else the plugin's configuration in development mode. It is nil for a plugin that needs none.
func EnabledConfigWithoutBlock(c *config.Config, name string) map[string]any {
	if name == docker.Name {
		return c.LegacyDockerOptions
	}
	return builtins.DevPluginConfigs[name]
}

// BuiltinDeniedUsersOptions returns the options of a builtin plugin that depend on other blocks of the agent's
// configuration, or nil if there are none.
func BuiltinDeniedUsersOptions(c *config.Config, name string) map[string]any {
	if name != exec.Name && name != java.Name || c.UserDenylist == nil && c.UserCheckedDrivers == nil {
		return nil
	}
	rules := builtinhooks.TaskRules{UserDenylist: c.UserDenylist, UserCheckedDrivers: c.UserCheckedDrivers}.WithDefaults()
	users := []any{}
	if slices.Contains(rules.UserCheckedDrivers, name) {
		for _, user := range rules.UserDenylist {
			users = append(users, user)
		}
	}
	return map[string]any{"denied_users": users}
}

// builtinNotStartedReason returns why an agent does not start a builtin driver without a plugin block, or "" if it
// starts the driver. The node shows the reason as the description of the driver.
func builtinNotStartedReason(c *config.Config, driver string) string {
	isRoot := os.Geteuid() == 0
	switch driver {
	case docker.Name:
		if c.LegacyDockerOptions["endpoint"] != nil {
			return ""
		}
		if err := docker.CheckEngineSocket(); err != nil {
			return fmt.Sprintf("%v: start it, or add a block plugin %q with its endpoint, and reload the agent", err, driver)
		}
	case qemu.Name:
		if err := qemu.CheckDefaultEmulatorInstalled(); err != nil {
			return fmt.Sprintf("%v: install it, and reload the agent", err)
		}
		if isRoot && !isRawExecEnabledWithoutBlock(c) && !c.Cluster.IsNode() { // a stock node has the driver, too
			// The arguments of QEMU give a job the files of the agent's user, as a command of raw_exec does.
			return fmt.Sprintf("its jobs have the rights of raw_exec, which is not enabled: add a block plugin %q to the configuration of the agent, and reload it", driver)
		}
	case java.Name:
		if err := java.CheckRuntimeInstalled(); err != nil {
			return fmt.Sprintf("%v: install one, and reload the agent", err)
		}
		fallthrough
	case exec.Name:
		if !isRoot {
			return fmt.Sprintf("the agent is not root: start it as root, or add a block plugin %q to its configuration", driver)
		}
	}
	return ""
}

// isRawExecEnabledWithoutBlock reports whether raw_exec is enabled if no plugin block configures it.
func isRawExecEnabledWithoutBlock(c *config.Config) bool {
	if c.LegacyEnableRawExec != nil {
		return *c.LegacyEnableRawExec
	}
	return onlyRootCanSubmitJobs(c)
}

// A wayIn is a way in which a job reaches the agent.
type wayIn struct {
	name string
	// isOpen reports whether a user other than root, or without the token, can submit jobs in this way.
	isOpen func(*config.Config) bool
	// copySettings copies the settings that isOpen reads. A running agent keeps them until it restarts.
	copySettings func(to, from *config.Config)
}

// waysIn are all ways in which a job reaches the agent. The sockets in the directories of tasks are none: a task has the rights of
// its identity there, which does not permit to submit a job.
var waysIn = []wayIn{
	{
		"unix socket", func(c *config.Config) bool { return c.SocketGroup != "" },
		func(to, from *config.Config) { to.SocketGroup = from.SocketGroup },
	},
	{
		"TCP address", func(c *config.Config) bool {
			return slices.ContainsFunc([]string{c.BindAddr, c.HTTPListenAddr}, func(host string) bool { return host != "" && !isLoopbackIP(host) })
		},
		func(to, from *config.Config) { to.BindAddr, to.HTTPListenAddr = from.BindAddr, from.HTTPListenAddr },
	},
	{
		"TCP without a token", func(c *config.Config) bool { return c.DisableAccessControl },
		func(to, from *config.Config) { to.DisableAccessControl = from.DisableAccessControl },
	},
	{
		// A certificate of ca_file replaces the token, whether or not verify_https_client requires one.
		"client certificate", func(c *config.Config) bool { return c.TLS.ServeHTTPS },
		func(to, from *config.Config) { to.TLS.ServeHTTPS = from.TLS.ServeHTTPS },
	},
	{
		"ACL tokens", func(c *config.Config) bool { return c.Cluster.AccessControl },
		func(to, from *config.Config) { to.Cluster.AccessControl = from.Cluster.AccessControl },
	},
	{
		"servers of a cluster", func(c *config.Config) bool { return c.Cluster.IsNode() },
		func(to, from *config.Config) { to.Cluster = from.Cluster },
	},
}

// KeepWaysIn replaces the settings of c that decide who can submit jobs by those of the running agent, which a reload does not
// change: the drivers must not follow listeners and servers of a file that are not in use.
func KeepWaysIn(c, running *config.Config) {
	for _, way := range waysIn {
		way.copySettings(c, running)
	}
}

// onlyRootCanSubmitJobs reports whether an agent that runs as root is reachable only for root, and for
// users to whom root has given the token: through a unix socket of root, and on loopback with the token.
func onlyRootCanSubmitJobs(c *config.Config) bool {
	return os.Geteuid() == 0 && !slices.ContainsFunc(waysIn, func(way wayIn) bool { return way.isOpen(c) })
}

func isLoopbackIP(ipText string) bool {
	ip := net.ParseIP(ipText)
	return ip != nil && ip.IsLoopback()
}

// IsDriverDeniedByLists reports whether the operator has disabled a driver.
func IsDriverDeniedByLists(c *config.Config, driver string) bool {
	return slices.Contains(c.DriverDenylist, driver) || c.DriverAllowlist != nil && !slices.Contains(c.DriverAllowlist, driver)
}

// maxStatsInterval limits the interval in which drivers sample the resource usage of tasks. A driver samples only for
// some seconds after a request, so a longer interval could yield no sample.
const maxStatsInterval = 5 * time.Second

// New returns the configuration of an agent that has the given plugins.
func New(c *config.Config, plugins *catalog.Catalog, logger hclog.Logger) agent.Config {
	limits := allocrunner.Limits{MaxKillTimeout: c.MaxKillTimeout, StatsSampleInterval: min(c.Telemetry.CollectionInterval, maxStatsInterval)}
	rules := builtinhooks.TaskRules{
		UserDenylist: c.UserDenylist, UserCheckedDrivers: c.UserCheckedDrivers,
		AllowNomadOpenFileModes: c.FallBackToNomadFileModes, ChrootEnv: c.ChrootEnv,
	}
	if os.Geteuid() == 0 { // an agent that is not root makes all downloads as its own user
		rules.ReservedDownloadUIDs = c.DownloadUIDs()
	}
	dynamicUsers, enabled := c.DynamicUserRange.UserIDs()
	if os.Geteuid() != 0 || !enabled { // an agent that is not root cannot give directories to other users
		dynamicUsers = idrange.Range{}
	}
	return agent.Config{
		DynamicUsers:                  dynamicUsers,
		DataDir:                       c.DataDir,
		Node:                          c.Node,
		AllowSetuidAndDevicesInAllocs: c.AllowSetuidAndDevicesInAllocs,
		CgroupParent:                  c.CgroupParent,
		AllocRunnerLimits:             limits,
		TaskRules:                     rules,
		EnvDenylist:                   c.EnvDenylist,
		EnvAllowlist:                  c.EnvAllowlist,
		HostVolumesDir:                c.HostVolumesDir,
		GC:                            c.GC,
		SchedulerGC:                   c.SchedulerGC,
		JobLimits:                     c.JobLimits,
		InitialSchedulerConfig:        c.Scheduler.ForAPI(),
		MaxEventChanges:               c.EventBufferSize,
		KeyLifetime:                   c.KeyLifetime,
		OIDCIssuer:                    c.OIDCIssuer,
		Plugins:                       plugins,
		HookRules:                     c.HookRules,
		SettingsByBuiltinHook:         map[string]map[string]any{artifact.Name: c.ArtifactSettings, template.Name: c.TemplateSettings},
		DecodeTaskProcess:             TaskProcessFromDriverState,
		PluginDescriptionCacheFile:    pluginCacheFile(),
		Version:                       version.String(),

		HostVolumePluginDir: c.HostVolumePluginDir,
		Logger:              logger,
	}
}

// ClusterConfig returns the settings of a node of a cluster, or nil if the configuration names no servers.
func ClusterConfig(c *config.Config) *clusternode.Config {
	addrs := c.Cluster.ServerAddrs()
	if len(addrs) == 0 {
		return nil
	}
	cluster := &clusternode.Config{
		Servers: addrs, IntroductionToken: c.Cluster.IntroductionToken, Multiplex: c.Cluster.Multiplex,
		AccessControl: c.Cluster.AccessControl, DisableRemoteExec: c.DisableRemoteExec,
		Reads: workload.ReadSettings{MaxBlock: c.Cluster.TemplateMaxBlock, MaxStale: c.Cluster.TemplateMaxStale},
	}
	cluster.Reads.RetryDelay, cluster.Reads.MaxRetryDelay = c.TemplateRetryDelays()
	files := wire.TLSFiles{
		CAFile: c.TLS.CAFile, CertFile: c.TLS.CertFile, KeyFile: c.TLS.KeyFile, Region: cmp.Or(c.Node.Region, api.GlobalRegion),
		VerifyServerHostname: c.Cluster.VerifyServerHostname, MinVersion: c.TLS.MinVersion, CipherSuites: c.TLS.CipherSuites,
	}
	if c.Cluster.EncryptRPC {
		cluster.TLS = &files
	}
	cluster.ServerHTTPAddr = c.Cluster.ServerURL()
	// An agent whose connections to servers are encrypted must not send a token in the clear because of a missing setting.
	cluster.ServersUseHTTPS = c.TLS.ServeHTTPS || c.Cluster.EncryptRPC
	if files.CAFile != "" && files.CertFile != "" && files.KeyFile != "" {
		cluster.PeerTLS = &files
	}
	return cluster
}

// TraceExportConfig returns the configuration of the export of traces: the settings of the configuration files, completed by
// OpenTelemetry's environment variables. It logs which of these variables have no effect.
func TraceExportConfig(c *config.Config, logger hclog.Logger) otlp.Config {
	traces, warnings := c.OTLP.TraceConfigWithEnv(os.Getenv)
	logWarnings(warnings, logger)
	return traces
}

// TraceAndMetricExportConfigs returns the configurations of the export of traces and of the export of metrics, from the same sources
// as Traces.
func TraceAndMetricExportConfigs(c *config.Config, logger hclog.Logger) (traces, metrics otlp.Config) {
	traces, warnings := c.OTLP.TraceConfigWithEnv(os.Getenv)
	metrics, more := c.OTLP.MetricsConfigWithEnv(os.Getenv)
	for _, warning := range more {
		if !slices.Contains(warnings, warning) {
			warnings = append(warnings, warning)
		}
	}
	logWarnings(warnings, logger)
	return traces, metrics
}

func logWarnings(warnings []string, logger hclog.Logger) {
	for _, warning := range warnings {
		logger.Warn(warning)
	}
}

// hostProcessDrivers are the builtin drivers whose tasks are processes of this machine.
var hostProcessDrivers = []string{exec.Name, java.Name, qemu.Name, rawexec.Name}

// IsHostProcessDriver reports whether driver is a builtin driver whose tasks are processes of this machine.
func IsHostProcessDriver(driver string) bool { return slices.Contains(hostProcessDrivers, driver) }

// TaskProcessFromDriverState returns the main process of a task of a builtin driver, from the state of
// the driver in the task's handle.
func TaskProcessFromDriverState(driver string, state []byte) (datadirectory.TaskProcess, bool) {
	if !IsHostProcessDriver(driver) {
		return datadirectory.TaskProcess{}, false
	}
	s, err := hostprocess.DecodeProcessState(state)
	return datadirectory.TaskProcess{ID: osprocess.ID{PID: s.PID, StartTime: s.StartTime}, HasOOMKill: s.HasOOMKill}, err == nil && s.PID > 1
}

// pluginCacheFile returns the path of the file that stores plugin descriptions between runs.
// Without the file, a start only takes longer.
func pluginCacheFile() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "nomad-lite", "plugins.json")
}
