package admission

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// NodeFeatures are the node properties a job can require by name.
type NodeFeatures struct {
	model.NodeFacts // the region is not used
	// NetworkModes are the group network modes the node has, besides host and none. Nil means networks are not checked.
	NetworkModes []string
	// HostNetworks are the networks ports can name besides default.
	HostNetworks map[string]HostNetwork
	// HostVolumes are the host volumes by name. The map must not be changed.
	HostVolumes map[string]*api.HostVolumeInfo
}

// HostNetwork is one of a node's networks.
type HostNetwork struct {
	Address       string // for port mappings
	ReservedPorts []int
}

// UnmetRequirement is a job requirement a node does not meet.
type UnmetRequirement struct {
	Refusal
	MetricName string // the requirement's name in Nomad's placement metrics
}

func (u UnmetRequirement) Error() string { return u.Text }

func newUnmetRequirement(kind refusalKindIndex, path []string, metric, text string) *UnmetRequirement {
	return &UnmetRequirement{newRefusalWithText(kind, path, text), metric}
}

// UnmetRequirements returns a valid job's requirements the node does not meet if all the job's allocations run on it. Datacenters
// and node pool count as requirements.
func (f *NodeFeatures) UnmetRequirements(job *api.Job) []Refusal {
	var all []*UnmetRequirement
	if err := f.CheckDatacenterAndPool(job); err != nil {
		all = append(all, newUnmetRequirement(datacenter, []string{"datacenters"}, "", err.Error()))
	}
	total := 0
	for _, g := range job.TaskGroups {
		total += *g.Count
	}
	all = append(all, f.UnmetConstraints(nil, job.Constraints, total)...)
	for _, g := range job.TaskGroups {
		path := []string{"group", *g.Name}
		all = append(all, f.UnmetNetworks(g)...)
		all = append(all, f.unmetVolumes(path, job, g)...)
		all = append(all, f.UnmetConstraints(path, g.Constraints, *g.Count)...)
		for _, t := range g.Tasks {
			all = append(all, f.UnmetConstraints(childPath(path, "task", t.Name), t.Constraints, 1)...)
		}
	}
	refusals := make([]Refusal, len(all))
	for i, u := range all {
		refusals[i] = u.Refusal
	}
	return refusals
}

// CheckDatacenterAndPool returns an error if the job's node pool or datacenters exclude the node.
func (f *NodeFeatures) CheckDatacenterAndPool(job *api.Job) error {
	if pool := *job.NodePool; pool != api.NodePoolAll && pool != f.Pool {
		return fmt.Errorf("job %q: node_pool %q: this node is in pool %q", *job.ID, pool, f.Pool)
	}
	if !slices.ContainsFunc(job.Datacenters, func(pattern string) bool { return matchStarPattern(pattern, f.Datacenter) }) {
		return fmt.Errorf("job %q: datacenters %q: this node is in datacenter %q", *job.ID, job.Datacenters, f.Datacenter)
	}
	return nil
}

// matchStarPattern matches a pattern in which * matches any text, including none.
func matchStarPattern(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	if last == 0 {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, parts[0])
	if !ok {
		return false
	}
	for _, part := range parts[1:last] {
		_, after, found := strings.Cut(name, part)
		if !found {
			return false
		}
		name = after
	}
	return strings.HasSuffix(name, parts[last])
}

// UnmetNetworks returns a group's network mode and first host network that the node does not have.
func (f *NodeFeatures) UnmetNetworks(g *api.TaskGroup) (all []*UnmetRequirement) {
	if mode := model.RequiredNodeNetworkMode(g); mode != "" && f.NetworkModes != nil && !slices.Contains(f.NetworkModes, mode) {
		reason := "the log of the agent says why (reason of \"degraded\"), or use mode = \"host\""
		if model.IsCNINetworkMode(mode) && slices.Contains(f.NetworkModes, "bridge") {
			reason = "the directory client.cni_config_dir has no network of that name, or its file has an error (reason of \"degraded\" in the log of the agent). " +
				"Correct it and restart the agent, or use mode = \"host\""
		}
		all = append(all, newUnmetRequirement(networkMode, []string{"group", *g.Name, "network", "0", "mode"}, "missing network", fmt.Sprintf("missing network: this node does not have the network mode %q: %s", mode, reason)))
	}
	for _, n := range g.Networks {
		for _, port := range slices.Concat(n.ReservedPorts, n.DynamicPorts) {
			if u := f.CheckHostNetwork(port); u != nil {
				u.Path = []string{"group", *g.Name, "network", "0"}
				return append(all, u)
			}
		}
	}
	return all
}

// CheckHostNetwork returns an UnmetRequirement if the node lacks the host network a port names, otherwise nil. Its text starts as
// in Nomad's placement metrics.
func (f *NodeFeatures) CheckHostNetwork(port api.Port) *UnmetRequirement {
	if _, found := f.HostNetworks[port.HostNetwork]; found || model.IsOnDefaultHostNetwork(port) {
		return nil
	}
	metric := fmt.Sprintf("missing host network %q for port %q", port.HostNetwork, port.Label)
	return newUnmetRequirement(hostNetwork, nil, metric, fmt.Sprintf("%s: add a block host_network %q to the block client of the agent's configuration whose address the machine has, or leave out host_network", metric, port.HostNetwork))
}

// MissingVolumes names unmet requests for host volumes in the placement metrics.
const MissingVolumes = "missing compatible host volumes"

// unmetVolumes returns an UnmetRequirement for each volume block that names a host volume missing on the node, for any of the
// group's allocations.
func (f *NodeFeatures) unmetVolumes(path []string, job *api.Job, g *api.TaskGroup) (all []*UnmetRequirement) {
	reported := make(map[string]bool)
	for i := range *g.Count {
		for _, v := range model.HostVolumeRequests(g, model.AllocName(job, g, i), &f.NodeFacts) {
			if u := f.CheckHostVolume(v); u != nil && !reported[v.Label] {
				reported[v.Label] = true
				u.Path = childPath(path, "volume", v.Label)
				all = append(all, u)
			}
		}
	}
	return all
}

// FindHostVolume returns the named host volume with its options, or nil. For the name of an allocation's directory, such as data[0], it
// returns the volume whose directories are mounted.
func (f *NodeFeatures) FindHostVolume(name string) (*api.HostVolumeInfo, model.HostVolumeOptions) {
	if v := f.HostVolumes[name]; v != nil {
		return v, f.HostVolumeOptions(name)
	}
	if parent, ok := model.CutAllocIndex(name); ok && f.HostVolumeOptions(parent).PerAlloc {
		return f.HostVolumes[parent], f.HostVolumeOptions(parent)
	}
	return nil, model.HostVolumeOptions{}
}

// HasCSIVolume reports whether a host volume stands in for the CSI volume with a name.
func (f *NodeFeatures) HasCSIVolume(source string) bool {
	return f.HostVolumes[source] != nil && f.HostVolumeOptions(source).CSI
}

// CheckHostVolume returns an UnmetRequirement if the node lacks the requested host volume, or the volume does not admit the
// request, otherwise nil.
func (f *NodeFeatures) CheckHostVolume(v model.HostVolumeRequest) *UnmetRequirement {
	found, options := f.FindHostVolume(v.ResolvedSource)
	text := ""
	switch {
	case v.ResolvedSource == "":
		text = fmt.Sprintf("the source %q is not set on this node", v.VolumeRequest.Source)
	case found == nil && v.Type == model.VolumeTypeCSI:
		text = fmt.Sprintf("this node has no directory for the CSI volume %q: name one in a block host_volume %q with csi = true in the agent's configuration", v.VolumeRequest.Source, v.VolumeRequest.Source)
	case found == nil && len(f.HostVolumes) == 0:
		text = fmt.Sprintf("this node has no host volume %q, and no other: name an existing directory in a host_volume block of the agent's configuration", v.ResolvedSource)
	case found == nil:
		text = fmt.Sprintf("this node has no host volume %q, only %s: name an existing directory in a host_volume block of the agent's configuration",
			v.ResolvedSource, JoinTruncated(slices.Sorted(maps.Keys(f.HostVolumes))))
	case found.ReadOnly && !v.ReadOnly:
		text = fmt.Sprintf("the host volume %q is read-only on this node: write read_only = true in the volume block", v.ResolvedSource)
	case v.Type == model.VolumeTypeCSI && !options.CSI:
		text = fmt.Sprintf("the host volume %q does not stand in for a CSI volume: write csi = true in its host_volume block in the agent's configuration", v.VolumeRequest.Source)
	case v.Type == model.VolumeTypeCSI && v.AttachmentMode == "block-device":
		text = fmt.Sprintf("the host volume %q is a directory, and not a block device: write attachment_mode = \"file-system\" in the volume block", v.VolumeRequest.Source)
	case options.PerAlloc && !v.PerAlloc:
		text = fmt.Sprintf("the host volume %q has a directory for each allocation: write per_alloc = true in the volume block, or leave it out of the host_volume block in the agent's configuration", v.ResolvedSource)
	case v.Bidirectional && !options.Bidirectional:
		text = model.BidirectionalRefused(v.ResolvedSource)
	default:
		return nil
	}
	return newUnmetRequirement(hostVolume, nil, MissingVolumes, text)
}

// JoinTruncated joins a list's first items for a message, and adds how many more there are.
func JoinTruncated(items []string) string {
	const shown = 5
	if len(items) <= shown {
		return strings.Join(items, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(items[:shown], ", "), len(items)-shown)
}

// UnmetConstraints returns the constraints in the block at path that the node does not satisfy for allocCount allocations.
func (f *NodeFeatures) UnmetConstraints(path []string, constraints []*api.Constraint, allocCount int) (all []*UnmetRequirement) {
	for i, c := range constraints {
		if model.IsImpliedBridgeConstraint(c) {
			continue // the bridge needs no CNI plugins; UnmetNetworks checks it
		}
		if model.IsImpliedConsulConstraint(c) && !f.refusesConsulServices() {
			continue // the node's catalog has the service
		}
		if text := f.explainUnmetConstraint(c, allocCount); text != "" {
			all = append(all, newUnmetRequirement(constraint, childPath(path, "constraint", strconv.Itoa(i)), ConstraintText(c), text))
		}
	}
	return all
}

// AttributeConsulServices is a node attribute. The value ConsulServicesRefused means the operator refuses services with provider
// consul. Other nodes do not have it, and register such services in their own catalog.
const (
	AttributeConsulServices = "nomad-lite.consul_services"
	ConsulServicesRefused   = "refused"
)

func (f *NodeFeatures) refusesConsulServices() bool {
	return f.Attributes[AttributeConsulServices] == ConsulServicesRefused
}

// explainUnmetConstraint returns why the node does not satisfy a constraint for a job or group with allocCount
// allocations on it, or "".
func (f *NodeFeatures) explainUnmetConstraint(c *api.Constraint, allocCount int) string {
	allowed := allocCount
	switch c.Operand {
	case api.ConstraintDistinctHosts:
		if on, err := strconv.ParseBool(c.RTarget); on || err != nil {
			allowed = 1
		}
	case api.ConstraintDistinctProperty:
		if _, ok := f.ResolveConstraintTarget(c.LTarget); !ok {
			return f.explainUnsatisfied(c)
		}
		allowed = 1
		if n, err := strconv.ParseUint(c.RTarget, 10, 31); err == nil {
			allowed = int(n)
		}
	default:
		if !model.ConstraintHolds(c, f.ResolveConstraintTarget) {
			return f.explainUnsatisfied(c)
		}
	}
	if allocCount > allowed {
		return fmt.Sprintf("constraint %q allows %d on one node, not %d", ConstraintText(c), allowed, allocCount)
	}
	return ""
}

// implicitConstraintReasons maps an implied constraint's target to the reason why this program adds the constraint to a job.
var implicitConstraintReasons = map[string]string{
	"${attr.consul.version}": `; a service has the provider consul unless it says provider = "nomad"`,
	"${attr.os.signals}":     "; it follows from the kill_signal or change_signal of a task",
}

func (f *NodeFeatures) explainUnsatisfied(c *api.Constraint) string {
	here := "is not set here"
	if value, ok := f.ResolveConstraintTarget(c.LTarget); ok {
		here = fmt.Sprintf("is %q here", value)
	}
	return fmt.Sprintf("constraint %q does not hold: %s %s%s", ConstraintText(c), c.LTarget, here, implicitConstraintReasons[c.LTarget])
}

// ConstraintText returns a constraint as text: left side, operator and right side, as in Nomad's placement metrics.
func ConstraintText(c *api.Constraint) string {
	return strings.TrimSpace(c.LTarget + " " + c.Operand + " " + c.RTarget)
}
