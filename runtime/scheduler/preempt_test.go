package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// preemptionLoad is a random node with allocations of other jobs, and a job that is placed on it.
type preemptionLoad struct {
	node   PlacementNode
	job    *api.Job
	others []*api.Allocation
}

func newRandomPreemptionLoad(random *rand.Rand) *preemptionLoad {
	l := &preemptionLoad{node: testNode()}
	l.node.Attributes["memory.totalbytes"], l.node.Attributes["cpu.usablecompute"] = fmt.Sprint(1000<<20), "1000"
	newJob := func(id string, priority int) *api.Job {
		return newJobFixture(func(f *jobFixture) {
			f.job.ID, f.job.Priority = new(id), &priority
			f.task.Resources = &api.Resources{CPU: new(50 * (1 + random.IntN(10))), MemoryMB: new(50 * (1 + random.IntN(10)))}
			if random.IntN(4) == 0 {
				f.group.Networks = []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: "p", Value: 8000 + random.IntN(3)}}}}
			}
		}).job
	}
	usage := NewEmptyNodeUsage(l.node)
	for i := range random.IntN(9) {
		placer := newAllocPlacer(newJob(fmt.Sprint("other", i), 10*(1+random.IntN(9))+random.IntN(2)), l.node, testEnv(), usage)
		alloc, err := placer.createAndReserveAlloc(placer.job.TaskGroups[0], model.AllocName(placer.job, placer.job.TaskGroups[0], 0))
		if err != nil {
			continue
		}
		alloc.ID, alloc.ClientStatus, alloc.CreateIndex = fmt.Sprint("other", i), api.AllocClientStatusRunning, uint64(1+i)
		l.others = append(l.others, alloc)
	}
	l.job = newJob("j", 10*(1+random.IntN(9)))
	return l
}

// plan plans the job. Only these allocations run.
func (l *preemptionLoad) plan(running, preemptible []*api.Allocation) PlanChanges {
	p := &planCase{input: PlanInput{Job: l.job, Node: l.node, Env: testEnv(), Now: planTime}}
	p.input.Eval = &api.Evaluation{ID: "eval", JobID: "j", Namespace: "default", Type: *l.job.Type, Status: api.EvalStatusPending, Priority: *l.job.Priority}
	p.input.NodeUsage = NewEmptyNodeUsage(l.node)
	for _, a := range running {
		p.input.NodeUsage.PutAlloc(a)
		for _, port := range p.input.NodeUsage.allocatedPorts(a) {
			free := p.input.Env.IsPortFree
			p.input.Env.IsPortFree = func(other HostPort) bool { return other != port && free(other) } // its process listens
		}
	}
	if len(preemptible) > 0 {
		p.input.PreemptibleAllocs = func(*api.Job) []*api.Allocation { return slices.Clone(preemptible) }
	}
	return Plan(p.input)
}

// fitsWithout reports whether the job can be placed when the allocations of the set do not run.
func (l *preemptionLoad) fitsWithout(set []*api.Allocation) bool {
	return len(l.plan(slices.DeleteFunc(slices.Clone(l.others), func(a *api.Allocation) bool { return slices.Contains(set, a) }), nil).PlacedAllocs) == 1
}

func maxPriorityOf(allocs []*api.Allocation) (highest int) {
	for _, a := range allocs {
		highest = max(highest, *a.Job.Priority)
	}
	return highest
}

// A job is placed if any set of preemptible allocations makes room for it, as an exhaustive search finds out. The preempted
// allocations have the lowest possible priority, and none of them is preempted needlessly.
func TestPreemptionMatchesExhaustiveSearch(t *testing.T) {
	const seed, loads = 1, 2000
	random := rand.New(rand.NewPCG(seed, 0))
	counts := map[string]int{}
	for n := range loads {
		l := newRandomPreemptionLoad(random)
		var preemptible []*api.Allocation
		for _, a := range l.others {
			if *a.Job.Priority <= *l.job.Priority-minPreemptionPriorityDistance {
				preemptible = append(preemptible, a)
			}
		}
		lowest := -1 // the highest priority of the set with the lowest one
		for bits := range 1 << len(preemptible) {
			var set []*api.Allocation
			for i, a := range preemptible {
				if bits&(1<<i) != 0 {
					set = append(set, a)
				}
			}
			if highest := maxPriorityOf(set); (lowest < 0 || highest < lowest) && l.fitsWithout(set) {
				lowest = highest
			}
		}
		changes := l.plan(l.others, preemptible)
		var preempted []*api.Allocation
		for _, c := range changes.PreemptedAllocs {
			i := slices.IndexFunc(preemptible, func(a *api.Allocation) bool { return a.ID == c.ID })
			if i < 0 {
				t.Fatalf("load %d: %s with the priority %d is preempted for the priority %d", n, c.ID, *c.Job.Priority, *l.job.Priority)
			}
			preempted = append(preempted, preemptible[i])
			if c.DesiredStatus != "evict" || c.PreemptedByAllocation != changes.PlacedAllocs[0].ID || !strings.HasPrefix(c.DesiredDescription, "Preempted by alloc ID ") {
				t.Errorf("load %d: preempted allocation %+v", n, c)
			}
		}
		counts[fmt.Sprintf("%d preempted", len(preempted))]++
		switch placed := len(changes.PlacedAllocs) == 1; {
		case placed != (lowest >= 0):
			t.Errorf("load %d: placed %v, and an exhaustive search says %v", n, placed, lowest >= 0)
		case !placed:
			counts["not placed"]++
		case maxPriorityOf(preempted) != lowest:
			t.Errorf("load %d: an allocation of priority %d is preempted, and one of priority %d suffices", n, maxPriorityOf(preempted), lowest)
		case len(changes.PlacedAllocs[0].PreemptedAllocations) != len(preempted):
			t.Errorf("load %d: the placed allocation waits for %v", n, changes.PlacedAllocs[0].PreemptedAllocations)
		}
		for i := range preempted {
			if l.fitsWithout(slices.Delete(slices.Clone(preempted), i, i+1)) {
				t.Errorf("load %d: %s is preempted needlessly", n, preempted[i].ID)
			}
		}
	}
	t.Logf("seed %d, %d loads: %v", seed, loads, counts)
	if counts["2 preempted"] < loads/50 || counts["not placed"] < loads/50 {
		t.Errorf("the loads prove little: %v", counts)
	}
}
