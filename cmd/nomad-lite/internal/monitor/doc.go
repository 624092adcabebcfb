// Package monitor follows an evaluation and its deployment until both have ended, or a job until the job has ended.
//
// Commands that change a job call it after the change; its error holds the exit code of the
// command.
package monitor
