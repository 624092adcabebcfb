// Package events is Nomad's event stream over the feed of the store.
//
// It selects the events of a follower, builds their payloads, and defines the order of a stream:
// first the stored changes, then new changes, and a heartbeat if there are none. Package httpapi
// encodes and sends the events. A follower costs no goroutine besides its caller's, and no memory
// besides the feed, which all followers share.
package events
