// Package clusternode makes an agent a node of a Nomad cluster: it connects the packages below runtime/cluster with each other, and
// with the node's allocations and API.
package clusternode
