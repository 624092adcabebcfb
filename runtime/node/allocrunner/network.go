package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/netfiles"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// newNetworkStatus returns the network of an allocation as clients see it, from the dns block of its group and from the
// network that was created. The latter is nil before, and if the tasks use the network of the host.
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

// mergeTaskDNS returns the DNS settings of the tasks: the settings of the group, in which lists of the created network
// replace empty lists. It returns nil if the tasks use the settings of the machine.
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

// toEnvNetwork returns the created network for the environments of the tasks. It returns nil if the allocation has no
// network of its own.
func toEnvNetwork(created *state.AllocNetwork) *taskenv.NetworkStatus {
	if created == nil || created.Status == nil {
		return nil
	}
	return &taskenv.NetworkStatus{Interface: created.Status.Interface, Address: created.Status.PrimaryAddress()}
}

// newNetworkHook returns the hook for the network of the allocation, nil if its tasks use the network
// of the host.
func newNetworkHook(c *Config, a *allocTasks) hooks.Hook {
	network := model.GroupNetworkUnlessHost(c.Alloc.GetTaskGroup())
	if network == nil || c.Host.NetworkManager == nil {
		return nil
	}
	tasks := make([]builtinhooks.NetworkTask, len(a.taskSet))
	for i, t := range a.taskSet {
		tasks[i] = builtinhooks.NetworkTask{Name: t.Name(), Driver: t.Task().Driver, DriverCapabilities: func(ctx context.Context) (driver.Capabilities, error) {
			err := t.FetchDriverDescription(ctx, true)
			return t.DriverCapabilities(), err
		}}
	}
	return builtinhooks.NewNetworkHook(builtinhooks.NetworkHookConfig{
		Manager:       c.Host.NetworkManager,
		NewRequest:    func() state.AllocNetwork { return newNetworkRequest(a.state.currentAlloc(), network, a.allocEnv()) },
		Tasks:         tasks,
		ReuseExisting: c.RanUnderEarlierAgent && !c.RebootedSinceEarlierAgent,
		SetNetwork:    a.setNetwork,
		EmitEvent:     a.emitEvent,
	})
}

// newNetworkRequest returns the network that the network block of the group and the placement require, interpolated.
func newNetworkRequest(a *api.Allocation, network *api.NetworkResource, env *taskenv.Env) state.AllocNetwork {
	request := state.AllocNetwork{AllocID: a.ID, Mode: network.Mode, Hostname: env.ReplaceReferences(network.Hostname)}
	if granted := a.AllocatedResources; granted != nil {
		named := onNamedHostNetworkByPortLabel(granted.Shared.Networks)
		for _, p := range granted.Shared.Ports {
			to := p.To
			if to <= 0 {
				to = p.Value
			}
			port := state.NetworkPort{Label: p.Label, HostPort: p.Value, To: to}
			if named[p.Label] || isLoopback(p.HostIP) {
				port.HostIP = p.HostIP
			}
			request.Ports = append(request.Ports, port)
		}
	}
	if model.IsCNINetworkMode(network.Mode) {
		request.CNIArgs = newCNIArgs(a, network.CNI, env)
	}
	return request
}

// isLoopback reports whether an address of the node is that of this machine alone. A port at such an address is not forwarded at
// the other addresses of the machine, because the operator has chosen an address that other machines do not reach.
func isLoopback(address string) bool {
	ip, err := netip.ParseAddr(address)
	return err == nil && ip.IsLoopback()
}

// onNamedHostNetworkByPortLabel returns for each port label whether the port is on another host network than the
// default one.
func onNamedHostNetworkByPortLabel(networks []*api.NetworkResource) map[string]bool {
	named := make(map[string]bool)
	for _, n := range networks {
		for _, port := range slices.Concat(n.ReservedPorts, n.DynamicPorts) {
			named[port.Label] = !model.IsOnDefaultHostNetwork(port)
		}
	}
	return named
}

// newCNIArgs returns the arguments for CNI plugins. Arguments of the job cannot replace the arguments that identify the
// allocation.
func newCNIArgs(a *api.Allocation, cni *api.CNIConfig, env *taskenv.Env) map[string]string {
	args := make(map[string]string)
	if cni != nil {
		for key, value := range cni.Args {
			args[key] = env.ReplaceReferences(value)
		}
	}
	maps.Copy(args, map[string]string{
		"NOMAD_ALLOC_ID":   a.ID,
		"NOMAD_GROUP_NAME": a.TaskGroup,
		"NOMAD_JOB_ID":     a.JobID,
		"NOMAD_NAMESPACE":  a.Namespace,
		"NOMAD_REGION":     pointer.Value(a.Job.Region),
	})
	return args
}

// activeNetworkOfEarlierAgent returns the network that an earlier agent has created for the tasks; nil if there is none.
func activeNetworkOfEarlierAgent(c *Config) *state.AllocNetwork {
	if !c.RanUnderEarlierAgent || c.Host.NetworkManager == nil || c.RebootedSinceEarlierAgent || model.GroupNetworkUnlessHost(c.Alloc.GetTaskGroup()) == nil {
		return nil
	}
	return c.Host.NetworkManager.ActiveNetwork(c.Alloc.ID)
}

// setNetwork sets the network of all tasks; nil means that they need no isolation.
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

// ReplaceNetwork passes a network to the tasks whose namespace has lost its connection, for the given reason, and was connected again
// with other addresses. It restarts the running tasks, because their environments have the former ones, and does not wait for that.
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
