// Package access checks rights of users that only a node of a cluster checks.
//
// Servers check the token of a user before they call a node, but not the capability alloc-node-exec, which permits commands in
// tasks whose driver does not isolate the file system. The package asks the servers for the policies of the token, and keeps
// their answers for a short time. For requests to the HTTP API of the node, which no server has seen, it checks all rights.
package access
