// Package logfile has the names of the log files of tasks, <task>.<stream>.<index>, and the format of the files with the times at
// which their output arrived.
//
// The log collector writes the files, the agent and its clients list them. The package opens no file.
package logfile
