// Package confine permanently removes from a thread or a process of nomad-lite the
// system calls and capabilities that it never needs. It complements Landlock, which
// restricts file access only.
package confine
