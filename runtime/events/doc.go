// Package events is Nomad's event stream over the feed of the store.
//
// It says who gets which event and what is in it, and how a stream goes on in
// time: first the changes that are kept, then those that come, and a sign of life
// when there are none. It encodes and sends nothing: httpapi does. A follower
// costs no goroutine besides the one that it comes with, and no memory beyond the
// feed, which all of them share.
package events
