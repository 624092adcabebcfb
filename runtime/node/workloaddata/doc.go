// Package workloaddata returns the variables and services used by workloads: [Source] is the interface, and [StoreSource] reads
// them from the state of an agent without servers.
package workloaddata
