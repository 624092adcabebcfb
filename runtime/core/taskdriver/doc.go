// Package taskdriver is the way of a task runner to its driver. A [Process] is one start of the task: its calls and its
// watch continue through the death of plugin processes, because the next plugin process recovers the task. [Access] asks
// whether an interrupted start was executed, and destroys starts by their ids.
//
// The package knows neither the records of a task nor requests like a kill: package taskrunner decides what happens to a
// task, and when.
package taskdriver
