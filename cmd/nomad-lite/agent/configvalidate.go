package agent

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentconfig"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
)

const configValidateHelp = `Check the configuration of an agent, without an agent. Each PATH is a file, or a
directory with files, as for 'nomad-lite agent -config'. Later files override
earlier ones.

Errors and warnings go to standard error. An unknown setting is a warning, and
so is one that has no effect here, because Nomad's files have such settings. With
-strict a warning is an error, so that a typing error fails in CI. Whether plugins
start, and whether certificates and ports can be used, only a start of the agent
shows.

Exit codes: 0, or 1 when the agent would reject the configuration, or when there
is a warning with -strict.`

// NewConfigCommand returns the command "config" with its subcommands.
func NewConfigCommand(s *cli.Streams) *cobra.Command {
	var o options
	validate := &cobra.Command{
		Use:   "validate [flags] PATH...",
		Short: "Check configuration files",
		Long:  configValidateHelp,
		Example: `  nomad-lite config validate /etc/nomad-lite/agent.hcl
  nomad-lite config validate -strict /etc/nomad-lite/`,
		Args: cli.RequireArgCount(1, -1, "the paths of configuration files or directories"),
		RunE: func(_ *cobra.Command, args []string) error {
			o.configPaths = args
			return validateConfig(o, s)
		},
	}
	validate.Flags().BoolVar(&o.rejectWarnings, "strict", false, "a warning is an error, with exit code 1")
	return cli.NewGroupCommand("config", "Check the configuration of an agent", validate, newConfigSchemaCommand(s))
}

func newConfigSchemaCommand(s *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of configuration files",
		Long: `Print the JSON Schema of configuration files in JSON (NAME.json). An editor uses it
to complete and check such files. It has the names and types of all settings, and
marks those that are ignored here; config validate also checks the values, and
files in HCL.`,
		Example: "  nomad-lite config schema >nomad-agent.schema.json",
		Args:    cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			encoder := json.NewEncoder(s.JSONOutput())
			encoder.SetEscapeHTML(false)
			encoder.SetIndent("", "  ")
			return encoder.Encode(config.JSONSchema())
		},
	}
}

// validateConfig reads and checks a configuration as an agent does at its start, but starts nothing and opens no port.
func validateConfig(o options, s *cli.Streams) error {
	c, err := o.loadConfig(false, s)
	if err == nil {
		_, err = agentconfig.NewPluginCatalog(c, false, nil)
	}
	if err == nil {
		_, err = fmt.Fprintln(s.Out, "Configuration is valid!")
		return err
	}
	if exit := (*cli.ExitError)(nil); !errors.As(err, &exit) { // an ExitError means that the reason was printed
		fmt.Fprintln(s.Err, err)
	}
	//lint:ignore ST1005 the text is Nomad's
	return errors.New("Configuration is invalid")
}
