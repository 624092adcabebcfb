package scheduler

import (
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
)

// checkFeasible checks whether the node has a group's drivers and networks, and satisfies the job, group and task constraints.
// The error joins all violations. jobAllocCount and groupAllocCount count the allocations of the job and the group on the node
// after the placement.
func checkFeasible(job *api.Job, g *api.TaskGroup, node PlacementNode, jobAllocCount, groupAllocCount int) error {
	var errs []error
	for _, t := range g.Tasks {
		if node.HealthyByDriver != nil && !node.HealthyByDriver[t.Driver] {
			errs = append(errs, &nodeFilteredError{"missing drivers", fmt.Errorf("task %q: driver %q is not there, or is not healthy", t.Name, t.Driver)})
		}
	}
	add := func(unmet []*admission.UnmetRequirement) {
		for _, u := range unmet {
			errs = append(errs, &nodeFilteredError{u.MetricName, u})
		}
	}
	add(node.UnmetNetworks(g))
	add(node.UnmetConstraints(nil, job.Constraints, jobAllocCount))
	add(node.UnmetConstraints(nil, g.Constraints, groupAllocCount))
	for _, t := range g.Tasks {
		add(node.UnmetConstraints(nil, t.Constraints, 1))
	}
	return errors.Join(errs...)
}
