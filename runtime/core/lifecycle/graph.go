package lifecycle

import (
	"fmt"
	"slices"
	"strings"
)

// GraphTask is a task with the properties that decide whether its gate can open.
type GraphTask struct {
	Task
	Leader           bool
	RunsUntilStopped bool // the task runs until it is stopped
	HasHealthCheck   bool // service checks decide whether the task is healthy
}

// GraphProblem is an error in a task's conditions.
type GraphProblem struct {
	Task string
	Text string
}

// CheckGraph returns the problems in a gate graph: missing tasks, conditions that can never hold,
// and cycles. Task names must be unique.
func CheckGraph(nodes []GraphTask) []GraphProblem {
	tasks := make([]Task, len(nodes))
	for i, n := range nodes {
		tasks[i] = n.Task
	}
	index := indexTasksByName(tasks)
	var problems []GraphProblem
	for _, n := range nodes {
		for _, a := range n.Dependencies {
			on, ok := index[a.Task]
			if !ok {
				problems = append(problems, GraphProblem{n.Name, fmt.Sprintf("%v: there is no task %q in the group, only %s", a, a.Task, joinFirstTaskNames(tasks))})
			} else if why := n.whyNeverSatisfied(nodes[on], a.Condition); why != "" {
				problems = append(problems, GraphProblem{n.Name, fmt.Sprintf("%v can never hold: %s", a, why)})
			}
		}
	}
	if len(problems) > 0 {
		return problems
	}
	order := newStartGraph(tasks)
	if cycle := order.findCycleVertices(); cycle != nil {
		return []GraphProblem{{tasks[cycle[0]].Name, "these tasks wait for each other: " + order.describeCycle(cycle)}}
	}
	// The loop below is quadratic in the number of tasks. It is skipped unless some tasks wait
	// until all others have ended, which is rare.
	if !order.dependsOnAllTaskEnds(slices.Repeat([]bool{true}, len(tasks))) {
		return nil
	}
	for i, n := range nodes {
		if n.Stage == PoststartSidecar && order.dependsOnAllTaskEnds(order.ancestorsOrSelf(i)) {
			problems = append(problems, GraphProblem{n.Name, "the gate can never open: a sidecar does not run when all that it is there for have ended"})
		}
	}
	return problems
}

// whyNeverSatisfied returns why task g can never start if it waits for condition c on dependency,
// or "". Cycles are found by findCycleVertices.
func (g GraphTask) whyNeverSatisfied(dependency GraphTask, c DependencyCondition) string {
	ends := c == ConditionSuccess || c == ConditionExited
	last := g.Stage == PoststopTask && dependency.Stage != PoststopTask // a poststop task starts when all other tasks have ended
	switch {
	case g.Name == dependency.Name:
		return "it is the same task"
	case c == ConditionSuccess && dependency.RunsUntilStopped && last:
		return fmt.Sprintf("%q runs until it is stopped, and then has no result. Write exited or started", dependency.Name)
	case ends && dependency.RunsUntilStopped && !last:
		return fmt.Sprintf("%q runs as long as the allocation does. Write started or healthy", dependency.Name)
	case ends && dependency.Leader && !last:
		return fmt.Sprintf("%q is the leader, the others end with it. Write started or healthy", dependency.Name)
	case c == ConditionHealthy && last:
		return fmt.Sprintf("%q has ended before a poststop task starts. Write started, success or exited", dependency.Name)
	case c == ConditionHealthy && !dependency.HasHealthCheck:
		return fmt.Sprintf("no check says whether %q is healthy. Give it a service with a check, provider = \"nomad\", in its own block or in the group with task = %q; or write started", dependency.Name, dependency.Name)
	}
	return ""
}

func indexTasksByName(tasks []Task) map[string]int {
	index := make(map[string]int, len(tasks))
	for i, t := range tasks {
		index[t.Name] = i
	}
	return index
}

// maxNamesInError is the maximum number of names in an error.
const maxNamesInError = 12

func joinFirstTaskNames(tasks []Task) string {
	var list []string
	for _, t := range tasks[:min(len(tasks), maxNamesInError)] {
		list = append(list, t.Name)
	}
	if len(tasks) > maxNamesInError {
		list = append(list, "…")
	}
	return strings.Join(list, ", ")
}

// startGraph says which starts precede other starts. Its vertices are the tasks, followed by the
// stagePredecessors entries. These extra vertices keep the number of edges linear in the number of
// tasks.
type startGraph struct {
	tasks                []Task
	predecessorsByVertex [][]int // each vertex's direct predecessors
}

// stagePredecessors lists stage starts: the stages that start, and the stages before them.
var stagePredecessors = [...]struct{ stages, after Stage }{
	{MainTask, PrestartEphemeral | PrestartSidecar},
	{PoststartEphemeral | PoststartSidecar, MainTask},
	{PoststopTask, allStages &^ PoststopTask},
}

func newStartGraph(tasks []Task) *startGraph {
	o := &startGraph{tasks, make([][]int, len(tasks)+len(stagePredecessors))}
	index := indexTasksByName(tasks)
	for i, t := range tasks {
		for m, moment := range stagePredecessors {
			if t.Stage&moment.stages != 0 {
				o.predecessorsByVertex[i] = append(o.predecessorsByVertex[i], len(tasks)+m)
			}
			if t.Stage&moment.after != 0 {
				o.predecessorsByVertex[len(tasks)+m] = append(o.predecessorsByVertex[len(tasks)+m], i)
			}
		}
		for _, a := range t.Dependencies {
			if on, ok := index[a.Task]; ok {
				o.predecessorsByVertex[i] = append(o.predecessorsByVertex[i], on)
			}
		}
	}
	return o
}

// ancestorsOrSelf reports for each task whether it precedes the task at taskIndex or is that task.
func (g *startGraph) ancestorsOrSelf(taskIndex int) []bool {
	seen, todo := make([]bool, len(g.predecessorsByVertex)), []int{taskIndex}
	seen[taskIndex] = true
	for len(todo) > 0 {
		last := len(todo) - 1
		v := todo[last]
		todo = todo[:last]
		for _, b := range g.predecessorsByVertex[v] {
			if !seen[b] {
				seen[b] = true
				todo = append(todo, b)
			}
		}
	}
	return seen[:len(g.tasks)]
}

// findCycleVertices returns a cycle's vertices, each before the vertex it waits for, or nil. The
// first vertex is a task that waits for the second.
func (g *startGraph) findCycleVertices() []int {
	const (
		nodeUnvisited = iota
		nodeOnPath
		nodeVisited
	)
	mark := make([]byte, len(g.predecessorsByVertex))
	next := make([]int, len(g.predecessorsByVertex)) // number of followed edges from each vertex
	for start := range g.tasks {
		path := []int{start}
		for len(path) > 0 {
			v := path[len(path)-1]
			mark[v] = nodeOnPath
			if next[v] == len(g.predecessorsByVertex[v]) {
				mark[v] = nodeVisited
				path = path[:len(path)-1]
				continue
			}
			b := g.predecessorsByVertex[v][next[v]]
			next[v]++
			switch mark[b] {
			case nodeUnvisited:
				path = append(path, b)
			case nodeOnPath:
				for path[0] != b {
					path = path[1:]
				}
				// Stages alone form no cycle: in a cycle, at least one task waits for a task
				// directly.
				for path[0] >= len(g.tasks) || path[1] >= len(g.tasks) {
					path = append(path[1:], path[0])
				}
				return path
			}
		}
	}
	return nil
}

// describeCycle returns the text for a cycle: which task waits for which, and why.
func (g *startGraph) describeCycle(cycle []int) string {
	var steps []string
	for i := 0; i < len(cycle); i++ {
		from, to, why := cycle[i], cycle[(i+1)%len(cycle)], "lite_after"
		if to >= len(g.tasks) { // to is an entry of stagePredecessors
			i++
			to = cycle[(i+1)%len(cycle)]
			why = fmt.Sprintf("%v before %v", g.tasks[to].Stage, g.tasks[from].Stage)
		}
		steps = append(steps, fmt.Sprintf("%q waits for %q (%s)", g.tasks[from].Name, g.tasks[to].Name, why))
	}
	return strings.Join(steps, ", ")
}

// dependsOnAllTaskEnds reports whether the chosen tasks together wait until every main and
// poststart task except sidecars has ended.
func (g *startGraph) dependsOnAllTaskEnds(chosenByTaskIndex []bool) bool {
	ended := make(map[string]bool)
	for v, is := range chosenByTaskIndex {
		if !is {
			continue
		}
		for _, a := range g.tasks[v].Dependencies {
			if a.Condition == ConditionSuccess || a.Condition == ConditionExited {
				ended[a.Task] = true
			}
		}
	}
	for _, t := range g.tasks {
		if t.Stage&(MainTask|PoststartEphemeral) != 0 && !ended[t.Name] {
			return false
		}
	}
	return len(ended) > 0
}
