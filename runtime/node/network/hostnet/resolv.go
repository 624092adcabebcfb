package hostnet

import (
	"github.com/nomad-lite/nomad-lite/internal/netfiles"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// namespaceDNS returns the DNS settings for tasks in a namespace, nil if the settings of the machine
// work there, or no others are known.
func namespaceDNS() *driver.DNSConfig {
	if !netfiles.MachineResolver().HasLoopback() {
		return nil
	}
	reachable := netfiles.NamespaceResolver()
	if len(reachable.Servers) == 0 {
		return nil
	}
	return &driver.DNSConfig{Servers: reachable.Servers, Searches: reachable.Searches, Options: reachable.Options}
}
