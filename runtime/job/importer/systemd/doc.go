// Package systemd converts units of systemd into a job whose tasks run the programs of the units on the machine.
//
// It reads unit files and their drop-in directories, and the environment files that they name. It
// starts nothing, and sends no request to systemd.
package systemd
