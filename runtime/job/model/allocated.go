package model

import "github.com/hashicorp/nomad/api"

// AllocatedDevices returns the devices chosen by the scheduler for a task.
func AllocatedDevices(a *api.Allocation, task string) []*api.AllocatedDeviceResource {
	if a.AllocatedResources == nil || a.AllocatedResources.Tasks[task] == nil {
		return nil
	}
	return a.AllocatedResources.Tasks[task].Devices
}
