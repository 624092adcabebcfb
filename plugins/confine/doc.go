// Package confine takes from a thread or a process of ours, for good, what it never needs:
// system calls and capabilities. It adds to what Landlock does, which restricts the use of
// files only.
package confine
