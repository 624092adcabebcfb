// Package timeline records what happens in an allocation and how long it takes: hook and driver calls, task waits,
// process runs, and task events. Each of these is a tracespan.Span.
//
// The runners record spans with a [Recorder]. A [File] keeps them in the allocation's directory, so they survive
// agent restarts and are removed with the allocation. Other packages read the runs only if the state has lost task
// records; see [File.LastRunByTask].
package timeline
