// Package jobcheck checks a job file against the plugins of this machine, which package localplugins starts, and
// against what only this machine has: its capacity, the sources of templates, users and commands.
//
// Packages run and validate use it.
package jobcheck
