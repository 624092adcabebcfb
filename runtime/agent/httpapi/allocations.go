package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// allocHandler serves the routes of allocations, and of their tasks on this node.
type allocHandler struct {
	store       *store.Store
	scheduler   *scheduler.Scheduler
	allocs      Allocs
	files       AllocFiles
	deviceStats func(context.Context) []*api.DeviceGroupStats
	logger      hclog.Logger
}

// allocStub is an entry of a list of allocations, with the server's fields that the client's type
// lacks.
type allocStub struct {
	*api.AllocationListStub
	DesiredTransition      api.DesiredTransition
	delayByRescheduleEvent map[*api.RescheduleEvent]time.Duration
}

func newAllocStub(a *api.Allocation, withTaskStates, withResources bool) allocStub {
	stub := a.Stub()
	if !withTaskStates {
		stub.TaskStates = nil
	}
	if withResources {
		stub.AllocatedResources = a.AllocatedResources
	}
	return allocStub{stub, a.DesiredTransition, rescheduleDelays(a)}
}

// eventAllocation is an allocation in an event. The reschedule delays, which depend on the job, are separate, because
// the allocation in an event has no job.
type eventAllocation struct {
	*api.Allocation
	delayByRescheduleEvent map[*api.RescheduleEvent]time.Duration
}

// rescheduleDelays returns the delays of the events of an allocation's reschedule tracker, according to the
// reschedule policy in the allocation's job.
func rescheduleDelays(a *api.Allocation) map[*api.RescheduleEvent]time.Duration {
	if a.RescheduleTracker == nil || a.Job == nil {
		return nil
	}
	g := model.FindGroup(a.Job, a.TaskGroup)
	if g == nil {
		return nil
	}
	return model.DelayByRescheduleEvent(g.ReschedulePolicy, a.RescheduleTracker)
}

// checkIDIsUUID rejects an invalid id with Nomad's error message.
func checkIDIsUUID(objectType, id string) error {
	if len(id) != 36 || uuid.Validate(id) != nil {
		return fmt.Errorf("%s lookup failed: index error: UUID must be 36 characters", objectType)
	}
	return nil
}

func (r *request) allocSortKey(a *api.Allocation) sortKey {
	return r.newCreationSortKey(a.CreateIndex, a.ID)
}

// allocListReader returns the Reader for pageOfAllocStubs' allocations. It leaves out events that only entries on the page need.
func (r *request) allocListReader(s *store.Snapshot) store.Reader {
	if r.query.Get("filter") != "" { // it can select by events
		return s.Reader
	}
	return s.WithoutEndedEvents()
}

// pageOfAllocStubs returns the list entries of allocations that allocListReader has returned.
func (r *request) pageOfAllocStubs(s *store.Snapshot, allocs []*api.Allocation, withTaskStates, withResources bool) ([]allocStub, error) {
	return listPage(r, allocs, r.allocSortKey, func(a *api.Allocation) allocStub {
		if withTaskStates {
			a = s.Allocation(nil, a.ID)
		}
		return newAllocStub(a, withTaskStates, withResources)
	})
}

func (h *allocHandler) list(r *request) (any, error) {
	states := r.query.Get("task_states") != "false"
	resources := r.query.Get("resources") == "true"
	return r.blockingListQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		found := slices.DeleteFunc(r.allocListReader(s).Allocations(ws, r.query.Get("prefix")), func(alloc *api.Allocation) bool { return !r.includesNamespace(alloc.Namespace) })
		stubs, err := r.pageOfAllocStubs(s, found, states, resources)
		return stubs, s.LatestTableIndex(ws, store.Allocations), err
	})
}

// sortByCreation sorts allocations by their create index.
func sortByCreation(allocs []*api.Allocation) []*api.Allocation {
	slices.SortStableFunc(allocs, func(a, b *api.Allocation) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) })
	return allocs
}

func (h *allocHandler) read(r *request) (any, error) {
	if strings.Contains(r.pathID, "/") {
		return nil, notFoundError("resource not found")
	}
	if err := checkIDIsUUID("alloc", r.pathID); err != nil {
		return nil, err
	}
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		alloc := s.Allocation(ws, r.pathID)
		if alloc == nil {
			return nil, s.LatestTableIndex(ws, store.Allocations), notFoundError("alloc not found")
		}
		return alloc, alloc.ModifyIndex, nil
	})
}

func (h *allocHandler) stop(r *request) (any, error) {
	reschedule, err := r.boolParam("reschedule")
	if err != nil {
		return nil, err
	}
	skipDelay, err := r.boolParam("no_shutdown_delay")
	if err != nil {
		return nil, err
	}
	if err := r.requireAllocation(h.store, r.pathID); err != nil {
		return nil, err
	}
	out, err := h.scheduler.StopAndReplaceAlloc(r.Context(), r.pathID, scheduler.StopOptions{Reschedule: reschedule, NoShutdownDelay: skipDelay})
	if err != nil {
		return nil, err
	}
	return struct {
		EvalID string
		replyMeta
	}{out.EvalID, r.replyMetaOfWrite(out.Index)}, nil
}

// findAllocation returns the allocation in the path, for a request about its data on this node.
func (r *request) findAllocation(state *store.Store) (*api.Allocation, error) {
	s, err := r.snapshot(state, nil)
	if err != nil {
		return nil, err
	}
	if alloc := s.Allocation(nil, r.pathID); alloc != nil {
		return alloc, nil
	}
	return nil, notFoundError(fmt.Sprintf("Unknown allocation %q", r.pathID))
}

// findAllocRunner returns the runner of an allocation for a request about a task, or about all tasks if
// task is empty. An allocation that has ended has no runner.
func (h *allocHandler) findAllocRunner(r *request, task string, unknownTaskErr, endedErr error) (*allocrunner.Runner, error) {
	alloc, err := r.findAllocation(h.store)
	if err != nil {
		return nil, err
	}
	runner := h.allocs.AllocRunner(alloc.ID)
	switch {
	case runner != nil:
		return runner, nil
	case task != "" && model.FindTask(alloc, task) == nil:
		return nil, unknownTaskErr
	}
	return nil, endedErr
}

func (h *allocHandler) restart(r *request) (any, error) {
	var restartBody struct {
		TaskName string
		AllTasks bool
	}
	if err := r.decodeBody(&restartBody, maxBodyBytes, true); err != nil {
		return nil, err
	}
	runner, err := h.findAllocRunner(r, restartBody.TaskName, allocrunner.UnknownTaskError(restartBody.TaskName), allocrunner.ErrShouldNotRun)
	switch {
	case err != nil:
	case restartBody.AllTasks && restartBody.TaskName != "":
		err = errors.New("task name cannot be set when restarting all tasks")
	case restartBody.AllTasks:
		err = runner.RestartAll(r.Context())
	case restartBody.TaskName != "":
		err = runner.RestartTask(r.Context(), restartBody.TaskName)
	default:
		err = runner.RestartRunning(r.Context())
	}
	if err != nil {
		return nil, err
	}
	return replyMeta{}, nil
}

func (h *allocHandler) signal(r *request) (any, error) {
	var body struct{ Task, Signal string }
	if err := r.decodeBody(&body, maxBodyBytes, true); err != nil {
		return nil, err
	}
	runner, err := h.findAllocRunner(r, body.Task, allocrunner.ErrTaskNotFound, allocrunner.ErrNotRunning)
	if err == nil {
		err = runner.Signal(r.Context(), body.Task, body.Signal)
	}
	if err != nil {
		return nil, err
	}
	return replyMeta{}, nil
}

// gcAllocation replies with an object: Nomad's reply is empty, and Nomad's own client fails
// to decode it.
func (h *allocHandler) gcAllocation(r *request) (any, error) {
	if _, err := r.findAllocation(h.store); err != nil {
		return nil, err
	}
	if err := h.allocs.RemoveDirOfEndedAlloc(r.Context(), r.pathID); err != nil {
		return nil, err
	}
	return struct{}{}, nil
}

func (h *allocHandler) gcAllocations(r *request) (any, error) {
	// A GET request is rejected because a link or an image in a web page makes a browser send one.
	if r.Method == http.MethodGet && isFromBrowser(r.Request) {
		return nil, &statusError{http.StatusForbidden, "a browser must ask with PUT to collect allocations"}
	}
	h.allocs.RemoveDirsOfAllEndedAllocs()
	return noContent{}, nil
}
