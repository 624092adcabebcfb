// Package workloaddata returns the variables and services that workloads use: [Source] is the interface, and
// [StoreSource] reads them from the state of an agent without servers.
package workloaddata
