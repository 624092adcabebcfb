package noderunner

import (
	"slices"

	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
)

// maxEndedTasks limits the ended allocations' tasks for which a Runner keeps transitions.
const maxEndedTasks = 256

// endedTransitions keeps the last task transitions of ended allocations, which have no runner. Above maxEndedTasks
// tasks it drops the allocations that ended first; it always keeps the last one.
//
// A task has at most 48 transitions with 16 bytes each, and 40 bytes for its name and its slice; an allocation has 40
// bytes. 256 tasks in 256 allocations have at most 220 kB. A task that runs once has 17 transitions, so 256 have 90 kB.
// The strings belong to the allocations.
type endedTransitions struct {
	allocs    []endedAllocTransitions // the allocation that ended first is the first one
	taskCount int                     // in allocs
}

// endedAllocTransitions has the last task transitions of an ended allocation. It is not changed.
type endedAllocTransitions struct {
	allocID string
	tasks   []endedTaskTransitions
}

type endedTaskTransitions struct {
	name        string
	transitions []tasksteps.PackedTransition // the oldest first
}

func packAllocTransitions(allocID string, transitionsByTask map[string][]tasksteps.Transition) endedAllocTransitions {
	a := endedAllocTransitions{allocID, make([]endedTaskTransitions, 0, len(transitionsByTask))}
	for name, list := range transitionsByTask {
		packed := make([]tasksteps.PackedTransition, len(list))
		for i, t := range list {
			packed[i] = t.Pack()
		}
		a.tasks = append(a.tasks, endedTaskTransitions{name, packed})
	}
	return a
}

func (a endedAllocTransitions) unpack() map[string][]tasksteps.Transition {
	transitionsByTask := make(map[string][]tasksteps.Transition, len(a.tasks))
	for _, task := range a.tasks {
		list := make([]tasksteps.Transition, len(task.transitions))
		for i, p := range task.transitions {
			list[i] = p.Unpack()
		}
		transitionsByTask[task.name] = list
	}
	return transitionsByTask
}

// add keeps the transitions of an allocation that has just ended. If it was not run, it has none.
func (e *endedTransitions) add(a endedAllocTransitions) {
	if len(a.tasks) == 0 {
		return
	}
	dropped := 0
	for ; dropped < len(e.allocs) && e.taskCount+len(a.tasks) > maxEndedTasks; dropped++ {
		e.taskCount -= len(e.allocs[dropped].tasks)
	}
	e.allocs = append(slices.Delete(e.allocs, 0, dropped), a)
	e.taskCount += len(a.tasks)
}

func (e *endedTransitions) remove(allocID string) {
	if i := e.index(allocID); i >= 0 {
		e.taskCount -= len(e.allocs[i].tasks)
		e.allocs = slices.Delete(e.allocs, i, i+1)
	}
}

// index returns -1 if it has no transitions for the allocation.
func (e *endedTransitions) index(allocID string) int {
	return slices.IndexFunc(e.allocs, func(a endedAllocTransitions) bool { return a.allocID == allocID })
}

// TransitionsByTask returns the last transitions of each task in an allocation under this agent, the oldest first.
// For an ended allocation it returns them until maxEndedTasks tasks in other allocations have ended, or until the
// allocation is removed from the disk. It returns nil if it has none.
func (r *Runner) TransitionsByTask(allocID string) map[string][]tasksteps.Transition {
	r.mu.Lock()
	if e := r.entryByAllocID[allocID]; e != nil && e.runner != nil {
		runner := e.runner
		r.mu.Unlock()
		return runner.TransitionsByTask()
	}
	var ended endedAllocTransitions
	if i := r.endedTransitions.index(allocID); i >= 0 {
		ended = r.endedTransitions.allocs[i]
	}
	r.mu.Unlock()
	if ended.tasks == nil {
		return nil
	}
	return ended.unpack()
}
