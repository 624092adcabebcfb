package admission

import (
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// partsRefusedByDrivers returns a job's parts that cannot run because of its drivers' capabilities. A driver missing in the map
// has unknown capabilities, and nothing is refused because of it. Signals and commands in tasks are not checked: the host sends
// them to each driver, and the driver's error is the answer.
func partsRefusedByDrivers(job *api.Job, capabilitiesByDriver map[string]*driver.Capabilities) (refusals []Refusal) {
	for _, g := range job.TaskGroups {
		path := []string{"group", *g.Name}
		if n := model.GroupNetworkUnlessHost(g); n != nil && model.IsKnownNetworkMode(n.Mode) {
			refusals = append(refusals, networkRefusedByDrivers(childPath(path, "network", "0", "mode"), g, n.Mode, capabilitiesByDriver)...)
		}
		for _, t := range g.Tasks {
			c := capabilitiesByDriver[t.Driver]
			if c == nil || c.MountConfigs != driver.MountConfigsNone {
				continue
			}
			for i, m := range t.VolumeMounts {
				if !model.IsEmptyMount(m) {
					refusals = append(refusals, newRefusal(driverMounts, childPath(path, "task", t.Name, "volume_mount", strconv.Itoa(i)), t.Driver))
				}
			}
		}
	}
	return refusals
}

// networkRefusedByDrivers returns why a group's tasks cannot share a network in a mode other than host.
func networkRefusedByDrivers(path []string, g *api.TaskGroup, mode string, capabilitiesByDriver map[string]*driver.Capabilities) (refusals []Refusal) {
	var creator *api.Task
	for _, t := range g.Tasks {
		c := capabilitiesByDriver[t.Driver]
		switch {
		case c == nil:
		case !slices.Contains(c.NetworkIsolationModes, driver.NetworkGroup):
			refusals = append(refusals, newRefusal(driverNetwork, path, t.Driver, t.Name, mode))
		case !c.MustCreateNetwork:
		case creator == nil:
			creator = t
		case creator.Driver != t.Driver:
			return append(refusals, newRefusal(networkCreators, path, creator.Driver, t.Driver, creator.Name, t.Name))
		}
	}
	return refusals
}
