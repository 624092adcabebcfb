package allocrunner

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// Stats is the resource usage of an allocation's tasks.
type Stats struct {
	Total     driver.Usage                 // sum over the tasks that run now
	Tasks     map[string]*driver.TaskStats // latest sample of each task that has ever returned one
	Timestamp time.Time                    // time of the newest sample in Total
}

// Stats returns the latest samples of one task, or of all tasks if task is empty. For
// an unknown task the result is empty. Samples are taken only while Stats is called
// regularly, see hooks.Stats: the first call after a pause waits up to two seconds for
// the drivers.
func (r *Runner) Stats(ctx context.Context, task string) Stats {
	samples := make([]*driver.TaskStats, len(r.tasks))
	var asking sync.WaitGroup
	for i, t := range r.tasks {
		if task == "" || t.Name() == task {
			asking.Go(func() { samples[i] = r.stats[t.Name()].Latest(ctx) })
		}
	}
	asking.Wait()

	s := Stats{Tasks: make(map[string]*driver.TaskStats)}
	for i, t := range r.tasks {
		sample := samples[i]
		if sample == nil {
			continue
		}
		s.Tasks[t.Name()] = sample
		if !t.Running() {
			continue
		}
		addUsage(&s.Total, sample.Total)
		if sample.Timestamp.After(s.Timestamp) {
			s.Timestamp = sample.Timestamp
		}
	}
	return s
}

func addUsage(sum *driver.Usage, u driver.Usage) {
	c, m := &sum.CPU, &sum.Memory
	c.System += u.CPU.System
	c.User += u.CPU.User
	c.Percent += u.CPU.Percent
	c.TotalTicks += u.CPU.TotalTicks
	c.ThrottledPeriods += u.CPU.ThrottledPeriods
	c.ThrottledTime += u.CPU.ThrottledTime
	c.Measured = union(c.Measured, u.CPU.Measured)
	m.RSS += u.Memory.RSS
	m.Cache += u.Memory.Cache
	m.Swap += u.Memory.Swap
	m.Usage += u.Memory.Usage
	m.MaxUsage += u.Memory.MaxUsage
	m.KernelUsage += u.Memory.KernelUsage
	m.KernelMaxUsage += u.Memory.KernelMaxUsage
	m.Measured = union(m.Measured, u.Memory.Measured)
}

// union appends the elements of more that have lacks, in order.
func union(have, more []string) []string {
	for _, s := range more {
		if !slices.Contains(have, s) {
			have = append(have, s)
		}
	}
	return have
}
