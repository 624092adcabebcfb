package hook

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// maxStoredResponseSize is the maximum size of a TaskPrestartResponse, in bytes: the
// response is stored in memory and on disk until the task is removed.
const maxStoredResponseSize = 1 << 20

// ValidateState returns the reason why a host rejects the argument of Host.StoreState, or nil. For hosts only.
func ValidateState(state map[string]string) error {
	if size := (TaskPrestartResponse{State: state}).storedSize(); size > maxStoredResponseSize {
		return fmt.Errorf("the state has %d bytes, more than the %d that are kept for a task", size, maxStoredResponseSize)
	}
	return nil
}

// mountOrDeviceOverhead is the estimated size of one mount or device in a stored response, without the texts in it, in
// bytes.
const mountOrDeviceOverhead = 64

// Validate returns the reason why a host rejects the response, or nil.
func (r TaskPrestartResponse) Validate() error {
	if size := r.storedSize(); size > maxStoredResponseSize {
		return fmt.Errorf("its answer has %d bytes, more than the %d that are kept for a task", size, maxStoredResponseSize)
	}
	for name, value := range r.Env {
		if err := base.CheckEnvVar(name, value); err != nil {
			return err
		}
	}
	for _, m := range r.Mounts {
		if err := base.CheckMountPathSyntax(m.HostPath, m.TaskPath); err != nil {
			return err
		}
		if !slices.Contains(propagationModes, m.PropagationMode) {
			return fmt.Errorf("it mounts %q with propagation mode %q: there are %s", m.HostPath, m.PropagationMode, strings.Join(propagationModes[1:], ", "))
		}
	}
	for _, d := range r.Devices {
		if err := base.CheckDeviceSyntax(d.HostPath, d.TaskPath, d.Permissions); err != nil {
			return err
		}
	}
	return nil
}

// propagationModes are the modes that drivers support; "" means the driver's default.
var propagationModes = []string{"", "private", "host-to-task", "bidirectional"}

func (r TaskPrestartResponse) storedSize() (sizeBytes int) {
	for _, m := range []map[string]string{r.Env, r.State} {
		for key, value := range m {
			sizeBytes += len(key) + len(value)
		}
	}
	for _, m := range r.Mounts {
		sizeBytes += mountOrDeviceOverhead + len(m.TaskPath) + len(m.HostPath) + len(m.PropagationMode) + len(m.SELinuxLabel)
	}
	for _, d := range r.Devices {
		sizeBytes += mountOrDeviceOverhead + len(d.TaskPath) + len(d.HostPath) + len(d.Permissions)
	}
	return sizeBytes
}
