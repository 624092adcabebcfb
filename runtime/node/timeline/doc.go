// Package timeline records what happens in an allocation and how long it takes: the calls of hooks and
// drivers, the time that tasks wait, the runs of their processes, and their events. Each of these is a
// tracespan.Span.
//
// The runners record spans with a [Recorder]. A [File] keeps them in the directory of the allocation, so
// they survive restarts of the agent and are removed with the allocation. The package decides nothing: no
// other package depends on what was recorded.
package timeline
