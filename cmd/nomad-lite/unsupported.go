package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

const (
	noServers    = "there are no servers to look after; for a cluster use Nomad's own command line"
	noEnterprise = "it belongs to Nomad Enterprise"
)

// clusterOnly returns the commands of Nomad that need a cluster.
func clusterOnly() []*cobra.Command {
	return []*cobra.Command{
		clusterCommands("acl", "an agent has one operator, whose token is in the file token of its data directory; for a cluster use Nomad's own command line"),
		clusterCommands("config", "an agent checks its configuration when it starts, and on SIGHUP"),
		clusterCommands("license", noEnterprise),
		clusterCommands("login", "an agent wants its token: export NOMAD_TOKEN=$(cat <data dir>/token)"),
		clusterCommands("quota", noEnterprise),
		clusterCommands("recommendation", noEnterprise),
		clusterCommands("sentinel", noEnterprise),
		clusterCommands("setup", "Consul and Vault are not a part of it"),
		clusterCommands("tls", "make certificates with openssl or another tool; the tls block of the configuration of an agent names them"),
	}
}

// clusterCommands returns a command of Nomad that nomad-lite does not have. It prints what
// to use instead.
func clusterCommands(name, instead string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fmt.Errorf("%s: nomad-lite has no such command: %s", cmd.CommandPath(), instead)
		},
	}
}
