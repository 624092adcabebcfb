// Package hoststats reads the resource usage of the machine: processors, memory and disks. It
// reads only on request. It also parses the mount table for other packages.
package hoststats
