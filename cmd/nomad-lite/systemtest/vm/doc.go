// Package vm tests nodes in virtual machines: with nothing but cgroups of version 2, with a clock that is set, and with power that is lost.
package vm
