// Package cgroup makes the cgroups that drivers of others expect to be there when
// they start a task, and removes the cgroups of tasks with all that runs in them.
//
// It makes the directories with the names that are fixed in drivers, and limits
// nothing: limits are the driver's to write. The drivers in the box make their
// own. Where there are no cgroups, or none may be made, there is none for a task,
// and its driver decides what that means. The hook of a task calls it, and an
// agent that sweeps up after a run that was killed.
package cgroup
