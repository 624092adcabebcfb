// Package builtins is the table of the builtin drivers and hooks.
//
// It serves a builtin as a plugin process for the hidden command "plugin serve NAME".
// Packages agentconfig and localplugins offer the builtins of the table to jobs.
package builtins
