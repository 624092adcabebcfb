// Package jobcheck checks a job file against the plugins of this machine, which package localplugins starts, and
// against this machine: its capacity, the sources of templates, the users and the commands of tasks.
//
// Packages run and validate use it.
package jobcheck
