package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

const (
	noServers    = "there are no servers to look after; for a cluster use Nomad's own command line"
	noEnterprise = "it belongs to Nomad Enterprise"
)

// nomadOnly are the commands of Nomad that are for clusters.
func nomadOnly() []*cobra.Command {
	return []*cobra.Command{
		elsewhere("acl", "an agent has one operator, whose token is in the file token of its data directory; for a cluster use Nomad's own command line"),
		elsewhere("config", "an agent checks its configuration when it starts, and on SIGHUP"),
		elsewhere("license", noEnterprise),
		elsewhere("login", "an agent wants its token: export NOMAD_TOKEN=$(cat <data dir>/token)"),
		elsewhere("quota", noEnterprise),
		elsewhere("recommendation", noEnterprise),
		elsewhere("sentinel", noEnterprise),
		elsewhere("setup", "Consul and Vault are not a part of it"),
		elsewhere("tls", "make certificates with openssl or another tool; the tls block of the configuration of an agent names them"),
	}
}

// elsewhere is a command of Nomad that is not here: who types it learns what to do
// instead.
func elsewhere(name, instead string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fmt.Errorf("%s: nomad-lite has no such command: %s", cmd.CommandPath(), instead)
		},
	}
}
