package agentconfig

import (
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
)

// WarnOfPublicAddresses logs that ports of jobs are reachable at public addresses, and how the operator changes that.
func WarnOfPublicAddresses(logger hclog.Logger, public []localnode.PublicAddress) {
	logger.Warn("services and ports of jobs are at a public address: unless a firewall prevents it, the internet reaches them there. "+
		`To keep them on this machine, set client { network_interface = "lo" } in the configuration`, "addresses", public)
}
