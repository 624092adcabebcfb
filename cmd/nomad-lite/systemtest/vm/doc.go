// Package vm tests agents in virtual machines: with only cgroups v2, with a clock that is set, with sudden loss of
// power, and as a node of a cluster that is rebooted.
package vm
