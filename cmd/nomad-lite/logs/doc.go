// Package logs has the command "nomad-lite logs", which shows the output of all tasks of a job.
package logs
