package builtinhooks

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

var _ hook.TaskPrestart = (*VolumesHook)(nil)

// VolumesHook returns the mounts of a task's volume_mount blocks.
type VolumesHook struct {
	hooks.BuiltinHookDefaults
	volumeMounts   []*api.VolumeMount
	volumeRequests func() []model.HostVolumeRequest
	findVolume     FindVolumeFunc
	interpolate    func(string) string
}

// FindVolumeFunc returns the host volume with this name, nil if none exists. Its path has no symbolic links, and no task can
// replace it. After an agent start, the function waits for a plugin to recreate the volume. allowsBidirectional means that task
// mounts below the volume may appear on the machine.
type FindVolumeFunc func(ctx context.Context, name string) (v *api.HostVolumeInfo, allowsBidirectional bool, err error)

// NewVolumesHook returns the hook for one task. requests returns the allocation's host volume requests. interpolate replaces
// references in a text with their values.
func NewVolumesHook(mounts []*api.VolumeMount, requests func() []model.HostVolumeRequest, findVolume FindVolumeFunc, interpolate func(string) string) *VolumesHook {
	return &VolumesHook{volumeMounts: mounts, volumeRequests: requests, findVolume: findVolume, interpolate: interpolate}
}

// Name implements Hook.
func (*VolumesHook) Name() string { return hooks.VolumesName }

// Prestart implements hook.TaskPrestart. It is called before each task start, because a volume's path can change with the agent
// configuration.
func (vo *VolumesHook) Prestart(ctx context.Context, _ hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	point := failpoint.EnterStep(failpoint.StepVolumeMounts)
	defer point.Leave()
	var r hook.TaskPrestartResponse
	requests := make(map[string]model.HostVolumeRequest)
	for _, v := range vo.volumeRequests() {
		requests[v.Label] = v
	}
	for _, m := range vo.volumeMounts {
		v, found := requests[pointer.Value(m.Volume)]
		if !found {
			continue // an empty block; validation rejects other volumes that do not exist
		}
		mount, err := vo.newMount(ctx, m, v)
		if err != nil {
			return hook.TaskPrestartResponse{}, fmt.Errorf("host volume validation error: volume %q: %w", v.Label, err)
		}
		r.Mounts = append(r.Mounts, mount)
	}
	return r, nil
}

func (vo *VolumesHook) newMount(ctx context.Context, m *api.VolumeMount, request model.HostVolumeRequest) (driver.Mount, error) {
	volume, allowsBidirectional, err := vo.findVolume(ctx, request.ResolvedSource)
	if err != nil {
		return driver.Mount{}, err
	}
	if volume == nil {
		return driver.Mount{}, fmt.Errorf("this node no longer has the host volume %q", request.ResolvedSource)
	}
	if volume.ReadOnly && !request.ReadOnly {
		return driver.Mount{}, fmt.Errorf("the host volume %q has become read-only on this node: write read_only = true in the volume block", request.ResolvedSource)
	}
	destination := vo.interpolate(pointer.Value(m.Destination))
	if destination == "" {
		return driver.Mount{}, errors.New("the volume_mount has no destination: write the path in the task at which the volume is mounted")
	}
	propagation := vo.interpolate(pointer.Value(m.PropagationMode))
	if propagation == api.VolumeMountPropagationBidirectional && !allowsBidirectional {
		return driver.Mount{}, errors.New(model.BidirectionalRefused(request.ResolvedSource))
	}
	return driver.Mount{
		TaskPath:        destination,
		HostPath:        volume.Path,
		Readonly:        volume.ReadOnly || request.ReadOnly || m.ReadOnly != nil && *m.ReadOnly,
		PropagationMode: propagation,
		SELinuxLabel:    pointer.Value(m.SELinuxLabel),
		RequestName:     request.ResolvedSource,
	}, nil
}
