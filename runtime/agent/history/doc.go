// Package history keeps the resource usage of the node and its tasks for the last hours.
//
// A [File] is a sample ring in a file with a fixed size. It keeps no usage in memory, and reads the file for each query. A
// [Recorder] samples the node's tasks, and appends the samples to a File. Package agent runs the Recorder; package httpapi reads
// it.
package history
