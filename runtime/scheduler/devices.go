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

// deviceInstance identifies one instance in a device group on the node.
type deviceInstance struct{ vendor, deviceType, name, id string }

func deviceInstanceOf(g *api.NodeDeviceResource, id string) deviceInstance {
	return deviceInstance{g.Vendor, g.Type, g.Name, id}
}

// allocatedDevices returns an allocation's device instances.
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

// deviceRequest is a task's device block, with the device groups matching its name and constraints.
type deviceRequest struct {
	taskName   string
	block      *api.RequestedDevice
	candidates []deviceCandidate // sorted by decreasing affinity score
}

// deviceCandidate is a device group matching a device block.
type deviceCandidate struct {
	deviceGroup         *api.NodeDeviceResource
	affinityScore       float64
	suitableInstanceIDs []string // ids of healthy instances that the constraints admit
}

// requestedCount returns the number of requested instances. It is limited, so the conversion to int cannot overflow: no device
// group has so many instances.
func (r *deviceRequest) requestedCount() int { return int(min(pointer.Value(r.block.Count), 1<<20)) }

// newDeviceRequest matches a device block with a node's device groups. The candidates include instances that allocations hold.
func newDeviceRequest(task string, block *api.RequestedDevice, node *PlacementNode) *deviceRequest {
	r := &deviceRequest{taskName: task, block: block}
	for _, group := range node.Devices {
		if !model.MatchesDevice(block.Name, group) || slices.ContainsFunc(block.Constraints, func(c *api.Constraint) bool {
			return !model.DeviceGroupSatisfiesConstraint(c, group, &node.NodeFacts)
		}) {
			continue
		}
		c := deviceCandidate{deviceGroup: group, affinityScore: model.DeviceAffinityScore(block.Affinities, group, &node.NodeFacts)}
		for _, d := range group.Instances {
			if d.Healthy && !slices.ContainsFunc(block.Constraints, func(c *api.Constraint) bool { return !model.DeviceInstanceSatisfiesConstraint(c, d, &node.NodeFacts) }) {
				c.suitableInstanceIDs = append(c.suitableInstanceIDs, d.ID)
			}
		}
		r.candidates = append(r.candidates, c)
	}
	slices.SortStableFunc(r.candidates, func(a, b deviceCandidate) int { return cmp.Compare(b.affinityScore, a.affinityScore) })
	return r
}

// deviceRequestsOf returns the device blocks that request at least one instance for a task in the group, in job order.
func deviceRequestsOf(g *api.TaskGroup, node *PlacementNode) []*deviceRequest {
	var requests []*deviceRequest
	for _, t := range g.Tasks {
		for _, block := range t.Resources.Devices {
			if r := newDeviceRequest(t.Name, block, node); r.requestedCount() > 0 {
				requests = append(requests, r)
			}
		}
	}
	return requests
}

// checkSuitableDevicesExist returns an error if the node has too few suitable instances for a device block, even if no
// allocation holds any. It is not part of checkFeasible, which plans call for running allocations too: a running
// allocation keeps its devices even if they become unhealthy or disappear.
func checkSuitableDevicesExist(g *api.TaskGroup, node PlacementNode) error {
	var errs []error
	for _, r := range unmetDeviceRequestsOf(g, &node) {
		errs = append(errs, &nodeFilteredError{"missing devices", fmt.Errorf("task %q: device %q: %s", r.taskName, r.block.Name, r.unmetReason(&node))})
	}
	return errors.Join(errs...)
}

// unmetDeviceRequestsOf returns the group's device blocks for which the node has too few suitable instances.
func unmetDeviceRequestsOf(g *api.TaskGroup, node *PlacementNode) []*deviceRequest {
	return slices.DeleteFunc(deviceRequestsOf(g, node), func(r *deviceRequest) bool {
		return slices.ContainsFunc(r.candidates, func(c deviceCandidate) bool { return len(c.suitableInstanceIDs) >= r.requestedCount() })
	})
}

// MissingDeviceReasons returns a text for each device block in a canonical job for which a stored node has too few suitable
// devices, even if no allocation holds any.
func MissingDeviceReasons(job *api.Job, n *api.Node) (reasons []string) {
	node := PlacementNodeOf(n)
	for _, g := range job.TaskGroups {
		for _, r := range unmetDeviceRequestsOf(g, &node) {
			reasons = append(reasons, fmt.Sprintf("Group %q: task %q: device %q: %s", *g.Name, r.taskName, r.block.Name, r.unmetReason(&node)))
		}
	}
	return reasons
}

// unmetReason returns the text why the node cannot satisfy the request.
func (r *deviceRequest) unmetReason(node *PlacementNode) string {
	failures := model.DeviceFailures(&node.NodeFacts)
	if len(node.Devices) == 0 && len(failures) > 0 {
		return "this node has no devices: " + admission.JoinTruncated(failures)
	}
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
		return strings.Join(append([]string{"this node has only " + admission.JoinTruncated(available)}, failures...), "; ")
	}
	var reasons []string
	for _, group := range node.Devices {
		if !model.MatchesDevice(r.block.Name, group) {
			continue
		}
		reasons = append(reasons, group.ID()+" "+r.groupUnfitReason(group, node))
	}
	return admission.JoinTruncated(reasons)
}

// groupUnfitReason returns the text why a device group with the requested name does not satisfy the request.
func (r *deviceRequest) groupUnfitReason(group *api.NodeDeviceResource, node *PlacementNode) string {
	for _, c := range r.block.Constraints {
		if !model.DeviceGroupSatisfiesConstraint(c, group, &node.NodeFacts) {
			return fmt.Sprintf("does not satisfy the constraint %q%s", admission.ConstraintText(c), deviceValueSuffix(c, group, node))
		}
	}
	healthy, unhealthy := 0, ""
	for _, d := range group.Instances {
		if d.Healthy {
			healthy++
		} else if unhealthy == "" {
			unhealthy = fmt.Sprintf("; %q is unhealthy: %s", d.ID, cmp.Or(d.HealthDescription, "without a reason"))
		}
	}
	i := slices.IndexFunc(r.candidates, func(c deviceCandidate) bool { return c.deviceGroup == group })
	return fmt.Sprintf("has %d instances, %d healthy, %d that the constraints admit, and %d are requested%s", len(group.Instances), healthy, len(r.candidates[i].suitableInstanceIDs), r.requestedCount(), unhealthy)
}

// deviceValueSuffix returns a message suffix: the device attribute value that a constraint compares, and both units if they are
// not comparable. It is empty if the constraint names no device attribute.
func deviceValueSuffix(c *api.Constraint, group *api.NodeDeviceResource, node *PlacementNode) string {
	name, ok := strings.CutPrefix(c.LTarget, "${device.attr.")
	if !ok {
		return ""
	}
	a := group.Attributes[strings.TrimSuffix(name, "}")]
	if a == nil {
		return ": it is not set here"
	}
	text := fmt.Sprintf(": it is %q here", a.String())
	if reason := model.IncomparableUnits(c, group, &node.NodeFacts); reason != "" {
		text += ", and " + reason
	}
	return text
}

// assignDevices chooses free device instances for a group's tasks. Requests with the fewest suitable instances choose first:
// otherwise a request that any instance satisfies could get the only instance suitable for another.
func (p *allocPlacer) assignDevices(g *api.TaskGroup) (map[*api.RequestedDevice]*api.AllocatedDeviceResource, error) {
	requests := deviceRequestsOf(g, &p.node)
	slices.SortStableFunc(requests, func(a, b *deviceRequest) int {
		return cmp.Compare(a.suitableInstanceCount(), b.suitableInstanceCount())
	})
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

func (r *deviceRequest) suitableInstanceCount() (n int) {
	for _, c := range r.candidates {
		n += len(c.suitableInstanceIDs)
	}
	return n
}

// assignDevice chooses a request's instances from one device group. It adds them to chosen, the same allocation's instances so
// far.
func (p *allocPlacer) assignDevice(r *deviceRequest, chosen map[deviceInstance]bool) (*api.AllocatedDeviceResource, error) {
	var shortages []string
	var heldBy *allocNameReservations
	for _, c := range r.candidates {
		var free []string
		for _, id := range c.suitableInstanceIDs {
			instance := deviceInstanceOf(c.deviceGroup, id)
			by, _ := p.nodeUsage.deviceHolders.findConflict(p.currentAllocNameKey, instance, devicesOf)
			if by != nil {
				heldBy = cmp.Or(heldBy, by)
			} else if !chosen[instance] {
				free = append(free, id)
			}
			if len(free) == r.requestedCount() {
				break
			}
		}
		if len(free) < r.requestedCount() {
			shortages = append(shortages, fmt.Sprintf("%d of %d instances of %s are free", len(free), len(c.suitableInstanceIDs), c.deviceGroup.ID()))
			continue
		}
		for _, id := range free {
			chosen[deviceInstanceOf(c.deviceGroup, id)] = true
		}
		return &api.AllocatedDeviceResource{Vendor: c.deviceGroup.Vendor, Type: c.deviceGroup.Type, Name: c.deviceGroup.Name, DeviceIDs: free}, nil
	}
	text := fmt.Sprintf("no devices match request %s (count %d): %s", r.block.Name, r.requestedCount(), admission.JoinTruncated(shortages))
	err := errors.New(text)
	if heldBy != nil {
		err = fmt.Errorf("%s; allocation %q of job %q holds one. Stop it, or ask for fewer devices", text, heldBy.key.allocName, heldBy.key.jobID)
	}
	return nil, &nodeExhaustedError{"devices: " + text, fmt.Errorf("task %q: %w", r.taskName, err)}
}
