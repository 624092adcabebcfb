package root

import (
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// newUnsupportedCommands returns the commands of Nomad that need a cluster.
func newUnsupportedCommands() []*cobra.Command {
	return []*cobra.Command{
		cli.NewUnsupportedCommand("license", cli.EnterpriseOnlyReason),
		cli.NewUnsupportedCommand("login", "a token is all that an agent needs: export NOMAD_TOKEN=$(cat DATA_DIR/token), or the secret that nomad-lite acl token create prints"),
		cli.NewUnsupportedCommand("quota", cli.EnterpriseOnlyReason),
		cli.NewUnsupportedCommand("recommendation", cli.EnterpriseOnlyReason),
		cli.NewUnsupportedCommand("sentinel", cli.EnterpriseOnlyReason),
		cli.NewUnsupportedCommand("setup", "Consul and Vault are not a part of it"),
		cli.NewUnsupportedCommand("tls", "make certificates with openssl or another tool; the tls block of the configuration of an agent names them"),
	}
}
