package taskreason

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// MissingDriverReasonsByGroup returns a map from the name of each group of a job to the reasons why a node cannot run
// the drivers of the group's tasks. It returns nil if the job or the node is nil, as [apiclient.FindOnlyNode] can
// return it.
func MissingDriverReasonsByGroup(node *api.Node, job *api.Job) map[string][]string {
	if node == nil || job == nil {
		return nil
	}
	missing := make(map[string][]string)
	apiclient.ForEachTask(job, func(group *api.TaskGroup, task *api.Task) {
		reason := ""
		switch d := node.Drivers[task.Driver]; {
		case d == nil:
			reason = fmt.Sprintf("node %q does not have it; it has %s", node.Name, formatDetectedDrivers(node))
		case !d.Detected || !d.Healthy:
			reason = d.HealthDescription
		default:
			return
		}
		name := pointer.Value(group.Name)
		missing[name] = append(missing[name], fmt.Sprintf("Task %q: driver %q: %s", task.Name, task.Driver, reason))
	})
	return missing
}

// formatDetectedDrivers lists the drivers that a node has detected.
func formatDetectedDrivers(n *api.Node) string {
	var names []string
	for name, d := range n.Drivers {
		if d != nil && d.Detected {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
