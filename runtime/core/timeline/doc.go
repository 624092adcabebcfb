// Package timeline records what happens in an allocation and how long it takes: the calls of hooks and
// drivers, the time that tasks wait, the runs of their processes, and their events. Each of these is a
// tracespan.Span.
//
// The runners record spans with a [Recorder]. A [File] keeps them in the directory of the allocation, so
// they survive restarts of the agent and are removed with the allocation. Other packages read the runs only if the
// state has lost the records of tasks; see [File.LastRunByTask].
package timeline
