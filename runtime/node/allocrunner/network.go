package allocrunner

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/netfiles"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/runnerhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// allocNetwork is the network namespace that the tasks of an allocation share. Its methods may be called
// concurrently.
type allocNetwork struct {
	groupDNS       *api.DNSConfig                     // dns block of the group
	createdNetwork atomic.Pointer[state.AllocNetwork] // network that was created; nil before, and if the tasks use the network of the host
}

// networkStatusForAPI returns the network of the allocation as clients see it.
func (n *allocNetwork) networkStatusForAPI() *api.AllocNetworkStatus {
	status := &api.AllocNetworkStatus{DNS: n.groupDNS}
	created := n.createdNetwork.Load()
	if created == nil || created.Status == nil {
		return status
	}
	status.InterfaceName, status.Address, status.AddressIPv6 = created.Status.Interface, created.Status.Address, created.Status.AddressIPv6
	if dns := n.taskDNS(); dns != nil {
		status.DNS = &api.DNSConfig{Servers: dns.Servers, Searches: dns.Searches, Options: dns.Options}
	}
	return status
}

// taskDNS returns the DNS settings of the tasks: the settings of the group, in which lists of the created network replace
// empty lists. It returns nil if the tasks use the settings of the machine.
func (n *allocNetwork) taskDNS() *driver.DNSConfig {
	own, created := toDriverDNSConfig(n.groupDNS), n.createdNetwork.Load()
	if created == nil || created.Status == nil || created.Status.DNS == nil {
		return own
	}
	if own == nil {
		return created.Status.DNS
	}
	merged := netfiles.Resolver(*own).WithDefaults(netfiles.Resolver(*created.Status.DNS))
	return (*driver.DNSConfig)(&merged)
}

// networkStatusForEnv returns the network of the allocation for the environments of its tasks. It returns nil if the allocation
// has no network of its own.
func (n *allocNetwork) networkStatusForEnv() *taskenv.NetworkStatus {
	created := n.createdNetwork.Load()
	if created == nil || created.Status == nil {
		return nil
	}
	return &taskenv.NetworkStatus{Interface: created.Status.Interface, Address: cmp.Or(created.Status.Address, created.Status.AddressIPv6)}
}

// newNetworkHook returns the hook for the network of the allocation, nil if its tasks use the network
// of the host.
func (b *hookBuilder) newNetworkHook() runnerhooks.Hook {
	network := model.GroupNetwork(b.config.Alloc.GetTaskGroup())
	if network == nil || b.config.Host.NetworkManager == nil {
		return nil
	}
	tasks := make([]runnerhooks.NetworkTask, len(b.tasks))
	for i, t := range b.tasks {
		tasks[i] = runnerhooks.NetworkTask{Name: t.Name(), Driver: t.Task().Driver, DriverCapabilities: func(ctx context.Context) (driver.Capabilities, error) {
			err := t.FetchDriverDescription(ctx, true)
			return t.DriverCapabilities(), err
		}}
	}
	return runnerhooks.NewNetworkHook(runnerhooks.NetworkHookConfig{
		Manager: b.config.Host.NetworkManager,
		NewRequest: func() state.AllocNetwork {
			return newNetworkRequest(b.alloc(), network, b.hooks.envBuilders.allocEnv())
		},
		Tasks:         tasks,
		ReuseExisting: b.config.Restored && !b.config.Rebooted,
		SetNetwork:    b.setNetwork,
		EmitEvent:     b.tasks.emitEvent,
	})
}

// newNetworkRequest returns the network that the network block of the group and the placement require, interpolated.
func newNetworkRequest(a *api.Allocation, network *api.NetworkResource, env *taskenv.Env) state.AllocNetwork {
	request := state.AllocNetwork{AllocID: a.ID, Mode: network.Mode, Hostname: env.Replace(network.Hostname)}
	if granted := a.AllocatedResources; granted != nil {
		named := portsOnNamedHostNetworks(granted.Shared.Networks)
		for _, p := range granted.Shared.Ports {
			to := p.To
			if to <= 0 {
				to = p.Value
			}
			port := state.NetworkPort{Label: p.Label, HostPort: p.Value, To: to}
			if named[p.Label] {
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

// portsOnNamedHostNetworks returns for each port label whether the port is on another host network than the default one.
func portsOnNamedHostNetworks(networks []*api.NetworkResource) map[string]bool {
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
			args[key] = env.Replace(value)
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

// restoreNetwork passes the network that an earlier agent has created to the tasks. Prerun hooks would do so too, but they
// are not called for an allocation that is being stopped, whose poststop tasks need the network.
func (b *hookBuilder) restoreNetwork() {
	if b.config.Host.NetworkManager == nil || b.config.Rebooted || model.GroupNetwork(b.config.Alloc.GetTaskGroup()) == nil {
		return
	}
	if existing := b.config.Host.NetworkManager.ActiveNetwork(b.config.Alloc.ID); existing != nil {
		b.setNetwork(existing)
	}
}

// setNetwork passes a network to all tasks; nil means that they need no isolation.
func (b *hookBuilder) setNetwork(network *state.AllocNetwork) {
	var isolation *driver.NetworkIsolation
	if network != nil {
		isolation = network.Isolation
	}
	b.envBuilders.network.createdNetwork.Store(network)
	dns := b.envBuilders.network.taskDNS()
	for _, t := range b.tasks {
		t.SetNetwork(isolation, dns)
	}
	b.envBuilders.updateTaskEnvs()
}
