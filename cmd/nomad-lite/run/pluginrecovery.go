package run

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/callstats"
	"github.com/nomad-lite/nomad-lite/internal/duration"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/devices"
)

const (
	// recoveryReportTimeout limits how long waitAndDescribeRecovery waits until the new process has recovered the
	// tasks.
	recoveryReportTimeout = 10 * time.Second
	// methodStatsInterval is the time between two reads of the call statistics of the plugin.
	methodStatsInterval = 20 * time.Millisecond
)

// taskUsingPlugin is a running task that uses the plugin.
type taskUsingPlugin struct {
	taskName      string
	pluginDevices []*api.AllocatedDeviceResource // devices that the task has from the device plugin
}

// runningTasksUsingPlugin returns the running tasks that use the plugin as their driver, as a hook, or for a device.
func (r *foregroundRun) runningTasksUsingPlugin(jobs []*foregroundJob) (tasks []taskUsingPlugin) {
	key, state := r.devPlugin.pluginDir.PluginKey(), r.agent.Store().Snapshot()
	hooked := r.agent.Allocs().AllocsUsingPlugin(core.Plugin{Type: base.TypeHook, Name: key.Name})
	for _, j := range jobs {
		for _, a := range state.AllocationsByJob(nil, *j.initialJob.Namespace, *j.initialJob.ID) {
			for _, task := range a.Job.LookupTaskGroup(a.TaskGroup).Tasks {
				if s := a.TaskStates[task.Name]; s == nil || s.State != model.TaskRunning {
					continue
				}
				t, isUser := taskUsingPlugin{taskName: task.Name}, false
				switch key.Type {
				case base.TypeDriver:
					isUser = task.Driver == key.Name
				case base.TypeHook:
					isUser = slices.Contains(hooked, a.ID)
				case base.TypeDevice:
					t.pluginDevices = r.devicesFromDevPlugin(a, task.Name)
					isUser = len(t.pluginDevices) > 0
				}
				if isUser {
					tasks = append(tasks, t)
				}
			}
		}
	}
	return tasks
}

// devicesFromDevPlugin returns the devices of a task that belong to the device groups of the plugin.
func (r *foregroundRun) devicesFromDevPlugin(a *api.Allocation, task string) []*api.AllocatedDeviceResource {
	if a.AllocatedResources == nil || a.AllocatedResources.Tasks[task] == nil {
		return nil
	}
	groups := r.reportedDevicesByGroup()
	return slices.DeleteFunc(slices.Clone(a.AllocatedResources.Tasks[task].Devices), func(d *api.AllocatedDeviceResource) bool {
		_, ok := groups[devices.GroupIDOf(d)]
		return !ok
	})
}

// reportedDevicesByGroup returns the devices that the plugin has reported last, by group.
func (r *foregroundRun) reportedDevicesByGroup() map[device.GroupID][]device.Device {
	groups := make(map[device.GroupID][]device.Device)
	for _, g := range r.agent.Supervisor().DeviceGroups() {
		if g.PluginName == r.devPlugin.pluginDir.PluginKey().Name {
			groups[g.ID] = g.Devices
		}
	}
	return groups
}

// waitAndDescribeRecovery waits until the new process of a plugin has recovered the running tasks, and describes the
// result.
func (r *foregroundRun) waitAndDescribeRecovery(ctx context.Context, p supervisor.PluginStatus, tasks []taskUsingPlugin) string {
	switch p.Serves.Type {
	case base.TypeDevice:
		return r.waitAndDescribeDeviceRecovery(ctx, p, tasks)
	case base.TypeHook:
		if p.HookDescription == nil || !slices.ContainsFunc(p.HookDescription.Subscriptions, func(s hook.Subscription) bool { return s.Point == hook.Poststart }) {
			return "; a hook without Poststart is not called for running tasks"
		}
		return r.waitAndDescribeRecoveryCalls(ctx, p, "Poststart", len(tasks))
	default:
		return r.waitAndDescribeRecoveryCalls(ctx, p, "RecoverTask", len(tasks))
	}
}

// waitAndDescribeRecoveryCalls waits until the agent has called a method of the new process for each running task, and
// describes the results of the calls.
func (r *foregroundRun) waitAndDescribeRecoveryCalls(ctx context.Context, p supervisor.PluginStatus, method string, taskCount int) string {
	if taskCount == 0 {
		return "; no task is running"
	}
	limit := time.NewTimer(recoveryReportTimeout)
	defer limit.Stop()
	for {
		stats := findMethodStats(p, method)
		if stats.Calls >= taskCount && stats.InProgress == 0 {
			return fmt.Sprintf("; %d of %d running tasks recovered (%s: %d calls, %d errors, %v)",
				taskCount-min(taskCount, stats.Errors), taskCount, method, stats.Calls, stats.Errors, duration.Format(stats.Total))
		}
		select {
		case <-time.After(methodStatsInterval):
		case <-limit.C:
			return fmt.Sprintf("; %d of %d running tasks: %s has not returned within %v", taskCount-min(taskCount, stats.Calls), taskCount, method, recoveryReportTimeout)
		case <-ctx.Done():
			return ""
		}
		if next, err := r.readPluginState(); err == nil && next.PID == p.PID {
			p = next
		}
	}
}

func findMethodStats(p supervisor.PluginStatus, method string) callstats.Method {
	for _, stats := range p.MethodStats {
		if stats.Method == method {
			return stats
		}
	}
	return callstats.Method{}
}

// waitAndDescribeDeviceRecovery waits until a new process has reported its devices, and describes whether the devices
// of the running tasks are among them.
func (r *foregroundRun) waitAndDescribeDeviceRecovery(ctx context.Context, p supervisor.PluginStatus, tasks []taskUsingPlugin) string {
	limited, cancel := context.WithTimeout(ctx, recoveryReportTimeout)
	defer cancel()
	if _, err := r.agent.Supervisor().Describe(limited, p.Serves); err != nil { // it blocks until the process has reported its devices
		if ctx.Err() != nil {
			return ""
		}
		return fmt.Sprintf("; it has not reported its devices within %v: %v", recoveryReportTimeout, err)
	}
	groups, count := r.reportedDevicesByGroup(), 0
	for _, g := range groups {
		count += len(g)
	}
	text := fmt.Sprintf("; %d devices reported", count)
	if len(tasks) == 0 {
		return text + "; no running task has one of them"
	}
	var losses []string
	for _, t := range tasks {
		if lost := t.describeLostDevices(groups); len(lost) > 0 {
			losses = append(losses, fmt.Sprintf("; task %q: %s", t.taskName, strings.Join(lost, ", ")))
		}
	}
	return fmt.Sprintf("%s; %d of %d running tasks keep their devices%s", text, len(tasks)-len(losses), len(tasks), strings.Join(losses, ""))
}

// describeLostDevices describes those devices of the task that are unhealthy or not in groups.
func (t taskUsingPlugin) describeLostDevices(groups map[device.GroupID][]device.Device) (lost []string) {
	for _, allocated := range t.pluginDevices {
		group := devices.GroupIDOf(allocated)
		for _, id := range allocated.DeviceIDs {
			i := slices.IndexFunc(groups[group], func(d device.Device) bool { return d.ID == id })
			switch {
			case i < 0:
				lost = append(lost, fmt.Sprintf("%s[%s] is not reported", group, id))
			case !groups[group][i].Healthy:
				lost = append(lost, fmt.Sprintf("%s[%s] is unhealthy: %s", group, id, groups[group][i].HealthDescription))
			}
		}
	}
	return lost
}
