// Package logsearch reads the stored output of many tasks as one sequence of lines, ordered by arrival time, from any position
// on, forward or backward, and selects lines by a text or a regular expression.
//
// It reads the log collector's log files and arrival time files, with bounded memory whatever tasks have written. It has no
// notion of jobs: package httpapi selects the streams. Package runtime/node/files/logs follows one stream's output as it is
// written.
package logsearch
