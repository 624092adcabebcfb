package localplugins

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentconfig"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/builtins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
)

// Flags name a plugin directory, in addition to the builtin plugins, and the agent configuration that applies to all
// plugins.
type Flags struct {
	pluginDir       string
	agentConfigPath string
}

// Register adds the flags to a command.
func (f *Flags) Register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.pluginDir, "plugin-dir", "", "take task drivers and hooks from this `directory` too")
	f.RegisterConfigFlag(cmd)
}

// RegisterConfigFlag adds only the flag -config, for a command that creates its plugin directory itself.
func (f *Flags) RegisterConfigFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.agentConfigPath, "config", "", "configuration `file` or directory of an agent: its plugin, hook and client blocks count")
}

// RegisterPluginDirFlags adds the flags to a command that changes or checks the plugin directory itself.
func (f *Flags) RegisterPluginDirFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.pluginDir, "plugin-dir", "", "the plugin `directory`")
	cmd.Flags().StringVar(&f.agentConfigPath, "config", "", "configuration `file` or directory of the agent, which names the plugin directory")
}

// ReadConfigWithoutPluginBlocks does the same as ReadConfig for a command that changes or checks the plugin directory
// itself. The plugin directory need not exist, and the configuration that is returned has no plugin and no hook blocks.
func (f *Flags) ReadConfigWithoutPluginBlocks(s *cli.Streams) (PluginConfig, error) {
	withoutDir := *f
	withoutDir.pluginDir = ""
	p, err := withoutDir.ReadConfig(s)
	if err != nil {
		return p, err
	}
	p.Config.Plugins, p.Config.HookRules = nil, nil
	if p.Config.PluginDir = cmp.Or(f.pluginDir, p.Config.PluginDir); p.Config.PluginDir == "" {
		return p, errors.New("no plugin directory: name it with -plugin-dir, or name the agent's configuration, which has a plugin_dir, with -config")
	}
	return p, nil
}

// IsAnySet reports whether the flags name plugins or a configuration.
func (f *Flags) IsAnySet() bool { return f.pluginDir != "" || f.agentConfigPath != "" }

// PluginConfig are the plugins that a command uses without an agent.
type PluginConfig struct{ Config *config.Config }

// ReadConfig reads the agent configuration that the flags name. It prints errors and warnings to standard
// error.
func (f *Flags) ReadConfig(s *cli.Streams) (PluginConfig, error) {
	var files []string
	if f.agentConfigPath != "" {
		files = append(files, f.agentConfigPath)
	}
	c, _, err := agentconfig.ReadFiles(files, nil, false, s)
	if err != nil {
		return PluginConfig{}, err
	}
	if f.pluginDir != "" {
		// The directory of the -plugin-dir flag must exist. A plugin directory in a configuration
		// file can be created later.
		if _, err := os.ReadDir(f.pluginDir); err != nil {
			return PluginConfig{}, fmt.Errorf("plugin-dir: %w", err)
		}
		c.PluginDir = f.pluginDir
	}
	c.DataDir = "" // only the agent itself may use its data directory
	return PluginConfig{c}, nil
}

// NewCatalog returns the catalog of the plugins. requestedNames are the names of a job's drivers and hooks, to which
// NewCatalog adds the hooks with a hook block. A nil requestedNames means all builtin plugins and all plugins with a
// plugin block.
func (p PluginConfig) NewCatalog(requestedNames []string, logger hclog.Logger) (*catalog.Catalog, error) {
	if requestedNames != nil {
		requestedNames = append(slices.Clip(requestedNames), p.HookBlockNames()...)
	}
	c := catalog.Config{PluginDir: p.Config.PluginDir, Blocks: p.Config.Plugins, RequestedNames: requestedNames, Logger: logger}
	for _, name := range builtins.Names() {
		if builtins.All[name].Kind == base.TypeDriver && agentconfig.IsDriverDeniedByLists(p.Config, name) {
			continue
		}
		// Running a job in the foreground enables the builtins that it needs. A plugin
		// block for a builtin takes precedence.
		c.Builtins = append(c.Builtins, catalog.Builtin{Name: name, Type: builtins.All[name].Kind, ConfigWithoutBlock: agentconfig.EnabledConfigWithoutBlock(p.Config, name), OptionDefaults: agentconfig.BuiltinDeniedUsersOptions(p.Config, name), TasksAreHostProcesses: agentconfig.IsHostProcessDriver(name)})
	}
	return catalog.New(c)
}

// HookBlockNames returns the names of the hooks with a hook block.
func (p PluginConfig) HookBlockNames() []string {
	var hookNames []string
	for _, rule := range p.Config.HookRules {
		hookNames = append(hookNames, rule.Name)
	}
	return hookNames
}

// OptionalHookNames returns the names of the hooks whose failure does not prevent tasks from
// running.
func (p PluginConfig) OptionalHookNames() []string {
	var hookNames []string
	for _, rule := range p.Config.HookRules {
		if rule.WarnOnError {
			hookNames = append(hookNames, rule.Name)
		}
	}
	return hookNames
}

// NewAgentConfig returns the configuration of an agent that has only these plugins.
func (p PluginConfig) NewAgentConfig(plugins *catalog.Catalog, logger hclog.Logger) agent.Config {
	return agentconfig.New(p.Config, plugins, logger)
}

// BuiltinAndRequestedDriverNames returns the names of the builtin drivers, and of the requested drivers for which the
// plugin directory has a file. It starts no plugin: a file counts as the driver of its name.
func (p PluginConfig) BuiltinAndRequestedDriverNames(requestedNames []string) ([]string, error) {
	known, err := p.NewCatalog(append(builtins.Names(), requestedNames...), hclog.NewNullLogger())
	if err != nil {
		return nil, err
	}
	var driverNames []string
	for _, entry := range known.Entries() {
		if entry.Type != base.TypeHook {
			driverNames = append(driverNames, entry.ExpectedDriverName())
		}
	}
	slices.Sort(driverNames)
	return slices.Compact(driverNames), nil
}

// AllPluginNames returns the names of all plugins: the builtin ones, and the executable files in the plugin directory.
// Some files may not be plugins.
func (p PluginConfig) AllPluginNames() []string {
	names := builtins.Names()
	entries, _ := os.ReadDir(p.Config.PluginDir) // a missing directory has no plugins
	for _, entry := range entries {
		info, err := os.Stat(filepath.Join(p.Config.PluginDir, entry.Name()))
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			names = append(names, strings.TrimSuffix(entry.Name(), ".exe"))
		}
	}
	return names
}

// launchTimeout limits WaitPluginsLaunchedOrFailed. It is longer than the launch timeout of a single plugin.
const launchTimeout = 90 * time.Second

// WaitPluginsLaunchedOrFailed blocks until all plugins of a temporary agent have launched or failed; a plugin that
// fails is no error. It returns an error when ctx ends, or when a plugin has not answered after 90 seconds.
func WaitPluginsLaunchedOrFailed(ctx context.Context, a *agent.Agent) error {
	ctx, cancel := context.WithTimeout(ctx, launchTimeout)
	defer cancel()
	return errors.Join(a.Supervisor().WaitBrieflyForFirstReports(ctx), a.Supervisor().WaitAllReportedOrFailed(ctx))
}

// RunWithTemporaryAgent starts the plugins with the requested names in a temporary agent, calls do with the agent, and
// closes the agent.
func RunWithTemporaryAgent(ctx context.Context, plugins PluginConfig, requestedNames []string, do func(*agent.Agent)) error {
	logger := hclog.NewNullLogger() // the log is dropped, because the caller reports plugins that do not start
	known, err := plugins.NewCatalog(requestedNames, logger)
	if err != nil {
		return err
	}
	a, err := agent.Open(ctx, plugins.NewAgentConfig(known, logger))
	if err != nil {
		return err
	}
	do(a)
	return a.Close()
}

// TryStartPlugin starts the plugin with this file name in a temporary agent, which also stops it, and returns the
// plugin's state. The name must have a plugin block. The error is the reason why the plugin does not start, or the
// cause of the end of ctx.
func TryStartPlugin(ctx context.Context, plugins PluginConfig, name string) (started supervisor.PluginStatus, err error) {
	var waitErr error
	runErr := RunWithTemporaryAgent(ctx, plugins, []string{name}, func(a *agent.Agent) {
		waitErr = WaitPluginsLaunchedOrFailed(ctx, a)
		for _, p := range a.Supervisor().Plugins() {
			if p.Name == name && !p.Builtin {
				started = p
			}
		}
	})
	switch {
	case ctx.Err() != nil:
		return started, context.Cause(ctx)
	case runErr != nil:
		return started, runErr
	case started.Err != nil:
		return started, launch.WithPanicLines(started.Err)
	case waitErr != nil:
		return started, waitErr
	case started.Serves.Name == "":
		return started, fmt.Errorf("plugin %q has not started", name)
	}
	return started, nil
}
