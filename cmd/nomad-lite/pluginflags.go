package main

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/hcl/v2"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/catalog"
	"github.com/nomad-lite/nomad-lite/runtime/jobspec"
)

// pluginFlags say where drivers may come from, beside those in the box.
type pluginFlags struct {
	dir    string
	config string
}

func (f *pluginFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "plugin-dir", "", "take task drivers from this `directory` too")
	cmd.Flags().StringVar(&f.config, "config", "", "configuration `file` with plugin blocks")
}

// catalog enumerates the plugins. The wanted names are the drivers of a job; nil
// means all that are in the box or named by a plugin block. Diagnostics of the
// configuration file go to standard error.
func (f *pluginFlags) catalog(s *streams, wanted []string, logger hclog.Logger) (*catalog.Catalog, error) {
	file := &catalog.File{}
	if f.config != "" {
		var diags hcl.Diagnostics
		file, diags = catalog.LoadConfig(f.config)
		if err := jobspec.WriteDiagnostics(s.err, diags, nil); err != nil {
			return nil, err
		}
		if diags.HasErrors() {
			return nil, &exitError{code: 1}
		}
	}
	config := catalog.Config{Dir: file.PluginDir, Blocks: file.Blocks, Wanted: wanted, Logger: logger}
	if f.dir != "" {
		// A directory that a file names may come later; one that is typed is meant.
		if _, err := os.ReadDir(f.dir); err != nil {
			return nil, fmt.Errorf("plugin-dir: %w", err)
		}
		config.Dir = f.dir
	}
	for _, name := range builtinNames() {
		// Who runs a job in the foreground has switched on by that what it needs.
		// A plugin block of their own has the last word.
		builtin := catalog.Builtin{Name: name, Type: builtins[name].kind, Config: trusting[name]}
		config.Builtins = append(config.Builtins, builtin)
	}
	return catalog.New(config)
}

// drivers are the names of the drivers that a job may use. No plugin is
// started to find out: a file counts as the driver that its name says.
func (f *pluginFlags) drivers(s *streams, wanted []string) ([]string, error) {
	known, err := f.catalog(s, append(builtinNames(), wanted...), hclog.NewNullLogger())
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
