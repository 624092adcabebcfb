package httpapi

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// machineNode is the node of a machine with two memory nodes, and with an address that only a host network has.
type machineNode struct{ stubNode }

func (machineNode) Host() fingerprint.Host {
	return fingerprint.Host{
		InterfaceOfIP:   "eth0",
		ReservedCoreIDs: []uint16{1},
		NodeNetworks: []fingerprint.NodeNetwork{{Mode: "bridge"}, {Mode: "host", Device: "eth0", MacAddress: "02:00:00:00:00:01", Speed: 1000, Addresses: []fingerprint.NodeNetworkAddress{
			{Family: "ipv6", Alias: "default", Address: "fd00::2"},
		}}},
		Topology: &base.Topology{
			NodeIDs: []uint32{0, 1}, Distances: [][]uint32{{10, 20}, {20, 10}}, OverrideWithholdCompute: 300,
			Cores: []base.Core{{BaseSpeed: 2000}, {CoreID: 1, NodeID: 1, SocketID: 1, Grade: base.CoreEfficiency, Disable: true, MaxSpeed: 3000}},
		},
	}
}

// A node has the fields about the machine in all replies and in events.
func TestNodeHasFieldsAboutTheMachine(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { setNode(c, machineNode{}) })
	f.updateStore(t, func(tx *store.Txn) {
		tx.PutNodeWithStorageEvents(&api.Node{
			ID: f.config.NodeID, Name: "n1", Datacenter: "dc1", Status: api.NodeStatusReady, NodePool: "default",
			HostVolumes: map[string]*api.HostVolumeInfo{"data": {Path: "/srv"}},
			NodeResources: &api.NodeResources{
				Networks: []*api.NetworkResource{{Mode: "bridge"}, {Mode: "host", Device: "eth0", IP: "fd00::2"}, {Mode: "host", Device: "eth1", IP: "10.0.0.9"}},
				Devices:  []*api.NodeDeviceResource{{Attributes: map[string]*api.Attribute{"size": {IntVal: new(int64(2)), Unit: "GiB"}}}},
			},
			ReservedResources: &api.NodeReservedResources{Cpu: api.NodeReservedCpuResources{CpuShares: 2300}},
		})
	})
	const volumes = `"HostVolumes":{"data":{"ID":"","Name":"data","Path":"/srv","ReadOnly":false}}`
	const resources = `"Networks":[{"Mode":"bridge"},{"Device":"eth0","IP":"fd00::2","Mode":"host"}],` +
		`"NodeNetworks":[{"Addresses":null,"Device":"","MacAddress":"","Mode":"bridge","Speed":0},` +
		`{"Addresses":[{"Address":"fd00::2","Alias":"default","Family":"ipv6","Gateway":"","ReservedPorts":""}],"Device":"eth0","MacAddress":"02:00:00:00:00:01","Mode":"host","Speed":1000}],` +
		`"Processors":{"Topology":{"Cores":[{"BaseSpeed":2000,"Disable":false,"Grade":true,"GuessSpeed":0,"ID":0,"MaxSpeed":0,"NodeID":0,"SocketID":0},` +
		`{"BaseSpeed":0,"Disable":true,"Grade":false,"GuessSpeed":0,"ID":1,"MaxSpeed":3000,"NodeID":1,"SocketID":1}],` +
		`"Distances":[[10,20],[20,10]],"Nodes":[0,1],"OverrideTotalCompute":0,"OverrideWitholdCompute":300}}`
	const device = `"size":{"Bool":null,"Float":null,"Int":2,"String":null,"Unit":"GiB"}`
	const reserved = `"ReservedResources":{"Cpu":{"CpuShares":2300,"ReservedCpuCores":[1]},`
	for path, parts := range map[string][]string{
		"/v1/node/" + f.config.NodeID:      {volumes, resources, device, reserved},
		"/v1/nodes?resources=true":         {volumes, resources, device, reserved},
		"/v1/nodes":                        {volumes},
		eventsPath + "?topic=Node&index=0": {volumes, resources, device, reserved},
	} {
		text := f.readUntil(t, path, "", `"Index"`)
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%s: %s lacks %s", path, text, part)
			}
		}
		if path == "/v1/nodes" && strings.Contains(text, "NodeResources") {
			t.Errorf("%s: %s", path, text)
		}
	}
}

// A machine with one memory node has no distances.
func TestTopologyOfOneMemoryNode(t *testing.T) {
	got, err := encodeNomadJSON(newTopologyView(&base.Topology{NodeIDs: []uint32{0}, Distances: [][]uint32{{10}}}))
	if want := `{"Cores":null,"Distances":null,"Nodes":[0],"OverrideTotalCompute":0,"OverrideWitholdCompute":0}`; err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
}
