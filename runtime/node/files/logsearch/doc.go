// Package logsearch reads the stored output of many tasks as one sequence of lines, in the order of the times at which they
// arrived, from any position on, forward or backward, and selects lines by a text or a regular expression.
//
// It reads the log files and the files of arrival times that the log collector writes, with bounded memory whatever tasks have
// written. It has no notion of jobs: package httpapi selects the streams. Package runtime/node/files/logs follows the
// output of one stream as it is written.
package logsearch
