// Package logs lets the log collector move task output from FIFOs into rotated files, and streams it to
// followers.
//
// The collector process (package collector) reads all tasks' FIFOs by splice, rotates the files, and reports
// new output at once. The CollectorClient in the agent makes the FIFOs, stores each FIFO's read end in the
// keeper, hands another to the collector process, and replaces that process when it dies. Either half may be
// killed at any moment: a task's output is in the FIFO or in a file, never in a process's memory.
//
// Beside each log file, the collector process stores when output arrived, so that several tasks' output can be
// merged.
//
// The package does not decide whether a task's output is collected, and has no notion of jobs: the task
// runner's logs hook calls it. It never holds a FIFO's write end while a task runs, so the last writer's exit
// ends the stream.
package logs
