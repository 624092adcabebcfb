// Package taskdriver is a task runner's way to its driver. A [Process] is one start of the task: its calls and its watch
// continue when plugin processes die, because the next plugin process recovers the task. [Access] asks whether an
// interrupted start was executed, and destroys starts by id.
//
// The package knows neither task records nor requests like a kill: package taskrunner decides what happens to a task,
// and when.
package taskdriver
