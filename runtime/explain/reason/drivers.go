package reason

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// MissingDriverReasonsByGroup returns group name -> reasons why a node cannot run the group's task drivers, for each group in a
// job. It returns nil if the job or the node is nil.
func MissingDriverReasonsByGroup(node *api.Node, job *api.Job) map[string][]string {
	if node == nil || job == nil {
		return nil
	}
	missing := make(map[string][]string)
	for _, group := range job.TaskGroups {
		if group == nil {
			continue
		}
		for _, task := range group.Tasks {
			if task == nil {
				continue
			}
			if why := missingDriverReason(node, task.Driver); why != "" {
				name := pointer.Value(group.Name)
				missing[name] = append(missing[name], fmt.Sprintf("Task %q: driver %q: %s", task.Name, task.Driver, why))
			}
		}
	}
	return missing
}

// missingDriverReason returns why a node cannot run a driver's tasks, or "" if it can.
func missingDriverReason(node *api.Node, driver string) string {
	switch d := node.Drivers[driver]; {
	case d == nil:
		return fmt.Sprintf("node %q does not have it; it has %s", node.Name, formatDetectedDrivers(node))
	case !d.Detected || !d.Healthy:
		return d.HealthDescription
	}
	return ""
}

// formatDetectedDrivers lists a node's detected drivers.
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
