package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// eligible tells whether the node is one of those that the job may run on.
func eligible(job *api.Job, node Node) error {
	if pool := *job.NodePool; pool != api.NodePoolAll && pool != node.Pool {
		return fmt.Errorf("job %q: node_pool %q: this node is in pool %q", *job.ID, pool, node.Pool)
	}
	if !slices.ContainsFunc(job.Datacenters, func(pattern string) bool { return glob(pattern, node.Datacenter) }) {
		return fmt.Errorf("job %q: datacenters %q: this node is in datacenter %q", *job.ID, job.Datacenters, node.Datacenter)
	}
	return nil
}

// glob matches a pattern in which * stands for any text.
func glob(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	if last == 0 {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, parts[0])
	if !ok {
		return false
	}
	for _, part := range parts[1:last] {
		_, after, found := strings.Cut(name, part)
		if !found {
			return false
		}
		name = after
	}
	return strings.HasSuffix(name, parts[last])
}

// feasible checks the constraints on the job, the group and its tasks against
// the node, and returns everything that does not hold. jobCount and groupCount
// say how many allocations of the job and of the group would be there.
func feasible(job *api.Job, g *api.TaskGroup, node Node, jobCount, groupCount int) error {
	var errs []error
	for _, t := range g.Tasks {
		if node.Drivers != nil && !node.Drivers[t.Driver] {
			errs = append(errs, &filteredError{"missing drivers", fmt.Errorf("task %q: driver %q is not there, or is not healthy", t.Name, t.Driver)})
		}
	}
	check := func(constraints []*api.Constraint, count int) {
		for _, c := range constraints {
			if err := satisfied(c, node, count); err != nil {
				errs = append(errs, &filteredError{constraintText(c), err})
			}
		}
	}
	check(job.Constraints, jobCount)
	check(g.Constraints, groupCount)
	for _, t := range g.Tasks {
		check(t.Constraints, 1)
	}
	return errors.Join(errs...)
}

// satisfied checks one constraint for a number of allocations that are all to
// run on this node.
func satisfied(c *api.Constraint, node Node, count int) error {
	allowed := count
	switch c.Operand {
	case api.ConstraintDistinctHosts:
		if on, err := strconv.ParseBool(c.RTarget); on || err != nil {
			allowed = 1
		}
	case api.ConstraintDistinctProperty:
		if _, ok := node.Resolve(c.LTarget); !ok {
			return unsatisfied(c, node)
		}
		allowed = 1
		if n, err := strconv.ParseUint(c.RTarget, 10, 31); err == nil {
			allowed = int(n)
		}
	default:
		if !model.Holds(c, node.Resolve) {
			return unsatisfied(c, node)
		}
	}
	if count > allowed {
		return fmt.Errorf("constraint %q allows %d on one node, not %d", constraintText(c), allowed, count)
	}
	return nil
}

// origins says where constraints come from that nobody has written.
var origins = map[string]string{
	"${attr.consul.version}": `; a service is registered with Consul unless it says provider = "nomad"`,
	"${attr.os.signals}":     "; it follows from the kill_signal or change_signal of a task",
}

func unsatisfied(c *api.Constraint, node Node) error {
	here := "is not set here"
	if value, ok := node.Resolve(c.LTarget); ok {
		here = fmt.Sprintf("is %q here", value)
	}
	return fmt.Errorf("constraint %q does not hold: %s %s%s", constraintText(c), c.LTarget, here, origins[c.LTarget])
}

// constraintText is how Nomad names a constraint.
func constraintText(c *api.Constraint) string {
	return strings.TrimSpace(c.LTarget + " " + c.Operand + " " + c.RTarget)
}
