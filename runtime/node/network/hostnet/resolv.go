package hostnet

import (
	"github.com/nomad-lite/nomad-lite/internal/netfiles"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// namespaceDNSConfigIfNeeded returns the DNS settings for tasks in a bridge namespace. It returns nil, so that tasks
// get the machine's settings, unless those name a loopback address, which a namespace cannot reach, and others are
// known.
func namespaceDNSConfigIfNeeded() *driver.DNSConfig {
	if !netfiles.MachineResolver().HasLoopback() {
		return nil
	}
	reachable := netfiles.NamespaceResolver()
	if len(reachable.Servers) == 0 {
		return nil
	}
	return &driver.DNSConfig{Servers: reachable.Servers, Searches: reachable.Searches, Options: reachable.Options}
}
