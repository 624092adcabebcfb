package scheduler

import (
	"cmp"
	"errors"
	"slices"
	"sort"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// minPreemptionPriorityDistance is how much lower a job's priority must be than that of a job that preempts its allocations.
const minPreemptionPriorityDistance = 10

// isPreemptionEnabled reports whether jobs of a type can preempt allocations of other jobs.
func isPreemptionEnabled(c api.PreemptionConfig, jobType string) bool {
	switch jobType {
	case api.JobTypeSystem:
		return c.SystemSchedulerEnabled
	case api.JobTypeSysbatch:
		return c.SysBatchSchedulerEnabled
	case api.JobTypeBatch:
		return c.BatchSchedulerEnabled
	}
	return c.ServiceSchedulerEnabled
}

// preemptibleAllocsFunc returns a function for PlanInput.PreemptibleAllocs, or nil if the job cannot preempt allocations.
func preemptibleAllocsFunc(state store.Reader, job *api.Job) func(version *api.Job) []*api.Allocation {
	if job == nil || !isPreemptionEnabled(state.SchedulerConfig(nil).PreemptionConfig, *job.Type) {
		return nil
	}
	return func(version *api.Job) []*api.Allocation {
		return slices.DeleteFunc(state.WithoutEndedEvents().Allocations(nil, ""), func(a *api.Allocation) bool {
			return model.AllocTerminal(a) || a.Namespace == *job.Namespace && a.JobID == *job.ID ||
				*a.Job.Priority > *version.Priority-minPreemptionPriorityDistance
		})
	}
}

// placeByPreemption places an allocation for which the node has too few free resources, by preempting allocations of other jobs.
// It returns cause, which is the placement error without preemption, if preemption is disabled or does not help.
func (p *planner) placeByPreemption(job *api.Job, g *api.TaskGroup, allocName string, previous *api.Allocation, cause error) (*api.Allocation, error) {
	var exhaustedErr *nodeExhaustedError
	if p.PreemptibleAllocs == nil || !errors.As(cause, &exhaustedErr) {
		return nil, cause
	}
	preempted := p.choosePreemptedAllocs(job, func(trial *planner) error {
		_, err := trial.tryPlaceAlloc(job, g, allocName, previous)
		return err
	})
	if len(preempted) == 0 {
		return nil, cause
	}
	p.removeReservations(preempted)
	alloc, err := p.tryPlaceAlloc(job, g, allocName, previous)
	p.NodeUsage.preemptedPorts = nil
	if err != nil { // for example, another program uses a port
		for _, a := range preempted {
			p.NodeUsage.PutAlloc(a)
		}
		return nil, cause
	}
	for _, a := range preempted {
		c := p.editableCopyOfAlloc(a)
		c.DesiredStatus, c.DesiredDescription, c.PreemptedByAllocation = api.AllocDesiredStatusEvict, "Preempted by alloc ID "+alloc.ID, alloc.ID
		alloc.PreemptedAllocations = append(alloc.PreemptedAllocations, a.ID)
		p.preemptedAllocs = append(p.preemptedAllocs, c)
	}
	p.desiredUpdatesOf(*g.Name).Preemptions += uint64(len(preempted))
	return alloc, nil
}

// choosePreemptedAllocs returns the allocations without which place succeeds for a job version. It returns nil if there are none. They
// have the lowest possible priorities, and place would fail if any of them stayed.
func (p *planner) choosePreemptedAllocs(job *api.Job, place func(trial *planner) error) []*api.Allocation {
	candidates := slices.DeleteFunc(p.PreemptibleAllocs(job), func(a *api.Allocation) bool { return p.updatedAllocsByID[a.ID] != nil })
	slices.SortFunc(candidates, func(a, b *api.Allocation) int {
		return cmp.Or(cmp.Compare(*a.Job.Priority, *b.Job.Priority), cmp.Compare(b.CreateIndex, a.CreateIndex), cmp.Compare(a.ID, b.ID))
	})
	succeedsWithout := func(preempted []*api.Allocation) bool {
		trial := p.newTrial()
		trial.removeReservations(preempted)
		return place(trial) == nil
	}
	if len(candidates) == 0 || !succeedsWithout(candidates) {
		return nil
	}
	preempted := slices.Clone(candidates[:sort.Search(len(candidates), func(n int) bool { return succeedsWithout(candidates[:n]) })])
	for i := len(preempted) - 1; i >= 0; i-- { // the highest priority first
		if others := slices.Delete(slices.Clone(preempted), i, i+1); succeedsWithout(others) {
			preempted = others
		}
	}
	return preempted
}

// fitsBesidePreemptedAllocs reports whether an allocation needs nothing of what this plan's preempted allocations still use.
func (p *planner) fitsBesidePreemptedAllocs(job *api.Job, g *api.TaskGroup, allocName string, previous *api.Allocation) bool {
	trial := p.newTrial()
	for _, a := range p.preemptedAllocs {
		trial.NodeUsage.PutAlloc(a)
	}
	_, err := trial.tryPlaceAlloc(job, g, allocName, previous)
	return err == nil
}

// awaitPreemptedAllocs makes alloc wait for the end of the allocations that this plan has preempted for earlier placements: alloc
// gets room that they leave.
func (p *planner) awaitPreemptedAllocs(alloc *api.Allocation) {
	for _, a := range p.preemptedAllocs {
		if !slices.Contains(alloc.PreemptedAllocations, a.ID) {
			alloc.PreemptedAllocations = append(alloc.PreemptedAllocations, a.ID)
		}
	}
}

// newTrial returns a planner whose tryPlaceAlloc changes nothing of p, and takes no ids and ports.
func (p *planner) newTrial() *planner {
	trial := *p
	trial.NodeUsage = p.NodeUsage.Clone()
	trial.placersByJob = make(map[*api.Job]*allocPlacer)
	trial.Env.NewID = func() string { return "trial" }
	trial.Env.RandIntN = func(int) int { return 0 }
	trial.Env.IsPortFree = func(HostPort) bool { return true }
	if p.Volumes != nil {
		volumes := *p.Volumes
		volumes.newClaims = slices.Clone(volumes.newClaims)
		trial.Volumes = &volumes
	}
	return &trial
}

// removeReservations removes the reservations of allocations that will be preempted. Their ports count as free, although their
// processes still listen.
func (p *planner) removeReservations(preempted []*api.Allocation) {
	for _, a := range preempted {
		p.NodeUsage.preemptPortsOf(a)
		p.NodeUsage.RemoveAlloc(a)
	}
}

// evaluateJobsOfPreemptedAllocs creates an evaluation for each job that has lost allocations, so that it gets them back when the
// node has room.
func evaluateJobsOfPreemptedAllocs(t *schedulerTxn, preempted []*api.Allocation) {
	evaluated := make(map[JobKey]bool)
	for _, a := range preempted {
		key := JobKey{a.Namespace, a.JobID}
		job := t.tx.Job(nil, key.Namespace, key.ID)
		if evaluated[key] || job == nil {
			continue
		}
		evaluated[key] = true
		t.putAndTrackEval(t.newPendingEval(job, "preemption"))
		t.reconcileJobAtTxnEnd(key)
	}
}
