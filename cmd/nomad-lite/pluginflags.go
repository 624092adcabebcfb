package main

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/catalog"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
)

// pluginFlags select the plugins of a command, beside the builtin ones, and the agent
// configuration that applies to them.
type pluginFlags struct {
	dir    string
	config string
}

func (f *pluginFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "plugin-dir", "", "take task drivers and hooks from this `directory` too")
	cmd.Flags().StringVar(&f.config, "config", "", "configuration `file` or directory of an agent: its plugin, hook and client blocks count")
}

// localPlugins are the plugins that a command uses without an agent.
type localPlugins struct{ config *config.Config }

// read reads the configuration. It prints errors and warnings to standard error.
func (f *pluginFlags) read(s *streams) (localPlugins, error) {
	var files []string
	if f.config != "" {
		files = append(files, f.config)
	}
	c, err := readConfig(files, s)
	if err != nil {
		return localPlugins{}, err
	}
	if f.dir != "" {
		// A directory from a configuration file can be created later; a directory from the
		// flag must exist.
		if _, err := os.ReadDir(f.dir); err != nil {
			return localPlugins{}, fmt.Errorf("plugin-dir: %w", err)
		}
		c.PluginDir = f.dir
	}
	c.DataDir = "" // the data directory belongs to an agent
	return localPlugins{c}, nil
}

// catalog enumerates the plugins. wanted are the names of a job's drivers and hooks, to
// which hooks with a hook block are added; nil means all builtin plugins and all plugins
// with a plugin block.
func (p localPlugins) catalog(wanted []string, logger hclog.Logger) (*catalog.Catalog, error) {
	if wanted != nil {
		wanted = append(slices.Clip(wanted), p.hooks()...)
	}
	c := catalog.Config{Dir: p.config.PluginDir, Blocks: p.config.Plugins, Wanted: wanted, Logger: logger}
	for _, name := range builtinNames() {
		if builtins[name].kind == base.TypeDriver && denied(p.config, name) {
			continue
		}
		// Running a job in the foreground enables the builtins that it needs. A plugin
		// block for a builtin takes precedence.
		builtin := catalog.Builtin{Name: name, Type: builtins[name].kind, Config: devConfig[name]}
		c.Builtins = append(c.Builtins, builtin)
	}
	return catalog.New(c)
}

// hooks returns the names of the hooks with a hook block.
func (p localPlugins) hooks() []string {
	var names []string
	for _, rule := range p.config.Hooks {
		names = append(names, rule.Name)
	}
	return names
}

// dispensable returns the names of the hooks without which tasks run, too.
func (p localPlugins) dispensable() []string {
	var names []string
	for _, rule := range p.config.Hooks {
		if rule.Warn {
			names = append(names, rule.Name)
		}
	}
	return names
}

// agent returns the configuration of an agent that has only these plugins.
func (p localPlugins) agent(plugins *catalog.Catalog, logger hclog.Logger) agent.Config {
	return agentConfig(p.config, plugins, logger)
}

// drivers returns the names of the drivers that a job can use. It starts no plugin: a file
// counts as the driver of its name.
func (p localPlugins) drivers(wanted []string) ([]string, error) {
	known, err := p.catalog(append(builtinNames(), wanted...), hclog.NewNullLogger())
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range known.Entries() {
		if entry.Type != base.TypeHook {
			names = append(names, entry.DriverName())
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func builtinNames() []string { return slices.Sorted(maps.Keys(builtins)) }

func builtinDrivers() []string {
	return slices.DeleteFunc(builtinNames(), func(name string) bool { return builtins[name].kind != base.TypeDriver })
}
