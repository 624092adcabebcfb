// Package history keeps the resource usage of the node and of its tasks for the last hours.
//
// A [File] is a ring of samples in a file of fixed size. It keeps no usage in memory, and reads the file for each
// query. A [Recorder] samples the tasks of the node, and appends the samples to a File. Package agent runs the
// Recorder; package httpapi reads it.
package history
