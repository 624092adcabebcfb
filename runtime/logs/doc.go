// Package logs moves the output of tasks from FIFOs into rotated files, and
// shows it to followers.
//
// It has two halves. The collector process (Serve) reads the FIFOs of all tasks
// by splice, rotates the files, and says at once when there is something new. The
// Collector in the agent makes the FIFOs, lets the keeper hold a read end of
// each, hands another to the collector process, and replaces that process when
// it dies. Either half may be killed at any moment: what a task has written is
// in the FIFO or in a file, never in the memory of a process.
//
// The package does not decide whether a task's output is collected at all, and
// does not know jobs: the logs hook of the task runner calls it. It never holds
// a write end of a FIFO while a task runs, so the end of a task is the end of
// its output.
package logs
