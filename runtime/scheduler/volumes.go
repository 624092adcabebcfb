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

// HostVolumeState has the node's dynamic host volumes, and the claims that bind groups to sticky volumes.
type HostVolumeState struct {
	isUnknown    bool // a client has only the node, without the state of its dynamic volumes
	volumesByID  map[string]*state.HostVolume
	storedClaims []*api.TaskGroupHostVolumeClaim
	newClaims    []*api.TaskGroupHostVolumeClaim
}

func hostVolumeStateOf(reader store.Reader) *HostVolumeState {
	v := &HostVolumeState{storedClaims: reader.VolumeClaims(nil)}
	for _, volume := range reader.HostVolumes(nil, "") {
		if v.volumesByID == nil {
			v.volumesByID = make(map[string]*state.HostVolume)
		}
		v.volumesByID[volume.Volume.ID] = volume
	}
	return v
}

// findClaim returns a group's stored or new claim for a volume name, or nil.
func (v *HostVolumeState) findClaim(job *api.Job, group, volumeName string) *api.TaskGroupHostVolumeClaim {
	for _, c := range slices.Concat(v.storedClaims, v.newClaims) {
		if c.Namespace == *job.Namespace && c.JobID == *job.ID && c.TaskGroupName == group && c.VolumeName == volumeName {
			return c
		}
	}
	return nil
}

// writableVolume is a host volume that an allocation can write to. requestedAccessMode is the allocation's requested mode; it
// can be empty.
type writableVolume struct{ name, requestedAccessMode string }

// writableVolumesOf returns the host volumes that a group's allocation can write to.
func writableVolumesOf(g *api.TaskGroup, allocName string, node *model.NodeFacts) []writableVolume {
	var uses []writableVolume
	for _, v := range model.HostVolumeRequests(g, allocName, node) {
		if !v.ReadOnly && v.ResolvedSource != "" {
			uses = append(uses, writableVolume{v.ResolvedSource, v.AccessMode})
		}
	}
	return uses
}

// checkAndClaimHostVolumes checks whether the node has the host volumes that a group requests, and returns new claims
// for the sticky requests. The check is not part of checkFeasible, which plans call for running allocations too: a
// running allocation has its volumes mounted, and continues even if the node no longer has the volumes.
func (p *allocPlacer) checkAndClaimHostVolumes(g *api.TaskGroup, allocName string) (claims []*api.TaskGroupHostVolumeClaim, err error) {
	var errs []error
	for _, v := range model.HostVolumeRequests(g, allocName, &p.node.NodeFacts) {
		claim, err := p.checkAndClaimHostVolume(v, g)
		switch {
		case err != nil:
			errs = append(errs, &nodeFilteredError{admission.MissingVolumes, fmt.Errorf("volume %q: %w", v.Label, err)})
		case claim != nil:
			claims = append(claims, claim)
		}
	}
	return claims, errors.Join(errs...)
}

// checkAndClaimHostVolume checks one request for a host volume. It returns a new claim if the request is sticky and the
// group has no claim for the volume.
func (p *allocPlacer) checkAndClaimHostVolume(v model.HostVolumeRequest, g *api.TaskGroup) (*api.TaskGroupHostVolumeClaim, error) {
	if unmet := p.node.CheckHostVolume(v); unmet != nil {
		return nil, unmet
	}
	found, _ := p.node.FindHostVolume(v.ResolvedSource)
	var capabilities []*api.HostVolumeCapability
	if found.ID != "" {
		if p.volumes.isUnknown {
			return nil, nil
		}
		volume := p.volumes.volumesByID[found.ID]
		if volume == nil || !volume.IsReady() {
			return nil, fmt.Errorf("the host volume %q (%s) is not ready", v.ResolvedSource, found.ID)
		}
		if volume.Volume.Namespace != *p.job.Namespace {
			return nil, fmt.Errorf("the host volume %q belongs to the namespace %q", v.ResolvedSource, volume.Volume.Namespace)
		}
		capabilities = volume.Volume.RequestedCapabilities
	}
	mode, admitted := chooseAccessMode(v.VolumeRequest, capabilities)
	if !admitted {
		return nil, fmt.Errorf("the host volume %q does not have the access mode and attachment mode of the request: it has %s", v.ResolvedSource, capabilitiesText(capabilities))
	}
	if !v.ReadOnly {
		if err := p.checkOtherVolumeWriters(v, mode, capabilities); err != nil {
			return nil, err
		}
	}
	if !v.Sticky || found.ID == "" {
		return nil, nil // a volume from the configuration has no claims: its name always means the same volume
	}
	return p.newClaimIfUnclaimed(v, g, found.ID)
}

// checkOtherVolumeWriters returns an error if another allocation can write to the volume, and the access mode of either one
// permits only one writer.
func (p *allocPlacer) checkOtherVolumeWriters(v model.HostVolumeRequest, mode string, capabilities []*api.HostVolumeCapability) error {
	for _, theirs := range append([]string{""}, model.HostAccessModes...) {
		by, _ := p.nodeUsage.volumeWriters.findConflict(p.currentAllocNameKey, writableVolume{v.ResolvedSource, theirs}, volumesOf)
		if by == nil {
			continue
		}
		other, _ := chooseAccessMode(&api.VolumeRequest{AccessMode: theirs}, capabilities)
		if mode == model.SingleNodeSingleWriter || other == model.SingleNodeSingleWriter {
			return fmt.Errorf("the host volume %q has a single writer, and allocation %q of job %q can write to it", v.ResolvedSource, by.key.allocName, by.key.jobID)
		}
	}
	return nil
}

// newClaimIfUnclaimed returns a new claim that binds a group to a volume, or nil if the group has claimed this volume before.
// It returns an error if the group is bound to another volume.
func (p *allocPlacer) newClaimIfUnclaimed(v model.HostVolumeRequest, g *api.TaskGroup, volumeID string) (*api.TaskGroupHostVolumeClaim, error) {
	switch claim := p.volumes.findClaim(p.job, *g.Name, v.ResolvedSource); {
	case claim == nil:
		return &api.TaskGroupHostVolumeClaim{
			ID: p.env.NewID(), Namespace: *p.job.Namespace, JobID: *p.job.ID, TaskGroupName: *g.Name, VolumeID: volumeID, VolumeName: v.ResolvedSource,
		}, nil
	case claim.VolumeID != volumeID:
		return nil, fmt.Errorf("the group is bound to another volume %q (%s), which this node no longer has: delete the claim %s if the group can start with the new volume", v.ResolvedSource, claim.VolumeID, claim.ID)
	}
	return nil, nil
}

// chooseAccessMode returns an allocation's access mode for a volume: the first volume capability that matches the request.
// admitted is false if none matches. A volume without capabilities admits every request.
func chooseAccessMode(v *api.VolumeRequest, capabilities []*api.HostVolumeCapability) (mode string, admitted bool) {
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
