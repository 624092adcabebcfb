package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// deviceInstance identifies one device of a node.
type deviceInstance struct{ vendor, deviceType, name, id string }

func instanceOf(g *api.NodeDeviceResource, id string) deviceInstance {
	return deviceInstance{g.Vendor, g.Type, g.Name, id}
}

// allocatedDevices returns the devices that an allocation holds.
func allocatedDevices(a *api.Allocation) []deviceInstance {
	if a.AllocatedResources == nil {
		return nil
	}
	var devices []deviceInstance
	for _, t := range a.AllocatedResources.Tasks {
		for _, d := range t.Devices {
			for _, id := range d.DeviceIDs {
				devices = append(devices, deviceInstance{d.Vendor, d.Type, d.Name, id})
			}
		}
	}
	return devices
}

// deviceRequest is a device block of a task, with the groups of devices that meet it.
type deviceRequest struct {
	task       string
	block      *api.RequestedDevice
	candidates []deviceCandidate // by decreasing affinity
}

// deviceCandidate is a group of devices that meets a request.
type deviceCandidate struct {
	group     *api.NodeDeviceResource
	score     float64
	instances []string // ids of the healthy instances that the constraints admit
}

func (r *deviceRequest) count() int { return int(min(pointer.Value(r.block.Count), 1<<20)) }

// newDeviceRequest matches a device block with the devices of a node. Reservations are not considered.
func newDeviceRequest(task string, block *api.RequestedDevice, node *Node) *deviceRequest {
	r := &deviceRequest{task: task, block: block}
	for _, group := range node.Devices {
		if !model.MatchesDevice(block.Name, group) || slices.ContainsFunc(block.Constraints, func(c *api.Constraint) bool {
			return !model.DeviceConstraintHolds(c, group, &node.NodeFacts)
		}) {
			continue
		}
		c := deviceCandidate{group: group, score: model.DeviceAffinityScore(block.Affinities, group, &node.NodeFacts)}
		for _, d := range group.Instances {
			if d.Healthy && !slices.ContainsFunc(block.Constraints, func(c *api.Constraint) bool { return !model.DeviceConstraintAdmits(c, d, &node.NodeFacts) }) {
				c.instances = append(c.instances, d.ID)
			}
		}
		r.candidates = append(r.candidates, c)
	}
	slices.SortStableFunc(r.candidates, func(a, b deviceCandidate) int { return cmp.Compare(b.score, a.score) })
	return r
}

// deviceRequestsOf returns the requests of the group's tasks that ask for at least one device, in the order of the job.
func deviceRequestsOf(g *api.TaskGroup, node *Node) []*deviceRequest {
	var requests []*deviceRequest
	for _, t := range g.Tasks {
		for _, block := range t.Resources.Devices {
			if r := newDeviceRequest(t.Name, block, node); r.count() > 0 {
				requests = append(requests, r)
			}
		}
	}
	return requests
}

// checkDevices returns an error if the node cannot meet a device block even when no device is reserved. It is not part
// of checkFeasible, because an allocation that has its devices continues although they are unhealthy or missing.
func checkDevices(g *api.TaskGroup, node Node) error {
	var errs []error
	for _, r := range deviceRequestsOf(g, &node) {
		if !slices.ContainsFunc(r.candidates, func(c deviceCandidate) bool { return len(c.instances) >= r.count() }) {
			errs = append(errs, &filteredError{"missing devices", fmt.Errorf("task %q: device %q: %s", r.task, r.block.Name, r.missingText(&node))})
		}
	}
	return errors.Join(errs...)
}

// missingText describes why the node cannot meet the request.
func (r *deviceRequest) missingText(node *Node) string {
	if len(node.Devices) == 0 {
		return "this node has no devices: name a device plugin in a plugin block of the agent's configuration; nomad-lite plugin list shows why a plugin reports none"
	}
	var available []string
	for _, group := range node.Devices {
		if !model.MatchesDevice(r.block.Name, group) {
			available = append(available, group.ID())
		}
	}
	if len(available) == len(node.Devices) {
		return "this node has only " + admission.JoinTruncated(available)
	}
	var reasons []string
	for _, group := range node.Devices {
		if !model.MatchesDevice(r.block.Name, group) {
			continue
		}
		reasons = append(reasons, group.ID()+" "+r.unfitText(group, node))
	}
	return admission.JoinTruncated(reasons)
}

// unfitText describes why a group of devices with the requested name does not meet the request.
func (r *deviceRequest) unfitText(group *api.NodeDeviceResource, node *Node) string {
	for _, c := range r.block.Constraints {
		if !model.DeviceConstraintHolds(c, group, &node.NodeFacts) {
			return fmt.Sprintf("does not satisfy the constraint %q%s", admission.ConstraintText(c), deviceValueText(c.LTarget, group))
		}
	}
	healthy := 0
	for _, d := range group.Instances {
		if d.Healthy {
			healthy++
		}
	}
	i := slices.IndexFunc(r.candidates, func(c deviceCandidate) bool { return c.group == group })
	return fmt.Sprintf("has %d instances, %d healthy, %d that the constraints admit, and %d are requested", len(group.Instances), healthy, len(r.candidates[i].instances), r.count())
}

// deviceValueText describes the value of an attribute that a constraint compares.
func deviceValueText(target string, group *api.NodeDeviceResource) string {
	name, ok := strings.CutPrefix(target, "${device.attr.")
	if !ok {
		return ""
	}
	if a := group.Attributes[strings.TrimSuffix(name, "}")]; a != nil {
		return fmt.Sprintf(": it is %q here", a.String())
	}
	return ": it is not set here"
}

// assignDevices chooses free devices for the tasks of a group. Requests with fewer suitable devices choose first, because
// a request that any device meets would otherwise take the only device that meets another one.
func (p *allocPlacer) assignDevices(g *api.TaskGroup) (map[*api.RequestedDevice]*api.AllocatedDeviceResource, error) {
	requests := deviceRequestsOf(g, &p.node)
	slices.SortStableFunc(requests, func(a, b *deviceRequest) int { return cmp.Compare(a.instanceCount(), b.instanceCount()) })
	granted := make(map[*api.RequestedDevice]*api.AllocatedDeviceResource, len(requests))
	chosen := make(map[deviceInstance]bool)
	for _, r := range requests {
		device, err := p.assignDevice(r, chosen)
		if err != nil {
			return nil, err
		}
		granted[r.block] = device
	}
	return granted, nil
}

func (r *deviceRequest) instanceCount() (n int) {
	for _, c := range r.candidates {
		n += len(c.instances)
	}
	return n
}

// assignDevice chooses instances of one group for a request, and adds them to chosen.
func (p *allocPlacer) assignDevice(r *deviceRequest, chosen map[deviceInstance]bool) (*api.AllocatedDeviceResource, error) {
	var shortages []string
	var heldBy *allocNameReservations
	for _, c := range r.candidates {
		var free []string
		for _, id := range c.instances {
			instance := instanceOf(c.group, id)
			by, _ := p.nodeUsage.deviceHolders.find(p.allocNameKey, instance, devicesOf)
			if by != nil {
				heldBy = cmp.Or(heldBy, by)
			} else if !chosen[instance] {
				free = append(free, id)
			}
			if len(free) == r.count() {
				break
			}
		}
		if len(free) < r.count() {
			shortages = append(shortages, fmt.Sprintf("%d of %d instances of %s are free", len(free), len(c.instances), c.group.ID()))
			continue
		}
		for _, id := range free {
			chosen[instanceOf(c.group, id)] = true
		}
		return &api.AllocatedDeviceResource{Vendor: c.group.Vendor, Type: c.group.Type, Name: c.group.Name, DeviceIDs: free}, nil
	}
	text := fmt.Sprintf("no devices match request %s (count %d): %s", r.block.Name, r.count(), admission.JoinTruncated(shortages))
	err := errors.New(text)
	if heldBy != nil {
		err = fmt.Errorf("%s; allocation %q of job %q holds one. Stop it, or ask for fewer devices", text, heldBy.key.name, heldBy.key.job)
	}
	return nil, &exhaustedError{"devices: " + text, fmt.Errorf("task %q: %w", r.task, err)}
}
