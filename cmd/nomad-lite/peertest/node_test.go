package peertest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// nodeDifference is a difference between the nodes of the two agents that stays.
type nodeDifference struct {
	path     string // regular expression for the whole path of the value in the JSON
	reason   string
	optional bool // some machines do not have the difference
}

// Reasons that several differences have.
const (
	ownIdentity = "each agent has its own"
	noServers   = "the agent is the only member of its cluster, and has no values of other servers"
)

// nodeDifferences are the differences that the comparison accepts. Each that is not optional must exist, so that an entry is removed
// when its
// difference is. docs/reference/api.md lists them for users.
var nodeDifferences = []nodeDifference{
	{path: `/ID|/HTTPAddr|/Attributes/unique\.advertise\.address`, reason: ownIdentity},
	{path: `/CreateIndex|/ModifyIndex|/LastAllocUpdateIndex|/StatusUpdatedAt|/Events/.*|/Drivers/[^/]+/UpdateTime`, reason: "a number or a time that each agent counts"},
	{path: `/Attributes/unique\.host_id`, reason: "the id is derived in another way, because the machine id is a secret"},
	{path: `/(Attributes/nomad\.v|V)ersion`, reason: "the stock agent is a development version"},
	{path: `/Attributes/nomad-lite\.version`, reason: "the version of nomad-lite"},
	{path: `/Attributes/nomad-lite\.(descriptors|processes|pipes)`, reason: "what tasks can have of them, which Nomad does not count"},
	{path: `/Attributes/arch`, reason: "an old name, which jobs use"},
	{path: `/Attributes/unique\.(cgroup\.(version|mountpoint)|storage\.bytesfree)`, reason: "attributes of earlier versions of Nomad, which jobs use"},
	{path: `/Attributes/cpu\.usablecompute`, reason: "the CPU that the node reserves is left out, because no task gets it"},
	{path: `/Attributes/cpu\.modelname`, reason: "the name that the kernel shows; Nomad has the name of the processor itself, and a virtual machine can have two", optional: true},
	{path: `/Attributes/os\.signals`, reason: "the signals that tasks can get are in order, and complete"},
	{path: `/Attributes/nomad\.bridge\.hairpin_mode`, reason: "allocations on the bridge reach their own ports by default"},
	{path: `/Attributes/plugins\.secrets\.vault\.version`, reason: "no Vault"},
	{path: `/Meta/connect\..*`, reason: "no Consul"},
	{path: `/ComputedClass|/IdentitySigningKeyID`, reason: noServers},
	{path: `/Drivers/docker/HealthDescription`, reason: "nomad-lite names the cause and the remedy"},
	{path: `/Drivers/probe_failing/Attributes`, reason: "a map is never null"},
	{path: `/NodeResources/NodeNetworks/bridge`, reason: "Nomad leaves out the mode bridge if there are networks of CNI plugins"},
	{path: `/NodeResources/Devices/\d+/Instances/\d+/Locality`, reason: "a locality without a bus has no meaning"},
}

// TestNodeRecord compares what the two agents report about their node, which is the same machine: the keys, types and values.
func TestNodeRecord(t *testing.T) {
	nomad, lite := nomadHost(t), liteHost(t)
	for _, h := range []*host{nomad, lite} {
		await(t, "the fingerprints of slow drivers", func() bool {
			drivers := h.node(t).Drivers
			return drivers["java"] != nil && !drivers["probe_failing"].Detected
		})
	}
	found := map[string]bool{}
	for _, path := range []string{"/v1/node/ID", "/v1/nodes?resources=true&os=true", "/v1/nodes"} {
		differences := map[string]string{}
		diffJSON("", nomad.nodeRecord(t, path), lite.nodeRecord(t, path), differences)
	values:
		for _, at := range slices.Sorted(maps.Keys(differences)) {
			for _, d := range nodeDifferences {
				if regexp.MustCompile("^(" + d.path + ")$").MatchString(at) {
					found[d.path] = true
					continue values
				}
			}
			t.Errorf("%s: %s: %s", path, at, differences[at])
		}
	}
	for _, d := range nodeDifferences {
		if !found[d.path] && !d.optional {
			t.Errorf("%s (%s) no longer differs: remove it from the table, and from docs/reference/api.md", d.path, d.reason)
		}
	}
}

// nodeRecord returns the JSON of the node from a path. The devices are in the order of their names, and the networks have their
// interfaces or modes as keys. Events of the driver probe_failing are left out.
func (h *host) nodeRecord(t *testing.T, path string) map[string]any {
	t.Helper()
	body, err := h.Raw().Response(strings.ReplaceAll(path, "ID", h.nodeID), nil)
	if err != nil {
		t.Fatalf("%s: %s: %v", h.name, path, err)
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.ReplaceAll(text, []byte(h.dir), []byte("DIR"))
	var node map[string]any
	if text[0] == '[' {
		var list []map[string]any
		if err := json.Unmarshal(text, &list); err != nil || len(list) != 1 {
			t.Fatalf("%s: %s: %v in %s", h.name, path, err, text)
		}
		node = list[0]
	} else if err := json.Unmarshal(text, &node); err != nil {
		t.Fatalf("%s: %s: %v", h.name, path, err)
	}
	if resources, ok := node["NodeResources"].(map[string]any); ok {
		networks := map[string]any{}
		for _, n := range resources["NodeNetworks"].([]any) {
			n := n.(map[string]any)
			networks[cmp.Or(n["Device"].(string), strings.ReplaceAll(n["Mode"].(string), "/", "-"))] = n
		}
		resources["NodeNetworks"] = networks
		slices.SortFunc(resources["Devices"].([]any), func(a, b any) int {
			return strings.Compare(fmt.Sprint(a.(map[string]any)["Name"]), fmt.Sprint(b.(map[string]any)["Name"]))
		})
	}
	if events, ok := node["Events"].([]any); ok {
		// Whether Nomad emits an event for a driver that has never worked depends on timing.
		node["Events"] = slices.DeleteFunc(events, func(event any) bool {
			details, _ := event.(map[string]any)["Details"].(map[string]any)
			return details["driver"] == "probe_failing"
		})
	}
	return node
}

// diffJSON adds the differences of two JSON values to found, by path.
func diffJSON(path string, nomad, lite any, found map[string]string) {
	switch n := nomad.(type) {
	case map[string]any:
		l, ok := lite.(map[string]any)
		if !ok {
			break
		}
		for key := range n {
			if _, ok := l[key]; !ok {
				found[path+"/"+key] = fmt.Sprintf("only Nomad has it: %v", n[key])
				continue
			}
			diffJSON(path+"/"+key, n[key], l[key], found)
		}
		for key := range l {
			if _, ok := n[key]; !ok {
				found[path+"/"+key] = fmt.Sprintf("only nomad-lite has it: %v", l[key])
			}
		}
		return
	case []any:
		l, ok := lite.([]any)
		if !ok || len(l) != len(n) {
			break
		}
		for i := range n {
			diffJSON(fmt.Sprintf("%s/%d", path, i), n[i], l[i], found)
		}
		return
	}
	if !reflect.DeepEqual(nomad, lite) {
		found[path] = fmt.Sprintf("Nomad has %#v, nomad-lite %#v", nomad, lite)
	}
}
