// Package monitor follows an evaluation, and its deployment, until they end, or a job until it has
// ended.
//
// Commands that change a job call it after the change; its error holds the exit code of the
// command.
package monitor
