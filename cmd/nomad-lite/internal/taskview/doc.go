// Package taskview shows the output and the states of tasks to a person: the label of the task precedes each line and,
// on a terminal, live lines with the states are drawn below. For programs it writes JSON instead.
//
// Packages run and logs pass output and states to it. It reads neither the API nor log files.
package taskview
