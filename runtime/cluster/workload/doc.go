// Package workload gives a node's tasks what they get from a cluster's servers: their workload identity tokens, and the variables
// and services their templates, hooks and secret blocks read.
//
// [Identities] issues tokens: the servers have signed each task's default identity when they placed the allocation, and sign
// named identities on request. [Data] reads variables and services with the task's default identity, never with the node's token,
// and watches for changes with one blocking call however many readers there are.
//
// Package builtinhooks delivers and renews tokens, and package hostservice serves data to hooks; both declare the interfaces this
// package implements. The package registers no services: package registrations does.
package workload
