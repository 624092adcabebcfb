// Package acl reads the policies of Nomad's access control, merges them, and decides what their owner may do.
//
// [Parse] reads one policy's text, [Merge] builds the [Rights] of a token from its policies, and the methods of Rights decide.
// The package has no tokens, no store and no HTTP. The words of its errors are Nomad's.
package acl
