package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/plugins/catalog"
	"github.com/nomad-lite/nomad-lite/runtime/jobspec"
)

// newJobCommand holds the commands about job files.
func newJobCommand(s *streams) *cobra.Command {
	return group("job", "Check and convert job files",
		newJobValidateCommand(s),
		newJobRunCommand(s),
	)
}

func newJobValidateCommand(s *streams) *cobra.Command {
	var file jobFileFlags
	var plugins pluginFlags
	cmd := &cobra.Command{
		Use:   "validate [flags] FILE",
		Short: "Say what is wrong with a job file",
		Long: `Say what is wrong with a job file, and where.

The job is checked as Nomad checks it, and then for what this build of
nomad-lite cannot run. FILE is a path, or - for standard input.

Exit codes: 0 when the job can run here, 1 when it cannot.`,
		Args: oneJobFile,
		RunE: func(_ *cobra.Command, args []string) error {
			job, err := file.read(s, args[0], 1)
			if err != nil {
				return err
			}
			drivers, err := plugins.drivers(s)
			if err != nil {
				return err
			}
			good, err := job.check(s, drivers)
			if err != nil {
				return err
			}
			if !good {
				return &exitError{code: 1}
			}
			_, err = fmt.Fprintln(s.out, "Job validation successful")
			return err
		},
	}
	file.register(cmd)
	plugins.register(cmd)
	return cmd
}

// pluginFlags say where drivers may come from, beside those in the box.
type pluginFlags struct {
	dir    string
	config string
}

func (f *pluginFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "plugin-dir", "", "take task drivers from this `directory` too")
	cmd.Flags().StringVar(&f.config, "config", "", "configuration `file` with plugin blocks")
}

// drivers are the names of the drivers that a job may use. No plugin is
// started to find out: a file counts as the driver that its name says.
func (f *pluginFlags) drivers(s *streams) ([]string, error) {
	names := slices.Collect(maps.Keys(builtins))
	config := catalog.File{PluginDir: f.dir}
	if f.config != "" {
		loaded, diags := catalog.LoadConfig(f.config)
		if err := jobspec.WriteDiagnostics(s.err, diags, nil); err != nil {
			return nil, err
		}
		if diags.HasErrors() {
			return nil, &exitError{code: 1}
		}
		config.Blocks = loaded.Blocks
		if config.PluginDir == "" {
			config.PluginDir = loaded.PluginDir
		}
	}
	if config.PluginDir != "" || len(config.Blocks) > 0 {
		known, err := catalog.New(catalog.Config{Dir: config.PluginDir, Blocks: config.Blocks})
		if err != nil {
			return nil, err
		}
		for _, entry := range known.Entries() {
			names = append(names, entry.DriverName())
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
