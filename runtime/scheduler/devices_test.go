package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// deviceNode returns a node with two models from one vendor and one from another.
func deviceNode() PlacementNode {
	group := func(vendor, name string, memory int64, ids ...string) *api.NodeDeviceResource {
		g := &api.NodeDeviceResource{Vendor: vendor, Type: "gpu", Name: name, Attributes: map[string]*api.Attribute{"memory": {IntVal: &memory, Unit: "GiB"}}}
		for _, id := range ids {
			name, sick := strings.CutPrefix(id, "!")
			g.Instances = append(g.Instances, &api.NodeDevice{ID: name, Healthy: !sick})
		}
		return g
	}
	node := testNode()
	node.Devices = []*api.NodeDeviceResource{group("acme", "big", 8, "a", "b"), group("acme", "small", 2, "c", "!d"), group("other", "big", 8, "a")}
	return node
}

func requestDevice(name string, count uint64, edits ...func(*api.RequestedDevice)) *api.RequestedDevice {
	d := &api.RequestedDevice{Name: name, Count: &count}
	for _, edit := range edits {
		edit(d)
	}
	return d
}

func where(left, operand, right string) func(*api.RequestedDevice) {
	return func(d *api.RequestedDevice) {
		d.Constraints = append(d.Constraints, api.NewConstraint(left, operand, right))
	}
}

func preferred(left, operand, right string, weight int8) func(*api.RequestedDevice) {
	return func(d *api.RequestedDevice) {
		d.Affinities = append(d.Affinities, api.NewAffinity(left, operand, right, weight))
	}
}

func jobWithDevices(devices ...*api.RequestedDevice) *jobFixture {
	return newJobFixture(func(f *jobFixture) { f.task.Resources = &api.Resources{Devices: devices} })
}

func devicesText(a *api.Allocation) string {
	var all []string
	for _, d := range a.AllocatedResources.Tasks["t"].Devices {
		all = append(all, fmt.Sprintf("%s/%s/%s%q", d.Vendor, d.Type, d.Name, d.DeviceIDs))
	}
	return strings.Join(all, " ")
}

func TestPlaceDevices(t *testing.T) {
	for _, c := range []struct {
		name     string
		requests []*api.RequestedDevice
		want     string // devices, or the error
	}{
		{"by type", []*api.RequestedDevice{requestDevice("gpu", 1)}, `acme/gpu/big["a"]`},
		{"by vendor", []*api.RequestedDevice{requestDevice("other/gpu", 1)}, `other/gpu/big["a"]`},
		{"by model", []*api.RequestedDevice{requestDevice("acme/gpu/small", 1)}, `acme/gpu/small["c"]`},
		{"several", []*api.RequestedDevice{requestDevice("gpu", 2)}, `acme/gpu/big["a" "b"]`},
		{"none", []*api.RequestedDevice{requestDevice("gpu", 0)}, ``},
		{"constraint", []*api.RequestedDevice{requestDevice("gpu", 1, where("${device.attr.memory}", "<", "4 GiB"))}, `acme/gpu/small["c"]`},
		{"one id", []*api.RequestedDevice{requestDevice("gpu", 1, where("${device.ids}", "set_contains", "b"))}, `acme/gpu/big["b"]`},
		{"affinity", []*api.RequestedDevice{requestDevice("gpu", 1, preferred("${device.vendor}", "=", "other", 50))}, `other/gpu/big["a"]`},
		{"aversion", []*api.RequestedDevice{requestDevice("gpu", 1, preferred("${device.model}", "=", "big", -50))}, `acme/gpu/small["c"]`},
		{"the second choice", []*api.RequestedDevice{requestDevice("gpu", 2, preferred("${device.vendor}", "=", "other", 50))}, `acme/gpu/big["a" "b"]`},
		{"two requests", []*api.RequestedDevice{requestDevice("acme/gpu", 1), requestDevice("gpu", 1)}, `acme/gpu/big["a"] acme/gpu/big["b"]`},
		{"a request for any device leaves the only device of another request",
			[]*api.RequestedDevice{requestDevice("gpu", 1, where("${device.ids}", "set_contains", "a"), preferred("${device.vendor}", "=", "other", 50)), requestDevice("other/gpu", 1)},
			`acme/gpu/big["a"] other/gpu/big["a"]`},

		{"another type", []*api.RequestedDevice{requestDevice("tpu", 1)}, `task "t": device "tpu": this node has only acme/gpu/big, acme/gpu/small, other/gpu/big`},
		{"more than one model has", []*api.RequestedDevice{requestDevice("other/gpu", 2)}, `task "t": device "other/gpu": other/gpu/big has 1 instances, 1 healthy, 1 that the constraints admit, and 2 are requested`},
		{"an unhealthy one", []*api.RequestedDevice{requestDevice("acme/gpu/small", 2)}, `task "t": device "acme/gpu/small": acme/gpu/small has 2 instances, 1 healthy, 1 that the constraints admit, and 2 are requested; "d" is unhealthy: without a reason`},
		{"a constraint that no model satisfies", []*api.RequestedDevice{requestDevice("other/gpu", 1, where("${device.attr.memory}", ">", "1 TiB"))},
			`task "t": device "other/gpu": other/gpu/big does not satisfy the constraint "${device.attr.memory} > 1 TiB": it is "8 GiB" here`},
		{"a constraint with a unit of another quantity", []*api.RequestedDevice{requestDevice("other/gpu", 1, where("${device.attr.memory}", ">", "1 W"))},
			`task "t": device "other/gpu": other/gpu/big does not satisfy the constraint "${device.attr.memory} > 1 W": it is "8 GiB" here, and a number in "GiB" is not comparable with one in "W"`},
		{"a constraint without a unit", []*api.RequestedDevice{requestDevice("other/gpu", 1, where("${device.attr.memory}", "!=", "8"), where("${device.attr.memory}", ">", "8"))},
			`task "t": device "other/gpu": other/gpu/big does not satisfy the constraint "${device.attr.memory} > 8": it is "8 GiB" here, and a number in "GiB" is not comparable with one without a unit`},
		{"a constraint on an attribute that is not there", []*api.RequestedDevice{requestDevice("other/gpu", 1, where("${device.attr.power}", ">", "1 W"))},
			`task "t": device "other/gpu": other/gpu/big does not satisfy the constraint "${device.attr.power} > 1 W": it is not set here`},
		{"more in sum than there are", []*api.RequestedDevice{requestDevice("other/gpu", 1), requestDevice("other/gpu/big", 1)},
			`task "t": no devices match request other/gpu/big (count 1): 0 of 1 instances of other/gpu/big are free`},
	} {
		t.Run(c.name, func(t *testing.T) {
			allocs, err := PlaceOnEmptyNode(jobWithDevices(c.requests...).job, deviceNode(), testEnv())
			got := strings.TrimPrefix(fmt.Sprint(err), `group "g": `)
			if err == nil {
				got = devicesText(allocs[0])
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestPlaceWithoutDevices(t *testing.T) {
	job := jobWithDevices(requestDevice("gpu", 1)).job
	if _, err := PlaceOnEmptyNode(job, testNode(), testEnv()); err == nil || !strings.Contains(err.Error(), "this node has no devices: name a device plugin in a plugin block") {
		t.Errorf("a node without devices: %v", err)
	}
	failing := testNode()
	failing.Attributes = map[string]string{"plugins.device.bus.failure": "no bus", "kernel.name": "linux"}
	if _, err := PlaceOnEmptyNode(job, failing, testEnv()); err == nil || !strings.HasSuffix(err.Error(), `device "gpu": this node has no devices: device plugin "bus": no bus`) {
		t.Errorf("a node with a plugin that could not look for devices: %v", err)
	}
	failing.Attributes["plugins.unknown.x.failure"] = `plugin "x": exits`
	if _, err := PlaceOnEmptyNode(job, failing, testEnv()); err == nil || !strings.HasSuffix(err.Error(), `this node has no devices: device plugin "bus": no bus, plugin "x": exits`) {
		t.Errorf("a node with a plugin that could not be launched: %v", err)
	}
	delete(failing.Attributes, "plugins.unknown.x.failure")
	failing.Devices = []*api.NodeDeviceResource{{Vendor: "acme", Type: "tpu", Name: "one"}}
	if _, err := PlaceOnEmptyNode(job, failing, testEnv()); err == nil || !strings.HasSuffix(err.Error(), `this node has only acme/tpu/one; device plugin "bus": no bus`) {
		t.Errorf("a node with another device: %v", err)
	}
}

// TestDevicesAreReservedUntilTheAllocationEnds also covers an allocation's replacement, which may take the replaced
// allocation's device.
func TestDevicesAreReservedUntilTheAllocationEnds(t *testing.T) {
	node := deviceNode()
	usage, env := NewEmptyNodeUsage(node), testEnv()
	place := func(jobID, name string) (*api.Allocation, error) {
		f := jobWithDevices(requestDevice("other/gpu", 1))
		f.job.ID = &jobID
		return newAllocPlacer(f.job, node, env, usage).createAndReserveAlloc(f.group, name)
	}
	first, err := place("j1", "j1.g[0]")
	if err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		_, err := place("j2", "j2.g[0]")
		want := `task "t": no devices match request other/gpu (count 1): 0 of 1 instances of other/gpu/big are free; allocation "j1.g[0]" of job "j1" holds one. Stop it, or ask for fewer devices`
		if err == nil || err.Error() != want {
			t.Fatalf("%s: %v", when, err)
		}
		metric := placementMetric(err, first.Job, node)
		if metric.DimensionExhausted["devices: no devices match request other/gpu (count 1): 0 of 1 instances of other/gpu/big are free"] != 1 {
			t.Errorf("%s: metric %v", when, metric.DimensionExhausted)
		}
	}
	refused("the device is in use")

	node.Devices[2].Instances[0].Healthy = false // the task continues on its unhealthy device
	usage.PutAlloc(first)
	node.Devices[2].Instances[0].Healthy = true
	refused("the device was unhealthy for a moment")

	stopped := *first
	stopped.DesiredStatus = api.AllocDesiredStatusStop
	stopped.AllocModifyIndex = 5
	usage.PutAlloc(&stopped)
	refused("the allocation is stopping")

	second, err := place("j1", "j1.g[0]")
	if err != nil || devicesText(second) != `other/gpu/big["a"]` {
		t.Fatalf("the replacement of the stopped allocation: %v", err)
	}
	usage.RemoveAlloc(&stopped)
	if clone := usage.Clone(); len(clone.deviceHolders) != 1 {
		t.Errorf("the clone has %v", clone.deviceHolders)
	}
	refused("the replacement has the device")
	usage.RemoveAlloc(second)
	if third, err := place("j2", "j2.g[0]"); err != nil || devicesText(third) != `other/gpu/big["a"]` {
		t.Errorf("after the end: %v", err)
	}
}

func TestNodeOfHasDevices(t *testing.T) {
	devices := deviceNode().Devices
	if got := PlacementNodeOf(&api.Node{NodeResources: &api.NodeResources{Devices: devices}}).Devices; !slices.Equal(got, devices) {
		t.Errorf("devices %v", got)
	}
}

func TestMissingDevicesFilterTheNode(t *testing.T) {
	_, err := PlaceOnEmptyNode(jobWithDevices(requestDevice("tpu", 1)).job, deviceNode(), testEnv())
	if m := placementMetric(err, jobWithDevices().job, deviceNode()); m.NodesFiltered != 1 || m.ConstraintFiltered["missing devices"] != 1 {
		t.Errorf("metric %+v", m)
	}
}

func BenchmarkPlaceWithManyDevices(b *testing.B) {
	node := testNode()
	g := &api.NodeDeviceResource{Vendor: "acme", Type: "gpu", Name: "x"}
	for i := range 10_000 {
		g.Instances = append(g.Instances, &api.NodeDevice{ID: fmt.Sprint(i), Healthy: true})
	}
	node.Devices = []*api.NodeDeviceResource{g}
	job := jobWithDevices(requestDevice("gpu", 8)).job
	for b.Loop() {
		if _, err := PlaceOnEmptyNode(job, node, testEnv()); err != nil {
			b.Fatal(err)
		}
	}
}
