// Package health says when an allocation has become healthy, or will not any
// more, which is what a deployment waits for.
//
// [Judge] is a pure function of what is known at one moment: it starts no
// goroutine, reads no clock, and keeps nothing from one call to the next. The
// hook alloc_health_watcher calls it after each change, and when it says so.
package health
