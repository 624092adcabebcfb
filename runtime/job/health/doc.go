// Package health decides when an allocation has become healthy or can no longer become healthy. Deployments wait for this
// decision.
//
// [Evaluate] is a pure function on a snapshot: it starts no goroutine, reads no clock, and keeps no state between calls. The hook
// alloc_health_watcher calls it after each change, and at the time the verdict requests.
package health
