// Package opcount counts the expensive operations of a process: forks, calls of the kernel that concern mounts, netlink
// requests, writes to cgroups, writes that wait for the disk and requests to helper processes.
//
// The code that makes such an operation calls Count first. The agent shows its own counts, and those that driver plugins send
// with their responses, as the metric nomad_lite_operations_total. The package imports nothing that a stage or the keeper would have to wait for.
package opcount
