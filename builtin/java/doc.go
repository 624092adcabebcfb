// Package java is the driver java: it runs a program of the Java virtual machine as a task, isolated
// from the machine and from other tasks.
//
// It finds the virtual machine of the machine, and makes the command of a task; package isolated does the
// rest. The host serves it as a plugin process of its own, by the hidden command
// `nomad-lite plugin serve java`.
package java
