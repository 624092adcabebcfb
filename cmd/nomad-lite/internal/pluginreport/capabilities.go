package pluginreport

import (
	"strconv"
	"strings"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/pluginstatus"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// DescribeCapabilities describes the capabilities of a driver and their effect under an agent.
func DescribeCapabilities(c *driver.Capabilities, agentIsRoot bool) []pluginstatus.Capability {
	modes := []string{}
	for _, mode := range c.NetworkIsolationModes {
		modes = append(modes, mode.String())
	}
	list := []pluginstatus.Capability{
		{Name: "Send Signals", Reported: strconv.FormatBool(c.SendSignals), Effect: describeRequestCapability(c.SendSignals, "signals")},
		{Name: "Exec", Reported: strconv.FormatBool(c.Exec), Effect: describeRequestCapability(c.Exec, "commands")},
		{Name: "FS Isolation", Reported: c.FSIsolation.String(), Effect: describeFSIsolationEffect(c.FSIsolation, agentIsRoot)},
		{Name: "Network Modes", Reported: strings.Join(modes, ", "), Effect: "tasks use the network of this machine, or one that a driver of their group creates"},
		{Name: "Mounts", Reported: c.MountConfigs.String(), Effect: "mounts of hooks are given to the driver"},
		{Name: "Log Collection", Reported: strconv.FormatBool(!c.DisableLogCollection), Effect: "the agent stores the output of tasks"},
	}
	if c.MustCreateNetwork {
		list = append(list, pluginstatus.Capability{Name: "Must Create Network", Reported: "true", Effect: "the driver creates the networks of groups with the mode bridge or none"})
	}
	if c.MountConfigs == driver.MountConfigsNone {
		list[4].Effect = "a task does not start if a hook mounts something"
	}
	if c.DisableLogCollection {
		list[5].Effect = "the agent stores no output; the driver does, or the output is lost"
	}
	if c.DynamicWorkloadUsers {
		effect := "tasks without a user get one from the range of client.users"
		if !agentIsRoot {
			effect = "the agent is not root: it chooses no users"
		}
		list = append(list, pluginstatus.Capability{Name: "Dynamic Users", Reported: "true", Effect: effect})
	}
	return list
}

// describeRequestCapability describes the effect of a capability that states whether a driver accepts a kind of
// request. requestNoun names the requests.
func describeRequestCapability(accepted bool, requestNoun string) string {
	if accepted {
		return requestNoun + " are sent to the driver"
	}
	return requestNoun + " are sent to the driver, whose error is the answer"
}

func describeFSIsolationEffect(isolation driver.FSIsolation, agentIsRoot bool) string {
	switch {
	case isolation == driver.FSIsolationImage:
		return "the driver mounts /alloc, /local and /secrets; tasks get no variables of the agent"
	case isolation == driver.FSIsolationNone:
		return "tasks see the files of this machine, with the rights of their users"
	case !agentIsRoot && isolation == driver.FSIsolationChroot:
		return "the agent is not root: the driver mounts the files of chroot_env, read-only"
	case !agentIsRoot:
		return "the agent is not root: it mounts nothing for the tasks"
	case isolation == driver.FSIsolationChroot:
		return "tasks see the files of chroot_env, read-only, in their root directory"
	}
	return "the agent mounts the task directory at a path of its own, which the driver must unveil"
}
