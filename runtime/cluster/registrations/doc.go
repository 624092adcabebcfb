// Package registrations keeps the servers of a cluster informed about the services of this node.
//
// [Registrations] is the registry in which allocations register their services: it stores them, so that no allocation waits
// for a server. Its Run sends what is stored to the servers, and repeats each call until they have accepted it. The
// removal of a registration is stored too, until the servers have removed it.
//
// Package services of runtime/node decides which services are registered.
package registrations
