package taskreason

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/apiclient"
)

// MissingDrivers returns for each group of a job why its node cannot run the drivers of its tasks,
// as the drivers report it. It returns nothing if the job is nil, for a cluster of several nodes, and
// for a client that is not allowed to read nodes.
func MissingDrivers(ctx context.Context, c *api.Client, job *api.Job) map[string][]string {
	if job == nil {
		return nil
	}
	nodes, _, err := c.Nodes().List(apiclient.QueryOptions(ctx, ""))
	if err != nil || len(nodes) != 1 {
		return nil
	}
	node, _, err := c.Nodes().Info(nodes[0].ID, apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return nil
	}
	missing := make(map[string][]string)
	apiclient.ForEachTask(job, func(group *api.TaskGroup, task *api.Task) {
		reason := ""
		switch d := node.Drivers[task.Driver]; {
		case d == nil:
			reason = fmt.Sprintf("node %q does not have it; it has %s", node.Name, driverNames(node))
		case !d.Detected || !d.Healthy:
			reason = d.HealthDescription
		default:
			return
		}
		name := apiclient.Deref(group.Name)
		missing[name] = append(missing[name], fmt.Sprintf("Task %q: driver %q: %s", task.Name, task.Driver, reason))
	})
	return missing
}

func driverNames(n *api.Node) string {
	names := slices.Sorted(maps.Keys(n.Drivers))
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
