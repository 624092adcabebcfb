// Package hoststats tells how busy the machine is: its processors, its memory and
// its disks. It looks when somebody asks, and not before. The mount table is read
// here for others, too.
package hoststats
