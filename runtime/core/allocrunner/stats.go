package allocrunner

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
)

// Stats is an allocation's resource usage.
type Stats struct {
	RunningTasksTotal driver.Usage                 // sum of the running tasks' latest samples
	SampleByTask      map[string]*driver.TaskStats // each task's latest sample, by task name; a task without a sample is missing
	NewestSampleTime  time.Time                    // when the newest sample in RunningTasksTotal was taken
}

// latestStats implements [Runner.Stats]. hooks are the sampling hooks, by task name.
func latestStats(ctx context.Context, tasks taskSet, hooks map[string]*hooks.StatsHook, task string) Stats {
	samples := make([]*driver.TaskStats, len(tasks))
	var callsWG sync.WaitGroup
	for i, t := range tasks {
		if task == "" || t.Name() == task {
			callsWG.Go(func() { samples[i] = hooks[t.Name()].StartSamplingAndGetLatest(ctx) })
		}
	}
	callsWG.Wait()

	now := Stats{SampleByTask: make(map[string]*driver.TaskStats)}
	for i, t := range tasks {
		sample := samples[i]
		if sample == nil {
			continue
		}
		now.SampleByTask[t.Name()] = sample
		if !hasRunningProcess(t) {
			continue
		}
		addUsage(&now.RunningTasksTotal, sample.Total)
		if sample.Timestamp.After(now.NewestSampleTime) {
			now.NewestSampleTime = sample.Timestamp
		}
	}
	return now
}

// RunningTask is a task with a live process.
type RunningTask struct {
	AllocID, Namespace, JobID string
	Name                      string
	taskrunner.RunningProcess

	// RecentSample returns the newest sample if it is not older than maxAge, and nil otherwise. It never starts
	// sampling: there is a sample only while others sample the task with [Runner.Stats].
	RecentSample func(maxAge time.Duration) *driver.TaskStats
}

// AppendRunningTasks appends the tasks with a live process to list.
func (r *Runner) AppendRunningTasks(list []RunningTask) []RunningTask {
	alloc := r.state.currentAlloc()
	for _, t := range r.tasks.taskSet {
		if process, ok := t.RunningProcess(); ok {
			list = append(list, RunningTask{
				AllocID: alloc.ID, Namespace: alloc.Namespace, JobID: alloc.JobID, Name: t.Name(), RunningProcess: process,
				RecentSample: r.statsHooks[t.Name()].RecentSample,
			})
		}
	}
	return list
}

func addUsage(sum *driver.Usage, u driver.Usage) {
	c, m := &sum.CPU, &sum.Memory
	c.System += u.CPU.System
	c.User += u.CPU.User
	c.Percent += u.CPU.Percent
	c.TotalTicks += u.CPU.TotalTicks
	c.ThrottledPeriods += u.CPU.ThrottledPeriods
	c.ThrottledTime += u.CPU.ThrottledTime
	c.Measured = appendMissing(c.Measured, u.CPU.Measured)
	m.RSS += u.Memory.RSS
	m.Cache += u.Memory.Cache
	m.Swap += u.Memory.Swap
	m.Usage += u.Memory.Usage
	m.MaxUsage += u.Memory.MaxUsage
	m.KernelUsage += u.Memory.KernelUsage
	m.KernelMaxUsage += u.Memory.KernelMaxUsage
	m.Measured = appendMissing(m.Measured, u.Memory.Measured)
}

// appendMissing appends to have the elements that only more contains, in more's order.
func appendMissing(have, more []string) []string {
	for _, s := range more {
		if !slices.Contains(have, s) {
			have = append(have, s)
		}
	}
	return have
}
