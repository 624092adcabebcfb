// Package vm tests agents in virtual machines: with only cgroups v2, with a clock that is set, and with sudden loss of
// power.
package vm
