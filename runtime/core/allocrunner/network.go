package allocrunner

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/netfiles"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// newNetworkStatus returns an allocation's network as clients see it, from the group's dns block and the created
// network. The latter is nil before, and if the tasks use the host's network.
func newNetworkStatus(groupDNS *api.DNSConfig, created *state.AllocNetwork) *api.AllocNetworkStatus {
	status := &api.AllocNetworkStatus{DNS: groupDNS}
	if created == nil || created.Status == nil {
		return status
	}
	status.InterfaceName, status.Address, status.AddressIPv6 = created.Status.Interface, created.Status.Address, created.Status.AddressIPv6
	if dns := mergeTaskDNS(groupDNS, created); dns != nil {
		status.DNS = &api.DNSConfig{Servers: dns.Servers, Searches: dns.Searches, Options: dns.Options}
	}
	return status
}

// mergeTaskDNS returns the tasks' DNS settings: the group's settings, with the created network's lists in place of empty
// ones. It returns nil if the tasks use the machine's settings.
func mergeTaskDNS(groupDNS *api.DNSConfig, created *state.AllocNetwork) *driver.DNSConfig {
	own := toDriverDNSConfig(groupDNS)
	if created == nil || created.Status == nil || created.Status.DNS == nil {
		return own
	}
	if own == nil {
		return created.Status.DNS
	}
	merged := netfiles.Resolver(*own).WithDefaults(netfiles.Resolver(*created.Status.DNS))
	return (*driver.DNSConfig)(&merged)
}

// toEnvNetwork returns the created network for task environments. It returns nil if the allocation has no network of its
// own.
func toEnvNetwork(created *state.AllocNetwork) *taskenv.NetworkStatus {
	if created == nil || created.Status == nil {
		return nil
	}
	return &taskenv.NetworkStatus{Interface: created.Status.Interface, Address: created.Status.PrimaryAddress()}
}

// activeNetworkOfEarlierAgent returns the network that an earlier agent created for the tasks; nil for none.
func (r *Runner) activeNetworkOfEarlierAgent() *state.AllocNetwork {
	if !r.KeepsNetwork() || model.GroupNetworkUnlessHost(r.config.Alloc.GetTaskGroup()) == nil {
		return nil
	}
	return r.workspace.ActiveNetwork()
}

// setNetwork sets the network for all tasks; nil means they need no isolation.
func (a *allocTasks) setNetwork(network *state.AllocNetwork) {
	var isolation *driver.NetworkIsolation
	if network != nil {
		isolation = network.Isolation
	}
	dns, alloc := a.state.setNetwork(network), a.state.currentAlloc()
	for _, t := range a.taskSet {
		t.SetNetwork(isolation, dns)
		if _, err := findTask(alloc.GetTaskGroup(), t.Name()); err == nil {
			a.rebuildTaskEnv(alloc, t.Name())
		}
	}
}

// ReplaceNetwork passes a network to the tasks after their namespace lost its connection, for the given reason, and was
// connected again with other addresses. It restarts the running tasks, because their environments have the former ones,
// and does not wait for that.
func (r *Runner) ReplaceNetwork(network *state.AllocNetwork, reason string) {
	r.tasks.setNetwork(network)
	r.state.requestReconcile() // reports the addresses
	r.state.goInRun(&r.backgroundWG, func(ctx context.Context) {
		err := r.restartRunning(ctx, fmt.Sprintf("The network of the allocation was connected again with the address %s, because %s", network.Status.PrimaryAddress(), reason))
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrShouldNotRun) {
			r.logger.Error("tasks keep a former address", "error", err)
		}
	})
}
