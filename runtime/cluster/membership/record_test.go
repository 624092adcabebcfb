package membership

import (
	"encoding/json"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
)

// The servers get the machine's networks and processors as a Nomad client sends them: addresses of host networks only in
// NodeNetworks, and reserved cores not in the reserved CPU.
func TestRecordOfMachine(t *testing.T) {
	mbits := 1000
	node := &api.Node{
		ID: nodeID,
		NodeResources: &api.NodeResources{
			Cpu: api.NodeCpuResources{CpuShares: 4192, TotalCpuCores: 1, ReservableCpuCores: []uint16{0}},
			Networks: []*api.NetworkResource{
				{Mode: "bridge"}, {Mode: "host", Device: "eth0", CIDR: "192.0.2.2/32", IP: "192.0.2.2", MBits: &mbits},
				{Mode: "host", Device: "lo", CIDR: "127.0.0.1/32", IP: "127.0.0.1", MBits: &mbits},
			},
		},
		ReservedResources: &api.NodeReservedResources{Cpu: api.NodeReservedCpuResources{CpuShares: 2196}},
	}
	host := fingerprint.Host{
		InterfaceOfIP: "eth0", ReservedCoreIDs: []uint16{1},
		NodeNetworks: []fingerprint.NodeNetwork{
			{Mode: "bridge"},
			{Mode: "host", Device: "lo", Speed: 1000, Addresses: []fingerprint.NodeNetworkAddress{{Family: "ipv4", Alias: "public", Address: "127.0.0.1", ReservedPorts: "22,80"}}},
			{Mode: "host", Device: "eth0", MacAddress: "02:fc:00:00:00:01", Speed: 1000, Addresses: []fingerprint.NodeNetworkAddress{{Family: "ipv4", Alias: "default", Address: "192.0.2.2"}}},
		},
		Topology: &base.Topology{
			NodeIDs: []uint32{0}, Distances: [][]uint32{{10}}, OverrideWithholdCompute: 100,
			Cores: []base.Core{{CoreID: 0, BaseSpeed: 2096}, {CoreID: 1, SocketID: 1, Grade: base.CoreEfficiency, Disable: true, MaxSpeed: 2096}},
		},
	}
	resources := func(edit func(*fingerprint.Host)) [3]string {
		t.Helper()
		h := host
		edit(&h)
		record := newNodeRecord(node, &h, "secret")
		r := record.NodeResources
		var texts [3]string
		for i, part := range []any{[]any{r.Networks, r.NodeNetworks}, r.Processors, record.ReservedResources.Cpu} {
			text, err := json.Marshal(part)
			if err != nil {
				t.Fatal(err)
			}
			texts[i] = string(text)
		}
		return texts
	}
	got := resources(func(*fingerprint.Host) {})
	for i, want := range []string{
		`[[{"Mode":"bridge","Device":"","CIDR":"","IP":"","MBits":0},{"Mode":"host","Device":"eth0","CIDR":"192.0.2.2/32","IP":"192.0.2.2","MBits":1000}],` +
			`[{"Mode":"bridge","Device":"","MacAddress":"","Speed":0,"Addresses":null},` +
			`{"Mode":"host","Device":"lo","MacAddress":"","Speed":1000,"Addresses":[{"Family":"ipv4","Alias":"public","Address":"127.0.0.1","ReservedPorts":"22,80","Gateway":""}]},` +
			`{"Mode":"host","Device":"eth0","MacAddress":"02:fc:00:00:00:01","Speed":1000,"Addresses":[{"Family":"ipv4","Alias":"default","Address":"192.0.2.2","ReservedPorts":"","Gateway":""}]}]]`,
		`{"Topology":{"Cores":[{"ID":0,"SocketID":0,"NodeID":0,"Grade":true,"Disable":false,"BaseSpeed":2096,"MaxSpeed":0,"GuessSpeed":0},` +
			`{"ID":1,"SocketID":1,"NodeID":0,"Grade":false,"Disable":true,"BaseSpeed":0,"MaxSpeed":2096,"GuessSpeed":0}],` +
			`"Nodes":"AA==","Distances":null,"BusAssociativity":null,"OverrideTotalCompute":0,"OverrideWitholdCompute":100}}`,
		`{"CpuShares":100,"ReservedCpuCores":[1]}`,
	} {
		if got[i] != want {
			t.Errorf("got  %s\nwant %s", got[i], want)
		}
	}
	got = resources(func(h *fingerprint.Host) {
		h.Topology = &base.Topology{NodeIDs: []uint32{0, 1}, Distances: [][]uint32{{10, 20}, {20, 10}}, OverrideTotalCompute: 9000}
	})
	if want := `{"Topology":{"Cores":null,"Nodes":"AAE=","Distances":[[10,20],[20,10]],"BusAssociativity":null,"OverrideTotalCompute":9000,"OverrideWitholdCompute":0}}`; got[1] != want {
		t.Errorf("got  %s\nwant %s", got[1], want)
	}
}
