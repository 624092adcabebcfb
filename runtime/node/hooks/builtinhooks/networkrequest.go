package builtinhooks

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// newNetworkRequest returns the network required by the group's network block and the placement, interpolated.
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

// isLoopback reports whether a node address belongs to this machine alone. A port at such an address is not forwarded at the
// machine's other addresses, because the operator chose an address that other machines do not reach.
func isLoopback(address string) bool {
	ip, err := netip.ParseAddr(address)
	return err == nil && ip.IsLoopback()
}

// onNamedHostNetworkByPortLabel returns for each port label whether the port is on a host network other than the default.
func onNamedHostNetworkByPortLabel(networks []*api.NetworkResource) map[string]bool {
	named := make(map[string]bool)
	for _, n := range networks {
		for _, port := range slices.Concat(n.ReservedPorts, n.DynamicPorts) {
			named[port.Label] = !model.IsOnDefaultHostNetwork(port)
		}
	}
	return named
}

// newCNIArgs returns the arguments for CNI plugins. The job's arguments cannot replace the allocation's identifying arguments.
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
