package agent

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentconfig"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

const configValidateHelp = `Check the configuration of an agent, without an agent. Each PATH is a file, or a
directory with files, as for 'nomad-lite agent -config'. Later files override
earlier ones.

Errors and warnings go to standard error. Whether plugins start, and whether
certificates and ports can be used, only a start of the agent shows.

Exit codes: 0, or 1 when the agent would reject the configuration.`

// NewConfigCommand returns the command "config" with its subcommands.
func NewConfigCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("config", "Check the configuration of an agent", &cobra.Command{
		Use:     "validate PATH...",
		Short:   "Check configuration files",
		Long:    configValidateHelp,
		Example: "  nomad-lite config validate /etc/nomad-lite/agent.hcl",
		Args:    cli.RequireArgCount(1, -1, "the paths of configuration files or directories"),
		RunE: func(_ *cobra.Command, args []string) error {
			return validateConfig(options{configPaths: args}, s)
		},
	})
}

// validateConfig reads and checks a configuration as an agent does at its start, but starts nothing and opens no port.
func validateConfig(o options, s *cli.Streams) error {
	c, err := o.loadConfig(s)
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
