// Package logs lets the log collector move the output of tasks from FIFOs into rotated files, and streams it to
// followers.
//
// The collector process (package collector) reads the FIFOs of all tasks by splice, rotates the files, and
// reports new output at once. The CollectorClient in the agent makes the FIFOs, stores a read end of each in
// the keeper, hands another to the collector process, and replaces that process when it dies. Either half may
// be killed at any moment: a task's output is in the FIFO or in a file, never in the memory of a process.
//
// Beside each log file, the collector process stores the times at which output arrived, so that the output of
// several tasks can be merged.
//
// The package does not decide whether a task's output is collected, and has no notion of jobs: the
// logs hook of the task runner calls it. It never holds a write end of a FIFO while a task runs,
// so the exit of the last writer ends the stream.
package logs
