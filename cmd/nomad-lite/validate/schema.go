package validate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/localplugins"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
)

const schemaHelp = `Print the JSON Schema of job files in the JSON syntax of HCL (NAME.nomad.json), with
the config blocks of the drivers. An editor uses it to complete and check such
files, and job validate -schema uses it to check config blocks where the drivers are
missing.

The builtin plugins, the plugins with a plugin block in the configuration, and all
executable files of the plugin directory are started.

Exit codes: 0, or 1 when a plugin could not be started. The schema is printed
nevertheless, without the driver of the plugin: its config block can have any
content.`

// NewSchemaCommand returns the command "schema".
func NewSchemaCommand(s *cli.Streams) *cobra.Command {
	var plugins localplugins.Flags
	cmd := &cobra.Command{
		Use:   "schema [flags]",
		Short: "Print the JSON Schema of job files",
		Long:  schemaHelp,
		Example: `  nomad-lite job schema >nomad-job.schema.json
  nomad-lite job schema -plugin-dir /opt/nomad-lite/plugins >nomad-job.schema.json
  nomad-lite job validate -schema nomad-job.schema.json web.nomad.hcl`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return startPluginsAndPrintSchema(cmd.Context(), plugins, s)
		},
	}
	plugins.Register(cmd)
	return cmd
}

func startPluginsAndPrintSchema(ctx context.Context, flags localplugins.Flags, s *cli.Streams) error {
	local, err := flags.ReadConfig(s)
	if err != nil {
		return err
	}
	var schemas map[string]*hclspec.Spec
	var pluginErrs []error
	err = localplugins.RunWithTemporaryAgent(ctx, local, local.AllPluginNames(), func(a *agent.Agent) {
		schemas, pluginErrs = readDriverSchemas(ctx, a)
	})
	if err := errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	encoder := json.NewEncoder(s.JSONOutput())
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(jobspec.JSONSchema(schemas)); err != nil {
		return err
	}
	for _, err := range pluginErrs {
		fmt.Fprintf(s.Err, "warning: no driver of this plugin is in the schema: %v\n", err)
	}
	if len(pluginErrs) > 0 {
		return &cli.ExitError{Code: 1}
	}
	return nil
}

// readDriverSchemas returns the task config schema of each driver of an agent, and the errors of plugins that cannot be
// started.
func readDriverSchemas(ctx context.Context, a *agent.Agent) (schemaByDriver map[string]*hclspec.Spec, pluginErrs []error) {
	if err := localplugins.WaitPluginsLaunchedOrFailed(ctx, a); err != nil {
		pluginErrs = append(pluginErrs, err)
	}
	schemaByDriver = make(map[string]*hclspec.Spec)
	for _, p := range a.Supervisor().Plugins() {
		if p.Err != nil {
			pluginErrs = append(pluginErrs, p.Err)
		}
		if p.Err != nil || p.SupersededBy != "" || p.Serves.Type != base.TypeDriver || p.Serves.Name == "" {
			continue
		}
		schema, err := a.Plugins().TaskConfigSchema(ctx, p.Serves.Name)
		if err != nil {
			pluginErrs = append(pluginErrs, err)
			continue
		}
		schemaByDriver[p.Serves.Name] = schema
	}
	return schemaByDriver, pluginErrs
}

// readDriverSchemaFile returns the task config schemas of drivers in a file that `job schema` has written. It returns
// nil if path is empty.
func readDriverSchemaFile(path string) (map[string]*hclspec.Spec, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	schemas, err := jobspec.ReadDriverSchemas(text)
	if err != nil {
		return nil, fmt.Errorf("schema %s: %w", path, err)
	}
	return schemas, nil
}
