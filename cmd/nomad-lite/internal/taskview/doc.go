// Package taskview shows the output and the states of tasks to a person, with the task's label
// in front of each line and, on a terminal, live lines below. For programs it writes JSON instead.
//
// Packages run and logs feed it. It reads neither the API nor log files.
package taskview
