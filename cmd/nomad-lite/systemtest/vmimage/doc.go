// Package vmimage creates the initramfs of virtual machines that tests boot: a cpio archive with programs of this
// machine, their libraries, and modules of its kernel. It starts no virtual machine.
package vmimage
