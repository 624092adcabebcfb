package httpapi

import (
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// transitions replies with the last transitions of the tasks of an allocation, an extension of Nomad's API.
func (h *allocHandler) transitions(r *request) (any, error) {
	if err := checkIDIsUUID("alloc", r.pathID); err != nil {
		return nil, err
	}
	s, err := r.snapshot(h.store, nil)
	if err != nil {
		return nil, err
	}
	alloc := s.Allocation(nil, r.pathID)
	if alloc == nil {
		return nil, notFoundError("alloc not found")
	}
	transitionsByTask := h.allocs.TransitionsByTask(r.pathID)
	switch {
	case transitionsByTask != nil:
		return tasksteps.AllocTransitions{AllocID: r.pathID, TransitionsByTask: transitionsByTask}, nil
	case alloc.ClientTerminalStatus():
		return nil, notFoundError("the allocation has ended, and its transitions, which the agent keeps in memory, are lost: the agent was restarted, " +
			"the allocation was garbage collected, or many others have ended since; alloc status -timeline reads the time line from the disk")
	}
	return nil, notFoundError("the agent has not started the allocation yet: repeat the request in a few seconds")
}

// listTransitions replies with the transitions that this agent has of all allocations.
func (h *allocHandler) listTransitions(r *request) (any, error) {
	all := []tasksteps.AllocTransitions{}
	s, err := r.snapshot(h.store, nil)
	if err != nil {
		return nil, err
	}
	for _, alloc := range s.WithoutEndedEvents().Allocations(store.WatchSet(nil), "") {
		if !r.includesNamespace(alloc.Namespace) {
			continue
		}
		if transitionsByTask := h.allocs.TransitionsByTask(alloc.ID); transitionsByTask != nil {
			all = append(all, tasksteps.AllocTransitions{AllocID: alloc.ID, TransitionsByTask: transitionsByTask})
		}
	}
	return all, nil
}
