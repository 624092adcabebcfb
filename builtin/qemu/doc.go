// Package qemu is the driver qemu: a task is a virtual machine of a QEMU emulator of the machine.
//
// It checks the options of a job against the policy of the operator, makes the command line of the
// emulator, and stops a virtual machine through the emulator's monitor. Package sdk/process runs the
// emulator. The host serves the driver as a plugin process of its own, by the hidden command
// `nomad-lite plugin serve qemu`.
package qemu
