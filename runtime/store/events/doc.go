// Package events is Nomad's event stream over the store's feed.
//
// It selects a follower's events, builds their payloads, and defines the stream order: first the stored changes, then new
// changes, and a heartbeat if there are none. Package httpapi encodes and sends the events. A follower costs no goroutine
// besides its caller's, and no memory besides the feed, which all followers share.
package events
