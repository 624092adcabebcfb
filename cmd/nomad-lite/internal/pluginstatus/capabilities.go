package pluginstatus

import (
	"strconv"
	"strings"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// Capability is what a driver reports about itself, and what this agent does about it.
type Capability struct {
	Name     string
	Reported string
	Effect   string
}

// NewCapabilities describes the capabilities of a driver under an agent, which is root or not.
func NewCapabilities(c *driver.Capabilities, root bool) []Capability {
	modes := []string{}
	for _, mode := range c.NetworkIsolationModes {
		modes = append(modes, mode.String())
	}
	list := []Capability{
		{"Send Signals", strconv.FormatBool(c.SendSignals), requestEffect(c.SendSignals, "signals")},
		{"Exec", strconv.FormatBool(c.Exec), requestEffect(c.Exec, "commands")},
		{"FS Isolation", c.FSIsolation.String(), isolationEffect(c.FSIsolation, root)},
		{"Network Modes", strings.Join(modes, ", "), "tasks use the network of this machine, or one that a driver of their group creates"},
		{"Mounts", c.MountConfigs.String(), "mounts of hooks are given to the driver"},
		{"Log Collection", strconv.FormatBool(!c.DisableLogCollection), "the agent stores the output of tasks"},
	}
	if c.MustCreateNetwork {
		list = append(list, Capability{"Must Create Network", "true", "the driver creates the networks of groups with the mode bridge or none"})
	}
	if c.MountConfigs == driver.MountConfigsNone {
		list[4].Effect = "a task does not start if a hook mounts something"
	}
	if c.DisableLogCollection {
		list[5].Effect = "the agent stores no output; the driver does, or the output is lost"
	}
	if c.DynamicWorkloadUsers {
		effect := "tasks without a user get one from the range of client.users"
		if !root {
			effect = "the agent is not root: it chooses no users"
		}
		list = append(list, Capability{"Dynamic Users", "true", effect})
	}
	return list
}

// requestEffect is the effect of a capability that says which requests a driver accepts.
func requestEffect(accepted bool, what string) string {
	if accepted {
		return what + " are sent to the driver"
	}
	return what + " are sent to the driver, whose error is the answer"
}

func isolationEffect(isolation driver.FSIsolation, root bool) string {
	switch {
	case isolation == driver.FSIsolationImage:
		return "the driver mounts /alloc, /local and /secrets; tasks get no variables of the agent"
	case isolation == driver.FSIsolationNone:
		return "tasks see the files of this machine, with the rights of their users"
	case !root && isolation == driver.FSIsolationChroot:
		return "the agent is not root: the driver mounts the files of chroot_env, read-only"
	case !root:
		return "the agent is not root: it mounts nothing for the tasks"
	case isolation == driver.FSIsolationChroot:
		return "the agent mounts the files of chroot_env, read-only, in the task directory"
	}
	return "the agent mounts the task directory at a path of its own, which the driver must unveil"
}

func printCapabilities(page *output.Page, list []Capability) {
	if len(list) == 0 {
		return
	}
	page.Section("Capabilities")
	t := output.NewTable("Capability", "Reported", "Effect on This Machine")
	for _, c := range list {
		t.Row(c.Name, c.Reported, c.Effect)
	}
	page.Table(t)
}
