// Package workload gives the tasks of a node what they get from the servers of a cluster: the tokens of their workload
// identities, and the variables and services that their templates, hooks and secret blocks read.
//
// [Identities] issues tokens: the servers have signed the default identity of each task when they placed the allocation,
// and sign named identities on request. [Data] reads variables and services with the default identity of the task, never
// with the token of the node, and watches for changes with one blocking call however many readers there are.
//
// Package builtinhooks delivers and renews tokens, and package hostservice serves data to hooks; both declare the
// interfaces that this package implements. The package registers no services: package registrations does.
package workload
