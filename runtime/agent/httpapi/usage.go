package httpapi

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/devices"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// stats returns the resource usage of an allocation's tasks. An allocation without a runner
// has no running tasks.
func (h *allocHandler) stats(r *request) (any, error) {
	alloc, err := r.findAllocation(h.store)
	if err != nil {
		return nil, err
	}
	var stats allocrunner.Stats
	if runner := h.allocs.AllocRunner(r.pathID); runner != nil {
		stats = runner.Stats(r.Context(), r.query.Get("task"))
	}
	all := api.AllocResourceUsage{ResourceUsage: toResourceUsage(stats.RunningTasksTotal), Tasks: make(map[string]*api.TaskResourceUsage, len(stats.SampleByTask))}
	if !stats.NewestSampleTime.IsZero() {
		all.Timestamp = stats.NewestSampleTime.UnixNano()
	}
	for name, sample := range stats.SampleByTask {
		task := &api.TaskResourceUsage{
			ResourceUsage: toResourceUsage(sample.Total), Timestamp: sample.Timestamp.UnixNano(), Pids: make(map[string]*api.ResourceUsage, len(sample.ByPID)),
		}
		for pid, usage := range sample.ByPID {
			task.Pids[pid] = toResourceUsage(usage)
		}
		all.Tasks[name] = task
	}
	if !model.AllocTerminal(alloc) {
		h.addDeviceStats(r.Context(), &all, alloc.AllocatedResources)
	}
	return all, nil
}

// addDeviceStats adds the statistics of the devices that the tasks have.
func (h *allocHandler) addDeviceStats(ctx context.Context, usage *api.AllocResourceUsage, allocated *api.AllocatedResources) {
	if allocated == nil {
		return
	}
	var all []*api.DeviceGroupStats // nil before the first task with devices
	for name, task := range usage.Tasks {
		granted := allocated.Tasks[name]
		if granted == nil || len(granted.Devices) == 0 {
			continue
		}
		if all == nil {
			all = h.deviceStats(ctx)
		}
		task.ResourceUsage.DeviceStats = devices.StatsOfAllocated(all, granted.Devices)
		usage.ResourceUsage.DeviceStats = append(usage.ResourceUsage.DeviceStats, task.ResourceUsage.DeviceStats...)
	}
}

func toResourceUsage(u driver.Usage) *api.ResourceUsage {
	return &api.ResourceUsage{
		MemoryStats: &api.MemoryStats{
			RSS: u.Memory.RSS, Cache: u.Memory.Cache, Swap: u.Memory.Swap, Usage: u.Memory.Usage, MaxUsage: u.Memory.MaxUsage,
			KernelUsage: u.Memory.KernelUsage, KernelMaxUsage: u.Memory.KernelMaxUsage, Measured: u.Memory.Measured,
		},
		CpuStats: &api.CpuStats{
			SystemMode: u.CPU.System, UserMode: u.CPU.User, TotalTicks: u.CPU.TotalTicks, Percent: u.CPU.Percent,
			ThrottledPeriods: u.CPU.ThrottledPeriods, ThrottledTime: u.CPU.ThrottledTime, Measured: u.CPU.Measured,
		},
		DeviceStats: []*api.DeviceGroupStats{},
	}
}

// checkStatus is an api.AllocCheckStatus that omits the fields that a check does not have.
type checkStatus struct {
	ID, Check, Group, Mode, Output, Service, Status string

	Task       string `json:",omitempty"`
	StatusCode int    `json:",omitempty"`
	Timestamp  int64
}

// checks returns the states of an allocation's checks, or null if the allocation has no checks.
func (h *allocHandler) checks(r *request) (any, error) {
	if _, err := r.findAllocation(h.store); err != nil {
		return nil, err
	}
	var results []api.AllocCheckStatus
	if runner := h.allocs.AllocRunner(r.pathID); runner != nil {
		results = runner.Checks()
	} else {
		stored, err := h.store.Snapshot().CheckResults(r.pathID)
		if err != nil {
			return nil, err
		}
		for _, c := range stored {
			results = append(results, *c)
		}
	}
	if len(results) == 0 {
		return map[string]checkStatus(nil), nil
	}
	all := make(map[string]checkStatus, len(results))
	for _, c := range results {
		all[c.ID] = checkStatus{
			ID: c.ID, Check: c.Check, Group: c.Group, Mode: c.Mode, Output: c.Output, Service: c.Service, Status: c.Status,
			Task: c.Task, StatusCode: c.StatusCode, Timestamp: c.Timestamp,
		}
	}
	return all, nil
}

// services lists the service registrations of an allocation.
func (h *allocHandler) services(r *request) (any, error) {
	if err := checkIDIsUUID("alloc", r.pathID); err != nil {
		return nil, err
	}
	return r.blockingListQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		index := s.LatestTableIndex(ws, store.Services)
		if s.Allocation(ws, r.pathID) == nil {
			return nil, index, notFoundError("allocation not found")
		}
		all, err := listPage(r, s.ServicesByAllocation(ws, r.pathID), serviceSortKey, objectAsStub)
		return all, index, err
	})
}

// readHostStats returns the resource usage of the machine.
func (h *agentHandler) readHostStats(r *request) (any, error) {
	if err := h.agent.checkNodeAndServerParams(r); err != nil {
		return nil, err
	}
	stats := h.hostStats(r.Context())
	stats.DeviceStats = h.deviceStats(r.Context())
	return stats, nil
}
