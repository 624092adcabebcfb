package root

import (
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// newUnsupportedCommands returns the commands of Nomad that need a cluster.
func newUnsupportedCommands() []*cobra.Command {
	return []*cobra.Command{
		cli.NewUnsupportedCommand("acl", "an agent has one operator, whose token is in the file token of its data directory; for a cluster use Nomad's own command line"),
		cli.NewUnsupportedCommand("license", cli.EnterpriseOnlyReason),
		cli.NewUnsupportedCommand("login", "an agent needs its token: export NOMAD_TOKEN=$(cat DATA_DIR/token)"),
		cli.NewUnsupportedCommand("quota", cli.EnterpriseOnlyReason),
		cli.NewUnsupportedCommand("recommendation", cli.EnterpriseOnlyReason),
		cli.NewUnsupportedCommand("sentinel", cli.EnterpriseOnlyReason),
		cli.NewUnsupportedCommand("setup", "Consul and Vault are not a part of it"),
		cli.NewUnsupportedCommand("tls", "make certificates with openssl or another tool; the tls block of the configuration of an agent names them"),
	}
}
