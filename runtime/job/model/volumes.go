package model

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// Volume types.
const (
	VolumeTypeHost = "host"
	VolumeTypeCSI  = "csi"
)

// Host volume access modes.
const (
	SingleNodeReader       = string(api.HostVolumeAccessModeSingleNodeReader)
	SingleNodeWriter       = string(api.HostVolumeAccessModeSingleNodeWriter)
	SingleNodeSingleWriter = string(api.HostVolumeAccessModeSingleNodeSingleWriter)
	SingleNodeMultiWriter  = string(api.HostVolumeAccessModeSingleNodeMultiWriter)
)

// HostAccessModes are the host volume access modes.
var HostAccessModes = []string{SingleNodeReader, SingleNodeWriter, SingleNodeSingleWriter, SingleNodeMultiWriter}

// HostVolumeRequest is an allocation's request for a host volume.
type HostVolumeRequest struct {
	*api.VolumeRequest
	Label          string // the volume block's label
	ResolvedSource string // the host volume's name, with the index of the allocation if the request is per_alloc; empty if the node lacks a property the job names
	Bidirectional  bool   // a task wants its mounts below the volume to appear on the machine
}

// HostVolumeOptions are what the configuration of an agent permits with a host volume, besides its path.
type HostVolumeOptions struct {
	Bidirectional bool // mounts of tasks below the volume may appear on the machine
	CSI           bool // the volume answers requests for a CSI volume with its name
	PerAlloc      bool // the volume is not mounted itself, but the directories below it that are named after it and an allocation
}

// hostVolumeOptionAttributes returns the node attributes of a host volume's options, by name. An attribute that is not "true" is
// not set.
func hostVolumeOptionAttributes(volume string, o *HostVolumeOptions) map[string]*bool {
	return map[string]*bool{
		"host_volume." + volume + ".bidirectional": &o.Bidirectional,
		"host_volume." + volume + ".csi":           &o.CSI,
		"host_volume." + volume + ".per_alloc":     &o.PerAlloc,
	}
}

// SetHostVolumeOptions adds the options of host volumes to a node's attributes.
func SetHostVolumeOptions(attributes map[string]string, optionsByVolume map[string]HostVolumeOptions) {
	for name, options := range optionsByVolume {
		for attribute, isSet := range hostVolumeOptionAttributes(name, &options) {
			if *isSet {
				attributes[attribute] = "true"
			}
		}
	}
}

// HostVolumeOptions returns the options that SetHostVolumeOptions has added.
func (f *NodeFacts) HostVolumeOptions(volume string) (o HostVolumeOptions) {
	for attribute, isSet := range hostVolumeOptionAttributes(volume, &o) {
		*isSet = f.Attributes[attribute] == "true"
	}
	return o
}

// CutAllocIndex returns the name of a host volume without the index of an allocation, such as data for data[0].
func CutAllocIndex(volume string) (name string, found bool) {
	i := strings.LastIndexByte(volume, '[')
	if i < 0 || !strings.HasSuffix(volume, "]") {
		return volume, false
	}
	index := volume[i+1 : len(volume)-1]
	if _, err := strconv.ParseUint(index, 10, 32); err != nil {
		return volume, false
	}
	return volume[:i], true
}

// CSIVolumeFaults returns a warning for each CSI volume of a job that a host volume answers, as standsIn reports for its source.
func CSIVolumeFaults(job *api.Job, standsIn func(source string) bool) (faults []*JobFault) {
	for _, g := range job.TaskGroups {
		for _, label := range slices.Sorted(maps.Keys(g.Volumes)) {
			v := g.Volumes[label]
			if v.Type != VolumeTypeCSI || !standsIn(v.Source) {
				continue
			}
			text := fmt.Sprintf("volume %q: the directory of the host volume %q on this machine stands in for the CSI volume", label, v.Source)
			if v.MountOptions != nil {
				text += ", and its mount_options have no effect"
			}
			faults = append(faults, &JobFault{Path: []string{"group", pointer.Value(g.Name), "volume", label}, Text: text})
		}
	}
	return faults
}

// BidirectionalRefused returns why a host volume cannot be mounted with the propagation mode bidirectional, and what helps.
func BidirectionalRefused(volume string) string {
	return fmt.Sprintf("propagation_mode = \"bidirectional\" would let mounts of the task appear on this machine: write allow_bidirectional = true into the block host_volume %q of the agent's configuration, or propagation_mode = \"host-to-task\" into the volume_mount block", volume)
}

// HostVolumeRequests returns the named allocation's requests, sorted by label. Those for CSI volumes are among them, without their
// access mode: on one machine, all have the same effect.
func HostVolumeRequests(g *api.TaskGroup, allocName string, node *NodeFacts) []HostVolumeRequest {
	var requests []HostVolumeRequest
	for _, label := range slices.Sorted(maps.Keys(g.Volumes)) {
		v := g.Volumes[label]
		if v.Type == VolumeTypeCSI {
			request := *v
			request.AccessMode = ""
			v = &request
		}
		source, known := node.ResolveConstraintTarget(v.Source)
		if known && source != "" && v.PerAlloc {
			source += allocIndexInBrackets(allocName)
		}
		requests = append(requests, HostVolumeRequest{v, label, source, hasBidirectionalMount(g, label)})
	}
	return requests
}

func hasBidirectionalMount(g *api.TaskGroup, label string) bool {
	return slices.ContainsFunc(g.Tasks, func(t *api.Task) bool {
		return slices.ContainsFunc(t.VolumeMounts, func(m *api.VolumeMount) bool {
			return pointer.Value(m.Volume) == label && pointer.Value(m.PropagationMode) == api.VolumeMountPropagationBidirectional
		})
	})
}

// allocIndexInBrackets returns the index at the end of an allocation's name, in brackets.
func allocIndexInBrackets(name string) string {
	if i := strings.LastIndexByte(name, '['); i >= 0 {
		return name[i:]
	}
	return ""
}

func checkVolumes(r *faultReport, jobType string, g *api.TaskGroup) {
	for _, label := range slices.Sorted(maps.Keys(g.Volumes)) {
		at := r.nestedReport("volume", label)
		checkVolume(at, jobType, pointer.Value(g.Update), g.Volumes[label])
		r.addNested(at, "Task group volume validation for %s failed:", label)
	}
}

func checkVolume(r *faultReport, jobType string, update api.UpdateStrategy, v *api.VolumeRequest) {
	if v.Type != VolumeTypeHost && v.Type != VolumeTypeCSI {
		r.addFault("volume has unrecognized type %s", v.Type)
	}
	if v.Source == "" {
		r.addFault("volume has an empty source")
	}
	if v.PerAlloc {
		if v.Sticky {
			r.addFault("volume cannot be per_alloc and sticky at the same time")
		}
		if jobType == api.JobTypeSystem || jobType == api.JobTypeSysbatch {
			r.addFault("volume cannot be per_alloc for system or sysbatch jobs")
		}
		if pointer.Value(update.Canary) > 0 {
			r.addFault("volume cannot be per_alloc when canaries are in use")
		}
	}
	switch v.Type {
	case VolumeTypeHost:
		checkHostVolume(r, v)
	case VolumeTypeCSI:
		if v.AttachmentMode == "" {
			r.addFault("CSI volumes must have an attachment mode")
		}
		if v.AccessMode == "" {
			r.addFault("CSI volumes must have an access mode")
		}
	}
}

func checkHostVolume(r *faultReport, v *api.VolumeRequest) {
	if v.MountOptions != nil {
		r.addFault("host volumes cannot have mount options")
	}
	if v.AccessMode != "" && !slices.Contains(HostAccessModes, v.AccessMode) {
		r.addFault("host volumes cannot be mounted with %s access mode", v.AccessMode)
	}
	if v.AccessMode == SingleNodeReader && !v.ReadOnly {
		r.addFault("single-node-reader-only volumes must be read-only")
	}
}

var (
	propagationModes = []string{"", api.VolumeMountPropagationPrivate, api.VolumeMountPropagationHostToTask, api.VolumeMountPropagationBidirectional}
	selinuxLabels    = []string{"", "z", "Z"}
)

// IsEmptyMount reports whether a volume_mount block is empty. Such a block has no effect and
// is not an error.
func IsEmptyMount(m *api.VolumeMount) bool {
	return pointer.Value(m.Volume) == "" && pointer.Value(m.Destination) == "" && !pointer.Value(m.ReadOnly) && pointer.Value(m.SELinuxLabel) == "" &&
		(m.PropagationMode == nil || *m.PropagationMode == api.VolumeMountPropagationPrivate)
}

func checkVolumeMounts(r *faultReport, g *api.TaskGroup, mounts []*api.VolumeMount) {
	for i, m := range mounts {
		if IsEmptyMount(m) {
			continue
		}
		at := r.atPath("volume_mount", positionText(i))
		if g.Volumes[pointer.Value(m.Volume)] == nil {
			at.addFault("Volume Mount (%d) references undefined volume %s", i, pointer.Value(m.Volume))
		}
		if mode := pointer.Value(m.PropagationMode); !slices.Contains(propagationModes, mode) {
			at.addFault(`Volume Mount (%d) is invalid: "volume mount has an invalid propagation mode: %q"`, i, mode)
		}
		if label := pointer.Value(m.SELinuxLabel); !slices.Contains(selinuxLabels, label) {
			at.addFault(`Volume Mount (%d) is invalid: "volume mount has an invalid SELinux label: %q"`, i, label)
		}
	}
}
