package builtinhooks

import (
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
)

// A default network port has its own address only if the node's address belongs to this machine alone.
func TestPortIsForwardedAtLoopbackAddressOnly(t *testing.T) {
	for ip, want := range map[string]string{"10.0.0.1": "", "127.0.0.1": "127.0.0.1", "::1": "::1", "203.0.113.7": ""} {
		a := &api.Allocation{AllocatedResources: &api.AllocatedResources{Shared: api.AllocatedSharedResources{
			Networks: []*api.NetworkResource{{IP: ip, DynamicPorts: []api.Port{{Label: "http", Value: 20000}}}},
			Ports:    []api.PortMapping{{Label: "http", Value: 20000, To: 80, HostIP: ip}},
		}}}
		request := newNetworkRequest(a, &api.NetworkResource{Mode: "bridge"}, &taskenv.Env{})
		if got := request.Ports; len(got) != 1 || got[0].HostIP != want {
			t.Errorf("with the address %s: %+v, want HostIP %q", ip, got, want)
		}
	}
}
