// Package descriptors decides what the limit of open files of the agent carries: how many descriptors there are for
// tasks, and how many operations that open files run at one time. It also repeats operations that found no free
// descriptor.
//
// The scheduler places only tasks for which there are descriptors (package fingerprint reports them as an attribute of the
// node), so that a lack is rare: other programs can have used up the descriptors of the machine. The package
// neither counts open files nor closes any.
package descriptors
