// Package descriptors divides the limit of open files of the agent: into descriptors for tasks, and descriptors for the
// operations that run at one time and open files. It also repeats operations that found no free
// descriptor.
//
// The scheduler places only tasks for which there are descriptors (package fingerprint reports them as an attribute of the
// node), so that a lack is rare: other programs can have used up the descriptors of the machine. The package
// neither counts open files nor closes any.
package descriptors
