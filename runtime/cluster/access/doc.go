// Package access checks user rights that only a cluster node checks.
//
// Servers check a user's token before they call a node, but not the capability alloc-node-exec, which permits commands in tasks
// with a driver that does not isolate the file system. The package asks the servers for the token's policies, and keeps their
// answers for a short time. For requests to the node's HTTP API, which no server has seen, it checks all rights.
package access
