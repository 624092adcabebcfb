package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// VolumeState has the dynamic host volumes, and the claims of groups with sticky requests.
type VolumeState struct {
	volumes   map[string]*state.HostVolume // by id
	claims    []*api.TaskGroupHostVolumeClaim
	newClaims []*api.TaskGroupHostVolumeClaim
}

func volumeStateOf(reader store.Reader) *VolumeState {
	v := &VolumeState{claims: reader.VolumeClaims(nil)}
	for _, volume := range reader.HostVolumes(nil, "") {
		if v.volumes == nil {
			v.volumes = make(map[string]*state.HostVolume)
		}
		v.volumes[volume.Volume.ID] = volume
	}
	return v
}

// claimOf returns the claim of a group for a volume name, nil if there is none.
func (v *VolumeState) claimOf(job *api.Job, group, name string) *api.TaskGroupHostVolumeClaim {
	for _, c := range slices.Concat(v.claims, v.newClaims) {
		if c.Namespace == *job.Namespace && c.JobID == *job.ID && c.TaskGroupName == group && c.VolumeName == name {
			return c
		}
	}
	return nil
}

// volumeUse is a host volume to which an allocation can write, with the access mode of its request, which can be empty.
type volumeUse struct{ name, accessMode string }

// writtenVolumes returns the host volumes to which an allocation of a group can write.
func writtenVolumes(g *api.TaskGroup, allocName string, node *model.NodeFacts) []volumeUse {
	var uses []volumeUse
	for _, v := range model.HostVolumeRequests(g, allocName, node) {
		if !v.ReadOnly && v.Source != "" {
			uses = append(uses, volumeUse{v.Source, v.AccessMode})
		}
	}
	return uses
}

// assignVolumes checks the requests of an allocation for host volumes, and returns new claims for its sticky requests. The
// check is not part of checkFeasible, because a running allocation has its volumes mounted and continues without them on the
// node.
func (p *allocPlacer) assignVolumes(g *api.TaskGroup, allocName string) (claims []*api.TaskGroupHostVolumeClaim, err error) {
	var errs []error
	for _, v := range model.HostVolumeRequests(g, allocName, &p.node.NodeFacts) {
		claim, err := p.assignVolume(v, g)
		switch {
		case err != nil:
			errs = append(errs, &filteredError{admission.MissingVolumes, fmt.Errorf("volume %q: %w", v.Label, err)})
		case claim != nil:
			claims = append(claims, claim)
		}
	}
	return claims, errors.Join(errs...)
}

// assignVolume checks one request. The claim is nil unless the request is sticky and has no claim yet.
func (p *allocPlacer) assignVolume(v model.HostVolumeRequest, g *api.TaskGroup) (*api.TaskGroupHostVolumeClaim, error) {
	if unmet := p.node.CheckVolume(v); unmet != nil {
		return nil, unmet
	}
	found := p.node.HostVolumes[v.Source]
	var capabilities []*api.HostVolumeCapability
	if found.ID != "" {
		volume := p.volumes.volumes[found.ID]
		if volume == nil || !volume.Ready() {
			return nil, fmt.Errorf("the host volume %q (%s) is not ready", v.Source, found.ID)
		}
		if volume.Volume.Namespace != *p.job.Namespace {
			return nil, fmt.Errorf("the host volume %q belongs to the namespace %q", v.Source, volume.Volume.Namespace)
		}
		capabilities = volume.Volume.RequestedCapabilities
	}
	mode, admitted := accessMode(v.VolumeRequest, capabilities)
	if !admitted {
		return nil, fmt.Errorf("the host volume %q does not have the access mode and attachment mode of the request: it has %s", v.Source, capabilitiesText(capabilities))
	}
	if !v.ReadOnly {
		if err := p.checkWriters(v, mode, capabilities); err != nil {
			return nil, err
		}
	}
	if !v.Sticky || found.ID == "" {
		return nil, nil // a volume of the configuration is always the same
	}
	return p.claimVolume(v, g, found.ID)
}

// checkWriters returns an error if the access mode of the request, or of another allocation that can write to the volume,
// does not permit both.
func (p *allocPlacer) checkWriters(v model.HostVolumeRequest, mode string, capabilities []*api.HostVolumeCapability) error {
	for _, theirs := range append([]string{""}, model.HostAccessModes...) {
		by, _ := p.nodeUsage.volumeWriters.find(p.allocNameKey, volumeUse{v.Source, theirs}, volumesOf)
		if by == nil {
			continue
		}
		other, _ := accessMode(&api.VolumeRequest{AccessMode: theirs}, capabilities)
		if mode == model.SingleNodeSingleWriter || other == model.SingleNodeSingleWriter {
			return fmt.Errorf("the host volume %q has a single writer, and allocation %q of job %q can write to it", v.Source, by.key.name, by.key.job)
		}
	}
	return nil
}

// claimVolume returns a new claim of the group for a volume, nil if the group has claimed it before.
func (p *allocPlacer) claimVolume(v model.HostVolumeRequest, g *api.TaskGroup, id string) (*api.TaskGroupHostVolumeClaim, error) {
	switch claim := p.volumes.claimOf(p.job, *g.Name, v.Source); {
	case claim == nil:
		return &api.TaskGroupHostVolumeClaim{
			ID: p.env.NewID(), Namespace: *p.job.Namespace, JobID: *p.job.ID, TaskGroupName: *g.Name, VolumeID: id, VolumeName: v.Source,
		}, nil
	case claim.VolumeID != id:
		return nil, fmt.Errorf("the group is bound to another volume %q (%s), which this node no longer has: delete the claim %s if the group can start with the new volume", v.Source, claim.VolumeID, claim.ID)
	}
	return nil, nil
}

// accessMode returns the access mode with which an allocation uses a volume that has capabilities. A request without an
// access mode gets the first one that admits it. A volume without capabilities admits every request.
func accessMode(v *api.VolumeRequest, capabilities []*api.HostVolumeCapability) (mode string, admitted bool) {
	if len(capabilities) == 0 {
		return v.AccessMode, true
	}
	attachment := cmp.Or(v.AttachmentMode, string(api.HostVolumeAttachmentModeFilesystem))
	for _, c := range capabilities {
		mode := string(c.AccessMode)
		if string(c.AttachmentMode) == attachment && (v.AccessMode == "" || v.AccessMode == mode) && (v.ReadOnly || mode != model.SingleNodeReader) {
			return mode, true
		}
	}
	return "", false
}

func capabilitiesText(capabilities []*api.HostVolumeCapability) string {
	var texts []string
	for _, c := range capabilities {
		texts = append(texts, fmt.Sprintf("%s with %s", c.AccessMode, c.AttachmentMode))
	}
	return strings.Join(texts, ", ")
}
