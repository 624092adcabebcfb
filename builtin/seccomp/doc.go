// Package seccomp takes system calls from a thread or a process of the hooks in
// the box, for good. It adds to what landlock does, which sees files only.
package seccomp
