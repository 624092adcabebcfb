package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// checkEligible returns an error if the job's node pool or datacenters exclude the node.
func checkEligible(job *api.Job, node Node) error {
	if pool := *job.NodePool; pool != api.NodePoolAll && pool != node.Pool {
		return fmt.Errorf("job %q: node_pool %q: this node is in pool %q", *job.ID, pool, node.Pool)
	}
	if !slices.ContainsFunc(job.Datacenters, func(pattern string) bool { return matchGlob(pattern, node.Datacenter) }) {
		return fmt.Errorf("job %q: datacenters %q: this node is in datacenter %q", *job.ID, job.Datacenters, node.Datacenter)
	}
	return nil
}

// matchGlob matches a pattern in which * stands for any text, including none.
func matchGlob(pattern, name string) bool {
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

// checkFeasible checks the constraints of the job, the group and its tasks against the
// node, and returns all violations. jobCount and groupCount are the numbers of
// allocations of the job and of the group on the node after the placement.
func checkFeasible(job *api.Job, g *api.TaskGroup, node Node, jobCount, groupCount int) error {
	var errs []error
	for _, t := range g.Tasks {
		if node.Drivers != nil && !node.Drivers[t.Driver] {
			errs = append(errs, &filteredError{"missing drivers", fmt.Errorf("task %q: driver %q is not there, or is not healthy", t.Name, t.Driver)})
		}
	}
	if err := checkNetworkMode(g, node); err != nil {
		errs = append(errs, &filteredError{"missing network", err})
	}
	if missing := checkHostNetworks(g, node); missing != nil {
		errs = append(errs, &filteredError{missing.metric(), missing})
	}
	check := func(path []string, constraints []*api.Constraint, count int) {
		for _, u := range unmetConstraints(path, constraints, node, count) {
			errs = append(errs, &filteredError{u.text, u.Err})
		}
	}
	check(nil, job.Constraints, jobCount)
	check(nil, g.Constraints, groupCount)
	for _, t := range g.Tasks {
		check(nil, t.Constraints, 1)
	}
	return errors.Join(errs...)
}

// checkNetworkMode returns an error if the node does not have the network mode of the group.
func checkNetworkMode(g *api.TaskGroup, node Node) error {
	mode := model.NodeNetworkMode(g)
	if mode == "" || node.NetworkModes == nil || slices.Contains(node.NetworkModes, mode) {
		return nil
	}
	if model.IsCNI(mode) && slices.Contains(node.NetworkModes, "bridge") {
		return fmt.Errorf("missing network: this node does not have the network mode %q: the directory client.cni_config_dir has no network of that name, or its file has an error (reason of \"degraded\" in the log of the agent). "+
			"Correct it and restart the agent, or use mode = \"host\"", mode)
	}
	return fmt.Errorf("missing network: this node does not have the network mode %q: the log of the agent says why (reason of \"degraded\"), or use mode = \"host\"", mode)
}

// UnmetConstraint is a constraint of a job that a node does not satisfy.
type UnmetConstraint struct {
	// Path is the path of the constraint in the form of model.Fault.Path.
	Path []string
	// Err describes the difference and the remedy.
	Err error

	text string // name of the constraint in the placement metrics
}

// UnmetConstraints returns the constraints of a valid canonical job that the node
// does not satisfy if all allocations of the job run on it. Datacenters and node
// pool count as constraints.
func UnmetConstraints(job *api.Job, node Node) []UnmetConstraint {
	var all []UnmetConstraint
	if err := checkEligible(job, node); err != nil {
		all = append(all, UnmetConstraint{Path: []string{"datacenters"}, Err: err})
	}
	total := 0
	for _, g := range job.TaskGroups {
		total += *g.Count
	}
	all = append(all, unmetConstraints(nil, job.Constraints, node, total)...)
	for _, g := range job.TaskGroups {
		path := []string{"group", *g.Name}
		if err := checkNetworkMode(g, node); err != nil {
			all = append(all, UnmetConstraint{Path: append(slices.Clip(path), "network", "0", "mode"), Err: err, text: "missing network"})
		}
		if missing := checkHostNetworks(g, node); missing != nil {
			all = append(all, UnmetConstraint{Path: append(slices.Clip(path), "network", "0"), Err: missing, text: missing.metric()})
		}
		all = append(all, unmetVolumes(path, job, g, &node)...)
		all = append(all, unmetConstraints(path, g.Constraints, node, *g.Count)...)
		for _, t := range g.Tasks {
			all = append(all, unmetConstraints(append(slices.Clip(path), "task", t.Name), t.Constraints, node, 1)...)
		}
	}
	return all
}

// unmetConstraints returns the constraints of the block at path that the node does not satisfy
// for count allocations.
func unmetConstraints(path []string, constraints []*api.Constraint, node Node, count int) []UnmetConstraint {
	var all []UnmetConstraint
	for i, c := range constraints {
		if model.IsBridgeConstraint(c) {
			continue // the bridge needs no CNI plugins; checkNetworkMode checks it
		}
		if err := checkConstraint(c, node, count); err != nil {
			all = append(all, UnmetConstraint{append(slices.Clip(path), "constraint", strconv.Itoa(i)), err, constraintText(c)})
		}
	}
	return all
}

// checkConstraint checks a constraint for a job or group with count allocations on this node.
func checkConstraint(c *api.Constraint, node Node, count int) error {
	allowed := count
	switch c.Operand {
	case api.ConstraintDistinctHosts:
		if on, err := strconv.ParseBool(c.RTarget); on || err != nil {
			allowed = 1
		}
	case api.ConstraintDistinctProperty:
		if _, ok := node.Resolve(c.LTarget); !ok {
			return explainUnsatisfied(c, node)
		}
		allowed = 1
		if n, err := strconv.ParseUint(c.RTarget, 10, 31); err == nil {
			allowed = int(n)
		}
	default:
		if !model.ConstraintHolds(c, node.Resolve) {
			return explainUnsatisfied(c, node)
		}
	}
	if count > allowed {
		return fmt.Errorf("constraint %q allows %d on one node, not %d", constraintText(c), allowed, count)
	}
	return nil
}

// implicitConstraintReasons has texts that explain constraints which a job has implicitly, by the constraint's target.
var implicitConstraintReasons = map[string]string{
	"${attr.consul.version}": `; a service is registered with Consul unless it says provider = "nomad"`,
	"${attr.os.signals}":     "; it follows from the kill_signal or change_signal of a task",
}

func explainUnsatisfied(c *api.Constraint, node Node) error {
	here := "is not set here"
	if value, ok := node.Resolve(c.LTarget); ok {
		here = fmt.Sprintf("is %q here", value)
	}
	return fmt.Errorf("constraint %q does not hold: %s %s%s", constraintText(c), c.LTarget, here, implicitConstraintReasons[c.LTarget])
}

// constraintText returns a constraint in Nomad's form.
func constraintText(c *api.Constraint) string {
	return strings.TrimSpace(c.LTarget + " " + c.Operand + " " + c.RTarget)
}
