// Package cgroup makes the cgroups that third-party drivers expect when they start a task, and
// removes the cgroups of tasks with all processes in them.
//
// It makes the directories with the names that are fixed in drivers, and sets no limits: the
// driver writes them. The builtin drivers make their own cgroups. On a machine without cgroups, or
// without permission to make them, a task has none, and its driver decides how to proceed. Callers
// are hosts of drivers: the hook of a task, an agent that cleans up after a killed run, and the
// contract tests of drivers.
package cgroup
