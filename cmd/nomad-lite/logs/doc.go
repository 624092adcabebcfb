// Package logs has the command "nomad-lite logs", which shows the output of the tasks of a job, or of all
// jobs.
//
// It reads stored output from the log files of allocations, in the order of the arrival times that the log
// collector stores beside them, and then follows each stream from the position where its stored part ended. With -grep,
// the agent reads, merges and searches the output.
package logs
