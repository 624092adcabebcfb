package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/noderunner"
)

// foreground is where the allocations of a run come from: it wants all of them,
// until somebody stops the job. It remembers what becomes of them.
type foreground struct {
	report func(allocrunner.Update)

	mu      sync.Mutex
	wanted  []*api.Allocation
	changed chan struct{}
	latest  map[string]allocrunner.Update // by alloc
	failed  map[string]error              // why an alloc could not be run at all
	running int
	present int // allocs that are not removed yet
	stopped bool

	ended   chan struct{} // closed when nothing runs any more
	removed chan struct{} // closed when nothing is on the disk any more
}

var _ noderunner.Source = (*foreground)(nil)

func newForeground(allocs []*api.Allocation, report func(allocrunner.Update)) *foreground {
	return &foreground{
		report:  report,
		wanted:  allocs,
		changed: make(chan struct{}),
		latest:  make(map[string]allocrunner.Update),
		failed:  make(map[string]error),
		running: len(allocs),
		present: len(allocs),
		ended:   make(chan struct{}),
		removed: make(chan struct{}),
	}
}

// Allocs implements noderunner.Source.
func (f *foreground) Allocs() ([]*api.Allocation, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wanted, f.changed
}

// Report implements noderunner.Source.
func (f *foreground) Report(update allocrunner.Update) {
	f.mu.Lock()
	f.latest[update.AllocID] = update
	f.mu.Unlock()
	f.report(update)
}

// Ended implements noderunner.Source.
func (f *foreground) Ended(id string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.failed[id] = err
	}
	if f.running--; f.running == 0 {
		close(f.ended)
	}
}

// Removed implements noderunner.Source.
func (f *foreground) Removed(string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.present--; f.present == 0 {
		close(f.removed)
	}
}

// stop wants all allocations to stop. It may be called again.
func (f *foreground) stop() {
	f.change(func() {
		f.stopped = true
		f.wanted = slices.Clone(f.wanted)
		for i, alloc := range f.wanted {
			next := *alloc
			next.DesiredStatus = api.AllocDesiredStatusStop
			next.DesiredDescription = "alloc not needed due to job update"
			next.AllocModifyIndex++
			f.wanted[i] = &next
		}
	})
}

// withdraw wants no allocation any more. It may be called when all have ended.
func (f *foreground) withdraw() {
	f.change(func() { f.wanted = nil })
}

func (f *foreground) change(edit func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	edit()
	close(f.changed)
	f.changed = make(chan struct{})
}

// verdict says how the job ended, when all allocations have: nil for a job that
// did what it was for.
func (f *foreground) verdict(job *api.Job, allocs []*api.Allocation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var reasons []error
	for _, alloc := range allocs {
		if err := f.failed[alloc.ID]; err != nil {
			reasons = append(reasons, err)
			continue
		}
		update := f.latest[alloc.ID]
		switch {
		case update.ClientStatus == api.AllocClientStatusFailed:
			reasons = append(reasons, failure(alloc, update)...)
		case f.stopped && endsByItself(job) && !succeeded(alloc, update):
			reasons = append(reasons, fmt.Errorf("alloc %s: stopped before it was complete", alloc.Name))
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	return fmt.Errorf("job %q failed:\n%w", *job.ID, errors.Join(reasons...))
}

// endsByItself tells jobs that shall complete from those that end when their user
// stops them.
func endsByItself(job *api.Job) bool {
	return *job.Type == api.JobTypeBatch || *job.Type == api.JobTypeSysbatch
}

// succeeded reports whether each main task came to its own good end.
func succeeded(alloc *api.Allocation, update allocrunner.Update) bool {
	for _, task := range alloc.GetTaskGroup().Tasks {
		if task.Lifecycle != nil && task.Lifecycle.Hook != "" {
			continue
		}
		state := update.TaskStates[task.Name]
		if state == nil || state.Failed || lastEvent(state.Events, api.TaskKilling) != nil {
			return false
		}
		if end := lastEvent(state.Events, api.TaskTerminated); end == nil || end.ExitCode != 0 {
			return false
		}
	}
	return true
}

// failure names the tasks for which an allocation failed, with how they ended
// and why they were given up.
func failure(alloc *api.Allocation, update allocrunner.Update) []error {
	var errs []error
	for _, task := range alloc.GetTaskGroup().Tasks {
		state := update.TaskStates[task.Name]
		if state == nil || !state.Failed {
			continue
		}
		events := state.Events
		for i, e := range events {
			if e.Type == api.TaskRestarting {
				events = state.Events[i:] // what was before did not end the task
			}
		}
		var parts []string
		for _, kind := range []string{api.TaskSetupFailure, api.TaskFailedValidation, api.TaskDriverFailure, model.TaskHookFailed, api.TaskTerminated, api.TaskNotRestarting} {
			i := slices.IndexFunc(events, func(e *api.TaskEvent) bool { return e.Type == kind })
			if i >= 0 && events[i].DisplayMessage != "" {
				parts = append(parts, cause(events[i].DisplayMessage))
			}
		}
		errs = append(errs, fmt.Errorf("task %q of alloc %s: %s", task.Name, alloc.Name, strings.Join(parts, ": ")))
	}
	if len(errs) == 0 {
		errs = append(errs, fmt.Errorf("alloc %s: %s", alloc.Name, update.ClientDescription))
	}
	return errs
}

// cause is an event's message in one line, without what it says of the wire.
func cause(message string) string {
	if _, text, ok := strings.Cut(message, " desc = "); ok && strings.HasPrefix(message, "rpc error: ") {
		message = text
	}
	return strings.Join(strings.Fields(message), " ")
}

func lastEvent(events []*api.TaskEvent, kind string) *api.TaskEvent {
	for _, e := range slices.Backward(events) {
		if e.Type == kind {
			return e
		}
	}
	return nil
}
