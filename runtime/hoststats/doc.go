// Package hoststats tells how busy the machine is: its processors, its memory and
// its disks. It looks when somebody asks, and not before.
package hoststats
